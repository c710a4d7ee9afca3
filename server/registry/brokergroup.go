package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

const (
	// A call of a client lasts 5 s: a promotion asks brokers twice, and then waits until it is in force; a transfer waits, and is answered as not done yet.
	meetWithin       = 1500 * time.Millisecond // a broker has to answer
	operationForce   = time.Second             // until what was changed is in force at the brokers, if they live
	transferAnswered = 3 * time.Second
	countWithin      = 500 * time.Millisecond // messages that may be lost are counted
	// leftMax bounds the lines that say what is left in a broker group.
	leftMax = 200
)

// Conditions of a broker group.
const (
	conditionOK       = "ok"
	conditionDegraded = "degraded"  // it goes on with fewer copies than it has brokers
	conditionFull     = "full"      // its master takes no messages, for its disk is full
	conditionNoMaster = "no-master" // nothing can be sent to it
	conditionWaiting  = "waiting"   // its master lives, and may or can not serve yet
	conditionSilent   = "silent"    // its master was not heard for a while, and may be away
	conditionRefused  = "refused"   // a broker would have to give up what it knows to be committed: an operator must look
)

// BrokerGroup implements wire.Registry.
func (n *Node) BrokerGroup(ctx context.Context, r *wire.BrokerGroupRequest) (*wire.BrokerGroupResponse, error) {
	response, err := n.brokerGroup(ctx, r)
	if err != nil {
		n.counts.refused.Add(1)
		return nil, err
	}
	return response, nil
}

func (n *Node) brokerGroup(ctx context.Context, r *wire.BrokerGroupRequest) (*wire.BrokerGroupResponse, error) {
	s := n.store.View()
	who, _ := subjectOf(ctx)
	right := meta.OperateBrokerGroup
	if r.Action == actionStatus {
		right = meta.ReadStore
	}
	if err := s.MayOperate(who, right, "", ""); err != nil {
		return nil, err
	}
	if r.BrokerGroup != "" && s.BrokerGroup(r.BrokerGroup) == nil {
		return nil, wire.Errorf(wire.CodeNotFound, "broker group %.100q is not there", r.BrokerGroup)
	}
	response := &wire.BrokerGroupResponse{}
	if r.Action != actionStatus {
		leave, err := n.enter(ctx)
		if err != nil {
			return nil, err
		}
		defer leave()
		by := meta.ActorOf(who)
		switch r.Action {
		case "promote":
			err = n.promote(ctx, by, r, response)
		case "transfer":
			err = n.transfer(ctx, by, r, response)
		case "drain":
			err = n.drain(ctx, by, r, response)
		case "activate":
			err = n.setState(ctx, by, r, meta.BrokerGroupActive, response)
		default:
			err = wire.Errorf(wire.CodeInvalid, "%.40q is nothing to do with a broker group", r.Action)
		}
		if err != nil {
			return nil, err
		}
		if response.Done {
			n.counts.changes.Add(1)
		}
	} else {
		response.Done = true
	}
	var err error
	response.Groups, err = n.statuses(r.BrokerGroup)
	return response, err
}

const actionStatus = "status"

// statuses are those of a broker group, "": of all, by name.
func (n *Node) statuses(brokerGroup string) ([]*wire.BrokerGroupStatus, error) {
	s := n.store.View()
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.replicasOf(s)
	var list []*wire.BrokerGroupStatus
	for _, o := range s.List(meta.KindBrokerGroup) {
		if brokerGroup != "" && o.Name != brokerGroup {
			continue
		}
		spec := o.Spec.(*meta.BrokerGroup)
		row, _ := n.rowLocked(s, o.Name)
		g := all[o.Name]
		if g == nil {
			g = &replicas{}
		}
		status := &wire.BrokerGroupStatus{
			BrokerGroup: o.Name, Mode: cmp.Or(spec.Mode, meta.BrokerGroupFixed), State: cmp.Or(spec.State, meta.BrokerGroupActive),
		}
		if row.Term != 0 {
			var err error
			if status.Row, err = encodeRow(row); err != nil {
				return nil, err
			}
		}
		for _, name := range g.names {
			status.Brokers = append(status.Brokers, n.wireNode(s, name, n.mu.nodes[name]))
		}
		slices.SortStableFunc(status.Brokers, func(a, b *wire.Node) int {
			return rank(a.Last.Node != row.Master.Broker) - rank(b.Last.Node != row.Master.Broker)
		})
		kind, why := condition(s, o.Name, row, g)
		status.Condition = kind
		if why != "" {
			status.Condition += ": " + why
		}
		if m := n.mu.groups[o.Name]; kind != conditionOK && m != nil && m.state == kind {
			status.Condition += ", since " + m.since.UTC().Format(time.RFC3339)
		}
		list = append(list, status)
	}
	return list, nil
}

