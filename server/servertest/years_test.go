package servertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/wire"
)

// user is a client of a Server, for tests that look at one thing: each of its calls succeeds, or the test fails.
type user struct {
	t      *testing.T
	client *client.Client
	ctx    context.Context
}

func newUser(t *testing.T, s *Server) *user {
	t.Helper()
	u, err := dialUser(t, s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func dialUser(t *testing.T, s *Server) (*user, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*within)
	cl, err := client.Dial(ctx, s.Address(), client.WithApp("user"))
	if err != nil {
		cancel()
		return nil, err
	}
	t.Cleanup(func() {
		closeNow(cl)
		cancel()
	})
	return &user{t, cl, ctx}, nil
}

// send sends n messages whose bodies are the numbers from first on.
func (u *user) send(topic string, first, n int) {
	u.t.Helper()
	p, err := u.client.Producer(topic)
	if err != nil {
		u.t.Fatal(err)
	}
	msgs := make([]*client.Message, n)
	for i := range msgs {
		msgs[i] = &client.Message{OrderKey: "k", Body: fmt.Append(nil, first+i)}
	}
	if _, err := p.SendBatch(u.ctx, msgs); err != nil {
		u.t.Fatalf("send to %s: %v", topic, err)
	}
}

// consumer is a group's, which begins at the beginning.
func (u *user) consumer(topic, group string) *client.Consumer {
	u.t.Helper()
	k, err := u.client.Consumer(topic, client.Group(group), client.Start(client.FromBeginning), client.PollWait(pollWait), client.OnGap(func(g client.Gap) {
		u.t.Errorf("a gap: %+v", g)
	}))
	if err == nil {
		err = k.Subscribe(u.ctx)
	}
	if err != nil {
		u.t.Fatal(err)
	}
	return k
}

// take takes and acks n messages, whose bodies must be the numbers from first on.
func (u *user) take(k *client.Consumer, first, n int) {
	u.t.Helper()
	for got := 0; got < n; {
		ds, err := k.Fetch(u.ctx, n-got)
		if errors.Is(err, client.ErrDisconnected) && u.ctx.Err() == nil { // of the last process, between two calls
			pause(u.ctx, time.Millisecond)
			continue
		}
		if err != nil {
			u.t.Fatalf("fetch of %d messages after %d: %v", n, got, err)
		}
		for _, d := range ds {
			if want := fmt.Sprint(first + got); string(d.Body) != want {
				u.t.Fatalf("index %d has %q, want %q", d.Index, d.Body, want)
			}
			got++
		}
		if err := k.Ack(u.ctx, ds...); len(ds) > 0 && err != nil {
			u.t.Fatalf("ack: %v", err)
		}
	}
}

// lag is where a group stands in partition 0.
func (u *user) lag(topic, group string) client.PartitionLag {
	u.t.Helper()
	lags, err := u.client.GroupLag(u.ctx, topic, group)
	if err != nil {
		u.t.Fatal(err)
	}
	return lags[0]
}

// until waits for something that comes with time.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !ok(); pause(context.Background(), 2*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// TestClockJumps sets the clock by ten years, forwards and back, while the broker runs and while it is stopped. Messages that all
// groups have consumed, and that are far from their age, stay; none is lost, and sending, consuming and moving go on. With the clock left alone the same messages go when they are old.
func TestClockJumps(t *testing.T) {
	const years = 10 * 365 * 24 * time.Hour
	var offset atomic.Int64
	s := Start(t, func(c *server.Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }
		c.Broker.Journal.SegmentBytesMax = 64 << 10
		c.Broker.Retention.Every = 10 * time.Millisecond
		c.Broker.Retention.Age = 24 * time.Hour
	})
	s.CreateTopic("orders", 1)
	ctx := context.Background()
	if _, err := s.Admin().CreateTopic(ctx, &wire.CreateTopicRequest{Topic: "brief", Partitions: 1, Settings: &wire.TopicSettings{RetentionMs: new(int64(50))}}); err != nil {
		t.Fatal(err)
	}
	u := newUser(t, s)
	pay, brief := u.consumer("orders", "pay"), u.consumer("brief", "pay")
	u.send("brief", 0, 5)
	u.take(brief, 0, 5)
	until(t, "old messages go while the clock is right", func() bool { return u.lag("brief", "pay").First == 5 })
	u.send("brief", 5, 5)
	u.take(brief, 5, 5)

	const each = 20
	sent := 0
	for i, jump := range []time.Duration{years, -years, -years, years, years, -years} {
		u.send("orders", sent, each)
		offset.Add(int64(jump))
		if i%2 == 1 {
			s.Restart()
		}
		u.send("orders", sent+each, each)
		u.take(pay, sent, 2*each)
		sent += 2 * each
		before := passes(t, s)
		until(t, "retention has passed", func() bool { return passes(t, s) >= before+3 })
		if l := u.lag("orders", "pay"); l.First != 0 || l.End != uint64(sent) || l.Lag != 0 {
			t.Fatalf("after jump %d by %v: %+v, want all of [0, %d), consumed", i, jump, l, sent)
		}
	}
	if l := u.lag("brief", "pay"); l.First < 5 || l.End != 10 {
		t.Errorf("brief: %+v", l)
	}
	rows, err := u.client.SeekGroup(u.ctx, "orders", "pay", client.Seek{To: client.SeekStart, Reason: "again"})
	if err != nil || rows[0].To != 0 {
		t.Fatalf("seek: %+v, %v", rows, err)
	}
	u.take(pay, 0, sent)
}

