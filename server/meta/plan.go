package meta

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/jmqio/jmq/wire"
)

const (
	// WritesMax bounds the writes of a change.
	WritesMax = 1000
	// BrokerGroupsUsual is how many broker groups a topic should have, so that the loss of one stops nobody.
	BrokerGroupsUsual = 3
	// GenerationStep is what a new generation adds to the version, and to the number of the next namespace divided by 16: what the history
	// that is lost gave as incarnations and numbers is not given again.
	GenerationStep = 1 << 20
)

// What a change does to an object, as the audit says it.
const (
	ChangeCreated       = "created"
	ChangeChanged       = "changed"
	ChangeDeleted       = "deleted"
	ChangeNewGeneration = "new-generation"
)

// Initial is the first version of a generation: nothing but the default namespace.
func Initial(g Generation) *Snapshot {
	return NewSnapshot(g, 1, 0, []*Object{{Key: Key{Kind: KindNamespace, Name: NamespaceDefault}, Revision: 1, Created: 1, Spec: &Namespace{}}})
}

// Plan says what a change makes of s, and does nothing: the next snapshot, of version s.Version+1, the objects that it changes, and what the audit
// keeps of it (without ids). All stores use it. Writes that change nothing are left out; if all do, changed is empty and next is s. Warnings
// are for people; the change is made in spite of them. Errors are *wire.CodeError: CodeConflict, CodeNotFound, CodeExists, CodeInUse, CodeInvalid,
// CodeMetadataAway (Change.Seen), and those of MayWrite.
func (s *Snapshot) Plan(c Change, now time.Time) (next *Snapshot, changed []*Object, audit []AuditEntry, warnings []string, err error) {
	p := plan{s: s, v: s.Version + 1, now: now, writes: map[Key]*Object{}}
	if err := p.run(c); err != nil {
		return nil, nil, nil, nil, err
	}
	if len(p.changed) == 0 {
		return s, nil, nil, nil, nil
	}
	next = s.Next(p.v, p.changed)
	if err := check(s, next, p.changed, now); err != nil {
		return nil, nil, nil, nil, err
	}
	for _, o := range p.changed {
		e := AuditEntry{Version: p.v, Time: now, By: c.By, Reason: c.Reason, Key: o.Key, Change: ChangeChanged}
		before := s.Get(o.Key)
		switch {
		case before == nil:
			e.Change = ChangeCreated
		case o.Spec == nil:
			e.Change = ChangeDeleted
		}
		if before != nil {
			if e.Before, err = EncodeSpec(Redact(before.Spec)); err != nil {
				return nil, nil, nil, nil, err
			}
		}
		if o.Spec != nil {
			if e.After, err = EncodeSpec(Redact(o.Spec)); err != nil {
				return nil, nil, nil, nil, err
			}
		}
		audit = append(audit, e)
	}
	return next, p.changed, audit, Warnings(s, next, p.changed), nil
}

// PlanGeneration says what a new generation makes of s, as Plan does of a change.
func (s *Snapshot) PlanGeneration(g Generation, by Actor, reason string, now time.Time) (next *Snapshot, changed []*Object, audit []AuditEntry) {
	key := Key{Kind: KindNamespace, Name: NamespaceDefault}
	v := s.Version + GenerationStep
	o := &Object{Key: key, Revision: v, Created: 1, Spec: &Namespace{}}
	if before := s.Get(key); before != nil {
		o.Created, o.Born = before.Created, before.Born
		spec := *before.Spec.(*Namespace)
		o.Spec = &spec
	}
	spec := o.Spec.(*Namespace)
	spec.Last = max(spec.Last, s.namespaceMax()) + GenerationStep/16
	n := *s
	n.Generation = g
	next = n.Next(v, []*Object{o})
	return next, []*Object{o}, []AuditEntry{{Version: v, Time: now, By: by, Reason: reason, Change: ChangeNewGeneration, Key: key}}
}

func (s *Snapshot) namespaceMax() (high uint32) {
	for o := range s.All(KindNamespace) {
		high = max(high, o.Spec.(*Namespace).ID)
	}
	return high
}

// plan is a change on its way.
type plan struct {
	s       *Snapshot
	v       Version
	now     time.Time
	writes  map[Key]*Object // nil: it changes nothing
	changed []*Object
	topics  map[string]int // on each broker group; made when first needed
}

