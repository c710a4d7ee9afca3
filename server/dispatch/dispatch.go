package dispatch

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"math/bits"
	"slices"
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
	// Progress is offset.Table.Progress, and Policy offset.Table.Policy.
	Progress(g offset.GroupID, topic offset.Topic, p uint16) (offset.Progress, uint32, bool)
	Policy(g offset.GroupID, topic offset.Topic) (offset.Policy, bool)
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
	// LeasesMax bounds the leases: beyond it only fetches that wait are given some. 0: 1,048,576.
	LeasesMax int
	// Boot is the part of lease ids that tells this boot from others, 23 bits. 0: random.
	Boot uint32
	// Elsewhere says that this is a slave's: its lease ids have the top bit set, which those of masters never have, and begin at random.
	Elsewhere bool
	// RanOut is called, without a lock, after leases ran out: TakeExpiries may have some. nil: nothing.
	RanOut func()
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
	if o.LeasesMax == 0 {
		o.LeasesMax = 1 << 20
	}
	for o.Boot&bootMask == 0 {
		b := [4]byte{}
		rand.Read(b[:]) // never fails
		o.Boot = binary.LittleEndian.Uint32(b[:])
	}
	if o.RanOut == nil {
		o.RanOut = func() {}
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
	// ErrFull: too many leases last.
	ErrFull = errors.New("dispatch: too many leases last")
	// ErrCancelled: Cancel was called.
	ErrCancelled = errors.New("dispatch: cancelled")
	// ErrReplaced: the member has fetched anew since, and said that nobody waits for this one.
	ErrReplaced = errors.New("dispatch: replaced by a later fetch")
	// ErrNoGroup: the group is not on the topic.
	ErrNoGroup = errors.New("dispatch: no such group on the topic")
)

// A lease id is (0, boot, number): 23 bits that are this boot's, 40 that count: 10,000 leases a second last 3 years. One of a slave is
// the top bit and a number that counts from a random one on, 62 bits: another each time that it begins to give leases.
const (
	leaseNumberBits = 40
	bootMask        = 1<<23 - 1
	elsewhereBit    = 1 << 63
)

// firstID is the lease id below the first one.
func (o *Options) firstID() uint64 {
	if !o.Elsewhere {
		return uint64(o.Boot&bootMask) << leaseNumberBits
	}
	b := [8]byte{}
	rand.Read(b[:]) // never fails
	return elsewhereBit | binary.LittleEndian.Uint64(b[:])>>2
}

// Dispatcher hands out leases. It owns one goroutine, which Close ends and waits for.
type Dispatcher struct {
	o     Options
	start time.Time

	mu struct {
		sync.Mutex
		queues      map[Queue]*queue
		topics      map[offset.Topic][]*queue
		paused      map[offset.Topic]bool
		clients     map[Client]*client
		spare       []*member // forgotten members, to be used again
		spareLeases []*lease
		alarms      alarms
		first       uint64 // id below that of the first lease
		leases      uint64 // id of the last lease
		metrics     Metrics
		waiting     int
		stopped     error // not nil: Stop was called
		held        bool  // nothing is given for now: see Hold
		ended       []ended
		alone       []*queue // one member is left in each since the lock was taken: see unlock

		// Acks that wait for the disk: taken together by TakeEnds, and then their number is what Ack's tickets named.
		ends  []offset.End
		taken uint64 // number of the last batch taken; those in ends will be taken+1

		expiries []offset.Expiry
		expired  int // ranges of expiries
	}
	timer *time.Timer // fires at or before the earliest alarm
	armed time.Duration
	quit  chan struct{}
	done  chan struct{}
}

// queue is what is known of a Queue, since its first fetch.
type queue struct {
	key        Queue
	policy     offset.Policy
	paused     bool   // its topic is
	version    uint64 // counts Reloads and the end: what was read before one is not used after it
	gone       bool   // Forget was called
	partitions []*partition
	loaded     int      // partitions below it are loaded, all of them
	ready      []uint64 // a bit for each partition: it has something to give
	next       int      // where the search starts: behind the partition given last
	members    int      // that hold or wait
	fetched    time.Duration
	parked     fetchList
	parkedAny  int   // those of parked that accept any partition
	parkedFor  []int // by partition: those that name it
}

// inFlightMax is how many messages of a partition may be in flight for another lease to be given.
func (q *queue) inFlightMax() uint64 {
	switch {
	case !q.policy.Parallel:
		return 1
	case q.policy.Window == 0:
		return offset.WindowDefault
	}
	return uint64(q.policy.Window)
}

