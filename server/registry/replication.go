package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

// registryActor is who the audit names for what the registry does by itself.
var registryActor = meta.Actor{Name: "registry"}

func rowKey(brokerGroup string) meta.Key {
	return meta.Key{Kind: meta.KindReplication, Name: brokerGroup}
}

// rowOf is a broker group's row in s with what a write of it expects to find; the zero row: there is none.
func rowOf(s *meta.Snapshot, brokerGroup string) (term.Row, meta.Expect) {
	if o := s.Get(rowKey(brokerGroup)); o != nil {
		return term.Row(*o.Spec.(*meta.Replication)), meta.Expect{Revision: o.Revision}
	}
	return term.Row{}, meta.Expect{Create: true}
}

// rowChange is the change that puts a row in the place of the one that was read.
func (n *Node) rowChange(by meta.Actor, reason, brokerGroup string, row term.Row, expect meta.Expect) meta.Change {
	spec := meta.Replication(row)
	return meta.Change{By: by, Seen: n.seen(), Reason: reason, Writes: []meta.Write{{Key: rowKey(brokerGroup), Spec: &spec, Expect: expect}}}
}

// memberOf is a broker as it counts in a set; false: it does not say yet what it has.
func memberOf(r *wire.HeartbeatRequest) (term.Member, bool) {
	m := term.Member{Broker: r.GetNode(), Boot: r.GetReplica().GetBoot(), Store: r.GetReplica().GetStore()}
	return m, m.Boot != "" && m.Store != ""
}

// ChangeReplication implements wire.Registry: a master's compare-and-set. Only the broker that the row names may ask, and every one
// that succeeds raises the row's count. One that does not is answered with the row as it is.
func (n *Node) ChangeReplication(ctx context.Context, r *wire.ChangeReplicationRequest) (*wire.ChangeReplicationResponse, error) {
	row, changed, err := n.changeReplication(ctx, r)
	if err != nil {
		n.counts.refused.Add(1)
		return nil, err
	}
	spec := meta.Replication(row)
	b, err := meta.EncodeSpec(&spec)
	if err != nil {
		return nil, err
	}
	return &wire.ChangeReplicationResponse{Row: b, Changed: changed}, nil
}

func (n *Node) changeReplication(ctx context.Context, r *wire.ChangeReplicationRequest) (row term.Row, changed bool, err error) {
	who, _ := subjectOf(ctx)
	if err := n.store.View().MayOperate(who, meta.BeNode, "", ""); err != nil {
		return row, false, err
	}
	if err := (meta.Key{Kind: meta.KindBrokerGroup, Name: r.BrokerGroup}).Check(); err != nil {
		return row, false, err
	}
	var a term.Ask
	if len(r.Ask) > infoMax {
		return row, false, wire.Errorf(wire.CodeTooLarge, "a question of %d bytes, at most %d are possible", len(r.Ask), infoMax)
	}
	if err := json.Unmarshal(r.Ask, &a); err != nil {
		return row, false, wire.Errorf(wire.CodeInvalid, "the question cannot be read: %s", err)
	}
	if err := speaksFor(&who, a.Master.Broker); err != nil {
		return row, false, err
	}
	for try := 1; ; try++ {
		s := n.store.View()
		row, expect := rowOf(s, r.BrokerGroup)
		if expect.Create {
			return row, false, wire.Errorf(wire.CodeNotFound, "broker group %s has no master yet", r.BrokerGroup)
		}
		if a.Term > row.Term || a.Term == row.Term && a.Change > row.Change {
			// The master has been told more than this node has read: the row as it is here would be an old one.
			if s = n.newer(ctx, s); s == nil {
				return row, false, wire.Errorf(wire.CodeMetadataAway, "the row of broker group %s is of term %d here and of term %d at its master: this node knows less", r.BrokerGroup, row.Term, a.Term)
			}
			continue
		}
		next, ok := changeRow(row, a)
		if !ok {
			return row, false, nil
		}
		after, err := n.store.Update(ctx, n.rowChange(registryActor, "its master asked for it", r.BrokerGroup, next, expect))
		switch wire.CodeOf(err) {
		case wire.CodeOK:
			row, _ = rowOf(after, r.BrokerGroup)
			n.counts.rows.Add(1)
			return row, true, nil
		case wire.CodeConflict, wire.CodeNotFound:
			// Another node was first: what it wrote is read, and compared with.
			if s = n.newer(ctx, s); try < conflictTries && s != nil {
				continue
			}
		}
		return row, false, err
	}
}