// silentAfter is how long a master may be silent that is well: it beats each half second, which is stored and read each half second.
const silentAfter = 1500 * time.Millisecond

// condition says in words how a broker group is.
func condition(s *meta.Snapshot, name string, row term.Row, g *replicas) (kind, why string) {
	kind, why = conditionAlone(s, name, row, g)
	words := []string{why}
	if why == "" {
		words = nil
	}
	for _, b := range g.names {
		if other := g.twins[b]; len(other) > 0 {
			words = append(words, fmt.Sprintf("two processes run as broker %s, at %s and at %s: stop one, or give it a name of its own (node.name)",
				b, strings.Join(g.specs[b].Addresses, ","), strings.Join(other, ",")))
		}
	}
	return kind, strings.Join(words, "; ")
}

// conditionAlone is condition as far as each process has a name of its own.
func conditionAlone(s *meta.Snapshot, name string, row term.Row, g *replicas) (kind, why string) {
	master := row.Master.Broker
	said := func(b string) string {
		if w := g.status[b].GetWhy(); w != "" {
			return ": " + w
		}
		return ""
	}
	switch {
	case row.Term == 0 && g.stranger():
		return conditionWaiting, "its brokers had a master that this metadata does not know: when all have registered, jmq broker-group promote " + name + " names the one that has most"
	case row.Term == 0:
		return conditionWaiting, "no broker was named master yet"
	case row.Unanswerable(uint64(s.Generation)):
		var missing []string
		for _, b := range g.names {
			if !g.living[b] {
				missing = append(missing, b)
			}
		}
		if len(missing) == 0 {
			return conditionWaiting, "the metadata is of a new generation, in which its brokers report"
		}
		return conditionWaiting, "the metadata is of a new generation, and of its brokers have not reported: " + strings.Join(missing, ", ")
	case g.specs[master] == nil:
		return conditionNoMaster, "broker " + master + ", its master, is not registered"
	case g.failed[master]:
		return conditionNoMaster, "the journal of broker " + master + ", its master, failed" + g.serving()
	case !g.living[master]:
		return conditionNoMaster, "broker " + master + ", its master, is away" + g.serving()
	case g.silent[master] >= silentAfter:
		return conditionSilent, fmt.Sprintf("broker %s, its master, was not heard for %v; it counts as away after %v", master, g.silent[master].Truncate(time.Second), promoteAfter)
	}
	for _, b := range g.names {
		if g.living[b] && g.reports[b].Refused {
			return conditionRefused, "broker " + b + " would have to give up what it knows to be committed" + said(b)
		}
	}
	if g.status[master].GetRole() == roleWaiting && !g.has(row.Committed) {
		return conditionWaiting, fmt.Sprintf("broker %s, its master, lacks messages that were acknowledged%s. Where no broker has them any more: jmq broker-group promote %s --to %s says what is lost, and with --force goes on without%s",
			master, said(master), name, master, g.serving())
	}
	if !g.reports[master].Master {
		return conditionWaiting, "broker " + master + ", its master, does not serve yet" + said(master) + g.serving()
	}
	slaves := map[string]*wire.SlaveStatus{}
	for _, x := range g.status[master].GetSlaves() {
		slaves[x.Broker] = x
	}
	if full := g.status[master].GetNoRoom(); full != "" {
		return conditionFull, "broker " + master + ", its master, takes no messages: " + full
	}
	var out, full []string
	for _, b := range g.names {
		noRoom := ""
		if g.living[b] {
			noRoom = g.status[b].GetNoRoom()
		}
		switch x := slaves[b]; {
		case b == master:
		case x.GetInSync():
			if noRoom != "" {
				full = append(full, "broker "+b+": "+noRoom)
			}
		case !g.living[b]:
			out = append(out, "broker "+b+" is away")
		case noRoom != "": // it backs off, and its master takes it as away meanwhile
			out = append(out, "broker "+b+": "+noRoom)
		case x.GetJoinMs() > 0:
			out = append(out, fmt.Sprintf("broker %s joins in %v", b, joinIn(x)))
		case x == nil:
			out = append(out, "broker "+b+" does not follow"+said(b))
		default:
			out = append(out, fmt.Sprintf("broker %s is %s, %d bytes behind", b, cmp.Or(x.State, "not in sync"), x.LagBytes))
		}
	}
	switch {
	case len(out) > 0:
		return conditionDegraded, fmt.Sprintf("%d of %d slaves in sync; %s", len(g.names)-1-len(out), len(g.names)-1, strings.Join(append(out, full...), ", "))
	case len(full) > 0:
		return conditionOK, strings.Join(full, ", ")
	case len(g.names) == 1:
		return conditionOK, "it has one broker, and no second copy"
	}
	return conditionOK, ""
}

