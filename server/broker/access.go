package broker

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// Rights are asked here for each request, when the topic and the group that it means are found, and never by the names in it alone. What
// was granted is kept with the session, and holds as long as the metadata is the same.
//
// A fetch waits longer than that. So when new metadata comes, what sessions were granted is asked anew: fetches of those who lost
// it end, and their leases. A fetch that is on its way meanwhile asks again when it waits, and when it is answered:
//
//	fetch    is granted              | waits: was there new metadata since? asks again
//	Apply              new metadata, asks for what sessions have |

// grant is what a session may do with a topic, or with a topic as a group. It never changes.
type grant struct {
	epoch   uint64 // of metadata; another one: ask again
	key     dispatch.Queue
	topic   string
	group   string // "": it may send
	created uint64 // the topic's, at the registry
	limits  [limiterMost]*limiter
	lasts   time.Duration  // of leases; 0: the broker's default
	batch   uint32         // most messages a fetch is given; 0: as it asks
	policy  *meta.Consumer // what is said of how the group is given the topic; nil: nothing
	paused  error          // nothing is given at the moment, but acks are taken
}

// everything is what everybody has on a broker without metadata.
var everything = &grant{}

// session is an attached peer.
type session struct {
	b      *Broker
	who    meta.Subject
	client dispatch.Client
	recent [recentGrants]atomic.Pointer[grant] // each in the place of its key, without the lock
	mu     struct {
		sync.Mutex
		grants map[dispatch.Queue]*grant
	}
}

const (
	recentGrants = 16

	// grantsMax bounds what is kept of a session's. Beyond it some are forgotten: a fetch that waits learns of a lost right when it
	// is answered, which takes waitMax at most.
	grantsMax = 4096

	makingRetry = 100 * time.Millisecond // a topic is made after that
)

func subjectOf(p *wire.Peer) meta.Subject {
	who := meta.Subject{Principal: p.Principal}
	if at, err := netip.ParseAddrPort(p.Addr); err == nil {
		who.Addr = at.Addr().Unmap()
	} else if at, err := netip.ParseAddr(p.Addr); err == nil {
		who.Addr = at.Unmap()
	}
	return who
}

// sessionOf returns nil of a peer that is not attached, or to another broker by now.
func (b *Broker) sessionOf(p *wire.Peer) *session {
	if s, _ := p.Session.Load().(*session); s != nil && s.b == b {
		return s
	}
	return nil
}

// granted returns what p may do with a topic that is there; with a group, as that, which is there too.
func (b *Broker) granted(p *wire.Peer, t *store.Topic, key dispatch.Queue, group string) (*grant, error) {
	if !b.o.Metadata {
		return everything, nil
	}
	s := b.sessionOf(p)
	if s == nil {
		return b.ask(subjectOf(p), p, t, key, group)
	}
	last := &s.recent[(key.Topic.ID+uint64(key.Group)*7)%recentGrants]
	epoch := b.metadata.epoch.Load()
	if g := last.Load(); g != nil && g.epoch == epoch && g.key == key {
		return g, nil
	}
	return b.grantedBefore(p, s, last, epoch, t, key, group)
}

func (b *Broker) grantedBefore(p *wire.Peer, s *session, last *atomic.Pointer[grant], epoch uint64, t *store.Topic, key dispatch.Queue, group string) (*grant, error) {
	s.mu.Lock()
	g := s.mu.grants[key]
	s.mu.Unlock()
	if g == nil || g.epoch != epoch {
		var err error
		if g, err = b.ask(s.who, p, t, key, group); err != nil {
			return nil, err
		}
		s.mu.Lock()
		if len(s.mu.grants) >= grantsMax && s.mu.grants[key] == nil {
			for k := range s.mu.grants {
				delete(s.mu.grants, k)
				break
			}
		}
		s.mu.grants[key] = g
		s.mu.Unlock()
	}
	last.Store(g)
	return g, nil
}

// ask asks the metadata.
func (b *Broker) ask(who meta.Subject, p *wire.Peer, t *store.Topic, key dispatch.Queue, group string) (*grant, error) {
	epoch := b.metadata.epoch.Load() // before the snapshot: what is granted by a newer one is asked again in vain, never the other way
	g, err := b.judge(who, p.Namespace, t, group)
	if err != nil {
		return nil, b.denied(err)
	}
	g.epoch, g.key = epoch, key
	return g, nil
}