func (p *plan) run(c Change) error {
	switch {
	case c.Seen.Generation == p.s.Generation && c.Seen.Version > p.s.Version:
		// Versions would be given twice, and who has the first ones would take what comes later for what follows them.
		return wire.Errorf(wire.CodeMetadataAway, "the database is at version %d, and nodes have version %d of the same generation: it is an older copy; bring the newer one back, or say that this one counts: jmq registry new-generation", p.s.Version, c.Seen.Version)
	case len(c.Writes) == 0:
		return wire.Errorf(wire.CodeInvalid, "the change writes nothing")
	case len(c.Writes) > WritesMax:
		return wire.Errorf(wire.CodeInvalid, "%d writes: a change has at most %d, make several", len(c.Writes), WritesMax)
	case len(c.Reason) > TextBytesMax || !printable(strings.ReplaceAll(c.Reason, "\n", "")):
		return wire.Errorf(wire.CodeInvalid, "the reason is text of at most %d bytes", TextBytesMax)
	}
	var namespaces []*Object
	for _, w := range c.Writes {
		if err := w.Key.Check(); err != nil {
			return err
		}
		if _, ok := p.writes[w.Key]; ok {
			return wire.Errorf(wire.CodeInvalid, "%s is written twice: a change writes an object once", w.Key)
		}
		before := p.s.Get(w.Key)
		if c.As != nil && !w.Own {
			var was Spec
			if before != nil {
				was = before.Spec
			}
			if err := p.s.MayWrite(*c.As, w.Key, was, w.Spec); err != nil {
				return err
			}
		}
		if err := w.expected(before); err != nil {
			return err
		}
		o, err := p.object(w, before)
		if err != nil {
			return err
		}
		p.writes[w.Key] = o
		if o == nil {
			continue
		}
		p.changed = append(p.changed, o)
		if before == nil && w.Key.Kind == KindNamespace {
			namespaces = append(namespaces, o)
		}
	}
	if len(namespaces) > 0 {
		p.number(namespaces)
	}
	for _, o := range p.changed { // the row of a broker group goes with it
		row := Key{Kind: KindReplication, Name: o.Name}
		if o.Kind == KindBrokerGroup && o.Spec == nil && p.s.Get(row) != nil && p.writes[row] == nil {
			p.changed = append(p.changed, &Object{Key: row, Revision: p.v, Created: p.s.Get(row).Created, Born: p.s.Get(row).Born})
		}
	}
	return nil
}

// expected compares what a write wants to find with what is there.
func (w *Write) expected(before *Object) error {
	switch e := w.Expect; {
	case e.Create && before != nil:
		return wire.Errorf(wire.CodeExists, "%s is there, with revision %d", w.Key, before.Revision)
	case e.Create || e.Any:
		return nil
	case before == nil:
		return wire.Errorf(wire.CodeNotFound, "%s is not there", w.Key)
	case before.Revision != e.Revision:
		return wire.Errorf(wire.CodeConflict, "%s has revision %d, not %d any more", w.Key, before.Revision, e.Revision)
	}
	return nil
}

// object is what a write makes of before, or nil if it changes nothing.
func (p *plan) object(w Write, before *Object) (*Object, error) {
	o := &Object{Key: w.Key, Revision: p.v, Created: p.v, Born: p.now.UnixNano()}
	if before != nil {
		o.Created, o.Born = before.Created, before.Born
	}
	if w.Spec == nil {
		if w.Key == (Key{Kind: KindNamespace, Name: NamespaceDefault}) {
			return nil, wire.Errorf(wire.CodeInvalid, "the default namespace cannot be deleted")
		}
		if before == nil {
			return nil, nil
		}
		return o, nil
	}
	if w.Spec.Kind() != w.Key.Kind {
		return nil, wire.Errorf(wire.CodeInvalid, "%s is given the spec of a %s", w.Key, w.Spec.Kind())
	}
	o.Spec = p.fill(w.Key, w.Spec, before)
	if err := o.Spec.Validate(); err != nil {
		return nil, wire.Errorf(wire.CodeInvalid, "%s: %s", w.Key, messageOf(err))
	}
	b, err := EncodeSpec(o.Spec)
	if err != nil {
		return nil, err
	}
	if before != nil {
		old, err := EncodeSpec(before.Spec)
		if err != nil {
			return nil, err
		}
		if bytes.Equal(b, old) {
			return nil, nil
		}
		if err := mayBecome(o.Key, before.Spec, o.Spec); err != nil {
			return nil, err
		}
	}
	// The spec is read back, so that nothing of it is shared with who asked for the change, and it is what every other node will read.
	if o.Spec, err = DecodeSpec(w.Key.Kind, b); err != nil {
		return nil, err
	}
	return o, nil
}

