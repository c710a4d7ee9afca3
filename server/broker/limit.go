package broker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// bucket holds as many tokens as flow into it in a second. It is written as the time at which it will be full:
//
//	tokens = rate * (1 s - max(full - now, 0)), below 0 when more were taken than were there
//
// Whoever takes more than it ever holds is served when it is full. Without a lock and without memory of its own.
type bucket struct {
	rate atomic.Int64 // tokens a second; 0: no limit
	full atomic.Int64 // nanoseconds since the broker's start
}

const (
	bucketTime  = int64(time.Second)
	limitedMost = 24 * time.Hour // that a client is told to wait
	fillsMost   = 4 << 30        // tokens: no frame has more
	debtMost    = 1 << 61        // nanoseconds
)

// fills returns how long n tokens take to flow in.
func fills(n, rate int64) int64 {
	return min(n, fillsMost) * bucketTime / rate
}

// take takes n tokens, and returns 0, or how long to wait for them.
func (b *bucket) take(now, n int64) time.Duration {
	for {
		rate, full := b.rate.Load(), b.full.Load()
		if rate == 0 {
			return 0
		}
		takes, at := fills(n, rate), max(full, now)
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
	if rate := b.rate.Load(); rate > 0 {
		b.full.Add(-fills(n, rate))
	}
}

// charge takes n tokens, whether they are there or not.
func (b *bucket) charge(now, n int64) {
	for {
		rate, full := b.rate.Load(), b.full.Load()
		if rate == 0 || b.full.CompareAndSwap(full, min(max(full, now), debtMost)+fills(n, rate)) {
			return
		}
	}
}

// wait returns how long to wait for n tokens.
func (b *bucket) wait(now, n int64) time.Duration {
	rate := b.rate.Load()
	if rate == 0 {
		return 0
	}
	return time.Duration(max(0, max(b.full.Load(), now)-now-max(bucketTime-fills(n, rate), 0)))
}

// has returns how many whole tokens there are, at most most.
func (b *bucket) has(now, most int64) int64 {
	rate := b.rate.Load()
	if rate == 0 {
		return most
	}
	left := bucketTime - max(b.full.Load()-now, 0)
	if left < fills(1, rate) {
		return 0
	}
	return min(most, max(1, int64(float64(rate)*float64(left)/float64(bucketTime))))
}

// set changes the rate in place. A bucket that is empty or partly so stays as empty, in parts of itself, so that a limit that is lowered
// silences nobody for the time in which the new rate would bring what the old one did in a second. What was taken beyond it stays a debt, in
// tokens, which the new rate pays.
func (b *bucket) set(now, rate int64) {
	was := b.rate.Swap(rate)
	if was == rate {
		return
	}
	full := b.full.Load()
	switch {
	case was == 0 || rate == 0:
		b.full.Store(0)
	case full-now > bucketTime:
		debt := float64(full-now-bucketTime) * float64(was) / float64(rate)
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
func (b *Broker) take(g *grant, messages, bytes int) error {
	if g.limits[0] == nil {
		return nil
	}
	now, n, m := b.limits.now(), int64(messages), int64(bytes)
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
func (b *Broker) most(g *grant, messages uint32, bytes int) (uint32, int, error) {
	if g.limits[0] == nil {
		return messages, bytes, nil
	}
	now := b.limits.now()
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
func (b *Broker) charge(g *grant, messages uint64, bytes int) {
	if g.limits[0] == nil {
		return
	}
	now := b.limits.now()
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