// serving names the slaves that serve reads.
func (g *replicas) serving() string {
	for _, b := range g.names {
		if g.living[b] && g.status[b].GetServing() {
			return "; broker " + b + " serves what is there"
		}
	}
	return ""
}

// met is what brokers answered, by name.
type met struct {
	reports map[string]term.Report
	status  map[string]*wire.ReplicaStatus
	errs    map[string]error
}

// meet asks brokers how they are, and, with a term, to do nothing in a lower one from then on.
func (n *Node) meet(ctx context.Context, brokerGroup string, brokers []string, specs map[string]*meta.Broker, t uint32) met {
	ctx, cancel := context.WithTimeout(ctx, meetWithin)
	defer cancel()
	m := met{map[string]term.Report{}, map[string]*wire.ReplicaStatus{}, map[string]error{}}
	self := n.o.Self().Node
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, b := range brokers {
		all.Go(func() {
			var r *wire.MeetResponse
			err := error(wire.Errorf(wire.CodeInternal, "this registry node has no way to ask brokers"))
			if n.o.Meet != nil {
				r, err = n.o.Meet(ctx, specs[b].Addresses, &wire.MeetRequest{BrokerGroup: brokerGroup, Broker: self, Term: t})
			}
			rep, ok := reportOf(b, r.GetStatus())
			switch {
			case err != nil:
			case !ok:
				err = errors.New("it says nothing of its copy yet")
			case rep.Seen < t:
				err = fmt.Errorf("it does not promise to keep to term %d", t)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				m.errs[b] = err
				return
			}
			m.reports[b], m.status[b] = rep, r.Status
		})
	}
	all.Wait()
	return m
}

func (m met) list() []term.Report {
	var reports []term.Report
	for _, b := range slices.Sorted(maps.Keys(m.reports)) {
		reports = append(reports, m.reports[b])
	}
	return reports
}

// silent says who did not answer; nil: all did.
func (m met) silent(then string) error {
	if len(m.errs) == 0 {
		return nil
	}
	var texts []string
	names := slices.Sorted(maps.Keys(m.errs))
	for _, b := range names {
		texts = append(texts, fmt.Sprintf("broker %s (%s)", b, messageOf(m.errs[b])))
	}
	return wire.Errorf(wire.CodeInUse, "these do not answer, and could still act as master: %s. %s say that they are off: --off %s", strings.Join(texts, ", "), then, strings.Join(names, ","))
}