// fill returns the spec with what it leaves to the store.
func (p *plan) fill(k Key, spec Spec, before *Object) Spec {
	switch v := spec.(type) {
	case *Namespace:
		n := *v
		n.ID, n.Last = 0, 0
		if before != nil {
			old := before.Spec.(*Namespace)
			n.ID, n.Last = old.ID, old.Last
		}
		return &n
	case *Credential:
		// Who reads one sees no verifier, and may still write back what he read.
		if before != nil && len(v.Salt) == 0 && v.Iterations == 0 && len(v.StoredKey) == 0 && len(v.ServerKey) == 0 {
			c, old := *v, before.Spec.(*Credential)
			c.Salt, c.Iterations, c.StoredKey, c.ServerKey = old.Salt, old.Iterations, old.StoredKey, old.ServerKey
			return &c
		}
	case *Topic:
		t := *v
		if before != nil {
			old := before.Spec.(*Topic)
			if t.Partitions == 0 {
				t.Partitions = old.Partitions
			}
			if len(t.BrokerGroups) == 0 {
				t.BrokerGroups = old.BrokerGroups
			}
			return &t
		}
		if t.Partitions == 0 {
			t.Partitions = PartitionsUsual
		}
		if len(t.BrokerGroups) == 0 {
			t.BrokerGroups = p.choose()
		}
		return &t
	}
	return spec
}

// mayBecome says what of an object can never be changed.
func mayBecome(k Key, before, after Spec) error {
	refuse := func(format string, args ...any) error {
		return wire.Errorf(wire.CodeInvalid, "%s: %s", k, fmt.Sprintf(format, args...))
	}
	switch b := before.(type) {
	case *Topic:
		a := after.(*Topic)
		if a.Partitions < b.Partitions {
			return refuse("%d partitions: there are %d, and they can only become more", a.Partitions, b.Partitions)
		}
		if cmp.Or(a.Type, TopicNormal) != cmp.Or(b.Type, TopicNormal) {
			return refuse("its type is %s for good: make another topic", cmp.Or(b.Type, TopicNormal))
		}
	case *Credential:
		a := after.(*Credential)
		if a.OwnerKind != b.OwnerKind || a.Owner != b.Owner || a.Namespace != b.Namespace {
			return refuse("it is of %s %s for good: make another credential", b.OwnerKind, b.Owner)
		}
		if a.Iterations != b.Iterations || !bytes.Equal(a.Salt, b.Salt) || !bytes.Equal(a.StoredKey, b.StoredKey) || !bytes.Equal(a.ServerKey, b.ServerKey) {
			return refuse("its secret cannot be changed: make another credential")
		}
		if b.Revoked && !a.Revoked {
			return refuse("it was revoked, for good: make another credential")
		}
	case *Request:
		a := after.(*Request)
		if a.Topic != b.Topic || a.App != b.App || a.Group != b.Group || a.Right != b.Right || a.RequestedBy != b.RequestedBy {
			return refuse("what it asks for cannot be changed: make another request")
		}
		if b.State != RequestOpen {
			return refuse("it was %s, for good: make another request", b.State)
		}
	}
	return nil
}

// number gives new namespaces their numbers. The default namespace keeps the highest that was ever given, since a
// number may still be in brokers' journals when its namespace is gone.
func (p *plan) number(namespaces []*Object) {
	key := Key{Kind: KindNamespace, Name: NamespaceDefault}
	home := p.writes[key]
	if home == nil {
		old := p.s.Get(key)
		if old == nil {
			old = &Object{Key: key, Created: p.v, Spec: &Namespace{}}
		}
		spec := *old.Spec.(*Namespace)
		home = &Object{Key: key, Revision: p.v, Created: old.Created, Born: old.Born, Spec: &spec}
		p.changed = append(p.changed, home)
	}
	last := home.Spec.(*Namespace)
	last.Last = max(last.Last, p.s.namespaceMax())
	for _, o := range namespaces {
		if o == home {
			continue // the default namespace itself has number 0
		}
		last.Last++
		o.Spec.(*Namespace).ID = last.Last
	}
}

