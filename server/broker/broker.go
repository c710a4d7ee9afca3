package broker

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/side"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// Options of a Broker.
type Options struct {
	// Offsets is the table that was given to the store too.
	Offsets *offset.Table
	// BrokerGroup is told in routes.
	BrokerGroup string
	// Broker is this one's name, for logs and for masters that it ships a side file to.
	Broker string
	// Slave says that this broker's store follows a master's: nothing is answered but between Serve and StopServing, and what
	// only a master does is CodeNotMaster.
	Slave bool
	// Side is the side file: of a slave that shall serve, and of a master that may have been one. nil: there is none.
	Side *side.File
	// Masters returns the master's addresses, for those who ask a slave. nil: not told.
	Masters func() []string
	// Metadata says that a registry rules this broker: rights, limits and topics are those of the snapshots given to Apply, nothing
	// is served before the first, and topics are made by Apply only. false: everybody may do everything.
	Metadata bool
	// Sure is false while the registry may know more than was given to Apply: what would be refused is answered CodeMetadataAway then. nil: it
	// never does. It must not block.
	Sure func() bool
	// Route answers Route on a broker with Metadata. nil: it tells this broker group's partitions only.
	Route func(context.Context, *wire.RouteRequest) (*wire.RouteResponse, error)
	// AckTimeout is how long a lease lasts. 0: 5 minutes.
	AckTimeout time.Duration
	// Grace is how long leases outlive their client's last connection. 0: 10 seconds; below 0: not at all.
	Grace time.Duration
	// WaitersMax bounds the fetches that wait. 0: 65,536.
	WaitersMax int
	// SubscriptionsMax bounds how many (group, topic) there can be: each stays for ever. 0: 100,000.
	SubscriptionsMax int
	// TopicsMax bounds the topics, so that the list of them is one answer. 0: 25,000.
	TopicsMax int
	// AllPartitionsMax bounds the partitions of all topics together. 0: 1,048,576.
	AllPartitionsMax int
	// RowsMax bounds where groups stand: the partitions of all (group, topic) together. Each takes some 80 bytes, and 300 once it
	// is consumed. 0: 2,097,152.
	RowsMax int
	// Retention is what topics without an age or size of their own have, as far as it is told to people. 0 in it: no limit.
	Retention store.Settings
	// Abandoned says whether a group was not seen on a topic for so long that it keeps no messages from going any more. nil: none was.
	Abandoned func(offset.GroupID, offset.Topic) bool
	// Usage answers StoreUsage. nil: that cannot be asked.
	Usage func(context.Context, *wire.StoreUsageRequest) (*wire.StoreUsageResponse, error)
	// Now is the wall clock, for what is told to people. nil: time.Now.
	Now func() time.Time
	// Readers is how many goroutines answer fetches that waited. 0: one a processor.
	Readers int
	// Flush is called when answers were given from a goroutine of the broker's own, after the last of some. nil: nothing.
	Flush func()
	// Boot makes lease ids of this boot differ from others', 23 bits. 0: random. Those of slaves are random.
	Boot   uint32
	Logger *slog.Logger // nil: nobody
}