// promote names another master by an operator's word: every other broker promises to keep to the new term first, or the operator says that it is off.
func (n *Node) promote(ctx context.Context, by meta.Actor, r *wire.BrokerGroupRequest, response *wire.BrokerGroupResponse) error {
	s := n.store.View()
	n.mu.Lock()
	g := n.replicasOf(s)[r.BrokerGroup]
	n.mu.Unlock()
	if g == nil {
		return wire.Errorf(wire.CodeNotFound, "broker group %s has no brokers", r.BrokerGroup)
	}
	for _, b := range append(slices.Clone(r.Off), r.Broker) {
		if b != "" && g.specs[b] == nil {
			return wire.Errorf(wire.CodeNotFound, "broker %.100q is not of broker group %s: its brokers are %s", b, r.BrokerGroup, strings.Join(g.names, ", "))
		}
	}
	if r.Broker != "" && slices.Contains(r.Off, r.Broker) {
		return wire.Errorf(wire.CodeInvalid, "broker %s cannot be master and off", r.Broker)
	}
	others := slices.DeleteFunc(slices.Clone(g.names), func(b string) bool { return slices.Contains(r.Off, b) })
	heard := n.meet(ctx, r.BrokerGroup, others, g.specs, 0)
	row, expect := n.row(s, r.BrokerGroup)
	if row.Term == 0 || row.Unanswerable(uint64(s.Generation)) {
		// After a new generation of the metadata the operator says who is gone: whoever is master then is one by what the others report.
		if err := heard.silent("Start them, or"); err != nil {
			return err
		}
		next, err := row.Refill(g.names, heard.reports, r.Off, uint64(s.Generation))
		if err != nil {
			return wire.Errorf(wire.CodeInUse, "broker group %s: %s", r.BrokerGroup, err)
		}
		response.Lost = lost(term.Losses(heard.reports[next.Master.Broker], heard.list(), r.Off, next.Committed), heard.reports[next.Master.Broker], g, nil)
		return n.grant(ctx, by, r, response, row, next, expect)
	}
	if row.Transfer != "" && heard.reports[row.Master.Broker].Master {
		return wire.Errorf(wire.CodeConflict, "broker %s, the master of broker group %s, is just handing over to broker %s, which loses nothing and takes %v at most: see jmq broker-group status, and promote when that did not come about, or with --off %[1]s when the master is off",
			row.Master.Broker, r.BrokerGroup, row.Transfer, transferMax)
	}
	target := r.Broker
	if target == "" {
		var best term.Report
		var refused []string
		for _, rep := range heard.list() {
			if rep.Broker == row.Master.Broker && rep.Master {
				continue
			}
			if rep.Refused && !rep.New {
				refused = append(refused, rep.Broker)
			}
			if !rep.Refused && !rep.New && (best.Broker == "" || rep.MoreComplete(best)) {
				best = rep
			}
		}
		target = best.Broker
		switch {
		case target == "" && len(refused) > 0:
			return wire.Errorf(wire.CodeInUse, "broker group %s has no other broker that has its messages: %s would not follow its master %s: messages are acknowledged, as it knows, that %[3]s does not have."+
				" jmq broker-group promote %[1]s --to %[4]s --dry-run says what would be lost", r.BrokerGroup, strings.Join(refused, ", "), row.Master.Broker, refused[0])
		case target == "":
			return wire.Errorf(wire.CodeInUse, "broker group %s has no other broker that answers and has its messages: its master is %s", r.BrokerGroup, row.Master.Broker)
		}
	}
	if target == row.Master.Broker && heard.reports[target].Master {
		return wire.Errorf(wire.CodeInvalid, "broker %s is the master of broker group %s already", target, r.BrokerGroup)
	}
	to, ok := heard.reports[target]
	if !ok {
		return wire.Errorf(wire.CodeInUse, "broker %s does not answer, and cannot become master: %s", target, messageOf(heard.errs[target]))
	}
	if err := heard.silent("Stop them, or"); err != nil {
		return err
	}
	losses := term.Losses(to, heard.list(), r.Off, row.Committed)
	response.Lost = lost(losses, to, g, n.countLosses(ctx, losses, to, g))
	if r.DryRun || len(losses) > 0 && !r.Force {
		return nil
	}
	// The target promises too: one that was off could start meanwhile, hear from all others that nobody met a higher term, and open.
	fenced := n.meet(ctx, r.BrokerGroup, others, g.specs, row.Highest(heard.list())+1)
	if err := fenced.silent("Nothing was promoted. Stop them, or"); err != nil {
		n.unfence(ctx, by, r.BrokerGroup, fenced)
		return err
	}
	reports := fenced.list()
	to = fenced.reports[target]
	if now := term.Losses(to, reports, r.Off, row.Committed); len(now) > 0 && !r.Force {
		response.Lost = lost(now, to, g, n.countLosses(ctx, now, to, g)) // it went on being written to while it was asked
		n.unfence(ctx, by, r.BrokerGroup, fenced)
		return nil
	}
	err := n.force(ctx, by, r, response, to.Member, reports, s, row, expect)
	if err != nil {
		n.unfence(ctx, by, r.BrokerGroup, fenced)
	}
	return err
}

// force writes the row of a promotion that all have promised.
func (n *Node) force(ctx context.Context, by meta.Actor, r *wire.BrokerGroupRequest, response *wire.BrokerGroupResponse, to term.Member, reports []term.Report, s *meta.Snapshot, row term.Row, expect meta.Expect) error {
	for try := 1; ; try++ {
		next, err := row.Force(to, reports, uint64(s.Generation))
		if err != nil {
			return wire.Errorf(wire.CodeInUse, "broker group %s: %s", r.BrokerGroup, err)
		}
		err = n.grant(ctx, by, r, response, row, next, expect)
		if wire.CodeOf(err) != wire.CodeConflict || try == conflictTries || n.newer(ctx, s) == nil {
			return err
		}
		// Its master asked for another set meanwhile, or somebody for a transfer, which count no more; or another master was named.
		s = n.store.View()
		was := row
		if row, expect = n.row(s, r.BrokerGroup); row.Term != was.Term {
			return wire.Errorf(wire.CodeConflict, "nothing was promoted: broker %s was named master of term %d meanwhile, by a transfer or another promotion", row.Master.Broker, row.Term)
		}
	}
}