// choose returns broker groups for a topic that names none: up to three that live and are active, from as many data centers as there are,
// those with fewest topics first.
func (p *plan) choose() []string {
	if p.topics == nil {
		p.topics = map[string]int{}
		for o := range p.s.All(KindTopic) {
			for _, g := range o.Spec.(*Topic).BrokerGroups {
				p.topics[g]++
			}
		}
	}
	centers := map[string]string{} // of the broker groups that live
	for _, o := range p.s.List(KindBroker) {
		if b := o.Spec.(*Broker); !b.Away && p.s.IsMaster(o.Name) {
			centers[b.BrokerGroup] = b.DataCenter
		}
	}
	var groups []string
	for g, center := range centers {
		spec := p.s.BrokerGroup(g)
		if spec == nil || (spec.State != "" && spec.State != BrokerGroupActive) {
			continue
		}
		centers[g] = cmp.Or(spec.DataCenter, center)
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b string) int {
		return cmp.Or(cmp.Compare(p.topics[a], p.topics[b]), strings.Compare(a, b))
	})
	var chosen []string
	taken := map[string]int{} // broker groups of each data center
	for len(chosen) < BrokerGroupsUsual && len(groups) > 0 {
		best := 0
		for i, g := range groups {
			if taken[centers[g]] < taken[centers[groups[best]]] {
				best = i
			}
		}
		g := groups[best]
		groups = slices.Delete(groups, best, best+1)
		taken[centers[g]]++
		p.topics[g]++ // so that topics of one change spread too
		chosen = append(chosen, g)
	}
	slices.Sort(chosen)
	return chosen
}

// check holds what objects say of each other: next is what a change makes of s.
func check(s, next *Snapshot, changed []*Object, now time.Time) error {
	gone := map[Key]bool{}
	for _, o := range changed {
		if o.Spec == nil {
			if o.Kind.named() {
				gone[o.Key] = true
			}
			continue
		}
		for k := range refs(o) {
			if next.Get(k) == nil {
				return wire.Errorf(wire.CodeInvalid, "%s names %s, which is not there", o.Key, k)
			}
		}
	}
	if len(gone) > 0 {
		if err := inUse(next, gone); err != nil {
			return err
		}
	}
	if err := ownedMost(s, next, changed); err != nil {
		return err
	}
	quotas := map[string]bool{}
	for _, o := range changed {
		if o.Spec == nil {
			continue
		}
		before := s.Get(o.Key)
		switch v := o.Spec.(type) {
		case *Topic, *App:
			if before == nil {
				quotas[o.Namespace] = true
			}
		case *Request:
			if v.State == RequestApproved && (before == nil || before.Spec.(*Request).State != RequestApproved) && !v.granted(next, o.Namespace) {
				return wire.Errorf(wire.CodeInvalid, "%s is approved but %s is not granted: write it in the same change", o.Key, v.asks(o.Namespace))
			}
		case *Credential:
			if before == nil && v.goodAt(now) {
				if err := credentials(next, v, now); err != nil {
					return err
				}
			}
		}
	}
	for ns := range quotas {
		if err := quota(s, next, ns); err != nil {
			return err
		}
	}
	return nil
}

// named says whether objects of a kind are named by others: only for these must everything be looked at when one goes.
func (k Kind) named() bool {
	switch k {
	case KindNamespace, KindTopic, KindApp, KindUser, KindBrokerGroup:
		return true
	}
	return false
}

// refs are the keys of what must be there for an object to be.
func refs(o *Object) iter.Seq[Key] {
	return func(yield func(Key) bool) {
		ok := true
		add := func(k Kind, namespace, name string) {
			if ok && name != "" {
				ok = yield(Key{Kind: k, Namespace: namespace, Name: name})
			}
		}
		if o.Kind.Namespaced() {
			add(KindNamespace, "", o.Namespace)
		}
		all := func(k Kind, names []string) {
			for _, n := range names {
				add(k, "", n)
			}
		}
		switch v := o.Spec.(type) {
		case *Topic:
			add(KindApp, o.Namespace, v.Owner)
			all(KindBrokerGroup, v.BrokerGroups)
		case *App:
			all(KindUser, v.Owners)
			all(KindUser, v.Members)
		case *Producer:
			add(KindTopic, o.Namespace, o.TopicOf())
			add(KindApp, o.Namespace, o.SubscriberOf())
			for g := range v.Weights {
				add(KindBrokerGroup, "", g)
			}
			all(KindBrokerGroup, v.ForbiddenBrokerGroups)
		case *Consumer:
			add(KindTopic, o.Namespace, o.TopicOf())
			add(KindApp, o.Namespace, AppOf(o.SubscriberOf()))
			all(KindBrokerGroup, v.ForbiddenBrokerGroups)
		case *Request:
			if v.State == RequestOpen || v.State == RequestApproved {
				add(KindTopic, o.Namespace, v.Topic)
				add(KindApp, o.Namespace, v.App)
			}
		case *Credential:
			switch v.OwnerKind {
			case OwnerApp:
				add(KindApp, v.Namespace, v.Owner)
			case OwnerUser:
				add(KindUser, "", v.Owner)
			}
		case *Broker:
			add(KindBrokerGroup, "", v.BrokerGroup)
		case *Replication:
			add(KindBrokerGroup, "", o.Name)
		}
	}
}