// newerWithin is how long a node waits for what another one wrote: stores read twice a second.
const newerWithin = time.Second

// newer waits for a snapshot after s; nil: none came.
func (n *Node) newer(ctx context.Context, s *meta.Snapshot) *meta.Snapshot {
	ctx, cancel := context.WithTimeout(ctx, newerWithin)
	defer cancel()
	next, err := n.store.Watch(ctx, s)
	if err != nil {
		return nil
	}
	return next
}

// speaksFor says whether a peer may speak for a node: a certificate is of one node, a credential may be shared by all.
func speaksFor(who *meta.Subject, node string) error {
	if p := &who.Principal; p.Kind == wire.PrincipalNode && p.Credential == "" && p.Name != node {
		return wire.Errorf(wire.CodeForbidden, "the certificate is of node %s, which does not speak for node %s", p.Name, node)
	}
	return nil
}

// changeRow is what a master's question makes of the row; false: it compared with another one.
func changeRow(row term.Row, a term.Ask) (term.Row, bool) {
	if a.Term != row.Term || a.Change != row.Change || a.Master != row.Master {
		return row, false
	}
	row.Set = slices.SortedFunc(slices.Values(a.Set), func(a, b term.Member) int { return cmp.Compare(a.Broker, b.Broker) })
	row.Change++
	return row, true
}

// rowFinding is what has to be written of a broker group's row.
type rowFinding struct {
	brokerGroup string
	change      meta.Change
	before      term.Row
	after       term.Row
}

// rowsDue says which rows have to be written: those of broker groups that have none, when the first broker is there that can be master.
func (n *Node) rowsDue() []rowFinding {
	s := n.store.View()
	seen := n.seen()
	n.mu.Lock()
	defer n.mu.Unlock()
	first := map[string]*meta.Object{}
	for _, o := range s.List(meta.KindBroker) {
		b := o.Spec.(*meta.Broker)
		x := n.mu.nodes[o.Name]
		if b.Away || b.Slave || x == nil || x.last == nil || x.last.Boot != b.Boot || s.Replication(b.BrokerGroup) != nil {
			continue
		}
		if _, ok := memberOf(x.last); !ok {
			continue
		}
		if f := first[b.BrokerGroup]; f == nil || o.Created < f.Created {
			first[b.BrokerGroup] = o
		}
	}
	var due []rowFinding
	for g, o := range first {
		m, _ := memberOf(n.mu.nodes[o.Name].last)
		row := term.Row{Term: 1, Master: m, Change: 1, Generation: uint64(s.Generation)}
		spec := meta.Replication(row)
		due = append(due, rowFinding{brokerGroup: g, after: row, change: meta.Change{
			By: registryActor, Seen: seen, Reason: "broker " + o.Name + " is the first of the broker group",
			Writes: []meta.Write{{Key: rowKey(g), Spec: &spec, Expect: meta.Expect{Create: true}}},
		}})
	}
	return due
}

func (n *Node) writeRow(f rowFinding) {
	ctx, cancel := context.WithTimeout(n.ctx, beatTimeout)
	defer cancel()
	log := n.o.Logger.With("brokerGroup", f.brokerGroup)
	switch _, err := n.store.Update(ctx, f.change); wire.CodeOf(err) {
	case wire.CodeOK:
		n.counts.rows.Add(1)
		log.Info("a broker group has another master", "was", f.before.Master.Broker, "is", f.after.Master.Broker, "term", f.after.Term)
	case wire.CodeConflict, wire.CodeExists, wire.CodeNotFound: // another node was first: its snapshot comes
	case wire.CodeInvalid:
		log.Error("the row of the broker group cannot be written", "err", err)
	default: // the database is away: the next beat finds it again
	}
}
