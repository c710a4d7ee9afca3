package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/wire"
)

const (
	mergeBytesMax = 1 << 20               // of sends merged into one batch; a larger one goes alone
	batchKeepMax  = mergeBytesMax * 5 / 4 // a buffer larger than that is not kept
	retryMin      = 5 * time.Millisecond
	retryMax      = 200 * time.Millisecond
	retryAfterMax = time.Second // Close waits for a pause
)

// pending is one Send, or the part of a SendBatch that goes to one partition, from its call to its result. It is used
// again by its client.
type pending struct {
	o       *producerOptions
	msgs    []wire.Message
	one     [1]wire.Message
	body    []byte // a copy of the one body: the caller may be gone when it is encoded
	size    int
	state   atomic.Int32
	ready   chan struct{} // one element: result is there
	timeout *time.Timer   // of one that waits in a lane
	result  sendResult

	// Of SendAsync and SendOneway, for which nobody waits.
	async *asyncProducer // nil: of Send or SendBatch
	done  func(Receipt, error)
	epoch *sendEpoch
	until time.Time // it is not begun later than that
	fixed bool      // to its partition
}

// Who comes first decides.
const (
	pendingWaits int32 = iota
	pendingResolved
	pendingAbandoned // the caller went away: nobody reads the result
)

type sendResult struct {
	partition         uint16
	first             uint64
	stored            int64
	broker            string
	brokerGroup       string
	attempts, unknown int
	err               error // of the last attempt; nil: stored
	outcome           Outcome
}

func (c *Client) pending(o *producerOptions) *pending {
	p, _ := c.pendings.Get().(*pending)
	if p == nil {
		p = &pending{ready: make(chan struct{}, 1)}
	}
	p.o = o
	p.state.Store(pendingWaits)
	return p
}

func (c *Client) putPending(p *pending) {
	p.msgs, p.one[0], p.size, p.result, p.o = nil, wire.Message{}, 0, sendResult{}, nil
	p.async, p.done, p.epoch, p.fixed = nil, nil, nil, false
	if cap(p.body) > 64<<10 {
		p.body = nil
	}
	c.pendings.Put(p)
}

// own makes p independent of its caller's memory.
func (p *pending) own() {
	if len(p.msgs) == 1 {
		p.body = append(p.body[:0], p.msgs[0].Body...)
		p.msgs[0].Body = p.body
		p.msgs[0].Headers = append(Headers(nil), p.msgs[0].Headers...)
		return
	}
	for i := range p.msgs {
		p.msgs[i].Body = append([]byte(nil), p.msgs[i].Body...)
		p.msgs[i].Headers = append(Headers(nil), p.msgs[i].Headers...)
	}
}

// lane keeps sends in the order of their calls: while as many batches are in flight as its width allows, one where order
// matters, further sends wait, and go together in the next batch. Nobody waits for others to come: an idle lane sends at
// once. Its queue is as long as there are callers waiting, and producers' buffers of asynchronous sends have room.
type lane struct {
	topic       *topic
	partition   uint32 // not of the lane of sends without order key, and so are those below
	brokerGroup string
	pool        atomic.Pointer[pool] // where the broker group is now
	refused     *breaker             // of this topic at the broker group: what the others of the broker group do not have

	// What the broker group told of the topic last, where routes come from metadata: each has its own. One without the other does no
	// harm: the broker compares the name.
	topicID, version atomic.Uint64

	sequence atomic.Uint64 // of the next message

	mu struct {
		sync.Mutex
		inFlight int
		queue    []*pending
	}
}

// isFree says that the lane's batches go to any partition.
func (l *lane) isFree() bool { return l == &l.topic.free }

// send starts p, or queues it behind width batches in flight (0: never). deadline is that of all attempts.
func (l *lane) send(p *pending, width int, deadline time.Time, rt *route) (queued bool) {
	if p.async != nil {
		p.own() // most of them wait; not under the lock that they all want
	}
	if width > 0 {
		l.mu.Lock()
		if l.mu.inFlight >= width {
			if p.async == nil {
				p.own()
			}
			l.mu.queue = append(l.mu.queue, p)
			l.mu.Unlock()
			return true
		}
		l.mu.inFlight++
		l.mu.Unlock()
	}
	f := l.topic.c.flight(l, rt)
	f.counted = width > 0
	f.sends = append(f.sends, p)
	f.start(deadline, nil)
	return false
}