// inUse says whether an object of s names one that is gone. Requests hold nothing: they are of what was.
func inUse(s *Snapshot, gone map[Key]bool) error {
	var by []Key
	var what Key
	for o := range s.everything() {
		if o.Spec == nil || (o.Kind == KindRequest && !gone[Key{Kind: KindNamespace, Name: o.Namespace}]) {
			continue
		}
		for k := range refs(o) {
			if gone[k] {
				by, what = append(by, o.Key), k
				break
			}
		}
	}
	if len(by) == 0 {
		return nil
	}
	slices.SortFunc(by, Key.Compare)
	names := make([]string, 0, 5)
	for _, k := range by[:min(len(by), 5)] {
		names = append(names, k.String())
	}
	more := ""
	if len(by) > 5 {
		more = fmt.Sprintf(" and %d more", len(by)-5)
	}
	if len(gone) == 1 {
		return wire.Errorf(wire.CodeInUse, "%s is named by %s%s", what, strings.Join(names, ", "), more)
	}
	return wire.Errorf(wire.CodeInUse, "what would be deleted is named by %s%s", strings.Join(names, ", "), more)
}

// quota refuses more topics or apps than a namespace may have; it lets one that has more already become smaller.
func quota(s, next *Snapshot, ns string) error {
	n := next.Namespace(ns)
	for _, q := range []struct {
		kind Kind
		max  int
	}{{KindTopic, n.TopicsMax}, {KindApp, n.AppsMax}} {
		if q.max == 0 {
			continue
		}
		count := func(s *Snapshot) (n int) {
			for o := range s.All(q.kind) {
				if o.Namespace == ns {
					n++
				}
			}
			return n
		}
		if have := count(next); have > q.max && have > count(s) {
			return wire.Errorf(wire.CodeInvalid, "namespace %s would have %d %ss, at most %d are allowed: delete some, or have its quota raised", ns, have, q.kind, q.max)
		}
	}
	return nil
}

// OwnedMax bounds the requests of an app, the credentials of one owner, good or not, and the consumers of an app on one topic: people who rule
// nothing make these as they like, and every node holds them in memory.
const OwnedMax = 1000

// ownerOf is whose an object is, of the kinds that OwnedMax bounds.
func ownerOf(o *Object) (k Key, ok bool) {
	switch v := o.Spec.(type) {
	case *Request:
		return Key{Kind: KindRequest, Namespace: o.Namespace, Name: v.App}, true
	case *Credential:
		return Key{Kind: KindCredential, Namespace: v.Namespace, Name: v.OwnerKind + "/" + v.Owner}, true
	case *Consumer:
		return Key{Kind: KindConsumer, Namespace: o.Namespace, Name: o.TopicOf() + "/" + AppOf(o.SubscriberOf())}, true
	}
	return k, false
}

func ownedMost(s, next *Snapshot, changed []*Object) error {
	counts := map[Key]int{}
	for _, o := range changed {
		if k, ok := ownerOf(o); ok && s.Get(o.Key) == nil {
			counts[k] = 0
		}
	}
	for _, kind := range []Kind{KindRequest, KindCredential, KindConsumer} {
		asked := false
		for k := range counts {
			asked = asked || k.Kind == kind
		}
		if !asked {
			continue
		}
		for o := range next.All(kind) {
			k, _ := ownerOf(o)
			n, ok := counts[k]
			if !ok {
				continue
			}
			if n++; n > OwnedMax {
				return wire.Errorf(wire.CodeInvalid, "%s would have more than %d %ss: have old ones deleted first", k.Name, OwnedMax, kind)
			}
			counts[k] = n
		}
	}
	return nil
}

