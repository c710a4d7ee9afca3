package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/server/store"
)

// once is one pass.
func (k *Keeper) once(ctx context.Context) {
	var err error
	if k.o.Follows {
		k.count(func(c *counters) { c.passes++ })
	} else {
		err = k.trimAll(ctx)
		n, reclaimErr := k.o.Store.Reclaim(ctx)
		k.count(func(c *counters) { c.reclaimed += n; c.passes++ })
		err = errors.Join(err, reclaimErr)
		if err == nil && ctx.Err() == nil {
			err = k.deleteEarly(ctx)
		}
	}
	if up := k.up(); up-k.saved >= saveEvery || k.saved == 0 {
		err = errors.Join(err, k.save())
	}
	if err != nil && ctx.Err() == nil {
		k.count(func(c *counters) { c.errors++ })
		k.tell(err.Error())
	} else if err == nil {
		k.tell("")
	}
}

// tell logs a failure when it changes.
func (k *Keeper) tell(failure string) {
	if failure == k.failure {
		return
	}
	if k.failure = failure; failure != "" {
		k.o.Logger.Warn("a retention pass did not do all it had to", "err", failure)
		return
	}
	k.o.Logger.Info("retention passes do all they have to again")
}

func (k *Keeper) count(f func(*counters)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(&k.mu.metrics)
}

// topicView is a topic as one pass sees it.
type topicView struct {
	topic  store.Topic
	groups []Group // that count
	ps     []partition
}

// trimAll trims every topic by age and size.
func (k *Keeper) trimAll(ctx context.Context) error {
	wall := k.tick()
	var errs []error
	var abandoned []Abandoned
	pass := k.passes()
	for _, t := range k.o.Store.Topics() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		v, gone, err := k.view(t, wall, pass)
		if err != nil {
			errs = appendFirst(errs, err)
			continue
		}
		abandoned = append(abandoned, gone...)
		l, before := k.o.limitsOf(t.Settings), int64(0)
		if l.age > 0 && k.clock.left(SuspendFor, k.up()) == 0 {
			before = wall.Add(-l.age).UnixNano()
		}
		if before <= 0 {
			l.age = 0
		}
		for i := range v.ps {
			if l.bytes > 0 && err == nil { // else nobody asks
				v.ps[i].bytes, err = k.o.Store.Bytes(partitionOf(&t, i))
			}
		}
		if err != nil {
			errs = appendFirst(errs, err)
			continue
		}
		trims, err := decide(t, v.ps, l, before, k.o.Store)
		if err = errors.Join(err, k.apply(&v, trims)); err != nil {
			errs = appendFirst(errs, err)
		}
	}
	for key, m := range k.topics {
		if m.pass != pass {
			delete(k.topics, key) // the topic was deleted
		}
	}
	k.mu.Lock()
	k.mu.status.abandoned = abandoned
	k.mu.Unlock()
	return errors.Join(errs...)
}

// appendFirst keeps the first few errors: 10,000 partitions may have the same one.
func appendFirst(errs []error, err error) []error {
	if len(errs) < 3 && !errors.Is(err, store.ErrNoPartition) { // deleted meanwhile
		errs = append(errs, err)
	}
	return errs
}

// deleteEarly frees what every group has consumed, oldest first, until the level is left or nothing helps. The store frees its oldest
// segments only, so it steps forward in time from the oldest one, and lets the store reclaim after each step. While nothing of what
// holds the oldest segments may go it takes nothing: that would cost messages and free nothing. The clock decides only how
// long the first step is, so one that was set back stops nothing.
func (k *Keeper) deleteEarly(ctx context.Context) error {
	blocked := false
	defer func() {
		k.mu.Lock()
		k.mu.status.blocked = blocked
		k.mu.Unlock()
	}()
	leave := k.marks.leave(EarlyDelete)
	var before int64
	var step time.Duration
	for range earlyStepsMax {
		k.see()
		s, _ := k.snapshot()
		need := s.fullest.beyond(leave)
		if s.level < EarlyDelete || need <= 0 {
			return nil
		}
		u, err := k.o.Store.Usage(holdsLooked)
		if err != nil {
			return err
		}
		views, err := k.viewAll(ctx)
		if err != nil {
			return err
		}
		oldest, ok := deletable(&u, views)
		if !ok {
			blocked = true
			return nil
		}
		if step == 0 {
			step = firstStep(&u, need, k.o.Now().UnixNano()-oldest)
		}
		before = max(before, oldest) + int64(step)
		for i := range views {
			trims, err := decideEarly(views[i].topic, views[i].ps, before, k.o.Store)
			if err = errors.Join(err, k.apply(&views[i], trims)); err != nil && !errors.Is(err, store.ErrNoPartition) {
				return err
			}
		}
		n, err := k.o.Store.Reclaim(ctx)
		k.count(func(c *counters) { c.reclaimed += n })
		if err != nil || ctx.Err() != nil {
			return err
		}
		if step *= 2; n > 0 {
			step = 0 // the oldest segment is another one
		}
	}
	return nil
}