func (b *Broker) judge(who meta.Subject, namespace uint32, t *store.Topic, group string) (*grant, error) {
	s := b.metadata.snapshot.Load()
	if s == nil {
		return nil, errNoMetadata
	}
	var has meta.Grant
	var err error
	if group == "" {
		has, err = s.MayProduce(who, t.Name, b.o.BrokerGroup)
	} else {
		has, err = s.MayConsume(who, t.Name, group, b.o.BrokerGroup)
	}
	g := &grant{topic: t.Name, group: group}
	if err != nil {
		if group == "" || wire.CodeOf(err) != wire.CodePaused || has.Topic == nil {
			if wire.CodeOf(err) == wire.CodePaused {
				err = pausedNow(err)
			}
			return nil, err
		}
		g.paused = pausedNow(err)
	}
	if group == "" && !slices.Contains(has.Spec.BrokerGroups, b.o.BrokerGroup) {
		return nil, b.notHere(t.Name) // what is left of it here can be consumed
	}
	in := has.Topic.Namespace
	if n := s.Namespace(in); n == nil || n.ID != namespace || t.Namespace != namespace {
		return nil, wire.Errorf(wire.CodeForbidden, "topic %q is in another namespace", t.Name)
	}
	if g.created = uint64(has.Topic.Created); g.created != t.Origin.Created {
		// It was deleted and made again, or is not known as the registry's yet: soon it is.
		return nil, beingMade(t.Name)
	}
	n := 0
	limit := func(k meta.Key) {
		if l := b.limits.of(&b.metadata, k); l != nil {
			g.limits[n] = l
			n++
		}
	}
	limit(meta.Key{Kind: meta.KindNamespace, Name: in})
	if who.Kind == wire.PrincipalApp {
		limit(meta.Key{Kind: meta.KindApp, Namespace: who.Namespace, Name: who.Name})
	}
	limit(meta.Key{Kind: meta.KindTopic, Namespace: in, Name: t.Name})
	if group == "" {
		if who.Kind == wire.PrincipalApp {
			limit(meta.Key{Kind: meta.KindProducer, Namespace: in, Name: t.Name + "/" + who.Name})
		}
		return g, nil
	}
	if o := consumerOf(s, in, t.Name, group); o != nil {
		g.policy = specOf[meta.Consumer](o)
		g.lasts, g.batch = time.Duration(g.policy.AckTimeout), uint32(max(g.policy.BatchMessages, 0))
		limit(o.Key)
	}
	return g, nil
}

// pausedNow returns err with a time to wait.
func pausedNow(err error) error {
	e := &wire.CodeError{Code: wire.CodePaused, Message: err.Error(), RetryAfter: pausedRetry}
	if c, ok := errors.AsType[*wire.CodeError](err); ok {
		e.Message, e.RetryAfter = c.Message, max(c.RetryAfter, pausedRetry)
	}
	return e
}

var errNoMetadata = wire.Errorf(wire.CodeMetadataAway, "this broker has no metadata yet")

func beingMade(topic string) error {
	err := wire.Errorf(wire.CodeBusy, "topic %q is being made", topic)
	err.RetryAfter = makingRetry
	return err
}

// absent says what err means, that a topic or a group is not there: whether it is there is told only to those who may use it.
func (b *Broker) absent(p *wire.Peer, topic, group string, err error) error {
	absent := wire.CodeOf(err) == wire.CodeTopicNotFound || wire.CodeOf(err) == wire.CodeGroupNotFound
	if absent && b.slave != nil {
		return b.notMaster() // which may have what this one has not heard of yet
	}
	if !b.o.Metadata {
		return err
	}
	s := b.metadata.snapshot.Load()
	if s == nil {
		return errNoMetadata
	}
	if !absent {
		return err
	}
	var has meta.Grant
	var denied error
	if group == "" {
		has, denied = s.MayProduce(subjectOf(p), topic, b.o.BrokerGroup)
	} else {
		has, denied = s.MayConsume(subjectOf(p), topic, group, b.o.BrokerGroup)
	}
	switch {
	case denied != nil && has.Topic == nil:
		return b.denied(denied)
	case wire.CodeOf(err) == wire.CodeGroupNotFound:
		return err
	case slices.Contains(has.Spec.BrokerGroups, b.o.BrokerGroup):
		return beingMade(topic)
	}
	return b.notHere(topic)
}

// notHere lets a client look for the route, which has changed.
func (b *Broker) notHere(topic string) error {
	return wire.Errorf(wire.CodePartitionNotFound, "topic %q has no partitions on broker group %q", topic, b.o.BrokerGroup)
}

