package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

const (
	answerTimeout = 2 * time.Second // for a connection, a hello, a heartbeat
	watchWait     = 10 * time.Second
	// patience is how long a node may say that its database is away, or that it knows less than we do, before another one is
	// tried; it doubles while that is no better.
	patience     = 3 * time.Second
	patienceMax  = time.Minute
	retryMin     = 100 * time.Millisecond
	retryMax     = 2 * time.Second // well below silenceMax
	retryLater   = 5 * time.Second // what lasted so long makes the next pause short again
	addressesMax = 64
	// cacheEvery is how often the cache is written at most; one that takes long is written less often.
	cacheEvery  = time.Second
	cacheRest   = 20 // times what the last write took
	cacheRetry  = 10 * time.Second
	clientIDMax = 200
	// sureTime is less than what a command that changes metadata waits for nodes that do not say that they have it (2 s).
	sureTime     = 1500 * time.Millisecond
	followerName = "jmq-node"
)

// FollowerOptions are the options of a Follower.
type FollowerOptions struct {
	// Addresses of registry nodes; those that heartbeats tell of are tried too.
	Addresses []string
	// Dial connects, with TLS where that is wanted. Default: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Credentials are proven after the hello. They are asked for with each connection, so that others can be taken into use. Nil: none (a
	// certificate says it).
	Credentials func() (wire.Credentials, error)
	// Self is what this node says of itself in heartbeats; generation and metadata version are filled in by the follower: it must
	// be a new one each time. It is asked every 0.5 s, and must not block.
	Self func() *wire.HeartbeatRequest
	// OnSnapshot is told snapshots, in order, on one goroutine of the follower, before those who watch Feed are; while it runs newer
	// ones wait, and only the newest of them is told. What the cache held is told before NewFollower returns. When it returns,
	// the snapshot counts as in force here. Nil: nobody.
	OnSnapshot func(*meta.Snapshot)
	// OnCurrent is told when Current becomes true. It must not block. Nil: nobody.
	OnCurrent func()
	// CacheFile keeps what is known over a restart. It holds verifiers of secrets: mode 0600. Empty: nothing is kept.
	CacheFile string
	// Every is how long to wait between two heartbeats where d is usual. Default: d.
	Every func(d time.Duration) time.Duration
	// Logger. Default: nothing is logged.
	Logger *slog.Logger

	create func(name string) (cacheFile, error) // of tests
}