// remove takes p out of the queue; false when it is not there any more.
func (l *lane) remove(p *pending) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, q := range l.mu.queue {
		if q == p {
			l.mu.queue = append(l.mu.queue[:i], l.mu.queue[i+1:]...)
			return true
		}
	}
	return false
}

// next goes on after a batch that was in flight, by the route last: with all that waits and fits into one. reader is the connection
// whose reading goroutine this is, nil if it is none.
func (l *lane) next(last *route, reader *link) {
	now := time.Now()
	l.mu.Lock()
	late := 0
	for late < len(l.mu.queue) && l.mu.queue[late].isLate(now) {
		late++
	}
	if late > 0 {
		dropped := slices.Clone(l.mu.queue[:late])
		l.cut(late)
		l.mu.Unlock()
		for _, p := range dropped {
			p.result = sendResult{partition: uint16(l.partition), brokerGroup: l.brokerGroup, err: wire.Errorf(wire.CodeTimeout, "not sent: %v are over", p.o.timeout)}
			l.topic.c.finish(p)
		}
		l.mu.Lock()
	}
	n, size := 0, 0
	for messages := 0; n < len(l.mu.queue); n++ {
		p := l.mu.queue[n]
		messages += len(p.msgs)
		size += p.size
		first := l.mu.queue[0]
		if n > 0 && (messages > wire.BatchMessagesMax || size > mergeBytesMax || p.o != first.o || p.fixed != first.fixed || (p.async == nil) != (first.async == nil)) {
			break
		}
	}
	if n == 0 {
		l.mu.inFlight--
		l.mu.Unlock()
		return
	}
	rt := l.topic.route.Load()
	if rt == nil || rt.err != nil { // forgotten, and nobody asked for a new one yet: if a partition is not there any more, the broker says so
		rt = last
	}
	f := l.topic.c.flight(l, rt)
	f.counted = true
	f.sends = append(f.sends, l.mu.queue[:n]...)
	l.cut(n)
	l.mu.Unlock()
	o := f.sends[0].o
	deadline := now.Add(o.timeout)
	if f.sends[0].async != nil {
		// Nobody watches its time but this; it gets one try at least.
		if deadline = f.sends[0].until; deadline.Before(now.Add(f.try())) {
			deadline = now.Add(f.try())
		}
	}
	if o.compression != wire.CompressionNone {
		// Too slow for a goroutine that others wait for. It ends with the attempt; Close waits for the flight.
		go f.start(deadline, nil)
		return
	}
	f.start(deadline, reader)
}

// cut drops the first n of the queue. l.mu is held.
func (l *lane) cut(n int) {
	left := copy(l.mu.queue, l.mu.queue[n:])
	clear(l.mu.queue[left:])
	l.mu.queue = l.mu.queue[:left]
}

// isLate says that p waited too long to be sent at all. Those for which somebody waits are taken away by him.
func (p *pending) isLate(now time.Time) bool { return p.async != nil && now.After(p.until) }

// flight is one batch on its way: its attempts, until its outcome. It has no goroutine: it goes on when an answer comes, on the
// connection's goroutine, or when its timer goes off. An attempt without an answer in its time is given up, and another one made; when
// an answer comes to it after all, that counts as long as there is no outcome. Used again by its client.
type flight struct {
	c        *Client
	lane     *lane
	route    *route
	target   *lane // of the partition that it goes to: lane, unless it was free to choose, or moved
	counted  bool  // in lane.mu.inFlight
	sends    []*pending
	msgs     []wire.Message // scratch
	header   []byte
	batch    []byte
	deadline time.Time
	pause    time.Duration
	broker   string
	attempts int
	moves    int         // to another broker group
	tried    uint64      // places of the route's groups, of this round
	before   []numbered  // partitions that it was sent to and left
	first    uint64      // sequence number of the batch
	why      error       // of the last attempt, while late answers are waited for
	timer    *time.Timer // alarm, bound once
	tries    []*try      // that nobody answers any more, to be used again

	mu struct {
		sync.Mutex
		phase   phase
		until   time.Time // of the phase
		now     *try      // whose answer is awaited: phaseTrying
		late    []*try    // that were given up, and may be answered yet
		open    int       // tries of which done will be called, or was not yet through
		unknown int       // tries whose outcome is not known
		stored  int       // tries that were answered ok: each but one left another copy
		won     *won      // of a late one while somebody works on the flight
		ended   bool      // it may be used again when open is 0
	}
}