// unfence names the master that is named anew, in a term above the one that brokers have promised to keep to for a promotion that did not come about: else all
// would wait until it is seen that they do (confirmAfter). What is not written here is written then.
func (n *Node) unfence(ctx context.Context, by meta.Actor, brokerGroup string, fenced met) {
	reports := fenced.list()
	if len(reports) == 0 {
		return
	}
	for try := 1; ; try++ {
		s := n.store.View()
		row, expect := rowOf(s, brokerGroup)
		next, changed := row.Confirm(reports[0], reports, uint64(s.Generation))
		if !changed {
			return
		}
		const why = "a promotion was begun and did not come about"
		after, err := n.updateRow(ctx, by, why, brokerGroup, next, expect)
		if err == nil {
			n.logRow(brokerGroup, row, next, why)
			n.inForceSoon(ctx, after, brokerGroup)
			return
		}
		if wire.CodeOf(err) != wire.CodeConflict || try == conflictTries || n.newer(ctx, s) == nil {
			n.o.Logger.Warn("a promotion did not come about, and the master could not be named anew yet", "brokerGroup", brokerGroup, "err", err)
			return
		}
	}
}

// grant writes the row that an operator's word comes to.
func (n *Node) grant(ctx context.Context, by meta.Actor, r *wire.BrokerGroupRequest, response *wire.BrokerGroupResponse, before, after term.Row, expect meta.Expect) error {
	if r.DryRun {
		return nil
	}
	s, err := n.updateRow(ctx, by, cmp.Or(r.Reason, "an operator named broker "+after.Master.Broker+" master"), r.BrokerGroup, after, expect)
	if err != nil {
		return err
	}
	n.logRow(r.BrokerGroup, before, after, "an operator named it")
	response.Done = true
	n.inForceSoon(ctx, s, r.BrokerGroup)
	return nil
}

// inForceSoon waits a moment until a broker group has s: one that was away for less than 8 s may never.
func (n *Node) inForceSoon(ctx context.Context, s *meta.Snapshot, brokerGroup string) {
	ctx, cancel := context.WithTimeout(ctx, operationForce)
	defer cancel()
	n.awaitForce(ctx, s, []string{brokerGroup})
}

// countLosses counts, for a moment, the messages that brokers have and to has not, by broker.
func (n *Node) countLosses(ctx context.Context, losses []term.Loss, to term.Report, g *replicas) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, countWithin)
	defer cancel()
	all := map[string]string{}
	for _, l := range losses {
		if n.o.Count == nil || l.Broker == "" || l.Unasked || l.Diverged || l.Beyond == 0 {
			continue
		}
		c, err := n.o.Count(ctx, g.specs[l.Broker].Addresses, to.End, to.End+l.Beyond)
		at := func(ns int64) string { return time.Unix(0, ns).UTC().Format("2006-01-02T15:04:05.000Z") }
		switch {
		case err != nil && c.Messages == 0:
			all[l.Broker] = "; how many messages that is could not be counted"
		case err != nil:
			all[l.Broker] = fmt.Sprintf("; that is more than %d messages, stored from %s to %s and later", c.Messages, at(c.First), at(c.Last))
		case c.Messages == 0:
			all[l.Broker] = "; that is no message"
		default:
			all[l.Broker] = fmt.Sprintf("; that is %d messages, stored from %s to %s", c.Messages, at(c.First), at(c.Last))
		}
	}
	return all
}

