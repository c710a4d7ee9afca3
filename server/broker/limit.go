package broker

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// bucket holds as many tokens as flow into it in a second. It is written as the time at which it will be full:
//
//	tokens = (1 s - max(full - now, 0)) / each, below 0 when more were taken than were there
//
// Whoever takes more than it ever holds is served when it is full. Without a lock and without memory of its own, and without a division:
// a request meets eight of them.
type bucket struct {
	each atomic.Uint64 // nanoseconds in which a token flows in, the bits of a float64; 0: no limit
	full atomic.Int64  // nanoseconds since the broker's start
}

const (
	bucketTime  = int64(time.Second)
	limitedMost = 24 * time.Hour // that a client is told to wait
	fillsMost   = 4 << 30        // tokens: no frame has more
	debtMost    = 1 << 61        // nanoseconds
)

// perToken returns each; 0: no limit.
func (b *bucket) perToken() float64 { return math.Float64frombits(b.each.Load()) }

// fills returns how long n tokens take to flow in.
func fills(n int64, each float64) int64 { return int64(float64(min(n, fillsMost)) * each) }

// take takes n tokens, and returns 0, or how long to wait for them.
func (b *bucket) take(now, n int64) time.Duration {
	for {
		each, full := b.perToken(), b.full.Load()
		if each == 0 {
			return 0
		}
		takes, at := fills(n, each), max(full, now)
		if wait := at - now - max(bucketTime-takes, 0); wait > 0 {
			return time.Duration(wait)
		}
		if b.full.CompareAndSwap(full, at+takes) {
			return 0
		}
	}
}

// giveBack undoes a take.
func (b *bucket) giveBack(n int64) {
	if each := b.perToken(); each > 0 {
		b.full.Add(-fills(n, each))
	}
}

// charge takes n tokens, whether they are there or not.
func (b *bucket) charge(now, n int64) {
	for {
		each, full := b.perToken(), b.full.Load()
		if each == 0 || b.full.CompareAndSwap(full, min(max(full, now), debtMost)+fills(n, each)) {
			return
		}
	}
}

// wait returns how long to wait for n tokens.
func (b *bucket) wait(now, n int64) time.Duration {
	each := b.perToken()
	if each == 0 {
		return 0
	}
	return time.Duration(max(0, max(b.full.Load(), now)-now-max(bucketTime-fills(n, each), 0)))
}

// has returns how many whole tokens there are, at most most.
func (b *bucket) has(now, most int64) int64 {
	each := b.perToken()
	if each == 0 {
		return most
	}
	left := bucketTime - max(b.full.Load()-now, 0)
	switch {
	case left < fills(1, each):
		return 0
	case left >= fills(most, each):
		return most
	}
	return min(most, max(1, int64(float64(left)/each)))
}

// set changes the rate in place. A bucket that is empty or partly so stays as empty, in parts of itself, so that a limit that is lowered
// silences nobody for the time in which the new rate would bring what the old one did in a second. What was taken beyond it stays a debt, in
// tokens, which the new rate pays.
func (b *bucket) set(now, rate int64) {
	each := 0.0
	if rate > 0 {
		each = float64(bucketTime) / float64(rate)
	}
	was := math.Float64frombits(b.each.Swap(math.Float64bits(each)))
	if was == each {
		return
	}
	full := b.full.Load()
	switch {
	case was == 0 || each == 0:
		b.full.Store(0)
	case full-now > bucketTime:
		debt := float64(full-now-bucketTime) * each / was
		b.full.Store(now + bucketTime + int64(min(debt, debtMost)))
	}
}

// flow limits one direction.
type flow struct{ messages, bytes bucket }

func (f *flow) take(now, messages, bytes int64) bool {
	if f.messages.take(now, messages) > 0 {
		return false
	}
	if f.bytes.take(now, bytes) > 0 {
		f.messages.giveBack(messages)
		return false
	}
	return true
}

func (f *flow) giveBack(messages, bytes int64) {
	f.messages.giveBack(messages)
	f.bytes.giveBack(bytes)
}

func (f *flow) wait(now, messages, bytes int64) time.Duration {
	return max(f.messages.wait(now, messages), f.bytes.wait(now, bytes))
}

func (f *flow) set(now int64, l *meta.Limit) {
	f.messages.set(now, l.MessagesPerSecond)
	f.bytes.set(now, l.BytesPerSecond)
}

// limiter limits what is sent and what is given by one namespace, app, topic or subscription.
type limiter struct {
	key            meta.Key
	produce, fetch flow
}

// limiterMost is how many limiters a request meets: of the namespace, the app, the topic, and the subscription.
const limiterMost = 4

// limits are all limiters. Those of objects that have no limit are not there.
type limits struct {
	start time.Time
	mu    struct {
		sync.Mutex
		all map[meta.Key]*limiter
	}
}