// try is one attempt.
type try struct {
	f       *flight
	link    *link
	request uint64
	target  *lane
	read    uint64                  // what had come over the connection when it began
	done    func(wire.Frame, error) // answered, bound once
}

// won is what an attempt was answered that was given up before.
type won struct {
	r      wire.ProduceResponse
	target *lane
	broker string
}

// numbered is the sequence number that the batch has in a partition. It is the same when it goes there again, so that the broker
// knows what it has.
type numbered struct {
	lane  *lane
	first uint64
}

type phase uint8

const (
	phaseIdle    phase = iota // someone works on it
	phaseTrying               // an answer is awaited
	phasePausing              // before the next attempt
	phaseLate                 // there is no further attempt, but one that was given up may be answered
	phaseOver                 // the outcome is there
)

func (c *Client) flight(l *lane, rt *route) *flight {
	f, _ := c.flights.Get().(*flight)
	if f == nil {
		f = &flight{c: c}
		f.timer = time.AfterFunc(time.Hour, f.alarm)
		f.timer.Stop()
	}
	c.sends.add()
	f.lane, f.target, f.route, f.pause, f.attempts, f.moves, f.tried, f.broker = l, l, rt, retryMin, 0, 0, 0, ""
	f.mu.Lock() // the alarm of its former life may be late
	f.mu.phase, f.mu.unknown, f.mu.stored, f.mu.ended = phaseIdle, 0, 0, false
	f.mu.Unlock()
	return f
}

// putFlight gives f back, of which no try is open.
func (c *Client) putFlight(f *flight) {
	clear(f.msgs)
	f.msgs, f.lane, f.target, f.route, f.why = f.msgs[:0], nil, nil, nil, nil
	clear(f.before)
	f.before = f.before[:0]
	if cap(f.batch) > batchKeepMax {
		f.batch = nil
	}
	c.flights.Put(f)
}

// options are those of its sends, which have the same.
func (f *flight) options() *producerOptions { return f.sends[0].o }

// mayMove says whether it may go to another broker group than the first.
func (f *flight) mayMove() bool {
	return len(f.route.groups) > 1 && (f.lane.isFree() || f.options().moveKeys && !f.sends[0].fixed)
}

// start encodes the batch, in the goroutine of the caller, and makes the first attempt.
func (f *flight) start(deadline time.Time, reader *link) {
	f.deadline = deadline
	if f.lane.isFree() {
		f.target = f.route.next(f.lane.topic.turn.Add(1))
	}
	if len(f.route.groups) > 1 && !f.target.good() && f.mayMove() {
		if to := f.elsewhere(); to != nil && (f.lane.isFree() || to.good()) {
			f.target = to
		}
	}
	if !f.prepare() {
		f.end(reader)
		return
	}
	f.attempt(reader)
}

// good says that there is a connection, and that sends are taken, as far as is known. It may make the caller's send a trial.
func (l *lane) good() bool {
	p := l.pool.Load()
	return p.pick(0) != nil && p.breaker.allow() && l.refused.allow()
}

// prepare makes request and batch for the target; false: nothing is left to be sent.
func (f *flight) prepare() bool {
	if !f.encode() {
		return false
	}
	r := wire.ProduceRequest{
		Topic: f.lane.topic.name, Partition: uint16(f.target.partition), RouteVersion: f.route.version, TopicID: f.route.topicID, TimeoutMs: uint32(f.try().Milliseconds()),
	}
	if f.route.watched {
		r.RouteVersion, r.TopicID = f.target.version.Load(), f.target.topicID.Load()
	}
	f.header = wire.AppendProduceRequest(f.header[:0], &r)
	return true
}

// elsewhere returns a partition of a broker group that was not tried in this round, other than the target's: one that takes messages
// if there is any, and of these one that is near. nil: there is none.
func (f *flight) elsewhere() *lane {
	r := f.route
	var turn uint32
	if f.lane.isFree() {
		turn = f.lane.topic.turn.Add(1)
	} else { // all that leave a partition go the same way
		turn = f.lane.place()
	}
	var best *routeGroup
	most := -1
	for i := range r.groups {
		k := (i + int(turn)) % len(r.groups)
		g := r.groups[k]
		if g.has(f.target) || f.tried>>(k%64)&1 != 0 {
			continue
		}
		worth := 2 - g.tier
		if g.pool.pick(0) != nil {
			worth += 3
			if g.pool.breaker.closed() && g.lanes[0].refused.closed() {
				worth += 3
			}
		}
		if worth > most {
			best, most = g, worth
		}
	}
	switch {
	case best == nil:
		return nil
	case f.lane.isFree():
		for _, n := range f.before { // it is known there by its number
			if best.has(n.lane) {
				return n.lane
			}
		}
		return best.next()
	}
	return best.lanes[turn%uint32(len(best.lanes))]
}

