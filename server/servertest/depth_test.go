package servertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/servertest/check"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

// depth is what a campaign in depth adds. The store has a limit that is filled many times, so that retention trims and segments are
// used again. A topic of few messages is consumed at the very end only, so that they are carried forward from segment to segment.
// Groups are moved back, by one or by two at once. A topic is made, used and deleted, again and again. And now and then bytes
// change while the broker is stopped: of messages in a sealed segment, of an index run, of the newest checkpoint.
type depth struct {
	seeks, lives, flips, declared atomic.Int64
	generations                   struct {
		sync.Mutex
		seen map[string]bool
	}
	rare *producer
}

func (d *depth) String() string {
	if d.rare == nil {
		return ""
	}
	return fmt.Sprintf(", seeks %d, lives of a topic %d, flips %d, messages hit %d, of few %d", d.seeks.Load(), d.lives.Load(), d.flips.Load(), d.declared.Load(), d.rare.seq)
}

const (
	rareTopic, rareGroup = "rare", "late"
	rareMost             = 60 // messages: together less than a quarter of a segment, else they would not be carried
	livesTopic           = "brief"
	readPause            = 5 * time.Second // the broker leaves a partition alone that it could not read
)

var deepFaults = append([]fault{damaged, damaged}, everyFault...)

func (c *campaign) deepen() {
	b := &c.config.Broker
	b.Journal.SegmentBytesMax = 64 << 10
	if c.o.segmentBytes > 0 {
		b.Journal.SegmentBytesMax = c.o.segmentBytes
	}
	b.Store.BytesMax = 24 * b.Journal.SegmentBytesMax
	b.Retention.Every = 20 * time.Millisecond
	b.Retention.Age = time.Duration(c.intn(2)) * 300 * time.Millisecond
	if c.o.damage == messagesOnly {
		b.Journal.VerifyBytesPerSecond = 0
	}
	if c.o.faults == nil {
		c.o.faults = deepFaults
	}
	c.depth.generations.seen = map[string]bool{}
}

// topics are those that are read at the end, and whenever the power was lost.
func (c *campaign) topics() []string {
	if c.o.depth {
		return []string{topicName, rareTopic}
	}
	return []string{topicName}
}

// goDeep starts what is done besides. stop is called when all of it has ended.
func (c *campaign) goDeep(ctx, consuming, sending context.Context, sends, consumers *sync.WaitGroup) (stop func(), err error) {
	l := c.network.line()
	cl, err := client.Dial(ctx, "127.0.0.1:1", client.WithApp("deep"), client.WithDialer(l.dial), client.WithConns(1))
	if err != nil {
		return l.hangUp, err
	}
	kept := context.AfterFunc(c.aborted, func() { closeNow(cl) })
	stop = func() {
		kept()
		closeNow(cl)
		l.hangUp()
	}
	if err := c.admin.CreateTopic(ctx, rareTopic, 1); err != nil {
		return stop, err
	}
	if _, err := c.subscribe(ctx, rareTopic, rareGroup); err != nil {
		return stop, err
	}
	c.depth.rare = c.producerOf(rareTopic, cl, "rare-0", 1, patience{timeout: 2 * time.Second, repeat: true})
	c.depth.rare.small = true
	sends.Go(func() { c.few(sending) })
	sends.Go(func() { c.lives(sending, cl) })
	consumers.Go(func() { c.observe(consuming, rareTopic) })
	sends.Go(func() { c.seekBack(sending) })
	return stop, nil
}

// few sends the messages of which there are few.
func (c *campaign) few(ctx context.Context) {
	p := c.depth.rare
	for ctx.Err() == nil && p.seq < rareMost {
		m := p.message()
		for {
			e := p.sent(m)
			r, err := p.p.Send(context.Background(), m)
			result := p.note(e, r, err)
			if result != check.Unknown || ctx.Err() != nil {
				break
			}
			m.ID = r.MessageID
		}
		pause(ctx, time.Duration(20+p.rng.IntN(150))*time.Millisecond)
	}
}