func (o Options) withDefaults() Options {
	if o.SubscriptionsMax == 0 {
		o.SubscriptionsMax = 100_000
	}
	if o.TopicsMax == 0 {
		o.TopicsMax = 25_000
	}
	if o.AllPartitionsMax == 0 {
		o.AllPartitionsMax = 1 << 20
	}
	if o.RowsMax == 0 {
		o.RowsMax = 2 << 20
	}
	if o.Abandoned == nil {
		o.Abandoned = func(offset.GroupID, offset.Topic) bool { return false }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Readers == 0 {
		o.Readers = runtime.GOMAXPROCS(0)
	}
	if o.Flush == nil {
		o.Flush = func() {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

const (
	messagesDefault = 10
	bytesDefault    = 1 << 20
	waitMax         = 30 * time.Second
	onlyMax         = 4096    // partitions that a fetch may name
	itemsMax        = 4096    // of an ack
	rowsMax         = 1 << 15 // of an answer about groups: what fits into a frame, unless names are long
	answerBytesMax  = wire.ReplyBytesMax - 1<<10
	busyTries       = 100                    // of what may wait, when busy
	busyRetry       = 20 * time.Millisecond  // a queue full of appends is on disk after that
	waitersRetry    = 500 * time.Millisecond // fetches that wait end one by one
	pausedRetry     = 500 * time.Millisecond // a person ends a pause
	repairRetry     = 500 * time.Millisecond // damage that was just found is repaired after that
	readPause       = 5 * time.Second        // at most, after a read error of a partition
	failurePoll     = time.Second

	// PartitionsMax is the most a topic may have here. A partition costs memory in each of its groups and a place in
	// every checkpoint, and beyond some thousands no more consumers of one broker can share the load by it.
	PartitionsMax = 4096
)

// Broker is one broker's engine. It owns the dispatcher's goroutine and its readers; Close ends both.
type Broker struct {
	o        Options
	store    store.Store
	dispatch *dispatch.Dispatcher
	table    atomic.Pointer[offset.Table] // Options.Offsets, or what a slave serves by
	slave    *slave                       // nil: this is a master
	hold     hold
	merges   mergeCounts
	state    atomic.Int32
	stopped  atomic.Pointer[error] // what is answered when state is stateFailed; set before
	codec    wire.Codec
	readers  readers
	acks     acks
	watch    watch
	births   births
	moving   sync.RWMutex // read-held while a group is made or moved: Settled
	room     room
	changes  chan struct{}                  // has room for one: alterations, deletions and resets come one after another
	heavy    chan struct{}                  // has room for one: what looks at many partitions or reads messages for an operator
	refusing atomic.Pointer[wire.CodeError] // why no message is taken; nil: they are
	metadata metadata
	sessions sessions
	limits   limits
	metrics  metrics
	produces sync.Pool // *produceCall
	buffers  sync.Pool // *[]byte, of fetches
}

// The states of a Broker, in this order.
const (
	stateNew int32 = iota
	stateServing
	stateFailed
	stateStopping
)

var (
	_ wire.Broker = (*Broker)(nil)
	_ wire.Admin  = (*Broker)(nil)
)

// New returns a broker that refuses all requests until Start. It is made before its store, since the store's options
// name b.Gather:
//
//	offsets := offset.NewTable()
//	b := broker.New(broker.Options{Offsets: offsets})
//	s, err := local.Open(local.Options{Tables: []store.Table{offsets}, Gather: b.Gather, ...})
//	b.Start(s)
//	...
//	b.Close()
//	s.Close()
func New(o Options) *Broker {
	b := &Broker{o: o.withDefaults(), changes: make(chan struct{}, 1), heavy: make(chan struct{}, 1)}
	b.dispatch = dispatch.New(dispatch.Options{
		Source: source{b}, AckTimeout: o.AckTimeout, Grace: o.Grace, WaitersMax: o.WaitersMax, Boot: o.Boot, Logger: o.Logger,
		RanOut: b.kick, Elsewhere: o.Slave,
	})
	b.table.Store(o.Offsets)
	if o.Slave {
		b.slave = &slave{b: b, wake: make(chan struct{}, 1)}
	}
	b.acks.init(b)
	b.watch.b = b
	b.births.init()
	b.metadata.init()
	b.sessions.init()
	b.limits.init()
	b.readers.start(b, b.o.Readers)
	return b
}

// Start opens the broker for requests. It registers OnCommit with the store.
func (b *Broker) Start(s store.Store) {
	b.store = s
	b.room.fill(b)
	for _, t := range s.Topics() {
		if t.Settings.PauseConsume {
			b.dispatch.SetPaused(topicKey(&t), true)
		}
	}
	s.Watch(b.OnCommit)
	if !b.state.CompareAndSwap(stateNew, stateServing) {
		panic("broker: started twice, or after Close")
	}
}

// kick lets what waits for the next commit not wait for somebody who asks for one.
func (b *Broker) kick() {
	if b.state.Load() == stateServing {
		b.kickAcks()
	}
}

// Close refuses new requests, ends fetches that wait with CodeStopping, waits for the commit of the acks that were taken,
// and ends the goroutines. The store is closed after it.
func (b *Broker) Close() {
	b.release(0, "the broker is being stopped")
	b.state.Store(stateStopping)
	b.dispatch.Stop(wire.Errorf(wire.CodeStopping, "the broker is being stopped"))
	if b.slave != nil {
		b.StopServing() // answers the acks under way
	}
	b.acks.close()
	b.watch.close()
	b.dispatch.Close()
	b.readers.close()
}

// OnCommit is the store's Watch.
func (b *Broker) OnCommit(p store.Partition, end index.Index) { b.dispatch.Commit(p, end) }

// offsets is the table that the broker goes by.
func (b *Broker) offsets() *offset.Table { return b.table.Load() }

// check returns an error while the broker takes no requests.
func (b *Broker) check() error {
	if err := b.ready(); err != nil {
		return err
	}
	if b.slave != nil && !b.slave.serving.Load() {
		return b.notMaster()
	}
	return nil
}

// master returns an error while the broker takes nothing that only a master does.
func (b *Broker) master() error {
	if err := b.ready(); err != nil {
		return err
	}
	if b.slave != nil {
		return b.notMaster()
	}
	return nil
}

// ready returns an error while the broker can do nothing at all.
func (b *Broker) ready() error {
	switch b.state.Load() {
	case stateNew:
		return wire.Errorf(wire.CodeStopping, "the broker is not started yet")
	case stateStopping:
		return wire.Errorf(wire.CodeStopping, "the broker is being stopped")
	case stateFailed:
		return *b.stopped.Load()
	}
	if err := b.store.Err(); err != nil {
		b.fail(err)
		return *b.stopped.Load()
	}
	return nil
}

var errStopped = wire.Errorf(wire.CodeFailed, failedText)

// fail notes that the store has stopped: nothing is served any more, since what is in memory may be ahead of the disk.
func (b *Broker) fail(err error) {
	why := error(errStopped)
	if err := coded(cmp.Or(b.store.Err(), err)); wire.CodeOf(err) == wire.CodeNotMaster {
		why = err
	}
	b.stopped.CompareAndSwap(nil, &why)
	if !b.state.CompareAndSwap(stateServing, stateFailed) {
		return
	}
	if wire.CodeOf(why) == wire.CodeNotMaster {
		b.o.Logger.Debug("the broker stops serving: it is not the master any more", "err", err)
	} else {
		b.o.Logger.Error("the broker stops serving: its store has failed", "err", err)
	}
	b.dispatch.Stop(why)
}

// failedBy calls fail if err, of an append, says that the store has stopped.
func (b *Broker) failedBy(err error) {
	if errors.Is(err, store.ErrOneCopy) {
		return // it goes on
	}
	if errors.Is(err, errUnknown) || errors.Is(err, errFailed) || errors.Is(err, journal.ErrFenced) || errors.Is(err, side.ErrFailed) {
		b.fail(err)
	}
}

// topic finds what a request names.
func (b *Broker) topic(namespace uint32, name string) (store.Topic, error) {
	if t, ok := b.store.Topic(namespace, name); ok {
		return t, nil
	}
	// A name that no topic can have is told as such.
	if err := wire.CheckTopic(name); err != nil {
		return store.Topic{}, err
	}
	return store.Topic{}, wire.Errorf(wire.CodeTopicNotFound, "topic %q is not there", name)
}

// queue finds a group on a topic.
func (b *Broker) queue(namespace uint32, name, group string) (store.Topic, dispatch.Queue, error) {
	t, err := b.topic(namespace, name)
	if err != nil {
		return t, dispatch.Queue{}, err
	}
	q := dispatch.Queue{Topic: topicKey(&t)}
	if id, ok := b.offsets().Group(namespace, group); ok && b.offsets().Has(id, q.Topic) {
		q.Group = id
		return t, q, nil
	}
	if err := wire.CheckGroup(group); err != nil {
		return t, q, err
	}
	return t, q, wire.Errorf(wire.CodeGroupNotFound, "group %q is not on topic %q", group, name)
}

func topicKey(t *store.Topic) offset.Topic {
	return offset.Topic{ID: uint64(t.ID), Incarnation: t.Incarnation}
}

// source is where dispatch reads a queue's state.
type source struct{ b *Broker }

func (s source) End(p store.Partition) (index.Index, error) {
	_, end, err := s.b.store.Bounds(p)
	return end, err
}

func (s source) Names(q dispatch.Queue) (topic, group string) {
	for _, t := range s.b.store.Topics() {
		if topicKey(&t) == q.Topic {
			topic = t.Name
		}
	}
	for _, g := range s.b.offsets().GroupsOf(q.Topic) {
		if g.ID == q.Group {
			group = g.Name
		}
	}
	return topic, group
}

func (s source) Progress(g offset.GroupID, t offset.Topic, p uint16) (offset.Progress, uint32, bool) {
	return s.b.offsets().Progress(g, t, p)
}

func (s source) Policy(g offset.GroupID, t offset.Topic) (offset.Policy, bool) {
	return s.b.offsets().Policy(g, t)
}