// passes is how many passes retention has made.
func passes(t *testing.T, s *Server) (n int) {
	t.Helper()
	r, err := http.Get("http://" + s.AdminAddress() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "jmq_retention_passes_total") {
			if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no metric of passes")
	return 0
}

// TestFilesAfterStop takes the newest checkpoint, a run of the index, or both checkpoints away while the broker is stopped, empties
// them, cuts them, or puts those of another store in their place: it serves every message as before; without any checkpoint, its journal
// being trimmed, it says so and does not begin at zero.
func TestFilesAfterStop(t *testing.T) {
	life := func() (*Server, *user) {
		s := Start(t, func(c *server.Config) {
			c.Broker.Journal.SegmentBytesMax = 64 << 10
			c.Broker.Store.CheckpointBytes, c.Broker.Store.CheckpointEvery = 64<<10, 100*time.Millisecond
			c.Broker.Retention.Every, c.Broker.Retention.Bytes = 10*time.Millisecond, 100<<10
		})
		s.CreateTopic("orders", 1)
		s.CreateTopic("rare", 1)
		u := newUser(t, s)
		k := u.consumer("orders", "pay")
		u.consumer("rare", "late")
		u.send("rare", 0, 3) // carried forward, and so in a run of the index
		p, err := u.client.Producer("orders")
		if err != nil {
			t.Fatal(err)
		}
		filler := make([]byte, 20<<10)
		for range 30 {
			if _, err := p.Send(u.ctx, &client.Message{OrderKey: "k", Body: filler}); err != nil {
				t.Fatal(err)
			}
		}
		ds, err := k.Fetch(u.ctx, 30)
		for got := 0; ; {
			if err == nil && len(ds) > 0 {
				got += len(ds)
				err = k.Ack(u.ctx, ds...)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got == 30 {
				break
			}
			ds, err = k.Fetch(u.ctx, 30)
		}
		u.send("orders", 0, 200)
		until(t, "the journal's begin was freed", func() bool {
			r, err := u.client.StoreUsage(u.ctx, 0)
			return err == nil && r.Begin > 0
		})
		s.Stop()
		return s, u
	}
	other, _ := life()
	files := func(s *Server, parts ...string) []string {
		list, err := filepath.Glob(filepath.Join(append([]string{s.Folder()}, parts...)...))
		if err != nil || len(list) == 0 {
			t.Fatal(list, err)
		}
		slices.Sort(list)
		return list
	}
	write := func(name string, b []byte) {
		t.Helper()
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	damages := map[string]func(name, foreign string){
		"gone":  func(name, _ string) { _ = os.Remove(name) },
		"empty": func(name, _ string) { write(name, nil) },
		"cut": func(name, _ string) {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			write(name, b[:len(b)/2])
		},
		"foreign": func(name, foreign string) {
			b, err := os.ReadFile(foreign)
			if err != nil {
				t.Fatal(err)
			}
			write(name, b)
		},
	}
	last := func(list []string) string { return list[len(list)-1] }
	s, _ := life()
	saved := map[string][]byte{}
	for _, name := range slices.Concat(files(s, "*.ckpt"), files(s, "index", "*.index"), files(s, "journal", "*.journal")) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		saved[name] = b
	}
	restore := func() {
		t.Helper()
		for _, pattern := range []string{"*.ckpt*", "index/*", "journal/*"} {
			for _, name := range files(s, pattern) {
				_ = os.RemoveAll(name)
			}
		}
		for name, b := range saved {
			write(name, b)
		}
	}
	for _, how := range slices.Sorted(maps.Keys(damages)) {
		do := damages[how]
		for what, change := range map[string]func(){
			"checkpoint": func() { do(last(files(s, "*.ckpt")), last(files(other, "*.ckpt"))) },
			"index run":  func() { do(last(files(s, "index", "*.index")), last(files(other, "index", "*.index"))) },
		} {
			t.Run(what+" "+how, func(t *testing.T) {
				restore()
				change()
				if err := s.start(); err != nil {
					t.Fatal(err)
				}
				defer s.Stop()
				u := newUser(t, s)
				k := u.consumer("orders", "pay")
				u.take(k, 0, 200)
				u.send("orders", 200, 10)
				u.take(k, 200, 10)
				u.take(u.consumer("rare", "late"), 0, 3)
			})
		}
		t.Run("both checkpoints "+how, func(t *testing.T) {
			restore()
			for _, name := range files(s, "*.ckpt") {
				do(name, last(files(other, "*.ckpt")))
			}
			if err := s.start(); err == nil || !strings.Contains(err.Error(), "no whole checkpoint left") {
				s.Stop()
				t.Fatalf("got %v", err)
			}
		})
	}
}

// TestSeekBounds moves a group to where nothing is: before the beginning, beyond the end, to what was trimmed. It goes to the next
// that there is, and the answer says so; what makes no sense is refused, and the group stays.
func TestSeekBounds(t *testing.T) {
	s := Start(t, func(c *server.Config) { c.Broker.Retention.Every = 10 * time.Millisecond })
	ctx := context.Background()
	if _, err := s.Admin().CreateTopic(ctx, &wire.CreateTopicRequest{Topic: "orders", Partitions: 1, Settings: &wire.TopicSettings{RetentionMs: new(int64(50))}}); err != nil {
		t.Fatal(err)
	}
	u := newUser(t, s)
	pay := u.consumer("orders", "pay")
	u.send("orders", 0, 10)
	u.take(pay, 0, 10)
	until(t, "the first messages are trimmed", func() bool { return u.lag("orders", "pay").First == 10 })
	u.send("orders", 10, 10)
	for _, c := range []struct {
		seek client.Seek
		to   uint64
		cut  bool
	}{
		{client.Seek{To: client.SeekIndex, Index: math.MaxUint64}, 20, true}, // -1 of a language without unsigned numbers
		{client.Seek{To: client.SeekIndex, Index: 21}, 20, true},
		{client.Seek{To: client.SeekIndex, Index: 9}, 10, true},
		{client.Seek{To: client.SeekIndex, Index: 0}, 10, true},
		{client.Seek{To: client.SeekShift, Shift: -1}, 10, true},
		{client.Seek{To: client.SeekShift, Shift: math.MinInt64}, 10, true},
		{client.Seek{To: client.SeekShift, Shift: math.MaxInt64}, 20, true},
		{client.Seek{To: client.SeekTime, Time: time.Now().Add(time.Hour)}, 20, false},
		{client.Seek{To: client.SeekTime, Time: time.Unix(1, 0)}, 10, false},
		{client.Seek{To: client.SeekIndex, Index: 12}, 12, false},
	} {
		c.seek.Reason = "a test"
		was := u.lag("orders", "pay")
		rows, err := u.client.SeekGroup(u.ctx, "orders", "pay", c.seek)
		if err != nil || len(rows) != 1 || rows[0].To != c.to || rows[0].Cut != c.cut || rows[0].Generation != was.Generation+1 {
			t.Errorf("%+v: %+v, %v, want to %d, cut %v, generation %d", c.seek, rows, err, c.to, c.cut, was.Generation+1)
		}
	}
	stands := u.lag("orders", "pay")
	for _, bad := range []client.Seek{{}, {To: 6}, {To: client.SeekStart, Partitions: []uint16{7}}} {
		if _, err := u.client.SeekGroup(u.ctx, "orders", "pay", bad); !errors.Is(err, client.ErrInvalid) && !errors.Is(err, client.ErrNotFound) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if now := u.lag("orders", "pay"); now.AckOffset != stands.AckOffset || now.Generation != stands.Generation || now.AckOffset != 12 {
		t.Errorf("after refused moves: %+v, before %+v", now, stands)
	}
	// Two at once have a generation each, and the group stands where one of them put it.
	var both sync.WaitGroup
	var rows [2][]client.PartitionSeek
	for i := range rows {
		both.Go(func() {
			var err error
			if rows[i], err = u.client.SeekGroup(u.ctx, "orders", "pay", client.Seek{To: client.SeekIndex, Index: uint64(13 + i)}); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	if t.Failed() {
		return
	}
	later := rows[0][0]
	if rows[1][0].Generation > later.Generation {
		later = rows[1][0]
	}
	if now := u.lag("orders", "pay"); rows[0][0].Generation == rows[1][0].Generation || now.Generation != later.Generation || now.AckOffset != later.To {
		t.Errorf("after two at once: %+v; %+v", now, rows)
	}
	u.take(pay, int(later.To), 20-int(later.To))
}

// TestTopicsComeAndGo makes, uses and deletes 500 topics while another one is sent to and consumed: neither files, nor goroutines,
// nor memory are left of them.
func TestTopicsComeAndGo(t *testing.T) {
	s := Start(t, func(c *server.Config) {
		c.Broker.Journal.SegmentBytesMax = 256 << 10
		c.Broker.Store.CheckpointBytes, c.Broker.Store.CheckpointEvery = 64<<10, 100*time.Millisecond
		c.Broker.Retention.Every, c.Broker.Retention.Bytes = 20*time.Millisecond, 64<<10
	})
	s.CreateTopic("keep", 1)
	u := newUser(t, s)
	keep := u.consumer("keep", "load")
	var stop atomic.Bool
	var load sync.WaitGroup
	load.Go(func() {
		for n := 0; !stop.Load(); n += 10 {
			u.send("keep", n, 10)
			u.take(keep, n, 10)
		}
	})
	defer load.Wait()
	defer stop.Store(true)
	const workers, rounds = 8, 500 / 8
	round := func(each int) {
		var all sync.WaitGroup
		for w := range workers {
			all.Go(func() {
				u, err := dialUser(t, s) // its memory of topics goes with it
				if err != nil {
					t.Error(err)
					return
				}
				defer closeNow(u.client)
				for i := range each {
					if err := u.briefTopic(fmt.Sprintf("brief-%d-%d", w, i)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	}
	type left struct{ files, goroutines, heap int }
	look := func() (l left) {
		_ = filepath.WalkDir(s.Folder(), func(string, os.DirEntry, error) error { l.files++; return nil })
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		l.goroutines, l.heap = runtime.NumGoroutine(), int(m.HeapAlloc)
		return l
	}
	round(5)
	before := look()
	round(rounds + 1)
	if t.Failed() {
		return
	}
	var after left
	fine := func() bool {
		after = look()
		return after.files <= before.files+12 && after.goroutines <= before.goroutines+8 && after.heap <= before.heap+4<<20
	}
	for late := time.Now().Add(5 * time.Second); !fine(); pause(context.Background(), 50*time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("left are %+v, before %+v", after, before)
		}
	}
	t.Logf("before %+v, after %+v", before, after)
	topics, err := u.client.ListTopics(u.ctx)
	if err != nil || len(topics) != 1 {
		t.Errorf("%v, %v", topics, err)
	}
}

// briefTopic is the life of a topic.
func (u *user) briefTopic(name string) error {
	if err := u.client.CreateTopic(u.ctx, name, 4); err != nil {
		return err
	}
	k, err := u.client.Consumer(name, client.Group("brief"), client.Start(client.FromBeginning), client.PollWait(pollWait))
	if err == nil {
		err = k.Subscribe(u.ctx)
	}
	if err != nil {
		return err
	}
	p, err := u.client.Producer(name)
	if err != nil {
		return err
	}
	if _, err := p.Send(u.ctx, &client.Message{Body: bytes.Repeat([]byte("x"), 100)}); err != nil {
		return err
	}
	ds, err := k.Fetch(u.ctx, 1)
	if err != nil || len(ds) != 1 {
		return fmt.Errorf("%d messages of topic %s: %w", len(ds), name, err)
	}
	if err := k.Ack(u.ctx, ds...); err != nil {
		return err
	}
	return u.client.DeleteTopic(u.ctx, name, "its life is over")
}