const (
	earlyStepsMax = 64
	earlyStepMin  = time.Millisecond
	holdsLooked   = 64 // of what holds the oldest segments
)

// firstStep is the time in which so many bytes came, had all come evenly over a span of nanoseconds, and at least that of one segment.
func firstStep(u *store.Usage, need, span int64) time.Duration {
	share := max(float64(need)/float64(max(u.JournalBytes, 1)), 1/float64(max(u.Segments, 1)))
	return max(earlyStepMin, time.Duration(float64(max(0, span))*min(1, share)))
}

// deletable returns when the oldest of what keeps the oldest segment, and may go early, was stored; false if nothing may.
func deletable(u *store.Usage, views []topicView) (oldest int64, ok bool) {
	for _, h := range u.Holds {
		if h.Bytes <= int64(u.End-u.OldestEnd) {
			continue // it begins behind the oldest segment
		}
		i, found := slices.BinarySearchFunc(views, h.Partition.Topic, func(v topicView, id store.TopicID) int { return cmp.Compare(v.topic.ID, id) })
		if !found || h.Why != "" || views[i].topic.Incarnation != h.Partition.Incarnation || int(h.Partition.Partition) >= len(views[i].ps) {
			continue
		}
		if p := &views[i].ps[h.Partition.Partition]; p.consumed && min(p.floor, p.end) > h.First && (!ok || h.Stored < oldest) {
			oldest, ok = h.Stored, true
		}
	}
	return oldest, ok
}

// viewAll reads all topics, by id.
func (k *Keeper) viewAll(ctx context.Context) (views []topicView, err error) {
	wall, pass := k.tick(), k.passes()
	for _, t := range k.o.Store.Topics() {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		v, _, err := k.view(t, wall, pass)
		if errors.Is(err, store.ErrNoPartition) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		views = append(views, v)
	}
	return views, nil
}

// view reads what decisions about a topic need.
func (k *Keeper) view(t store.Topic, wall time.Time, pass uint64) (v topicView, abandoned []Abandoned, err error) {
	key := topicKey(&t)
	m := k.topics[key]
	if m == nil {
		m = &topicMemory{}
		k.topics[key] = m
	}
	m.pass = pass
	for len(m.oldest) < int(t.Partitions) {
		m.oldest = append(m.oldest, oldest{})
	}
	v.topic = t
	groups, lost := judge(k.o.Groups(key), k.seenSince(&t, wall))
	v.groups = groups
	abandoned = k.tellAbandoned(&t, m, lost, len(groups)+len(lost))
	v.ps = make([]partition, t.Partitions)
	for i := range v.ps {
		p, part := &v.ps[i], partitionOf(&t, i)
		if p.first, p.end, err = k.o.Store.Bounds(part); err != nil {
			return v, nil, err
		}
		p.floor, p.consumed = p.end, len(groups) > 0
		if _, ack := slowest(groups, uint16(i)); p.consumed {
			p.floor = min(ack, p.end)
		}
		if planted.Bug("retention: beyond the slowest group") {
			p.floor = p.end
		}
		if p.first == p.end {
			continue
		}
		if p.floor <= p.first && !t.Settings.DiscardUnconsumed {
			continue // nothing can go: its time is not needed
		}
		if o := &m.oldest[i]; o.stored == 0 || o.first != p.first {
			stored, err := k.o.Store.Stored(part, p.first)
			if err != nil {
				// Its age is not known, so it may be old: whoever seeks by time finds out.
				stored = 0
			}
			*o = oldest{p.first, stored}
		}
		p.oldest = m.oldest[i].stored
	}
	return v, abandoned, nil
}

// seenSince is the time since which a group must have been seen to count, 0 when all count: right after a start, and for as long after
// a jump of the clock, nobody knows; and where an operator stopped consuming no group is to blame.
func (k *Keeper) seenSince(t *store.Topic, wall time.Time) int64 {
	up := k.up()
	if k.o.AbandonedAfter == 0 || t.Settings.PauseConsume || up < min(settle, k.o.AbandonedAfter) || k.clock.left(max(SuspendFor, k.o.AbandonedAfter), up) > 0 {
		return 0
	}
	return max(1, wall.Add(-k.o.AbandonedAfter).UnixNano())
}