func (l *limits) init() {
	l.start = time.Now()
	l.mu.all = map[meta.Key]*limiter{}
}

func (l *limits) now() int64 { return int64(time.Since(l.start)) }

// since is now at a time that is known already: asking for it costs as much as all else of a limit.
func (l *limits) since(at time.Time) int64 { return int64(at.Sub(l.start)) }

// of returns the limiter of an object, nil if it has no limit. It is asked when rights are, not for each request.
func (l *limits) of(m *metadata, k meta.Key) *limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Looked up under the lock: a snapshot that comes meanwhile sets what is made here by an older one.
	limit := limitOf(m.snapshot.Load(), k)
	if limit == nil {
		return nil
	}
	r := l.mu.all[k]
	if r == nil {
		r = &limiter{key: k}
		now := l.now()
		r.produce.set(now, limit)
		r.fetch.set(now, limit)
		l.mu.all[k] = r
	}
	return r
}

// follow sets all limiters to what s says.
func (l *limits) follow(s *meta.Snapshot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for k, r := range l.mu.all {
		limit := limitOf(s, k)
		if limit == nil {
			limit = &meta.Limit{} // requests may have it in their hands yet
			delete(l.mu.all, k)
		}
		r.produce.set(now, limit)
		r.fetch.set(now, limit)
	}
}

// limitOf returns the limit of an object's messages and bytes, nil without one.
func limitOf(s *meta.Snapshot, k meta.Key) *meta.Limit {
	o := s.Get(k)
	if o == nil {
		return nil
	}
	var l *meta.Limit
	switch spec := any(o.Spec).(type) {
	case *meta.Namespace:
		l = &spec.Limit
	case *meta.App:
		l = &spec.Limit
	case *meta.Topic:
		l = &spec.Limit
	case *meta.Producer:
		l = &spec.Limit
	case *meta.Consumer:
		l = &spec.Limit
	}
	if l == nil || l.MessagesPerSecond <= 0 && l.BytesPerSecond <= 0 {
		return nil
	}
	return l
}

// take takes a batch from all limits of g, or nothing.
func (b *Broker) take(g *grant, at time.Time, messages, bytes int) error {
	if g.limits[0] == nil {
		return nil
	}
	now, n, m := b.limits.since(at), int64(messages), int64(bytes)
	for i, l := range g.limits {
		if l == nil {
			return nil
		}
		if l.produce.take(now, n, m) {
			continue
		}
		for _, taken := range g.limits[:i] {
			taken.produce.giveBack(n, m)
		}
		return b.limited(g, func(l *limiter) time.Duration { return l.produce.wait(now, n, m) })
	}
	return nil
}

// giveBack undoes a take: the batch was not stored.
func (b *Broker) giveBack(g *grant, messages, bytes int) {
	for _, l := range g.limits {
		if l == nil {
			return
		}
		l.produce.giveBack(int64(messages), int64(bytes))
	}
}

// most returns how much a fetch of g may be given now, or an error when it must wait. What is given is charged when it is known: so
// fetches at the same time may be given more than there is, and the next ones wait for it.
func (b *Broker) most(g *grant, at time.Time, messages uint32, bytes int) (uint32, int, error) {
	if g.limits[0] == nil {
		return messages, bytes, nil
	}
	now := b.limits.since(at)
	for _, l := range g.limits {
		if l == nil {
			break
		}
		messages = uint32(l.fetch.messages.has(now, int64(messages)))
		bytes = int(l.fetch.bytes.has(now, int64(bytes)))
		if messages == 0 || bytes == 0 {
			return 0, 0, b.limited(g, func(l *limiter) time.Duration { return l.fetch.wait(now, 1, 1) })
		}
	}
	return messages, bytes, nil
}

// charge counts what a fetch was given.
func (b *Broker) charge(g *grant, at time.Time, messages uint64, bytes int) {
	if g.limits[0] == nil {
		return
	}
	now := b.limits.since(at)
	for _, l := range g.limits {
		if l == nil {
			return
		}
		l.fetch.messages.charge(now, int64(messages))
		l.fetch.bytes.charge(now, int64(bytes))
	}
}

// limited is the answer to what is above a limit of g: when all of them have room again, if nobody comes before.
func (b *Broker) limited(g *grant, wait func(*limiter) time.Duration) error {
	most, by := time.Duration(1), g.limits[0]
	for _, l := range g.limits {
		if l == nil {
			break
		}
		if w := wait(l); w > most {
			most, by = w, l
		}
	}
	b.metrics.limitedBy(by.key.Kind)
	err := wire.Errorf(wire.CodeLimited, "%v is above its limit", by.key)
	err.RetryAfter = min((most + time.Millisecond - 1).Truncate(time.Millisecond), limitedMost) // answers count milliseconds
	return err
}