// New returns a Dispatcher. Close it.
func New(o Options) *Dispatcher {
	o = o.withDefaults()
	d := &Dispatcher{o: o, start: time.Now(), quit: make(chan struct{}), done: make(chan struct{})}
	d.mu.first = o.firstID()
	d.mu.leases = d.mu.first
	d.mu.queues = map[Queue]*queue{}
	d.mu.topics = map[offset.Topic][]*queue{}
	d.mu.paused = map[offset.Topic]bool{}
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
	defer d.unlock(&out)
	if d.mu.stopped != nil {
		return
	}
	d.mu.stopped = err
	for _, q := range d.mu.queues {
		for f := q.parked.head; f != nil; f = q.parked.head {
			d.settle(d.unpark(q, f))
			f.Err = err
			out.push(f)
		}
	}
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

// unlock gives what became free by the way, gives the lock back, and tells those on out. A member that is alone now may have more than
// half of a window.
func (d *Dispatcher) unlock(out *fetchList) {
	for len(d.mu.alone) > 0 {
		q := d.mu.alone[len(d.mu.alone)-1]
		d.mu.alone = d.mu.alone[:len(d.mu.alone)-1]
		d.match(q, out)
	}
	d.mu.Unlock()
	out.call()
}

// match gives what q has to fetches that wait.
func (d *Dispatcher) match(q *queue, out *fetchList) {
	for w := 0; w < len(q.ready) && q.parked.head != nil; w++ {
		for word := q.ready[w]; word != 0; word &= word - 1 {
			d.changed(q.partitions[w*64+bits.TrailingZeros64(word)], out)
		}
	}
}

// load makes sure that partitions [0, n) of q are known. It reads Source without the lock, so a commit may come between:
// the queue is registered before its ends are read, and an end only grows. What was read before a Reload is read again.
func (d *Dispatcher) load(key Queue, n int) error {
	d.mu.Lock()
	q := d.mu.queues[key]
	if q != nil && q.loaded >= n {
		d.mu.Unlock()
		return nil
	}
	d.mu.Unlock()
	if _, ok := d.o.Source.Policy(key.Group, key.Topic); !ok {
		return ErrNoGroup
	}
	d.mu.Lock()
	if q = d.mu.queues[key]; q == nil {
		q = &queue{key: key, paused: d.mu.paused[key.Topic], fetched: -1}
		d.mu.queues[key] = q
		d.mu.topics[key.Topic] = append(d.mu.topics[key.Topic], q)
	}
	for i := len(q.partitions); i < n; i++ {
		q.partitions = append(q.partitions, &partition{queue: q, number: uint16(i)})
		if i/64 >= len(q.ready) {
			q.ready = append(q.ready, 0)
		}
	}
	from, version := q.loaded, q.version
	d.mu.Unlock()

	policy, ok := d.o.Source.Policy(key.Group, key.Topic)
	for i := from; i < n && ok; {
		p := uint16(i)
		end, err := d.o.Source.End(store.Partition{Topic: store.TopicID(key.Topic.ID), Incarnation: key.Topic.Incarnation, Partition: p})
		if err != nil {
			return err
		}
		var progress offset.Progress
		var generation uint32
		if progress, generation, ok = d.o.Source.Progress(key.Group, key.Topic, p); !ok {
			break
		}
		var out fetchList
		d.mu.Lock()
		switch part := q.partitions[i]; {
		case q.gone:
			ok = false
		case q.version != version:
			version = q.version
			d.mu.Unlock()
			policy, ok = d.o.Source.Policy(key.Group, key.Topic)
			continue
		default:
			if !part.loaded {
				if q.loaded == 0 {
					q.policy = policy
				}
				part.end = max(part.end, end)
				part.reset(progress, generation)
				d.changed(part, &out)
			}
			i++
			q.loaded = max(q.loaded, i)
		}
		d.unlock(&out)
	}
	if !ok {
		d.Forget(key)
		return ErrNoGroup
	}
	return nil
}

// Reload takes over a committed change of the group on the topic: partitions that were moved give what is next there,
// with another kind of policy all do. Their leases end. What the queue was not used for yet is read when it is.
func (d *Dispatcher) Reload(key Queue) {
	d.mu.Lock()
	q := d.mu.queues[key]
	if q == nil {
		d.mu.Unlock()
		return
	}
	q.version++
	version, n := q.version, q.loaded
	d.mu.Unlock()

	policy, ok := d.o.Source.Policy(key.Group, key.Topic)
	type standing struct {
		offset.Progress
		generation uint32
	}
	all := make([]standing, n)
	for i := range all {
		if ok {
			all[i].Progress, all[i].generation, ok = d.o.Source.Progress(key.Group, key.Topic, uint16(i))
		}
	}
	if !ok {
		d.Forget(key)
		return
	}
	var out fetchList
	d.mu.Lock()
	defer d.unlock(&out)
	if q.gone {
		return
	}
	// While it changes nothing is given.
	paused := q.paused
	q.paused = true
	turned := policy.Parallel != q.policy.Parallel && version == q.version
	for i, p := range q.partitions {
		// Of two Reloads that run at once the later may be here first. What was acked and is not committed is in p only.
		moved := i < n && all[i].generation > p.generation
		if moved || turned {
			for len(p.leases) > 0 {
				d.endLease(p.leases[0], EndedReset, &out)
			}
		}
		if moved {
			p.reset(all[i].Progress, all[i].generation)
		}
	}
	if version == q.version {
		q.policy = policy
	}
	q.paused = paused
	for _, p := range q.partitions {
		d.changed(p, &out)
	}
}

// Forget drops a queue: its leases end, fetches that wait for it get ErrNoGroup. If the group is on the topic, the next fetch
// reads anew where it stands.
func (d *Dispatcher) Forget(key Queue) {
	var out fetchList
	d.mu.Lock()
	defer d.unlock(&out)
	if q := d.mu.queues[key]; q != nil {
		d.forget(q, &out)
	}
}

// ForgetTopic drops all queues of a topic, and that it is paused.
func (d *Dispatcher) ForgetTopic(topic offset.Topic) {
	var out fetchList
	d.mu.Lock()
	defer d.unlock(&out)
	for _, q := range slices.Clone(d.mu.topics[topic]) {
		d.forget(q, &out)
	}
	delete(d.mu.paused, topic)
}

func (d *Dispatcher) forget(q *queue, out *fetchList) {
	q.gone, q.paused = true, true
	q.version++
	for f := q.parked.head; f != nil; f = q.parked.head {
		d.settle(d.unpark(q, f))
		f.Err = ErrNoGroup
		out.push(f)
	}
	for _, p := range q.partitions {
		for len(p.leases) > 0 {
			d.endLease(p.leases[0], EndedReset, out)
		}
		d.unset(&p.alarm)
	}
	for _, c := range d.mu.clients {
		for k := range c.reconciled {
			if k.queue == q {
				delete(c.reconciled, k)
			}
		}
	}
	delete(d.mu.queues, q.key)
	topic := q.key.Topic
	if rest := slices.DeleteFunc(d.mu.topics[topic], func(o *queue) bool { return o == q }); len(rest) > 0 {
		d.mu.topics[topic] = rest
	} else {
		delete(d.mu.topics, topic)
	}
}

// Grow makes the partitions that a topic got, [0, n) now, known to its queues, so that fetches which wait are given what comes
// there. A queue that is not known, or cannot be read now, learns of them by its next fetch.
func (d *Dispatcher) Grow(topic offset.Topic, n int) {
	d.mu.Lock()
	queues := slices.Clone(d.mu.topics[topic])
	d.mu.Unlock()
	for _, q := range queues {
		_ = d.load(q.key, n) // the error is the next fetch's too
	}
}

// SetPaused stops or resumes giving anything of a topic. Leases last on.
func (d *Dispatcher) SetPaused(topic offset.Topic, paused bool) {
	var out fetchList
	d.mu.Lock()
	defer d.unlock(&out)
	if paused {
		d.mu.paused[topic] = true
	} else {
		delete(d.mu.paused, topic)
	}
	for _, q := range d.mu.topics[topic] {
		q.paused = paused
		for _, p := range q.partitions {
			d.changed(p, &out)
		}
	}
}

// Use is who uses a queue.
type Use struct {
	Members   int       // that hold a lease or wait for one
	Waiting   int       // fetches that wait
	Leases    int       // that last
	Leased    uint64    // messages of them that were neither acked nor released
	LastFetch time.Time // with a monotonic reading; zero: none since the start
}

// Use returns who uses a queue.
func (d *Dispatcher) Use(key Queue) Use {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.mu.queues[key]
	if q == nil {
		return Use{}
	}
	u := Use{Members: q.members}
	for f := q.parked.head; f != nil; f = f.next {
		u.Waiting++
	}
	for _, p := range q.partitions {
		u.Leases += len(p.leases)
		u.Leased += p.inFlight
	}
	if q.fetched >= 0 {
		u.LastFetch = d.start.Add(q.fetched)
	}
	return u
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
	d.unlock(&out)
}

// Metrics of a Dispatcher.
type Metrics struct {
	Leases  uint64       // given
	Leased  int          // leases that last
	Ended   [whys]uint64 // by Why
	Queues  int          // known: they were fetched from since the start, and are not gone
	Waiting int          // parked fetches
	Refused uint64       // fetches refused since too many are parked or too many leases last
}

// Metrics returns them.
func (d *Dispatcher) Metrics() Metrics {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.mu.metrics
	m.Queues, m.Waiting = len(d.mu.queues), d.mu.waiting
	return m
}