// place is a number that spreads lanes.
func (l *lane) place() uint32 { return uint32(keyPlace(l.brokerGroup, 1<<16)) + l.partition }

// leave notes that the target's broker group was tried.
func (f *flight) leave() {
	for k, g := range f.route.groups {
		if g.has(f.target) {
			f.tried |= 1 << (k % 64)
		}
	}
	if !slices.ContainsFunc(f.before, func(n numbered) bool { return n.lane == f.target }) {
		f.before = append(f.before, numbered{f.target, f.first})
	}
}

// try is the time of one attempt.
func (f *flight) try() time.Duration { return f.sends[0].o.timeout / 3 }

// encode makes the batch of all sends. Those that cannot be sent get their error; false: nothing is left.
func (f *flight) encode() bool {
	err := f.encodeAll()
	if err == nil {
		return true
	}
	if len(f.sends) > 1 {
		kept := f.sends[:0]
		for _, p := range f.sends {
			if _, err := wire.AppendBatch(f.batch[:0], f.c.producer, 0, p.msgs); err != nil {
				f.deliver(p, 0, sendResult{err: err})
				continue
			}
			kept = append(kept, p)
		}
		clear(f.sends[len(kept):])
		f.sends = kept
		if len(kept) == 0 {
			return false
		}
		if err = f.encodeAll(); err == nil {
			return true
		}
	}
	f.fail(err)
	return false
}

func (f *flight) encodeAll() error {
	f.msgs = f.msgs[:0]
	size := 0
	for _, p := range f.sends {
		f.msgs = append(f.msgs, p.msgs...)
		size += p.size
	}
	if i := slices.IndexFunc(f.before, func(n numbered) bool { return n.lane == f.target }); i >= 0 && !planted.Bug("client: repeat under another number") {
		f.first = f.before[i].first
	} else {
		n := uint64(len(f.msgs))
		f.first = f.target.sequence.Add(n) - n // it is the partition's, whichever lane the messages came by
	}
	o := f.sends[0].o
	f.batch = slices.Grow(f.batch[:0], size) // at once; size is near enough
	var err error
	if o.compression == wire.CompressionNone || size < o.compressFrom {
		f.batch, err = wire.AppendBatch(f.batch[:0], f.c.producer, f.first, f.msgs)
	} else {
		f.batch, err = f.c.codec.AppendBatch(f.batch[:0], f.c.producer, f.first, o.compression, f.msgs)
	}
	return err
}

// fail gives all sends the same error of before the first attempt.
func (f *flight) fail(err error) {
	for _, p := range f.sends {
		f.deliver(p, 0, sendResult{err: err})
	}
	clear(f.sends)
	f.sends = f.sends[:0]
}

// attempt sends the batch once.
func (f *flight) attempt(reader *link) {
	l := f.link()
	if l == nil {
		f.ended(f.target.pool.Load().none(), reader)
		return
	}
	now := f.deadline.Add(-f.options().timeout) // near enough, and it saves asking the clock
	if f.attempts > 0 || f.pause != retryMin || f.sends[0].async != nil {
		now = time.Now()
	}
	f.mu.Lock()
	if f.mu.won != nil {
		f.mu.Unlock()
		f.resolve(wire.ProduceResponse{}, nil, reader)
		return
	}
	t := f.newTry()
	t.link, t.target, t.read = l, f.target, l.BytesRead()
	request, err := l.Start(wire.CommandProduce, f.header, f.batch, t.done)
	if err == nil {
		// An answer may be there at once; it finds the lock taken.
		wait := min(f.try(), f.deadline.Sub(now))
		f.broker = l.addr
		f.attempts++
		t.request = request
		f.mu.open++
		f.mu.phase, f.mu.until, f.mu.now = phaseTrying, now.Add(wait), t
		f.timer.Reset(wait)
	} else {
		f.putTry(t)
	}
	f.mu.Unlock()
	switch {
	case err != nil:
		f.broker = l.addr
		f.ended(err, reader)
	case reader == nil:
		l.FlushShared()
	case reader != l: // whose own is flushed after the frames that were read
		l.Flush()
	}
}