// drainDepth consumes them.
func (c *campaign) drainDepth(ctx context.Context, consumers *sync.WaitGroup, consuming context.Context) bool {
	k, err := c.subscribe(ctx, rareTopic, rareGroup)
	if err != nil {
		c.problem("subscribe: %v", err)
		return false
	}
	m := &member{c: c, proc: rareGroup, consumer: k}
	consumers.Go(func() {
		for consuming.Err() == nil {
			ds, err := k.Fetch(consuming, 10, client.Wait(pollWait))
			if err != nil && consuming.Err() == nil && !c.excused(err) {
				c.problem("%s: fetch: %v", m.proc, err)
				return
			}
			if len(ds) > 0 {
				m.receivedAll(ds, time.Now())
				m.ack(ds)
			}
		}
	})
	return c.drain(ctx, rareTopic, rareGroup)
}

// seekBack moves groups back to what they have consumed, until ctx ends. Every move has a generation of its own.
func (c *campaign) seekBack(ctx context.Context) {
	rng := c.fork()
	for ctx.Err() == nil {
		pause(ctx, time.Duration(100+rng.IntN(500))*time.Millisecond)
		group := []string{fetchGroup, runGroup}[rng.IntN(2)]
		lags, err := c.admin.GroupLag(ctx, topicName, group)
		if err != nil || len(lags) == 0 {
			continue
		}
		var moves sync.WaitGroup
		for range 1 + rng.IntN(2) {
			l := lags[rng.IntN(len(lags))]
			s := client.Seek{To: client.SeekIndex, Index: l.AckOffset - uint64(rng.IntN(int(min(30, l.AckOffset)+1))), Partitions: []uint16{l.Partition}, Reason: "again"}
			switch rng.IntN(4) {
			case 0:
				s.To, s.Shift = client.SeekShift, -int64(rng.IntN(20))
			case 1:
				s.Partitions = nil
				s.To, s.Shift = client.SeekShift, -5
			}
			moves.Go(func() { c.seek(ctx, group, lags, s) })
		}
		moves.Wait()
	}
}

func (c *campaign) seek(ctx context.Context, group string, lags []client.PartitionLag, s client.Seek) {
	e := check.Event{Op: check.OpReset, Topic: topicName, Group: group, Call: now()}
	rows, err := c.admin.SeekGroup(ctx, topicName, group, s)
	e.Return = now()
	if err != nil {
		if ctx.Err() == nil && !c.excused(err) {
			c.problem("seek of group %s: %v", group, err)
		}
		e.Return += int64(2 * time.Second) // if it was read, it may still be done
		for _, l := range lags {
			if len(s.Partitions) == 0 || slices.Contains(s.Partitions, l.Partition) {
				e.Partition, e.Index = l.Partition, l.First
				c.event(e)
			}
		}
		return
	}
	c.depth.seeks.Add(1)
	for _, r := range rows {
		e.Partition, e.Index = r.Partition, r.To
		c.event(e)
		key := fmt.Sprint(group, "/", r.Partition, "/", r.Generation)
		c.depth.generations.Lock()
		twice := c.depth.generations.seen[key]
		c.depth.generations.seen[key] = true
		c.depth.generations.Unlock()
		if twice || r.Generation < 2 {
			c.problem("a move of group %s in partition %d has generation %d, as one before", group, r.Partition, r.Generation)
		}
	}
}

// lives makes a topic, sends to it, consumes what was stored, and deletes it, again and again under the same name, until ctx ends.
// Nothing of a life may be seen in a later one, and all that is stored must come.
func (c *campaign) lives(ctx context.Context, cl *client.Client) {
	unknown := map[string]bool{} // ids of sends of which the outcome is not known: one may come late
	for life := 0; ctx.Err() == nil; life++ {
		if err := c.life(ctx, cl, life, unknown); err != nil {
			if ctx.Err() == nil {
				c.problem("life %d of topic %s: %v", life, livesTopic, err)
			}
			return
		}
		c.depth.lives.Add(1)
		pause(ctx, time.Duration(c.intn(50))*time.Millisecond)
	}
}