// tellAbandoned logs groups that are abandoned now, and those that came back, and returns all that are.
func (k *Keeper) tellAbandoned(t *store.Topic, m *topicMemory, lost []Group, all int) (out []Abandoned) {
	var ids []offset.GroupID
	for _, g := range lost {
		ids = append(ids, g.ID)
		out = append(out, Abandoned{Topic: t.ID, Group: g.ID, Name: g.Name, Active: g.Active})
		if !slices.Contains(m.abandoned, g.ID) {
			k.o.Logger.Warn("a group was not seen for long: it does not keep messages from going any more",
				"topic", t.Name, "group", g.Name, "active", time.Unix(0, g.Active).UTC().Format(time.RFC3339), "abandonedAfter", k.o.AbandonedAfter)
		}
	}
	for _, id := range m.abandoned {
		if all > 0 && !slices.Contains(ids, id) {
			k.o.Logger.Info("a group that was not seen for long keeps messages from going again", "topic", t.Name, "groupId", uint32(id))
		}
	}
	m.abandoned = ids
	return out
}

// apply trims, and counts what went. A group that was made or moved back since the view was taken keeps what it has not consumed.
func (k *Keeper) apply(v *topicView, trims []trim) error {
	if len(trims) == 0 {
		return nil
	}
	var errs []error
	k.o.Settled(func() {
		groups, _ := judge(k.o.Groups(topicKey(&v.topic)), k.seenSince(&v.topic, k.o.Now().Round(0)))
		for _, t := range trims {
			p := &v.ps[t.partition]
			if _, ack := slowest(groups, t.partition); len(groups) > 0 && t.to <= p.floor && ack < t.to &&
				!planted.Bug("retention: groups that moved are not looked at again") && !planted.Bug("retention: beyond the slowest group") {
				t.to = ack // only what all have consumed was to go
			}
			if t.to <= p.first {
				continue
			}
			if err := k.o.Store.Trim(partitionOf(&v.topic, int(t.partition)), t.to); err != nil {
				errs = appendFirst(errs, fmt.Errorf("trim partition %d of topic %s below %d: %w", t.partition, v.topic.Name, t.to, err))
				continue
			}
			k.count(func(c *counters) { c.trimmed[t.why] += uint64(t.to - p.first) })
			p.first = t.to
		}
	})
	return errors.Join(errs...)
}

func (k *Keeper) passes() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mu.metrics.passes
}

// tick looks at the clock, and returns it.
func (k *Keeper) tick() time.Time {
	wall, up := k.o.Now().Round(0), k.up()
	jumped := k.clock.tick(wall, up)
	k.showClock(jumped, up)
	return wall
}

// showClock logs a jump, and the end of what follows from one.
func (k *Keeper) showClock(jumped bool, up time.Duration) {
	left := k.clock.left(SuspendFor, up)
	k.mu.Lock()
	before := k.mu.status.left
	k.mu.status.suspended, k.mu.status.left = k.clock.why, left
	if jumped {
		k.mu.metrics.jumps++
	}
	k.mu.Unlock()
	switch {
	case jumped, left > 0 && before == 0:
		k.o.Logger.Warn("nothing goes by age for a while: "+k.clock.why, "left", left.Round(time.Second))
	case left == 0 && before > 0:
		k.o.Logger.Info("messages go by age again", "before", k.clock.why)
	}
}

// startClock compares the clock with when the broker was last seen to run: the state file's time, without one that of the
// newest message.
func (k *Keeper) startClock() {
	var last int64
	var since time.Duration
	if k.o.StateFile != "" {
		s, err := readState(k.o.FS, k.o.StateFile)
		switch {
		case err != nil:
			k.o.Logger.Warn("the state of the last run cannot be read: the clock is compared with the newest message", "err", err)
		case s != nil:
			last, since = s.Wall, time.Duration(s.SinceJump)
		}
	}
	if last == 0 {
		last = k.newest()
	}
	k.clock.start(k.o.Now().Round(0), last, since)
	k.showClock(k.clock.why != "" && k.clock.at == 0, 0)
}

// newest is the stored time of the newest message, 0 if there is none.
func (k *Keeper) newest() (newest int64) {
	for _, t := range k.o.Store.Topics() {
		for i := range int(t.Partitions) {
			p := partitionOf(&t, i)
			first, end, err := k.o.Store.Bounds(p)
			if err != nil || first == end {
				continue
			}
			// One that cannot be read says nothing about the clock; others do.
			if stored, err := k.o.Store.Stored(p, end-1); err == nil {
				newest = max(newest, stored)
			}
		}
	}
	return newest
}

// save writes the state file.
func (k *Keeper) save() error {
	if k.o.StateFile == "" {
		return nil
	}
	up := k.up()
	k.saved = up
	return writeState(k.o.FS, k.o.StateFile, state{Wall: k.o.Now().UnixNano(), SinceJump: int64(k.clock.since(up))})
}