// newTry returns a try that nobody uses. f.mu is held.
func (f *flight) newTry() *try {
	if n := len(f.tries); n > 0 {
		t := f.tries[n-1]
		f.tries = f.tries[:n-1]
		return t
	}
	t := &try{f: f}
	t.done = t.answered
	return t
}

// putTry gives back one of which done is not called any more. f.mu is held.
func (f *flight) putTry(t *try) {
	t.link, t.target = nil, nil
	f.tries = append(f.tries, t)
}

// link is the connection for the next attempt: where order matters the same one as long as it is good.
func (f *flight) link() *link {
	p := f.target.pool.Load()
	if f.lane.isFree() || f.attempts > 0 {
		return p.next()
	}
	return p.pick(f.target.partition)
}

// answered is called with the answer of the attempt, or its connection's end.
func (t *try) answered(frame wire.Frame, err error) {
	f, l := t.f, t.link
	f.mu.Lock()
	f.mu.open--
	if f.mu.phase == phaseOver {
		f.putTry(t)
		last := f.mu.ended && f.mu.open == 0
		f.mu.Unlock()
		if last {
			f.c.putFlight(f)
		}
		return
	}
	var r wire.ProduceResponse
	if err == nil {
		if err = wire.ParseProduceResponse(&r, frame.Header); err != nil {
			// Answered ok, but not readably: it is stored and we cannot say where.
			err = wire.Errorf(wire.CodeUnknown, "%v", err)
		}
	}
	target := t.target
	if f.mu.now != t || f.mu.phase != phaseTrying {
		f.answeredLate(t, r, err)
		return
	}
	f.timer.Stop()
	f.mu.phase, f.mu.now = phaseIdle, nil
	if err == nil {
		f.mu.stored++
	}
	f.putTry(t)
	f.mu.Unlock()
	reader := l
	if (err != nil || f.counted) && l.Err() != nil {
		reader = nil // not its reading goroutine, or its last act
	}
	if err != nil {
		f.judge(target, l, err, false)
		f.ended(err, reader)
		return
	}
	f.stored(target, l.pool)
	switch {
	case r.RouteVersion == 0:
	case f.route.watched:
		target.version.Store(r.RouteVersion)
		target.topicID.Store(r.TopicID)
	case reader != nil:
		f.lane.topic.refresh(f.route, l)
	}
	f.resolve(r, nil, reader)
}

// answeredLate takes the answer of a try that was given up. f.mu is held, and is not any more when it returns.
func (f *flight) answeredLate(t *try, r wire.ProduceResponse, err error) {
	target, l, pool := t.target, t.link, t.link.pool
	if i := slices.Index(f.mu.late, t); i >= 0 {
		f.mu.late = slices.Delete(f.mu.late, i, i+1)
		if err == nil || codeOf(err) != wire.CodeUnknown { // so it is known after all
			f.mu.unknown--
		}
	}
	f.putTry(t)
	phase := f.mu.phase
	waits := phase == phaseTrying || phase == phasePausing || phase == phaseLate
	over := waits && (err == nil || phase == phaseLate && len(f.mu.late) == 0)
	if err == nil {
		f.mu.stored++ // the one whose answer is awaited may be answered ok in this moment too
		f.mu.won = &won{r, target, l.addr}
	}
	if over {
		f.timer.Stop()
		f.mu.phase = phaseIdle
		if now := f.mu.now; now != nil { // that may store another copy
			f.mu.now = nil
			f.mu.late = append(f.mu.late, now)
			f.mu.unknown++
		}
	}
	f.mu.Unlock()
	if err == nil {
		f.stored(target, pool)
	}
	if over {
		f.resolve(wire.ProduceResponse{}, f.why, nil)
	}
}

