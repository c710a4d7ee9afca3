package registry

import (
	"context"
	"net/netip"
	"slices"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// States of a partition in a route.
const (
	partitionActive   = 0
	partitionReadOnly = 1 // nothing is sent there; what is there is consumed
	partitionDraining = 2
	partitionAway     = 4 // active, but its broker is away: order keys that fall there wait for it, everything else goes elsewhere
)

// viewer is who looks at the metadata.
type viewer struct {
	who       meta.Subject
	app       string // who it is, for settings: of a peer that was not authenticated what its hello said
	namespace string
}

func viewerOf(p *wire.Peer) viewer {
	v := viewer{who: meta.Subject{Principal: p.Principal}, app: p.App, namespace: namespaceOf(p)}
	if a, err := netip.ParseAddrPort(p.Addr); err == nil {
		v.who.Addr = a.Addr().Unmap()
	}
	if p.Principal.Kind == wire.PrincipalApp {
		v.app = p.Principal.Name
	}
	return v
}

// namespaceOf is the namespace in which a peer's names are.
func namespaceOf(p *wire.Peer) string {
	if p.Principal.Namespace != "" {
		return p.Principal.Namespace
	}
	return meta.NamespaceDefault
}

func subjectOf(ctx context.Context) (meta.Subject, *wire.Peer) {
	p := wire.PeerFrom(ctx)
	return viewerOf(p).who, p
}

// world is a snapshot with what views need of it beside.
type world struct {
	*meta.Snapshot
	brokers map[string][]*wire.BrokerRoute // by broker group, the master first
	centers []network
}

type network struct {
	prefix netip.Prefix
	center string
}

// newWorld makes the world of s. Of the one before, which may be nil, it takes what did not change; changed says what did,
// unless all is true.
func newWorld(before *world, s *meta.Snapshot, changed []*meta.Object, all bool) *world {
	w := &world{Snapshot: s}
	brokers, centers := all, all
	for _, o := range changed {
		brokers = brokers || o.Kind == meta.KindBroker || o.Kind == meta.KindReplication
		centers = centers || o.Kind == meta.KindDataCenter
	}
	if before != nil {
		w.brokers, w.centers = before.brokers, before.centers
	}
	if brokers || before == nil {
		w.brokers = map[string][]*wire.BrokerRoute{}
		for _, o := range s.List(meta.KindBroker) {
			b := o.Spec.(*meta.Broker)
			w.brokers[b.BrokerGroup] = append(w.brokers[b.BrokerGroup], &wire.BrokerRoute{Broker: o.Name, Addresses: b.Addresses, Slave: !s.IsMaster(o.Name), Away: b.Away})
		}
		for _, list := range w.brokers {
			slices.SortStableFunc(list, func(a, b *wire.BrokerRoute) int { return rank(a.Slave) - rank(b.Slave) })
		}
	}
	if centers || before == nil {
		w.centers = nil
		for _, o := range s.List(meta.KindDataCenter) {
			for _, text := range o.Spec.(*meta.DataCenter).Networks {
				if p, err := netip.ParsePrefix(text); err == nil {
					w.centers = append(w.centers, network{p.Masked(), o.Name})
				} else if a, err := netip.ParseAddr(text); err == nil {
					w.centers = append(w.centers, network{netip.PrefixFrom(a, a.BitLen()), o.Name})
				}
			}
		}
		// The longest first; of equal ones that of the first name.
		slices.SortStableFunc(w.centers, func(a, b network) int { return b.prefix.Bits() - a.prefix.Bits() })
	}
	return w
}

func rank(slave bool) int {
	if slave {
		return 1
	}
	return 0
}

// center is the data center in which an address lies, "" if none.
func (w *world) center(a netip.Addr) string {
	for _, n := range w.centers {
		if n.prefix.Contains(a) {
			return n.center
		}
	}
	return ""
}

// routed is what a subscription does to a route.
type routed struct {
	weights   map[string]int
	forbidden []string // broker groups
}

// route is a topic's route over all of its broker groups. A broker group without a living master takes no sends, unless there is no
// other: the last ones always stay.
func (w *world) route(o *meta.Object, by routed) *wire.RouteResponse {
	spec := o.Spec.(*meta.Topic)
	groups := slices.DeleteFunc(slices.Sorted(slices.Values(spec.BrokerGroups)), func(g string) bool { return slices.Contains(by.forbidden, g) })
	r := &wire.RouteResponse{ // without TopicId: that is a broker's own number
		Version: uint64(o.Revision), Incarnation: uint32(o.Created), Replicated: spec.Durability == meta.DurabilityReplicated,
		Partitions:   make([]*wire.PartitionRoute, 0, len(groups)*spec.Partitions),
		BrokerGroups: make([]*wire.BrokerGroupRoute, 0, len(groups)),
	}
	weights := shares(by.weights, groups)
	states := make([]uint32, len(groups))
	living := make([]bool, len(groups))
	left := false // a broker group that is active and lives
	for i, g := range groups {
		if group := w.BrokerGroup(g); group != nil {
			switch group.State {
			case meta.BrokerGroupReadOnly:
				states[i] = partitionReadOnly
			case meta.BrokerGroupDraining:
				states[i] = partitionDraining
			}
		}
		if len(by.weights) > 0 && weights[g] == 0 && states[i] == partitionActive {
			states[i] = partitionReadOnly
		}
		living[i] = slices.ContainsFunc(w.brokers[g], func(b *wire.BrokerRoute) bool { return !b.Slave && !b.Away })
		left = left || living[i] && states[i] == partitionActive
	}
	parts := make([]wire.PartitionRoute, len(groups)*spec.Partitions)
	for i, g := range groups {
		if !living[i] && left && states[i] == partitionActive {
			states[i] = partitionAway
		}
		group := &wire.BrokerGroupRoute{BrokerGroup: g, Brokers: w.brokers[g], Weight: uint32(weights[g])}
		if o := w.Get(meta.Key{Kind: meta.KindBrokerGroup, Name: g}); o != nil {
			group.DataCenter = o.Spec.(*meta.BrokerGroup).DataCenter
			r.Version = max(r.Version, uint64(o.Revision))
		}
		if o := w.Get(meta.Key{Kind: meta.KindReplication, Name: g}); o != nil {
			r.Version = max(r.Version, uint64(o.Revision))
		}
		for _, b := range w.brokers[g] {
			if o := w.Get(meta.Key{Kind: meta.KindBroker, Name: b.Broker}); o != nil {
				r.Version = max(r.Version, uint64(o.Revision))
				if group.DataCenter == "" {
					group.DataCenter = o.Spec.(*meta.Broker).DataCenter
				}
			}
		}
		r.BrokerGroups = append(r.BrokerGroups, group)
		for p := range spec.Partitions {
			part := &parts[i*spec.Partitions+p]
			part.Partition, part.BrokerGroup, part.State = uint32(p), g, states[i]
			r.Partitions = append(r.Partitions, part)
		}
	}
	return r
}

// shares gives the weights of broker groups: those without one share what the others leave of 100. Nil: none were given.
func shares(given map[string]int, groups []string) map[string]int {
	if len(given) == 0 {
		return nil
	}
	left, without := 100, 0
	for _, g := range groups {
		if n, ok := given[g]; ok {
			left -= n
		} else {
			without++
		}
	}
	weights := map[string]int{}
	for _, g := range groups {
		if n, ok := given[g]; ok {
			weights[g] = n
		} else {
			weights[g] = max(left/without, 0)
		}
	}
	return weights
}

// view is a topic as v sees it: as who sends to it, or, with a group, as who consumes it.
func (w *world) view(v viewer, topic, group string) *wire.TopicView {
	t := &wire.TopicView{Topic: topic, Group: group}
	err := w.fill(t, v)
	if err != nil {
		t.Code, t.Message = uint32(wire.CodeOf(err)), messageOf(err)
	}
	t.Version = digest(t)
	return t
}

func messageOf(err error) string {
	if e, ok := err.(*wire.CodeError); ok {
		return e.Message
	}
	return err.Error()
}

// fill fills a view; an error says why the topic may not be used.
func (w *world) fill(t *wire.TopicView, v viewer) error {
	o := w.Get(meta.Key{Kind: meta.KindTopic, Namespace: v.namespace, Name: t.Topic})
	if o == nil {
		return wire.Errorf(wire.CodeTopicNotFound, "topic %q", t.Topic)
	}
	var err error
	if t.Group == "" {
		_, err = w.MayProduce(v.who, t.Topic, "")
	} else {
		_, err = w.MayConsume(v.who, t.Topic, t.Group, "")
	}
	if err != nil && wire.CodeOf(err) != wire.CodePaused { // a pause is a setting: it ends, and the route is known then
		return err
	}
	spec := o.Spec.(*meta.Topic)
	var by routed
	center := w.center(v.who.Addr)
	if t.Group == "" {
		t.Producer = &wire.ProducerSettings{DataCenter: textOrNone(center), OrderKeyMove: spec.OrderKeyAway == meta.OrderKeyMove}
		paused := spec.PauseProduce
		if p := w.producer(v, t.Topic); p != nil {
			by = routed{p.Weights, p.ForbiddenBrokerGroups}
			paused = paused || p.Paused
			t.Producer.TimeoutMs = millisOrNone(p.Timeout)
			t.Producer.Near = p.Near
			if p.Retries != nil {
				t.Producer.Retries = proto.Uint32(uint32(*p.Retries))
			}
		}
		if paused {
			t.Producer.Paused = &paused
		}
	} else {
		t.Consumer = &wire.ConsumerSettings{DataCenter: textOrNone(center)}
		paused := spec.PauseConsume
		if c := w.consumer(v, t.Topic, t.Group); c != nil {
			by = routed{nil, c.ForbiddenBrokerGroups}
			paused = paused || c.Paused
			t.Consumer.BatchMessages = numberOrNone(c.BatchMessages)
			t.Consumer.AckTimeoutMs = millisOrNone(c.AckTimeout)
			t.Consumer.PollWaitMs = millisOrNone(c.PollWait)
			t.Consumer.Concurrency = numberOrNone(c.Concurrency)
			t.Consumer.Near = c.Near
		}
		if paused {
			t.Consumer.Paused = &paused
		}
	}
	t.Route = w.route(o, by)
	return nil
}

// producer is the subscription by which v sends to a topic, or nil.
func (w *world) producer(v viewer, topic string) *meta.Producer {
	if o := w.Get(meta.Key{Kind: meta.KindProducer, Namespace: v.namespace, Name: topic + "/" + v.app}); o != nil {
		return o.Spec.(*meta.Producer)
	}
	return nil
}

// consumer is the subscription of a group, or the one of its app, which is for all subgroups that have none.
func (w *world) consumer(v viewer, topic, group string) *meta.Consumer {
	for _, name := range [...]string{group, meta.AppOf(group)} {
		if o := w.Get(meta.Key{Kind: meta.KindConsumer, Namespace: v.namespace, Name: topic + "/" + name}); o != nil {
			return o.Spec.(*meta.Consumer)
		}
	}
	return nil
}

func textOrNone(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func numberOrNone(n int) *uint32 {
	if n == 0 {
		return nil
	}
	return proto.Uint32(uint32(n))
}

func millisOrNone(d meta.Duration) *uint32 {
	if d <= 0 {
		return nil
	}
	return proto.Uint32(uint32(max(d/1e6, 1)))
}

// digest is the version of a view: what it says, but for the version of its route, which counts changes that it does not show.
func digest(t *wire.TopicView) uint64 {
	var version uint64
	if t.Route != nil {
		version, t.Route.Version = t.Route.Version, 0
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(t)
	if t.Route != nil {
		t.Route.Version = version
	}
	if err != nil { // a text that is not UTF-8: names and addresses are ASCII
		panic(err)
	}
	return max(xxhash.Sum64(b), 1)
}