// may says whether p may do an operation.
func (b *Broker) may(ctx context.Context, op meta.Operation, topic, group string) error {
	if !b.o.Metadata {
		return nil
	}
	s, p := b.metadata.snapshot.Load(), wire.PeerFrom(ctx)
	if s == nil {
		return errNoMetadata
	}
	err := s.MayOperate(subjectOf(p), op, topic, group)
	if err != nil {
		return b.denied(err)
	}
	return nil
}

// denied counts a refusal, and returns it as it is answered.
func (b *Broker) denied(err error) error {
	b.metrics.denied(err)
	switch wire.CodeOf(err) {
	case wire.CodeTopicNotFound, wire.CodeForbidden, wire.CodeUnauthenticated:
		if b.o.Sure != nil && !b.o.Sure() {
			return wire.Unsure(err)
		}
	}
	return err
}

// outlived says that the registry's topic of that name is another one, made since.
func (b *Broker) outlived(p *wire.Peer, t *store.Topic) bool {
	if !b.o.Metadata {
		return false
	}
	s := b.metadata.snapshot.Load()
	if s == nil {
		return true
	}
	o := s.Get(meta.Key{Kind: meta.KindTopic, Namespace: namespaceOf(p), Name: t.Name})
	return o != nil && uint64(o.Created) != t.Origin.Created
}

// mayRead says whether p may see a topic.
func (b *Broker) mayRead(p *wire.Peer, t *store.Topic) bool {
	if !b.o.Metadata {
		return true
	}
	s := b.metadata.snapshot.Load()
	if s == nil {
		return false
	}
	return s.MayRead(subjectOf(p), meta.Key{Kind: meta.KindTopic, Namespace: namespaceOf(p), Name: t.Name}) == nil
}

// namespaceOf is the name of the namespace whose names a peer uses.
func namespaceOf(p *wire.Peer) string {
	if n := p.Principal.Namespace; n != "" {
		return n
	}
	return meta.NamespaceDefault
}

// sessions are the attached peers.
type sessions struct {
	mu struct {
		sync.Mutex
		all  map[*session]struct{}
		open map[meta.Key]int // connections of apps and namespaces
	}
}

func (s *sessions) init() {
	s.mu.all = map[*session]struct{}{}
	s.mu.open = map[meta.Key]int{}
}

// ownersOf returns what a connection counts for: nothing of a principal that is no app.
func ownersOf(p *wire.Principal) []meta.Key {
	if p.Kind != wire.PrincipalApp {
		return nil
	}
	return []meta.Key{{Kind: meta.KindNamespace, Name: p.Namespace}, {Kind: meta.KindApp, Namespace: p.Namespace, Name: p.Name}}
}

// Attach notes a connection of a client, before its first request. CodeTooMany: its app or its namespace has as many as its limit
// allows, and nothing was noted.
func (b *Broker) Attach(p *wire.Peer) error {
	s := &session{b: b, who: subjectOf(p), client: clientOf(p)}
	s.mu.grants = map[dispatch.Queue]*grant{}
	if err := b.sessions.add(s, ownersOf(&p.Principal), b.metadata.snapshot.Load()); err != nil {
		b.metrics.denied(err)
		return err
	}
	p.Session.Store(s)
	b.dispatch.Attach(s.client)
	return nil
}

func (s *sessions) add(one *session, owners []meta.Key, snapshot *meta.Snapshot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range owners {
		if most := connectionsOf(snapshot, k); most > 0 && s.mu.open[k] >= most {
			return wire.Errorf(wire.CodeTooMany, "%v has %d connections here, which is its limit", k, most)
		}
	}
	for _, k := range owners {
		s.mu.open[k]++
	}
	s.mu.all[one] = struct{}{}
	return nil
}

// Detach notes the end of a connection that Attach noted, after the last request of the connection was handed over.
func (b *Broker) Detach(p *wire.Peer) {
	s := b.sessionOf(p)
	if s == nil {
		panic("broker: a client was detached that was not attached: " + p.ClientID)
	}
	all := &b.sessions
	all.mu.Lock()
	delete(all.mu.all, s)
	for _, k := range ownersOf(&p.Principal) {
		if all.mu.open[k]--; all.mu.open[k] == 0 {
			delete(all.mu.open, k)
		}
	}
	all.mu.Unlock()
	b.dispatch.Detach(s.client)
}