func (o FollowerOptions) withDefaults() FollowerOptions {
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	if o.OnSnapshot == nil {
		o.OnSnapshot = func(*meta.Snapshot) {}
	}
	if o.OnCurrent == nil {
		o.OnCurrent = func() {}
	}
	if o.Every == nil {
		o.Every = func(d time.Duration) time.Duration { return d }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.create == nil {
		o.create = createCache
	}
	return o
}

// Follower keeps a copy of the metadata, by a registry node. What it knows it never loses: not by an outage, and not to a registry node
// that knows less.
//
// It owns three goroutines: one speaks with a registry node (beside the one that reads its connection), one applies snapshots, since
// that may take longer than the registry waits for a heartbeat, and one writes the cache.
type Follower struct {
	*Feed
	o      FollowerOptions
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	done   sync.WaitGroup

	// Of the goroutine that speaks, after NewFollower.
	patience time.Duration
	dialled  int

	known   atomic.Pointer[meta.Snapshot] // the newest
	applied atomic.Pointer[meta.Snapshot] // in force here
	news    chan struct{}                 // known is newer than applied
	force   chan struct{}                 // applied is newer than what was beaten
	dirty   chan struct{}                 // the cache is older than known
	ready   chan struct{}
	once    sync.Once

	conn      atomic.Pointer[wire.Conn] // to the registry node that is followed; nil: to none
	learned   atomic.Pointer[[]string]  // addresses of registry nodes, of the last heartbeat
	connected atomic.Bool
	stored    atomic.Bool
	current   atomic.Bool  // at the last heartbeat's answer
	asked     atomic.Int64 // when the last heartbeat was sent whose answer named nothing newer than is known, since begun; 0: none
	told      atomic.Pointer[told]
	begun     time.Time
	answered  atomic.Int64 // when a registry node did last, since begun
	counts    struct {
		connections, failures, refused, snapshots, resets, cacheWrites, cacheFailures atomic.Uint64
	}
}

// NewFollower reads the cache and starts following. It does not wait for a registry. Close ends it.
func NewFollower(o FollowerOptions) (*Follower, error) {
	if o.Self == nil || len(o.Addresses) == 0 {
		return nil, wire.Errorf(wire.CodeInvalid, "a follower needs addresses of registry nodes, and what it says of itself")
	}
	f := &Follower{
		o: o.withDefaults(), patience: patience, begun: time.Now(),
		news: make(chan struct{}, 1), force: make(chan struct{}, 1), dirty: make(chan struct{}, 1), ready: make(chan struct{}),
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.dialled = rand.IntN(len(o.Addresses)) // so that not all go to the first
	f.learned.Store(&[]string{})
	f.Feed = NewFeed(FeedOptions{Registry: f.Registry, Stale: func() bool { return !f.connected.Load() }, Sure: f.Sure})
	if f.o.CacheFile != "" {
		s, err := readCache(f.o.CacheFile, f.o.Self().Node)
		switch {
		case err != nil:
			f.o.Logger.Warn("the cache of metadata is not used", "file", f.o.CacheFile, "err", err)
		case s != nil:
			f.o.Logger.Info("metadata of the cache", "generation", s.Generation, "version", s.Version)
			f.known.Store(s)
			f.apply(s)
		}
	}
	f.done.Add(2)
	go f.run()
	go f.applies()
	if f.o.CacheFile != "" {
		f.done.Add(1)
		go f.caches()
	}
	return f, nil
}

// Ready is closed once there is a snapshot in force, of the cache or of a registry.
func (f *Follower) Ready() <-chan struct{} { return f.ready }

// Connected says whether a registry node answers just now.
func (f *Follower) Connected() bool { return f.connected.Load() }

// Current says whether a registry node answers just now, and what is in force here is the newest that it has told of.
func (f *Follower) Current() bool { return f.connected.Load() && f.current.Load() }

// Sure says whether what is not known here is not there: less than sureTime ago a registry node was asked that had nothing newer, and what is
// known is in force.
func (f *Follower) Sure() bool {
	asked := f.asked.Load()
	return asked > 0 && f.known.Load() == f.applied.Load() && time.Since(f.begun)-time.Duration(asked) < sureTime
}

// told is what a heartbeat's answer says of the own broker group.
type told struct {
	term      uint32
	committed uint64
}

// Told is the highest position that masters of the own broker group told the registry to be committed, up to the term of its row, as last heard;
// term 0: it was not heard.
func (f *Follower) Told() (rowTerm uint32, committed uint64) {
	if t := f.told.Load(); t != nil {
		return t.term, t.committed
	}
	return 0, 0
}

// Registry returns the addresses of registry nodes that live, as far as is known, else those of the options.
func (f *Follower) Registry() []string {
	if learned := *f.learned.Load(); len(learned) > 0 {
		return learned
	}
	return f.o.Addresses
}

// ChangeRow asks the registry node that is followed to change the row of a broker group, as this node: it is for its own master, and not what
// ChangeReplication answers to others, who may not speak as this node. CodeMetadataAway: there is no registry node, and nothing was changed, as
// with CodeDisconnected. CodeUnknown, or the end of ctx: it may have been.
func (f *Follower) ChangeRow(ctx context.Context, r *wire.ChangeReplicationRequest) (*wire.ChangeReplicationResponse, error) {
	conn := f.conn.Load()
	if conn == nil {
		return nil, wire.Errorf(wire.CodeMetadataAway, "no registry node is followed")
	}
	answer := new(wire.ChangeReplicationResponse)
	if err := conn.CallMessage(ctx, wire.CommandChangeReplication, r, answer); err != nil {
		return nil, err
	}
	return answer, nil
}

// Metrics returns counts and gauges.
func (f *Follower) Metrics() FollowerMetrics {
	m := FollowerMetrics{
		Feed: f.FeedMetrics(), Connected: f.connected.Load(), Stored: f.stored.Load(),
		Connections: f.counts.connections.Load(), Failures: f.counts.failures.Load(), Refused: f.counts.refused.Load(),
		Snapshots: f.counts.snapshots.Load(), Resets: f.counts.resets.Load(),
		CacheWrites: f.counts.cacheWrites.Load(), CacheFailures: f.counts.cacheFailures.Load(),
	}
	if !m.Connected {
		m.Silence = time.Since(f.begun) - time.Duration(f.answered.Load())
	}
	return m
}

// Close writes the cache, and ends and waits for the follower's goroutines.
func (f *Follower) Close() error {
	f.cancel()
	f.done.Wait()
	return f.Feed.Close()
}

// applies tells each snapshot to who is in this process, then to those who watch.
func (f *Follower) applies() {
	defer f.done.Done()
	for {
		select {
		case <-f.news:
		case <-f.ctx.Done():
			return
		}
		if s := f.known.Load(); s != f.applied.Load() {
			f.apply(s)
			signal(f.force)
		}
	}
}

func (f *Follower) apply(s *meta.Snapshot) {
	f.o.OnSnapshot(s)
	f.applied.Store(s)
	f.Feed.Set(s)
	f.once.Do(func() { close(f.ready) })
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run speaks with one registry node after the other.
func (f *Follower) run() {
	defer f.done.Done()
	pause := retryMin
	tries := 0    // since the last pause
	told := false // that no registry node answers
	for f.ctx.Err() == nil {
		begun := time.Now()
		addresses := f.addresses()
		f.dialled++
		address := addresses[f.dialled%len(addresses)]
		answered, err := f.follow(address)
		was := f.connected.Swap(false)
		f.stored.Store(false)
		if f.ctx.Err() != nil {
			return
		}
		if was {
			f.tellStale()
		}
		f.counts.failures.Add(1)
		if answered {
			f.answered.Store(int64(time.Since(f.begun)))
			f.o.Logger.Warn("the registry node is left", "registry", address, "err", err)
			told = false
			if time.Since(begun) > retryLater {
				tries, pause = 0, retryMin
			}
		} else {
			f.o.Logger.Debug("the registry node cannot be followed", "registry", address, "err", err)
		}
		if tries++; tries < len(addresses) {
			continue
		}
		tries = 0
		if !told && !answered {
			told = true
			f.o.Logger.Warn("no registry node answers: what is known stays in force", "registry", addresses, "err", err)
		}
		t := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-t.C:
		case <-f.ctx.Done():
		}
		t.Stop()
		pause = min(2*pause, retryMax)
	}
}

// addresses are those of the options, and those that were learned.
func (f *Follower) addresses() []string {
	list := slices.Clone(f.o.Addresses)
	for _, a := range *f.learned.Load() {
		if !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return list
}

func (f *Follower) learn(addresses []string) {
	if len(addresses) > addressesMax {
		addresses = addresses[:addressesMax]
	}
	if len(addresses) > 0 && !slices.Equal(addresses, *f.learned.Load()) {
		f.learned.Store(&addresses)
	}
}

// conversation is what goes on with one registry node.
type conversation struct {
	f       *Follower
	conn    *wire.Conn
	address string
	watched chan answer
	beaten  chan answer
	beating time.Time // when the heartbeat that is not answered yet was sent; zero: none
	watchBy time.Time // when the watch must have been answered
	again   bool      // a heartbeat is due as soon as the one under way is answered
	poor    time.Time // since when the node has no database, or knows less than we do; zero: it does not
	current bool      // as of the last heartbeat
	refused string    // what heartbeats were answered last, if not ok
	stage   *stage
}

// answer is that of a request: exactly one of both.
type answer struct {
	header []byte
	err    error
}

// stage is what pages told, until the last one.
type stage struct {
	reset      bool
	generation meta.Generation
	since      uint64
	version    uint64
	objects    []*meta.Object
}

var errSilent = errors.New("it does not answer")

// follow speaks with the node at an address until that ends; answered says whether it served us.
func (f *Follower) follow(address string) (answered bool, err error) {
	ctx, cancel := context.WithTimeout(f.ctx, answerTimeout)
	defer cancel()
	nc, err := f.o.Dial(ctx, address)
	if err != nil {
		return false, err
	}
	conn := wire.NewConn(nc, wire.ConnOptions{})
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn.Serve()
	}()
	defer func() {
		conn.Close(nil)
		<-served
	}()
	if err := f.greet(ctx, conn); err != nil {
		return false, err
	}
	f.counts.connections.Add(1)
	f.conn.Store(conn)
	defer f.conn.Store(nil)
	c := &conversation{f: f, conn: conn, address: address, watched: make(chan answer, 1), beaten: make(chan answer, 1)}
	return c.run()
}

// greet says hello and who we are.
func (f *Follower) greet(ctx context.Context, conn *wire.Conn) error {
	self := f.o.Self()
	id := self.Node + "/" + self.Boot
	var who wire.Credentials
	if f.o.Credentials != nil {
		var err error
		if who, err = f.o.Credentials(); err != nil {
			return err
		}
	}
	hello, err := conn.Hello(ctx, &wire.HelloRequest{ClientId: id[:min(len(id), clientIDMax)], Sdk: followerName, Credential: who.ID})
	if err != nil {
		return err
	}
	if f.o.Credentials != nil {
		if !hello.Authenticate {
			// Whoever listens at a registry's address while it is down could say what it likes, and everybody's rights are among that.
			return wire.Errorf(wire.CodeUnauthenticated, "%v does not prove that it knows our credential: it must ask for it (node.auth.required)", conn.RemoteAddr())
		}
		if _, err := conn.Authenticate(ctx, who); err != nil {
			return err
		}
	}
	return nil
}

func (c *conversation) run() (answered bool, err error) {
	f := c.f
	ticker := time.NewTicker(beatEvery)
	defer ticker.Stop()
	if err := c.watch(); err != nil {
		return false, err
	}
	if err := c.beat(); err != nil {
		return false, err
	}
	for {
		select {
		case <-f.ctx.Done():
			return answered, f.ctx.Err()
		case <-ticker.C:
			ticker.Reset(f.o.Every(beatEvery))
			now := time.Now()
			switch {
			case !c.beating.IsZero() && now.Sub(c.beating) > answerTimeout, now.After(c.watchBy):
				return answered, errSilent
			case c.beating.IsZero():
				err = c.beat()
			}
		case <-f.force:
			if c.again = !c.beating.IsZero(); !c.again {
				err = c.beat()
			}
		case a := <-c.beaten:
			if err = c.beatAnswered(a); err == nil {
				if !answered {
					answered = true
					f.connected.Store(true)
					f.o.Logger.Info("a registry node is followed", "registry", c.address)
				}
				f.answered.Store(int64(time.Since(f.begun)))
				was := c.current
				if c.current = f.Current(); c.current && !was {
					f.o.OnCurrent()
				}
				if c.again {
					c.again = false
					err = c.beat()
				}
			}
		case a := <-c.watched:
			if err = c.watchAnswered(a); err == nil {
				err = c.watch()
			}
		}
		if err != nil {
			return answered, err
		}
	}
}

// start sends a request whose answer goes to a channel, which has room for it.
func (c *conversation) start(command wire.Command, m proto.Message, to chan answer) error {
	header, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	_, err = c.conn.Start(command, header, nil, func(r wire.Frame, err error) {
		to <- answer{slices.Clone(r.Header), err}
	})
	if err == nil {
		c.conn.Flush()
	}
	return err
}

func (c *conversation) beat() error {
	r := c.f.o.Self()
	if s := c.f.applied.Load(); s != nil {
		r.Generation, r.MetadataVersion = uint64(s.Generation), uint64(s.Version)
	}
	c.beating = time.Now()
	return c.start(wire.CommandHeartbeat, r, c.beaten)
}

// beatAnswered takes the answer of a heartbeat. An error: the node is no good.
func (c *conversation) beatAnswered(a answer) error {
	f := c.f
	sent := c.beating
	c.beating = time.Time{}
	switch wire.CodeOf(a.err) {
	case wire.CodeOK:
	case wire.CodeConflict, wire.CodeInvalid, wire.CodeTooMany, wire.CodeInUse, wire.CodeTooLarge:
		// It does not want to have us as we are, and others would not either; it tells of changes all the same.
		if text := a.err.Error(); text != c.refused {
			c.refused = text
			f.o.Logger.Error("the registry refuses our heartbeats", "registry", c.address, "err", a.err)
		}
		return nil
	default:
		if e, ok := errors.AsType[*wire.CodeError](a.err); ok && e.Code == wire.CodeRoleElsewhere {
			f.learn(e.Nodes)
		}
		return a.err
	}
	c.refused = ""
	r := new(wire.HeartbeatResponse)
	if err := proto.Unmarshal(a.header, r); err != nil {
		return err
	}
	f.learn(r.Registry)
	f.stored.Store(r.Stored)
	f.told.Store(&told{r.ToldTerm, r.Told})
	known := f.known.Load()
	applied := f.applied.Load()
	f.current.Store(applied != nil && r.Generation == uint64(applied.Generation) && r.Version <= uint64(applied.Version))
	if known != nil && r.Generation == uint64(known.Generation) && r.Version <= uint64(known.Version) {
		f.asked.Store(max(int64(sent.Sub(f.begun)), 1))
	} else {
		f.asked.Store(0)
	}
	behind := known != nil && (r.Generation < uint64(known.Generation) || r.Generation == uint64(known.Generation) && r.Version < uint64(known.Version))
	switch now := time.Now(); {
	case r.Stored && !behind:
		c.poor = time.Time{}
		f.patience = patience
	case c.poor.IsZero():
		c.poor = now
	case now.Sub(c.poor) > f.patience && len(f.addresses()) > 1:
		f.patience = min(2*f.patience, patienceMax)
		return errors.New("its database is away, or it knows less than was known before")
	}
	return nil
}

func (c *conversation) watch() error {
	r := &wire.WatchObjectsRequest{WaitMs: uint32(watchWait / time.Millisecond)}
	if s := c.f.known.Load(); s != nil {
		r.Generation, r.Version = uint64(s.Generation), uint64(s.Version)
	}
	if c.stage != nil {
		r.Generation, r.Version, r.Since = uint64(c.stage.generation), c.stage.version, c.stage.since
	}
	c.watchBy = time.Now().Add(watchWait + answerTimeout)
	return c.start(wire.CommandWatchObjects, r, c.watched)
}

// watchAnswered takes a page. An error: the node is no good.
func (c *conversation) watchAnswered(a answer) error {
	f := c.f
	if a.err != nil {
		return a.err
	}
	r := new(wire.WatchObjectsResponse)
	if err := proto.Unmarshal(a.header, r); err != nil {
		return err
	}
	known := f.known.Load()
	generation := meta.Generation(r.Generation)
	if err := c.judge(r, known); err != nil {
		f.counts.refused.Add(1)
		f.o.Logger.Warn("what the registry node tells is not taken", "registry", c.address, "err", err)
		return err
	}
	if r.Reset_ {
		f.counts.resets.Add(1)
		c.stage = &stage{reset: true, generation: generation, since: r.Since}
	}
	if c.stage == nil {
		if len(r.Objects) == 0 && (known == nil || r.Version == uint64(known.Version)) {
			return nil
		}
		c.stage = &stage{generation: generation}
	}
	objects, err := readObjects(r.Objects)
	if err != nil {
		return fmt.Errorf("an object cannot be read, this program may be older than the registry: %w", err)
	}
	c.stage.objects = append(c.stage.objects, objects...)
	c.stage.version = r.Version
	if r.More {
		return nil
	}
	var next *meta.Snapshot
	if c.stage.reset {
		next = meta.NewSnapshot(generation, meta.Version(r.Version), meta.Version(c.stage.since), newestOnly(c.stage.objects))
	} else {
		next = known.Next(meta.Version(r.Version), newestOnly(c.stage.objects))
	}
	c.stage = nil
	f.takeKnown(known, next)
	return nil
}

// judge says why a page may not be taken.
func (c *conversation) judge(r *wire.WatchObjectsResponse, known *meta.Snapshot) error {
	generation := meta.Generation(r.Generation)
	if r.Generation == 0 {
		return errors.New("it has no generation")
	}
	if known != nil && generation < known.Generation {
		return fmt.Errorf("generation %d is older than generation %d, which is known: if the database is another one, say so with jmq registry new-generation", generation, known.Generation)
	}
	if r.Reset_ {
		if known != nil && generation == known.Generation && r.Since < uint64(known.Version) {
			return fmt.Errorf("version %d is older than version %d, which is known: after a restore of the database say so with jmq registry new-generation", r.Since, known.Version)
		}
		return nil
	}
	switch {
	case c.stage != nil:
		if generation != c.stage.generation || r.Version < c.stage.version || c.stage.reset && r.More && r.Since != c.stage.since {
			return errors.New("its pages do not fit together")
		}
	case known == nil || generation != known.Generation:
		return errors.New("it tells changes of what is not known")
	case r.Version < uint64(known.Version):
		return fmt.Errorf("version %d is older than version %d, which is known", r.Version, known.Version)
	}
	return nil
}

// newestOnly leaves of each object the last one told.
func newestOnly(objects []*meta.Object) []*meta.Object {
	last := make(map[meta.Key]int, len(objects))
	for i, o := range objects {
		last[o.Key] = i
	}
	if len(last) == len(objects) {
		return objects
	}
	kept := objects[:0]
	for i, o := range objects {
		if last[o.Key] == i {
			kept = append(kept, o)
		}
	}
	return kept
}

func (f *Follower) takeKnown(known, next *meta.Snapshot) {
	if known != nil && known.Generation != next.Generation {
		f.o.Logger.Warn("the metadata has a new generation", "was", known.Generation, "is", next.Generation, "version", next.Version)
	}
	f.counts.snapshots.Add(1)
	f.known.Store(next)
	signal(f.news)
	signal(f.dirty)
}

// caches writes what is known, seldom enough that it costs little.
func (f *Follower) caches() {
	defer f.done.Done()
	var written *meta.Snapshot
	failing := false
	save := func() (took time.Duration) {
		s := f.known.Load()
		if s == nil || s == written {
			return 0
		}
		begun := time.Now()
		b, err := encodeCache(f.o.Self().Node, s)
		if err == nil {
			err = writeCache(f.o.create, f.o.CacheFile, b)
		}
		if err != nil {
			f.counts.cacheFailures.Add(1)
			if !failing {
				f.o.Logger.Warn("the cache of metadata cannot be written: a restart without a registry would find an older one, or none", "file", f.o.CacheFile, "err", err)
			}
			failing = true
			return time.Since(begun)
		}
		if failing {
			f.o.Logger.Info("the cache of metadata is written again", "file", f.o.CacheFile)
		}
		failing, written = false, s
		f.counts.cacheWrites.Add(1)
		return time.Since(begun)
	}
	for {
		select {
		case <-f.dirty:
		case <-f.ctx.Done():
			save()
			return
		}
		took := save()
		rest := max(cacheEvery, cacheRest*took)
		if failing {
			rest = cacheRetry
			signal(f.dirty)
		}
		t := time.NewTimer(rest)
		select {
		case <-t.C:
		case <-f.ctx.Done():
		}
		t.Stop()
	}
}