// alarm is the timer's function. It may come late, for a phase that is over.
func (f *flight) alarm() {
	f.mu.Lock()
	was := f.mu.phase
	if was == phaseIdle || was == phaseOver || time.Now().Before(f.mu.until) {
		f.mu.Unlock()
		return
	}
	t := f.mu.now
	f.mu.phase, f.mu.now = phaseIdle, nil
	var l *link
	var target *lane
	stalled := false
	if was == phaseTrying {
		// It is not taken back: an answer may come yet.
		f.mu.late = append(f.mu.late, t)
		l, target = t.link, t.target
		stalled = l.BytesRead() == t.read && !l.Handling()
	}
	f.mu.Unlock()
	switch was {
	case phaseLate:
		f.resolve(wire.ProduceResponse{}, f.why, nil)
	case phasePausing:
		if len(f.header) == 0 && !f.prepare() { // for another partition
			f.end(nil)
			return
		}
		f.attempt(nil)
	case phaseTrying:
		err := wire.Errorf(wire.CodeUnknown, "no answer of %s in time", l.addr)
		f.judge(target, l, err, stalled)
		f.ended(err, nil)
	}
}

// stored notes that the broker group of l takes messages.
func (f *flight) stored(l *lane, p *pool) {
	if p.breaker.succeeded() {
		f.c.o.logger.Info("sends go to the broker group again", "brokerGroup", l.brokerGroup)
	}
	l.refused.succeeded()
}

// judge notes what an attempt says of its broker group.
func (f *flight) judge(target *lane, l *link, err error, stalled bool) {
	p := l.pool
	opened := false
	switch code := codeOf(err); code {
	case wire.CodeNotMaster:
		soon := time.Duration(0)
		if e, ok := errors.AsType[*wire.CodeError](err); ok {
			p.follow(e, l)
			soon = e.RetryAfter
		}
		opened = p.breaker.failed(false, soon)
	case wire.CodeStopping, wire.CodeFailed, wire.CodeUnknown, wire.CodeTooMany, wire.CodeNoSpace, wire.CodeTimeout, wire.CodeDisconnected, wire.CodeReadOnly:
		opened = p.breaker.failed(stalled, 0)
		if stalled {
			l.ping(p.breaker.answers)
		}
	case wire.CodeNotReplicated: // other topics may do with one copy
		target.refused.failed(false, 0)
	}
	if opened {
		f.c.o.logger.Warn("sends avoid the broker group", "brokerGroup", target.brokerGroup, "broker", l.addr, "err", err)
	}
}

// ended takes the error of an attempt, and either plans the next one or resolves.
func (f *flight) ended(err error, reader *link) {
	code := codeOf(err)
	pause := f.pause/2 + rand.N(f.pause/2)
	f.pause = min(2*f.pause, retryMax)
	if c, ok := err.(*wire.CodeError); ok {
		after := c.RetryAfter
		if code != wire.CodeLimited { // which says exactly when
			after = min(after, retryAfterMax)
		}
		pause = max(pause, after)
	}
	now := time.Now()
	// A partition that is not there is asked for again with a new route, by Send.
	again := wire.Traits[code].Retry != wire.RetryNever && code != wire.CodePartitionNotFound
	move := wire.Traits[code].Retry == wire.RetryElsewhere
	if f.route.watched && lags(code) {
		if r := f.lane.topic.route.Load(); r != nil && r.err != nil {
			err = r.err // that it may not be sent is known by now
		} else {
			again, move = true, true
		}
	}
	var to *lane
	atHome := pause
	if again && move && f.mayMove() {
		f.leave()
		if most := f.options().retries; most >= 0 && f.moves >= most {
			again = false
		} else if to = f.elsewhere(); to != nil {
			pause = 0 // nobody was asked there yet
		} else {
			f.tried = 0
			to = f.elsewhere()
		}
		if to != nil && !f.lane.isFree() && !to.pool.Load().breaker.closed() {
			to, pause = nil, atHome // it waits at home rather than at another one that takes nothing
		}
	}
	f.mu.Lock()
	if code == wire.CodeUnknown && !planted.Bug("client: unknown told as failed") {
		f.mu.unknown++
	}
	// What is known not to be stored is not made unknown by a last attempt that has hardly any time for its answer.
	least := time.Duration(0)
	if f.mu.unknown == 0 {
		least = f.try() / 4
	}
	f.mu.phase, f.mu.until = phasePausing, now.Add(pause)
	over := f.mu.won != nil
	if !over && (!again || f.mu.until.Add(least).After(f.deadline) || !f.wanted()) {
		f.why = err
		f.mu.phase, f.mu.until = phaseLate, f.deadline
		over = len(f.mu.late) == 0 || !f.wanted() || !now.Before(f.deadline)
	}
	if over {
		f.mu.phase = phaseIdle
		f.mu.Unlock()
		f.resolve(wire.ProduceResponse{}, err, reader)
		return
	}
	if f.mu.phase == phasePausing && to != nil {
		f.moves++
		f.target = to
		// A new batch, with a number of its own. It is made where the timer goes off: a goroutine that others wait for is not kept.
		f.header = f.header[:0]
	}
	f.timer.Reset(f.mu.until.Sub(now))
	f.mu.Unlock()
}