// connectionsOf returns how many connections an app or a namespace may have here; 0: any number.
func connectionsOf(s *meta.Snapshot, k meta.Key) int {
	if s == nil {
		return 0
	}
	switch k.Kind {
	case meta.KindApp:
		if a := s.App(k.Namespace, k.Name); a != nil {
			return a.Limit.Connections
		}
	case meta.KindNamespace:
		if n := s.Namespace(k.Name); n != nil {
			return n.Limit.Connections
		}
	}
	return 0
}

func clientOf(p *wire.Peer) dispatch.Client {
	return dispatch.Client{Namespace: p.Namespace, Kind: p.Principal.Kind, Principal: p.Principal.Name, ID: p.ClientID}
}

// concern is whose grants a change of the metadata may end.
type concern struct {
	all                      bool
	topics                   map[string]bool // in whatever namespace
	apps, users, credentials map[string]bool
}

func concernOf(changed []*meta.Object, known bool) (c concern, any bool) {
	c = concern{all: !known, topics: map[string]bool{}, apps: map[string]bool{}, users: map[string]bool{}, credentials: map[string]bool{}}
	for _, o := range changed {
		switch o.Kind {
		case meta.KindTopic:
			c.topics[o.Name] = true
		case meta.KindConsumer:
			topic, _, _ := strings.Cut(o.Name, "/")
			c.topics[topic] = true
		case meta.KindApp:
			c.apps[o.Name] = true
		case meta.KindUser:
			c.users[o.Name] = true
		case meta.KindCredential:
			c.credentials[o.Name] = true
		}
	}
	return c, c.all || len(c.topics)+len(c.apps)+len(c.users)+len(c.credentials) > 0
}

// whole says that all grants of a principal are concerned.
func (c *concern) whole(p *wire.Principal) bool {
	return c.all || c.credentials[p.Credential] || p.Kind == wire.PrincipalApp && c.apps[p.Name] || p.Kind == wire.PrincipalUser && c.users[p.Name]
}

// askAgain asks for what sessions were granted and a change concerns, and ends what is not granted any more. What waits for nothing
// is asked by its next request. changed is what differs from the metadata before, if that is known.
func (b *Broker) askAgain(changed []*meta.Object, known bool) {
	c, any := concernOf(changed, known)
	if !any {
		return
	}
	all := &b.sessions
	all.mu.Lock()
	list := make([]*session, 0, len(all.mu.all))
	for s := range all.mu.all {
		list = append(list, s)
	}
	all.mu.Unlock()
	var had []*grant
	for _, s := range list {
		whole := c.whole(&s.who.Principal)
		s.mu.Lock()
		had = had[:0]
		for _, g := range s.mu.grants {
			if g.group != "" && (whole || c.topics[g.topic]) {
				had = append(had, g)
			}
		}
		s.mu.Unlock()
		for _, g := range had {
			_ = b.grantAgain(s, g) // it has ended what was to be ended
		}
	}
}

// grantAgain asks again for one, and returns why it is not granted any more, or not now.
func (b *Broker) grantAgain(s *session, was *grant) error {
	epoch := b.metadata.epoch.Load()
	if was.epoch == epoch {
		return was.paused
	}
	s.mu.Lock()
	if g := s.mu.grants[was.key]; g != nil && g.epoch == epoch {
		s.mu.Unlock()
		return g.paused
	}
	s.mu.Unlock()
	t := store.Topic{Namespace: s.client.Namespace, Name: was.topic, Origin: store.Origin{Created: was.created}}
	g, err := b.judge(s.who, s.client.Namespace, &t, was.group)
	s.mu.Lock()
	if err != nil {
		delete(s.mu.grants, was.key)
	} else {
		g.epoch, g.key = epoch, was.key
		s.mu.grants[was.key] = g
	}
	s.mu.Unlock()
	switch {
	case err != nil && wire.CodeOf(err) != wire.CodeBusy:
		b.dispatch.Revoke(was.key, s.client, err, true)
	case err == nil && g.paused != nil:
		err = g.paused
		b.dispatch.Revoke(was.key, s.client, err, false)
	}
	return err
}

// grantedStill asks again for what p was granted, if there was new metadata since.
func (b *Broker) grantedStill(p *wire.Peer, g *grant) error {
	if g.epoch == b.metadata.epoch.Load() {
		return g.paused
	}
	if s := b.sessionOf(p); s != nil {
		return b.grantAgain(s, g)
	}
	t := store.Topic{Namespace: p.Namespace, Name: g.topic, Origin: store.Origin{Created: g.created}}
	again, err := b.judge(subjectOf(p), p.Namespace, &t, g.group)
	if err != nil {
		return err
	}
	return again.paused
}