// goodAt says whether a credential is neither revoked nor expired.
func (c *Credential) goodAt(now time.Time) bool {
	return !c.Revoked && (c.Expires.IsZero() || c.Expires.After(now))
}

// credentials refuses more credentials of one owner than are needed to change over from one to the next.
func credentials(next *Snapshot, c *Credential, now time.Time) error {
	n := 0
	for o := range next.All(KindCredential) {
		if v := o.Spec.(*Credential); v.OwnerKind == c.OwnerKind && v.Owner == c.Owner && v.Namespace == c.Namespace && v.goodAt(now) {
			n++
		}
	}
	if n > CredentialsMax {
		return wire.Errorf(wire.CodeInvalid, "%s %s would have %d credentials that are good, at most %d are allowed: revoke one first", c.OwnerKind, c.Owner, n, CredentialsMax)
	}
	return nil
}

// asks returns the key of the subscription that a request asks for.
func (q *Request) asks(namespace string) Key {
	if q.Right == RightProduce {
		return Key{Kind: KindProducer, Namespace: namespace, Name: q.Topic + "/" + q.App}
	}
	return Key{Kind: KindConsumer, Namespace: namespace, Name: q.Topic + "/" + cmp.Or(q.Group, q.App)}
}

func (q *Request) granted(s *Snapshot, namespace string) bool {
	return s.Get(q.asks(namespace)) != nil
}

// Warnings says what people should know of a change from before to after, of these objects.
func Warnings(before, after *Snapshot, changed []*Object) (warnings []string) {
	for _, o := range changed {
		old := before.Get(o.Key)
		switch v := o.Spec.(type) {
		case *Topic:
			if len(v.BrokerGroups) < BrokerGroupsUsual {
				warnings = append(warnings, fmt.Sprintf("%s is on %s: with fewer than %d the loss of one stops or overloads it", o.Key, brokerGroupsText(len(v.BrokerGroups)), BrokerGroupsUsual))
			}
			warnings = append(warnings, noEffect(o.Key, "archive", v.Archive)...)
			if v.Durability == DurabilityReplicated {
				warnings = append(warnings, alone(after, o)...)
			}
			if old == nil {
				break
			}
			for _, g := range old.Spec.(*Topic).BrokerGroups {
				if !slices.Contains(v.BrokerGroups, g) && after.brokersOf(g) == 0 {
					warnings = append(warnings, fmt.Sprintf("%s leaves broker group %s, whose brokers were removed: what was not consumed there is lost with them", o.Key, g))
				}
			}
		case *Producer:
			warnings = append(warnings, noEffect(o.Key, "archive", v.Archive != nil)...)
		case *Consumer:
			warnings = append(warnings, noEffect(o.Key, "delay", v.Delay != 0, "retry", v.Retry != nil, "filters", v.Filters != nil, "archive", v.Archive != nil)...)
		case nil:
			if o.Kind == KindTopic {
				warnings = append(warnings, fmt.Sprintf("%s is deleted with all its messages", o.Key))
			}
		}
	}
	return warnings
}

// alone warns of broker groups of a replicated topic that have no slave: they take none of its sends.
func alone(s *Snapshot, topic *Object) (warnings []string) {
	for _, g := range topic.Spec.(*Topic).BrokerGroups {
		if s.brokersOf(g) < 2 {
			warnings = append(warnings, fmt.Sprintf("%s is replicated, and broker group %s has no slave: it takes no sends before it has one", topic.Key, g))
		}
	}
	return warnings
}

// brokersOf is how many brokers a broker group has.
func (s *Snapshot) brokersOf(brokerGroup string) (n int) {
	for o := range s.All(KindBroker) {
		if o.Spec.(*Broker).BrokerGroup == brokerGroup {
			n++
		}
	}
	return n
}

// noEffect warns of fields that are kept, and that no part of this version acts upon; fields are names, each followed by whether it is set.
func noEffect(k Key, fields ...any) (warnings []string) {
	for i := 0; i < len(fields); i += 2 {
		if fields[i+1].(bool) {
			warnings = append(warnings, fmt.Sprintf("%s: %s is kept, and has no effect in this version", k, fields[i]))
		}
	}
	return warnings
}

func brokerGroupsText(n int) string {
	if n == 1 {
		return "1 broker group"
	}
	return fmt.Sprintf("%d broker groups", n)
}