// insist repeats what a broker that comes and goes may answer with errors; done is an answer that is as good as nil.
func (c *campaign) insist(ctx context.Context, done error, do func() error) error {
	for {
		err := do()
		if err == nil || done != nil && errors.Is(err, done) {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !c.excused(err) {
			return err
		}
		pause(ctx, 5*time.Millisecond)
	}
}

func (c *campaign) life(ctx context.Context, cl *client.Client, life int, unknown map[string]bool) error {
	err := c.insist(ctx, client.ErrExists, func() error { return cl.CreateTopic(ctx, livesTopic, 2) })
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	lost := map[[2]uint64]bool{}
	k, err := cl.Consumer(livesTopic, client.Group("brief"), client.Start(client.FromBeginning), client.PollWait(pollWait), client.OnGap(func(g client.Gap) {
		for i := g.From; i < g.To; i++ {
			lost[[2]uint64{uint64(g.Partition), i}] = true
		}
	}))
	if err == nil {
		err = c.insist(ctx, nil, func() error { return k.Subscribe(ctx) })
	}
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	p, err := cl.Producer(livesTopic, client.Timeout(time.Second))
	if err != nil {
		return err
	}
	want := map[string]client.Receipt{}
	body := "life " + strconv.Itoa(life)
	for range 20 {
		r, err := p.Send(ctx, &client.Message{Body: []byte(body)})
		switch {
		case err == nil:
			want[r.MessageID] = r
		case errors.Is(err, client.ErrUnknown):
			unknown[r.MessageID] = true
		case ctx.Err() == nil && !c.excused(err):
			return fmt.Errorf("send: %w", err)
		}
	}
	for late := time.Now().Add(within); len(want) > 0; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(late) {
			return fmt.Errorf("%d stored messages do not come, such as %v", len(want), want)
		}
		ds, err := k.Fetch(ctx, 10, client.Wait(pollWait))
		if err != nil && ctx.Err() == nil && !c.excused(err) {
			return fmt.Errorf("fetch: %w", err)
		}
		for _, d := range ds {
			if string(d.Body) != body && !unknown[d.ID] {
				return fmt.Errorf("message %s of partition %d, index %d has %q", d.ID, *d.Partition, d.Index, d.Body)
			}
			delete(want, d.ID)
		}
		for id, r := range want {
			if lost[[2]uint64{uint64(r.Partition), r.Index}] {
				delete(want, id) // damage that was declared, or C1 tells of such ones in the other topics
			}
		}
		if len(ds) > 0 {
			err := k.Ack(ctx, ds...)
			if err != nil && ctx.Err() == nil && !c.excused(err) && !leaseEnded(err) {
				return fmt.Errorf("ack: %w", err)
			}
		}
	}
	if err := c.insist(ctx, client.ErrNotFound, func() error { return cl.DeleteTopic(ctx, livesTopic, "its life is over") }); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

func leaseEnded(err error) bool {
	return slices.ContainsFunc([]error{client.ErrLeaseExpired, client.ErrLeaseForeign, client.ErrLeaseUnknown, client.ErrAlreadyEnded}, func(e error) bool { return errors.Is(err, e) })
}

// damage changes bytes while the broker is stopped, and notes which messages that hits.
func (c *campaign) damage() error {
	fs, dir := c.disk.fs, c.config.Broker.Data
	switch some := c.intn(4); {
	case c.o.damage == messagesOnly:
	case some == 0:
		return c.flipFile(fs.PathJoin(dir, "index"), ".index", -1)
	case some == 1:
		return c.flipFile(dir, ".ckpt", 0)
	}
	names, err := c.topicNames()
	if err != nil {
		return err
	}
	j := fs.PathJoin(dir, "journal")
	last := journal.Position(0) // where the active segment begins
	files, err := fs.List(j)
	if err != nil {
		return err
	}
	var bases []journal.Position
	for _, f := range files {
		if base, err := strconv.ParseUint(strings.TrimSuffix(f, ".journal"), 10, 64); err == nil && strings.HasSuffix(f, ".journal") {
			bases = append(bases, journal.Position(base))
		}
	}
	slices.Sort(bases)
	if len(bases) > 0 {
		last = bases[len(bases)-1]
	}
	type target struct {
		from, to journal.Position
		lost     check.Event
	}
	var targets []target
	err = journal.Dump(fs, j, 0, func(r journal.Record) error {
		payload := r.Payload
		switch {
		case r.Position >= last:
			return nil
		case r.Kind == journal.KindCarriedForward && len(payload) > 32:
			payload = payload[32:]
		case r.Kind != journal.KindMessages:
			return nil
		}
		b, err := wire.ParseBatch(payload)
		if err != nil {
			return nil // what is carried is that messages are lost
		}
		name, ok := names[offset.Topic{ID: b.Topic(), Incarnation: b.Incarnation()}]
		if !ok {
			return nil // deleted
		}
		targets = append(targets, target{r.Position, r.End(), check.Event{Op: check.OpLost, Topic: name, Partition: b.Partition(), Index: b.FirstIndex(), To: b.FirstIndex() + uint64(b.Count())}})
		return nil
	})
	if err != nil && !errors.As(err, new(*journal.CorruptError)) { // of an earlier flip that nobody met with
		return fmt.Errorf("dump: %w", err)
	}
	for range min(len(targets), 1+c.intn(3)) {
		t := targets[c.intn(len(targets))]
		at := t.from + journal.Position(c.intn(int(t.to-t.from)))
		i, found := slices.BinarySearch(bases, at)
		if !found {
			i--
		}
		t.lost.Call = now()
		c.event(t.lost)
		c.depth.declared.Add(int64(t.lost.To - t.lost.Index))
		if err := c.flip(fs.PathJoin(j, fmt.Sprintf("%020d.journal", uint64(bases[i]))), int64(at-bases[i])+4096); err != nil {
			return err
		}
	}
	return nil
}

// topicNames asks a copy of the disk: the broker has stopped in order, so that a lost power would take nothing.
func (c *campaign) topicNames() (map[offset.Topic]string, error) {
	st, err := local.Open(local.Options{FS: c.disk.fs.Crash(0, nil), Dir: c.config.Broker.Data,
		Tables: []store.Table{offset.NewTable()}, SegmentBytesMax: c.config.Broker.Journal.SegmentBytesMax})
	if err != nil {
		return nil, fmt.Errorf("%w: a copy: %w", errRefused, err)
	}
	names := map[offset.Topic]string{}
	for _, t := range st.Topics() {
		names[offset.Topic{ID: uint64(t.ID), Incarnation: t.Incarnation}] = t.Name
	}
	return names, st.Close()
}

// flipFile changes a byte of a file with that ending: any one, or with newest 0 the one of the highest name.
func (c *campaign) flipFile(dir, ending string, newest int) error {
	all, err := c.disk.fs.List(dir)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(n string) bool { return !strings.HasSuffix(n, ending) })
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all)
	name := all[len(all)-1]
	if newest < 0 {
		name = all[c.intn(len(all))]
	}
	path := c.disk.fs.PathJoin(dir, name)
	b, err := journaltest.ReadFile(c.disk.fs, path)
	if err != nil || len(b) == 0 {
		return err
	}
	at := c.intn(len(b))
	if at >= 8 && at < 12 {
		at = 0 // not the version: a newer one is refused, and rightly
	}
	return c.flip(path, int64(at))
}

func (c *campaign) flip(path string, at int64) error {
	f, err := c.disk.fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		return err
	}
	b[0] ^= 1 << c.intn(8)
	if _, err := f.WriteAt(b[:], at); err != nil {
		return err
	}
	c.depth.flips.Add(1)
	return f.Sync()
}

// TestCampaignInDepth is TestCampaign with what a store does with years of data, see depth.
func TestCampaignInDepth(t *testing.T) {
	campaigns(t, options{seed: newSeed(), cycles: 30, most: 5 * time.Second, depth: true})
}
