package retention

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
)

// Keeper keeps a store within its bounds. It owns two goroutines, the guard and the pass; Close ends both.
type Keeper struct {
	o       Options
	marks   marks
	began   time.Time
	cancel  context.CancelFunc
	running sync.WaitGroup
	hurry   chan struct{} // to the pass: the level asks for one now; room for one
	look    chan struct{} // to the guard: a pass is over; room for one

	// The guard's own.
	told struct {
		folders map[string]string         // by path: what is wrong with it, as it was logged; "" is the limit
		levels  [Refuse + 1]time.Duration // uptime when it was logged
	}
	guarding sync.Mutex // orders looks: the guard's and, between steps of an early deletion, the pass's

	soon, stop atomic.Int64 // ends of the log at which Grew asks for a look, and refuses sends
	word       struct {
		sync.Mutex        // orders calls of SetWritable; Grew takes it, so nothing waits under it
		refused    string // why sends are refused, as it was told; "": they are taken
		next       string // why they will be
	}

	// The pass's own.
	clock   clock
	saved   time.Duration // uptime when the state file was written
	failure string        // of the last pass, as it was logged
	topics  map[offset.Topic]*topicMemory

	mu struct {
		sync.Mutex
		status  status
		metrics counters
	}
}

// topicMemory is what the pass remembers of a topic.
type topicMemory struct {
	pass      uint64
	oldest    []oldest
	abandoned []offset.GroupID
}

// oldest is the stored time of a partition's first message, which costs a read.
type oldest struct {
	first  index.Index
	stored int64
}

// status is what both goroutines have last seen; others read copies.
type status struct {
	level     Level
	fullest   room
	disks     []Disk
	limited   int64  // bytes that count towards Options.BytesMax
	gone      string // which folder is gone; "": none
	suspended string // why nothing is decided by the clock; "": it is
	left      time.Duration
	blocked   bool // the last early deletion ended above its mark
	abandoned []Abandoned
}

type counters struct {
	trimmed   [reasons]uint64
	reclaimed int64
	passes    uint64
	errors    uint64
	jumps     uint64
}

// Disk is a watched folder's disk.
type Disk struct {
	What, Folder string
	Total, Free  int64 // 0: they cannot be read
	Error        string
}

// Abandoned is a group that does not count on a topic any more.
type Abandoned struct {
	Topic  store.TopicID
	Group  offset.GroupID
	Name   string
	Active int64 // when it was last seen
}

// Start looks at the disks, calls SetWritable if they ask for it, and starts the goroutines.
func Start(o Options) (*Keeper, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	k := &Keeper{
		o: o, began: time.Now(), hurry: make(chan struct{}, 1), look: make(chan struct{}, 1), topics: map[offset.Topic]*topicMemory{},
		marks: marks{Warn: float64(o.WarnPercent) / 100, EarlyDelete: float64(o.EarlyDeletePercent) / 100, Refuse: float64(o.RefusePercent) / 100},
	}
	k.told.folders = map[string]string{}
	k.soon.Store(math.MaxInt64)
	k.stop.Store(math.MaxInt64)
	k.startClock()
	k.see()
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	k.running.Go(func() { k.guard(ctx) })
	k.running.Go(func() { k.pass(ctx) })
	return k, nil
}

// Close ends the goroutines and waits for them. The store is closed after it.
func (k *Keeper) Close() {
	k.cancel()
	k.running.Wait()
	k.save()
}

func (k *Keeper) up() time.Duration { return time.Since(k.began) }

// guard looks at the disks until ctx ends.
func (k *Keeper) guard(ctx context.Context) {
	timer := time.NewTimer(k.see())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-k.look:
		}
		timer.Reset(k.see())
	}
}

// pass trims and reclaims until ctx ends.
func (k *Keeper) pass(ctx context.Context) {
	timer := time.NewTimer(k.o.Every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-k.hurry:
		}
		began := time.Now()
		k.once(ctx)
		nudge(k.look)
		timer.Reset(k.o.Every)
		// Passes that are asked for again and again take a tenth of a processor at most, and are rare when they cannot help.
		pause := hurryEvery
		if s, _ := k.snapshot(); s.blocked {
			pause = hurryBlocked
		}
		if !rest(ctx, min(max(10*time.Since(began), pause), k.o.Every)) {
			return
		}
	}
}

const (
	hurryEvery   = 50 * time.Millisecond
	hurryBlocked = time.Second
)

func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Abandoned reports whether a group does not count on a topic any more, as the last pass saw it.
func (k *Keeper) Abandoned(g offset.GroupID, t offset.Topic) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.ContainsFunc(k.mu.status.abandoned, func(a Abandoned) bool { return a.Group == g && uint64(a.Topic) == t.ID })
}

// Gone says which folder of the store is not there any more, "" while all are.
func (k *Keeper) Gone() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mu.status.gone
}

// Refusing says why sends are refused, "" while they are taken.
func (k *Keeper) Refusing() string {
	k.word.Lock()
	defer k.word.Unlock()
	return k.word.refused
}

// snapshot is a copy of what both goroutines have last seen.
func (k *Keeper) snapshot() (status, counters) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.mu.status
	s.disks, s.abandoned = slices.Clone(s.disks), slices.Clone(s.abandoned)
	return s, k.mu.metrics
}

func notExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
