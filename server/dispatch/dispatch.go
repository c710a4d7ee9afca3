package dispatch

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
)

// Queue is a group on one incarnation of a topic.
type Queue struct {
	Group offset.GroupID
	Topic offset.Topic
}

// Source is where a queue's state is read from when it is first used. It is called without the Dispatcher's lock.
type Source interface {
	// End returns the index after the last committed message of a partition. It must see every commit that was given to
	// Commit before.
	End(p store.Partition) (index.Index, error)
	// Progress is offset.Table.Progress.
	Progress(g offset.GroupID, topic offset.Topic, p uint16) (offset.Progress, uint32, bool)
	// Names are what people call the queue, for the log.
	Names(q Queue) (topic, group string)
}

// Options of a Dispatcher.
type Options struct {
	Source Source
	// AckTimeout is how long a lease lasts. 0: 5 minutes.
	AckTimeout time.Duration
	// Grace is how long the leases of a client last after its last connection was gone. 0: 10 seconds; below 0: not at all.
	Grace time.Duration
	// WaitersMax bounds the parked fetches. 0: 65,536.
	WaitersMax int
	// ClientWaitersMax bounds those of one client, so that it leaves room for others. 0: 1,024.
	ClientWaitersMax int
	// Boot is the part of lease ids that tells this boot from others, 24 bits. 0: random.
	Boot uint32
	// Logger gets leases that ran out. nil: nobody.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.AckTimeout == 0 {
		o.AckTimeout = 5 * time.Minute
	}
	if o.Grace == 0 {
		o.Grace = 10 * time.Second
	}
	o.Grace = max(o.Grace, 0)
	if o.WaitersMax == 0 {
		o.WaitersMax = 1 << 16
	}
	if o.ClientWaitersMax == 0 {
		o.ClientWaitersMax = 1 << 10
	}
	for o.Boot&bootMask == 0 {
		b := [4]byte{}
		rand.Read(b[:]) // never fails
		o.Boot = binary.LittleEndian.Uint32(b[:])
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

var (
	// ErrNone: there is nothing to take now.
	ErrNone = errors.New("dispatch: nothing to take")
	// ErrParked: the fetch waits; its Waiter will be told.
	ErrParked = errors.New("dispatch: parked")
	// ErrBusy: too many fetches are parked.
	ErrBusy = errors.New("dispatch: too many fetches wait")
	// ErrCancelled: Cancel was called.
	ErrCancelled = errors.New("dispatch: cancelled")
	// ErrReplaced: the member has fetched anew since, and said that nobody waits for this one.
	ErrReplaced = errors.New("dispatch: replaced by a later fetch")
	// ErrNoGroup: the group is not on the topic.
	ErrNoGroup = errors.New("dispatch: no such group on the topic")
)

// A lease id is (boot, number): 24 bits that are this boot's, 40 that count: 10,000 leases a second last 3 years.
const (
	leaseNumberBits = 40
	bootMask        = 1<<24 - 1
)

// Dispatcher hands out leases. It owns one goroutine, which Close ends and waits for.
type Dispatcher struct {
	o     Options
	boot  uint64 // shifted to its place
	start time.Time

	mu struct {
		sync.Mutex
		queues  map[Queue]*queue
		topics  map[offset.Topic][]*queue
		clients map[Client]*client
		spare   []*member // forgotten members, to be used again
		alarms  alarms
		leases  uint64 // number of the last lease
		metrics Metrics
		waiting int
		stopped error // not nil: Stop was called
		ended   []ended

		// Acks that wait for the disk: taken together by TakeEnds, and then their number is what Ack's tickets named.
		ends  []offset.End
		taken uint64 // number of the last batch taken; those in ends will be taken+1
	}
	timer *time.Timer // fires at or before the earliest alarm
	armed time.Duration
	quit  chan struct{}
	done  chan struct{}
}

// queue is what is known of a Queue, since its first fetch.
type queue struct {
	key        Queue
	partitions []*partition
	loaded     int      // partitions below it are loaded, all of them
	ready      []uint64 // a bit for each partition: it has something to give
	next       int      // where the search starts: behind the partition given last
	parked     fetchList
	parkedAny  int   // those of parked that accept any partition
	parkedFor  []int // by partition: those that name it
}

// New returns a Dispatcher. Close it.
func New(o Options) *Dispatcher {
	o = o.withDefaults()
	d := &Dispatcher{o: o, boot: uint64(o.Boot&bootMask) << leaseNumberBits, start: time.Now(), quit: make(chan struct{}), done: make(chan struct{})}
	d.mu.queues = map[Queue]*queue{}
	d.mu.topics = map[offset.Topic][]*queue{}
	d.mu.clients = map[Client]*client{}
	d.timer = time.NewTimer(never)
	d.armed = never
	go d.run()
	return d
}

// Stop ends every parked fetch with err, and every later one; acks go on being taken. The first error stays.
func (d *Dispatcher) Stop(err error) {
	var out fetchList
	d.mu.Lock()
	if d.mu.stopped == nil {
		d.mu.stopped = err
		for _, q := range d.mu.queues {
			for f := q.parked.head; f != nil; f = q.parked.head {
				d.unpark(q, f)
				f.Err = err
				out.push(f)
			}
		}
	}
	d.mu.Unlock()
	out.call()
}

// Close ends the goroutine and waits for it. Call Stop before, and Close once.
func (d *Dispatcher) Close() {
	close(d.quit)
	<-d.done
}

// AckTimeout is how long a lease lasts.
func (d *Dispatcher) AckTimeout() time.Duration { return d.o.AckTimeout }

// now is the time since New, by the monotonic clock.
func (d *Dispatcher) now() time.Duration { return time.Since(d.start) }

// load makes sure that partitions [0, n) of q are known. It reads Source without the lock, so a commit may come between:
// the queue is registered before its ends are read, and an end only grows.
func (d *Dispatcher) load(key Queue, n int) error {
	d.mu.Lock()
	q := d.mu.queues[key]
	if q != nil && q.loaded >= n {
		d.mu.Unlock()
		return nil
	}
	d.mu.Unlock()
	if _, _, ok := d.o.Source.Progress(key.Group, key.Topic, 0); !ok {
		return ErrNoGroup
	}
	d.mu.Lock()
	if q = d.mu.queues[key]; q == nil {
		q = &queue{key: key}
		d.mu.queues[key] = q
		d.mu.topics[key.Topic] = append(d.mu.topics[key.Topic], q)
	}
	for i := len(q.partitions); i < n; i++ {
		q.partitions = append(q.partitions, &partition{queue: q, number: uint16(i)})
		if i/64 >= len(q.ready) {
			q.ready = append(q.ready, 0)
		}
	}
	from := q.loaded
	d.mu.Unlock()

	for i := from; i < n; i++ {
		p := uint16(i)
		end, err := d.o.Source.End(store.Partition{Topic: store.TopicID(key.Topic.ID), Incarnation: key.Topic.Incarnation, Partition: p})
		if err != nil {
			return err
		}
		progress, generation, ok := d.o.Source.Progress(key.Group, key.Topic, p)
		if !ok {
			return ErrNoGroup
		}
		var out fetchList
		d.mu.Lock()
		if part := q.partitions[i]; !part.loaded {
			part.progress, part.generation, part.loaded = progress, generation, true
			part.end = max(part.end, end)
			d.changed(part, &out)
		}
		q.loaded = max(q.loaded, i+1)
		d.mu.Unlock()
		out.call()
	}
	return nil
}

// Commit tells that messages below end are committed. It looks at the groups of that topic only.
func (d *Dispatcher) Commit(p store.Partition, end index.Index) {
	var out fetchList
	d.mu.Lock()
	for _, q := range d.mu.topics[offset.Topic{ID: uint64(p.Topic), Incarnation: p.Incarnation}] {
		if int(p.Partition) < len(q.partitions) {
			part := q.partitions[p.Partition]
			part.end = max(part.end, end)
			d.changed(part, &out)
		}
	}
	d.mu.Unlock()
	out.call()
}

// changed looks whether p has something to give, and gives it to a fetch that waits. Fetches that got a lease are put on
// out, to be called without the lock.
func (d *Dispatcher) changed(p *partition, out *fetchList) {
	q := p.queue
	word, bit := &q.ready[p.number/64], uint64(1)<<(p.number%64)
	if !p.isReady() {
		*word &^= bit
		return
	}
	*word |= bit
	if d.mu.stopped != nil {
		return
	}
	if f := q.pick(p); f != nil {
		d.unpark(q, f)
		d.grant(p, f)
		out.push(f)
	}
}