// lags reports whether a broker may say so because it has not heard yet of what a registry says.
func lags(c wire.Code) bool {
	return c == wire.CodeTopicNotFound || c == wire.CodePartitionNotFound || c == wire.CodeForbidden
}

// wanted says whether anybody still waits.
func (f *flight) wanted() bool {
	for _, p := range f.sends {
		if p.state.Load() == pendingWaits {
			return true
		}
	}
	return false
}

// resolve tells every send its result. err is that of the last attempt; nil: stored. What a late answer said comes before both.
func (f *flight) resolve(r wire.ProduceResponse, err error, reader *link) {
	f.mu.Lock()
	f.mu.phase = phaseOver
	if w := f.mu.won; w != nil {
		r, err = w.r, nil
		f.target, f.broker, f.mu.won = w.target, w.broker, nil
	}
	for _, t := range f.mu.late {
		if t.link.Cancel(t.request) {
			f.putTry(t)
			f.mu.open--
		}
	}
	clear(f.mu.late)
	f.mu.late = f.mu.late[:0]
	result := sendResult{
		first: r.FirstIndex, stored: r.StoredNs, broker: f.broker,
		attempts: f.attempts, unknown: f.mu.unknown + max(f.mu.stored-1, 0), err: err,
	}
	f.mu.Unlock()
	if err != nil && result.unknown > 0 {
		result.outcome = Unknown
	}
	offset := uint64(0)
	for _, p := range f.sends {
		n := uint64(len(p.msgs))
		f.deliver(p, offset, result)
		offset += n
	}
	clear(f.sends)
	f.sends = f.sends[:0]
	f.end(reader)
}

// deliver wakes the caller of p, or hands it to the goroutine of callbacks. p is its caller's again, or nobody's.
func (f *flight) deliver(p *pending, offset uint64, r sendResult) {
	r.partition, r.brokerGroup = uint16(f.target.partition), f.target.brokerGroup
	r.first += offset
	p.result = r
	if p.async != nil {
		f.c.finish(p)
		return
	}
	if p.state.CompareAndSwap(pendingWaits, pendingResolved) {
		p.ready <- struct{}{}
	} else {
		f.c.putPending(p)
	}
}

// end lets the lane go on.
func (f *flight) end(reader *link) {
	c, l, counted, rt := f.c, f.lane, f.counted, f.route
	f.mu.Lock()
	f.mu.phase, f.mu.ended = phaseOver, true
	free := f.mu.open == 0
	f.mu.Unlock()
	if free {
		c.putFlight(f)
	}
	if counted {
		l.next(rt, reader)
	}
	c.sends.leave()
}

// wait waits for p's result. ok false: ctx or its time ended first, and p is not the caller's any more; then err says
// whether it can have been sent.
func (l *lane) wait(ctx context.Context, p *pending, queued bool) (sendResult, bool, error) {
	if !queued {
		if ctx.Done() == nil {
			<-p.ready
			return p.result, true, nil
		}
		select {
		case <-p.ready:
			return p.result, true, nil
		case <-ctx.Done():
			return l.abandon(p, ctx.Err())
		}
	}
	if p.timeout == nil {
		p.timeout = time.NewTimer(p.o.timeout)
	} else {
		p.timeout.Reset(p.o.timeout)
	}
	select {
	case <-p.ready:
		p.timeout.Stop()
		return p.result, true, nil
	case <-ctx.Done():
		p.timeout.Stop() // before p may be another's
		return l.abandon(p, ctx.Err())
	case <-p.timeout.C:
		return l.abandon(p, wire.Errorf(wire.CodeTimeout, "%v are over", p.o.timeout))
	}
}

func (l *lane) abandon(p *pending, why error) (sendResult, bool, error) {
	if l.remove(p) {
		l.topic.c.putPending(p)
		return sendResult{}, false, fmt.Errorf("not sent: %w", why)
	}
	if p.state.CompareAndSwap(pendingWaits, pendingAbandoned) {
		return sendResult{outcome: Unknown, unknown: -1}, false, why
	}
	<-p.ready
	return p.result, true, nil
}