// lost says losses in words, with what was counted of them.
func lost(losses []term.Loss, to term.Report, g *replicas, counted map[string]string) (lines []string) {
	for _, l := range losses {
		rep := g.reports[l.Broker]
		line := "broker " + l.Broker
		switch {
		case l.Committed > 0:
			line = fmt.Sprintf("messages were acknowledged up to position %d, as their master said, and broker %s ends at %d: no broker that answers has the rest", l.Committed, to.Broker, to.End)
			l.Acked = false // said
		case l.Unasked && rep.End > 0:
			line += fmt.Sprintf(" is off: what it has that broker %s has not is not known; %s ago it said that its journal ends at position %d, committed up to %d: broker %s ends at %d, ",
				to.Broker, g.silent[l.Broker].Truncate(time.Second), rep.End, rep.Committed, to.Broker, to.End)
			if rep.End > to.End {
				line += fmt.Sprintf("%d bytes before that", rep.End-to.End)
			} else {
				line += "which is not before that; what it took since is not known"
			}
		case l.Unasked:
			line += " is off: what it has that broker " + to.Broker + " has not is not known"
		case l.Diverged:
			line += fmt.Sprintf(" was written to in a later epoch than broker %s: what it has from then on may be lost", to.Broker)
			if l.Beyond > 0 {
				line += fmt.Sprintf(", at least %d bytes", l.Beyond)
			}
		default:
			line += fmt.Sprintf(" has %d bytes more than broker %s, positions %d to %d", l.Beyond, to.Broker, to.End, to.End+l.Beyond)
		}
		line += counted[l.Broker]
		if l.Acked {
			line += "; it knows some of that to be committed, so it was acknowledged"
		}
		for b, status := range g.status {
			for _, x := range status.GetSlaves() {
				if b == l.Broker && x.Broker == to.Broker {
					how := "not in sync"
					if x.InSync {
						how = "in sync"
					}
					line += fmt.Sprintf("; %s ago it said that broker %s is %s, %d bytes and %v behind", g.silent[b].Truncate(time.Second), to.Broker, how, x.LagBytes, time.Duration(x.LagMs)*time.Millisecond)
				}
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// transfer has the master hand over to a slave in sync, and waits a while. Not done: it is under way, until the row asks for it no more (transferMax).
func (n *Node) transfer(ctx context.Context, by meta.Actor, r *wire.BrokerGroupRequest, response *wire.BrokerGroupResponse) error {
	s := n.store.View()
	row, expect := n.row(s, r.BrokerGroup)
	if row.Term == 0 || row.Unanswerable(uint64(s.Generation)) {
		return wire.Errorf(wire.CodeInUse, "broker group %s has no master that could hand over: see jmq broker-group status", r.BrokerGroup)
	}
	n.mu.Lock()
	g := n.replicasOf(s)[r.BrokerGroup]
	n.mu.Unlock()
	master := row.Master.Broker
	if g == nil || !g.living[master] || !g.reports[master].Master || g.failed[master] {
		return wire.Errorf(wire.CodeInUse, "broker %s, the master of broker group %s, does not serve, and cannot hand over: see jmq broker-group promote", master, r.BrokerGroup)
	}
	target, lag := r.Broker, ^uint64(0)
	if target == master {
		response.Done = true
		return nil
	}
	var why string
	inSync := false
	for _, x := range g.status[master].GetSlaves() {
		switch {
		case r.Broker == "" && x.InSync && g.living[x.Broker] && x.LagBytes < lag:
			target, lag, inSync = x.Broker, x.LagBytes, true
		case r.Broker == x.Broker:
			inSync, why = x.InSync, fmt.Sprintf("it is %s, %d bytes behind", cmp.Or(x.State, "not in sync"), x.LagBytes)
		}
	}
	if !inSync {
		if target == "" {
			return wire.Errorf(wire.CodeInUse, "no slave of broker group %s is in sync: see jmq broker-group status", r.BrokerGroup)
		}
		return wire.Errorf(wire.CodeInUse, "broker %s is no slave in sync of broker group %s, so its master cannot hand over to it: %s", target, r.BrokerGroup, cmp.Or(why, "its master does not know it"))
	}
	if r.DryRun {
		return nil
	}
	next := row
	next.Transfer = target
	next.Change++
	s, err := n.updateRow(ctx, by, cmp.Or(r.Reason, "an operator asked for it"), r.BrokerGroup, next, expect)
	if err != nil {
		return err
	}
	n.logRow(r.BrokerGroup, row, next, "an operator asked for a transfer")
	wait, cancel := context.WithTimeout(ctx, transferAnswered)
	defer cancel()
	for {
		now, _ := rowOf(s, r.BrokerGroup)
		switch {
		case now.Master.Broker == target && now.Term > row.Term:
			response.Done = true
			n.inForceSoon(ctx, s, r.BrokerGroup)
			return nil
		case now.Term > row.Term:
			return wire.Errorf(wire.CodeConflict, "nothing was handed over: broker %s was named master of term %d meanwhile, by a promotion", now.Master.Broker, now.Term)
		case now.Transfer == "":
			return wire.Errorf(wire.CodeConflict, "broker %s did not hand over to broker %s, and goes on: see its log", master, target)
		}
		if s, err = n.store.Watch(wait, s); err != nil {
			return nil
		}
	}
}

// setState makes a broker group active, or drained.
func (n *Node) setState(ctx context.Context, by meta.Actor, r *wire.BrokerGroupRequest, state string, response *wire.BrokerGroupResponse) error {
	key := meta.Key{Kind: meta.KindBrokerGroup, Name: r.BrokerGroup}
	for try := 1; ; try++ {
		s := n.store.View()
		o := s.Get(key)
		if o == nil {
			return wire.Errorf(wire.CodeNotFound, "broker group %.100q is not there", r.BrokerGroup)
		}
		spec := *o.Spec.(*meta.BrokerGroup)
		if cmp.Or(spec.State, meta.BrokerGroupActive) == state {
			response.Done = true
			return nil
		}
		spec.State = state
		if r.DryRun {
			return nil
		}
		next, err := n.store.Update(ctx, meta.Change{By: by, Seen: n.seen(), Reason: r.Reason, Writes: []meta.Write{{Key: key, Spec: &spec, Expect: meta.Expect{Revision: o.Revision}}}})
		if wire.CodeOf(err) == wire.CodeConflict && try < conflictTries && n.newer(ctx, s) != nil {
			continue
		}
		if err != nil {
			return err
		}
		response.Done = true
		n.inForceSoon(ctx, next, r.BrokerGroup)
		return nil
	}
}

// drain makes a broker group take no more messages, and says what is left in it. It is done when nothing is.
func (n *Node) drain(ctx context.Context, by meta.Actor, r *wire.BrokerGroupRequest, response *wire.BrokerGroupResponse) error {
	s := n.store.View()
	for _, o := range s.List(meta.KindTopic) {
		groups := o.Spec.(*meta.Topic).BrokerGroups
		if slices.Contains(groups, r.BrokerGroup) && !slices.ContainsFunc(groups, func(g string) bool { return g != r.BrokerGroup && active(s, g) }) {
			return wire.Errorf(wire.CodeInUse, "%s could not be sent to any more: it has no other active broker group. Put it on another one first, or delete it", o.Key)
		}
	}
	if err := n.setState(ctx, by, r, meta.BrokerGroupDraining, response); err != nil {
		return err
	}
	left, err := n.left(ctx, s, r.BrokerGroup)
	if err != nil {
		response.Left, response.Done = []string{"what is left is not known: " + messageOf(err)}, false
		return nil
	}
	for _, l := range left {
		if len(response.Left) == leftMax {
			response.Left = append(response.Left, fmt.Sprintf("and %d more", len(left)-leftMax))
			break
		}
		response.Left = append(response.Left, l.String())
	}
	response.Done = response.Done && len(left) == 0
	return nil
}

func active(s *meta.Snapshot, brokerGroup string) bool {
	g := s.BrokerGroup(brokerGroup)
	return g != nil && cmp.Or(g.State, meta.BrokerGroupActive) == meta.BrokerGroupActive
}

// leftover is what holds a broker group. Messages that are delayed, prepared or in retry are among these when there are such.
type leftover struct {
	namespace uint32
	topic     string
	group     string
	messages  uint64
}

func (l leftover) String() string {
	topic := l.topic
	if l.namespace != 0 {
		topic = fmt.Sprintf("%s (namespace number %d)", topic, l.namespace)
	}
	if l.messages == 1 {
		return fmt.Sprintf("topic %s: group %s has not consumed 1 message", topic, l.group)
	}
	return fmt.Sprintf("topic %s: group %s has not consumed %d messages", topic, l.group, l.messages)
}

// left asks the broker group's master what is not consumed there. A broker group without brokers has nothing.
func (n *Node) left(ctx context.Context, s *meta.Snapshot, brokerGroup string) ([]leftover, error) {
	n.mu.Lock()
	g := n.replicasOf(s)[brokerGroup]
	n.mu.Unlock()
	if g == nil {
		return nil, nil
	}
	row, _ := rowOf(s, brokerGroup)
	master := row.Master.Broker
	if row.Term == 0 { // as long as brokers say nothing of their copies, there is one
		master = g.names[0]
	}
	switch {
	case g.specs[master] == nil:
		return nil, wire.Errorf(wire.CodeInUse, "broker %s, the master of broker group %s, is not registered", master, brokerGroup)
	case n.o.ListGroups == nil:
		return nil, wire.Errorf(wire.CodeInternal, "this registry node has no way to ask brokers")
	}
	ctx, cancel := context.WithTimeout(ctx, meetWithin)
	defer cancel()
	r, err := n.o.ListGroups(ctx, g.specs[master].Addresses, &wire.ListGroupsRequest{Left: true})
	if err != nil {
		return nil, wire.Errorf(wire.CodeInUse, "broker %s, the master of broker group %s, does not say what is consumed: %s", master, brokerGroup, messageOf(err))
	}
	var list []leftover
	for _, x := range r.Groups {
		list = append(list, leftover{x.Namespace, x.Topic, x.Group, x.Lag})
	}
	return list, nil
}

// mayLeave says why a topic may not leave a broker group; nil: nothing of it is lost to anybody there.
func (n *Node) mayLeave(ctx context.Context, s *meta.Snapshot, topic meta.Key, brokerGroup string) error {
	if !slices.ContainsFunc(s.List(meta.KindBroker), func(o *meta.Object) bool { return o.Spec.(*meta.Broker).BrokerGroup == brokerGroup }) {
		return nil // an operator has forgotten its brokers: what was there is gone
	}
	if active(s, brokerGroup) {
		return wire.Errorf(wire.CodeInUse, "%s cannot leave broker group %s while that takes messages: jmq broker-group drain %s first", topic, brokerGroup, brokerGroup)
	}
	left, err := n.left(ctx, s, brokerGroup)
	if err != nil {
		return err
	}
	ns := s.Namespace(topic.Namespace)
	for _, l := range left {
		if l.topic == topic.Name && ns != nil && l.namespace == ns.ID {
			return wire.Errorf(wire.CodeInUse, "%s cannot leave broker group %s yet: group %s has not consumed %d of its messages there", topic, brokerGroup, l.group, l.messages)
		}
	}
	return nil
}

// consequences are what a change of people needs beside its own writes: it returns the change with them, or why it may not be made.
func (n *Node) consequences(ctx context.Context, s *meta.Snapshot, c meta.Change) (meta.Change, error) {
	for _, w := range slices.Clone(c.Writes) {
		before := s.Get(w.Key)
		if before != nil && w.Spec == nil && w.Key.Kind == meta.KindBroker && n.lives(w.Key.Name) {
			return c, wire.Errorf(wire.CodeInUse, "%s lives, and would register again: stop it first", w.Key)
		}
		if before == nil || w.Spec == nil {
			continue
		}
		switch after := w.Spec.(type) {
		case *meta.Topic:
			if len(after.BrokerGroups) == 0 {
				continue // they stay as they are
			}
			for _, g := range before.Spec.(*meta.Topic).BrokerGroups {
				if !slices.Contains(after.BrokerGroups, g) {
					if err := n.mayLeave(ctx, s, w.Key, g); err != nil {
						return c, err
					}
				}
			}
		case *meta.BrokerGroup:
			mode := cmp.Or(after.Mode, meta.BrokerGroupFixed)
			row, expect := n.row(s, w.Key.Name)
			if mode == cmp.Or(before.Spec.(*meta.BrokerGroup).Mode, meta.BrokerGroupFixed) || row.Term == 0 {
				continue
			}
			next, err := n.renew(s, w.Key.Name, row)
			switch {
			case err == nil:
				own := rowWrite(w.Key.Name, next, expect)
				own.Own = true
				c.Writes = append(c.Writes, own)
			case mode == meta.BrokerGroupFixed: // nobody is promoted any more, whoever is master
			default:
				return c, wire.Errorf(wire.CodeInUse, "%s becomes %s only while its master %s serves, which then begins a new term: see jmq broker-group status", w.Key, mode, row.Master.Broker)
			}
		}
	}
	return c, nil
}

// lives says whether a broker's heartbeats come.
func (n *Node) lives(broker string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.mu.nodes[broker]
	return n.mu.trusted && x != nil && x.last != nil && (x.heard || x.silent < promoteAfter)
}

// renew is the row of a broker group whose mode changes.
func (n *Node) renew(s *meta.Snapshot, brokerGroup string, row term.Row) (term.Row, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	g := n.replicasOf(s)[brokerGroup]
	if g == nil || !g.living[row.Master.Broker] {
		return row, term.ErrNotReady
	}
	return row.Renew(g.reports[row.Master.Broker], g.all(), uint64(s.Generation))
}

// wireNode is a node as it is shown. n.mu is held; x may be nil.
func (n *Node) wireNode(s *meta.Snapshot, name string, x *node) *wire.Node {
	b := s.Broker(name)
	m := &wire.Node{}
	if x != nil {
		m.Last, m.Away, m.SilentMs = x.last, x.silent >= silenceMax, x.silent.Milliseconds()
	}
	if b != nil {
		m.Away = b.Away
		if m.Last == nil {
			m.Last = &wire.HeartbeatRequest{Node: name, Boot: b.Boot, Roles: []string{RoleBroker}, BrokerGroup: b.BrokerGroup, Addresses: b.Addresses,
				DataCenter: b.DataCenter, Labels: b.Labels, Version: b.Version, Slave: b.Slave}
		}
	}
	return m
}

// has says whether a living broker has all up to a position.
func (g *replicas) has(end uint64) bool {
	return slices.ContainsFunc(g.names, func(b string) bool { return g.living[b] && g.reports[b].End >= end })
}

// joinIn is after how long a slave joins that is in step, in whole seconds.
func joinIn(x *wire.SlaveStatus) time.Duration {
	return (time.Duration(x.JoinMs)*time.Millisecond + time.Second - 1).Truncate(time.Second)
}
