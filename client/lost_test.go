package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/server/broker"
	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/journal/journaltest"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

// realBroker is the real broker on a disk in memory. Its clients reach it over a way on which a test can lose frames, and
// connections of which one side does not hear that they ended. It belongs into a bubble of time.
type realBroker struct {
	*broker.Broker
	h   *wire.Handler
	ran sync.WaitGroup

	mu struct {
		sync.Mutex
		down    bool
		servers []net.Conn
		// onFrame decides about each frame on the way; nil: all pass.
		onFrame func(w *way, f wire.Frame, answer bool) fate
	}
}

// way is one connection.
type way struct {
	client, server net.Conn // the inner ends
	held           []byte   // frames of the client that have not arrived yet
}

type fate int

const (
	pass  fate = iota
	lose       // the frame does not arrive
	cut        // nor does anything after it: both sides see the end
	cutOf      // only the client sees the end; the broker goes on with what it has
	hold       // it arrives when the test says so, though the client sees the end now
)

func startReal(t *testing.T, o broker.Options) *realBroker {
	t.Helper()
	offsets := offset.NewTable()
	o.Offsets = offsets
	b := &realBroker{Broker: broker.New(o)}
	s, err := local.Open(local.Options{
		FS: journaltest.New(nil), Dir: "/store", Tables: []store.Table{offsets}, Gather: b.Gather,
		SegmentBytesMax: 256 << 10, SegmentBytesFirst: 256 << 10, CheckpointEvery: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Start(s)
	b.h = wire.NewHandler(wire.Services{Broker: b, Admin: b}, wire.HandlerOptions{Broker: "real", OnOpen: b.Attach, OnClose: b.Detach})
	t.Cleanup(func() {
		b.mu.Lock()
		b.mu.down = true
		servers := b.mu.servers
		b.mu.Unlock()
		for _, nc := range servers {
			nc.Close()
		}
		b.ran.Wait()
		b.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// dial is for WithDialer.
func (b *realBroker) dial(context.Context, string) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.down {
		return nil, errDown
	}
	w := &way{}
	var client, server net.Conn
	client, w.client = net.Pipe()
	w.server, server = net.Pipe()
	b.mu.servers = append(b.mu.servers, server)
	session := b.h.NewSession(server, wire.SessionOptions{})
	b.ran.Go(func() { session.Serve() })
	b.ran.Go(func() { b.carry(w, w.client, w.server, false) })
	b.ran.Go(func() { b.carry(w, w.server, w.client, true) })
	return client, nil
}

// carry carries frames until an end is closed; of a client that is gone it goes on to take what the broker writes.
func (b *realBroker) carry(w *way, from, to net.Conn, answer bool) {
	silent := false
	for {
		frame := make([]byte, 4)
		_, err := io.ReadFull(from, frame)
		if err == nil {
			frame = append(frame, make([]byte, binary.LittleEndian.Uint32(frame))...)
			_, err = io.ReadFull(from, frame[4:])
		}
		if err != nil {
			break
		}
		what := pass
		b.mu.Lock()
		if b.mu.onFrame != nil {
			f, _, e := wire.ParseFrame(frame, len(frame))
			if e != nil {
				panic(e)
			}
			what = b.mu.onFrame(w, f, answer)
		}
		b.mu.Unlock()
		switch what {
		case pass:
			if !silent {
				if _, err := to.Write(frame); err != nil && !answer {
					return
				}
			}
		case cut:
			w.client.Close()
			w.server.Close()
			return
		case hold:
			w.held = frame
			fallthrough
		case cutOf:
			w.client.Close()
			silent = true
			if !answer {
				return // the broker is left alone
			}
		}
	}
	if !silent {
		to.Close()
	}
}

// onFrame sets what happens to frames.
func (b *realBroker) onFrame(f func(w *way, f wire.Frame, answer bool) fate) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.onFrame = f
}

func (b *realBroker) setDown(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.down = down
}

// leaseAnswer reports whether f brings a lease.
func leaseAnswer(f wire.Frame, answer bool) bool {
	var r wire.FetchResponse
	return answer && f.Kind == wire.KindResponse && f.Command == wire.CommandFetch && wire.ParseFetchResponse(&r, f.Header) == nil && r.Lease != 0
}

// firstLease does what to the first answer that brings a lease.
func firstLease(what fate) func(w *way, f wire.Frame, answer bool) fate {
	done := false
	return func(_ *way, f wire.Frame, answer bool) fate {
		if !done && leaseAnswer(f, answer) {
			done = true
			return what
		}
		return pass
	}
}

// connect dials the real broker. The client ends with the test.
func connect(t *testing.T, b *realBroker, opts ...Option) *Client {
	t.Helper()
	c, err := Dial(context.Background(), "real:1", append([]Option{WithDialer(b.dial), WithApp("app")}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (b *realBroker) topic(t *testing.T, partitions int) {
	t.Helper()
	if _, err := b.CreateTopic(context.Background(), &wire.CreateTopicRequest{Topic: "orders", Partitions: uint32(partitions)}); err != nil {
		t.Fatal(err)
	}
}

func (b *realBroker) ended(why dispatch.Why) uint64 { return b.Metrics().Dispatch.Ended[why] }

// soon is far below the ack timeout and the grace: reconnecting and asking again takes no longer.
const soon = 2 * time.Second

// within fails the test if more than soon has passed since.
func within(t *testing.T, since time.Time, what string) {
	t.Helper()
	if took := time.Since(since); took > soon {
		t.Errorf("%s after %v", what, took)
	}
}

// The connection ends between the grant of a lease and its answer, seen by both sides or by the client only: Run comes back
// and gets the messages at once, though nobody knew of that lease.
func TestRunAnswerLost(t *testing.T) {
	for _, what := range []fate{cut, cutOf} {
		for conns := 1; conns <= 2; conns++ {
			t.Run(fmt.Sprint(what, conns), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := startReal(t, broker.Options{})
					b.topic(t, 1)
					c := connect(t, b, WithConns(conns))
					sendN(t, c, 3)
					b.onFrame(firstLease(what))
					ctx, cancel := context.WithCancel(context.Background())
					var got []uint64
					begun := time.Now()
					if err := consumer(t, c).Run(ctx, func(_ context.Context, d *Delivery) error {
						if got = append(got, d.Index); d.Index == 2 {
							cancel()
						}
						return nil
					}); err != nil {
						t.Error(err)
					}
					within(t, begun, "all handled")
					if l := lag(t, c); l != 0 || !slices.Equal(got, []uint64{0, 1, 2}) || b.ended(dispatch.EndedLost) != 1 {
						t.Errorf("handled %v, lag %d, leases ended: %+v", got, l, b.Metrics().Dispatch)
					}
				})
			})
		}
	}
}

// fetchN fetches until it has n messages, and acknowledges.
func fetchN(t *testing.T, k *Consumer, n int) {
	t.Helper()
	begun := time.Now()
	for n > 0 {
		ds, err := k.Fetch(context.Background(), n, Wait(30*time.Second))
		if err != nil || len(ds) == 0 {
			t.Fatalf("%v, %v, %d are to come", ds, err, n)
		}
		if err := k.Ack(context.Background(), ds...); err != nil {
			t.Error(err)
		}
		n -= len(ds)
	}
	within(t, begun, "fetched")
}

// A Fetch whose answer is lost gets the messages all the same when it has time; else the next one does, or another client,
// whether or not the first one fetches again.
func TestFetchAnswerLost(t *testing.T) {
	ended := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.Background(), time.Second)
	}
	for name, test := range map[string]struct {
		what fate
		wait time.Duration
		err  error // of the first Fetch; nil: it gets the messages
		next bool  // the same consumer fetches again, else another client's
	}{
		"again":                 {cut, 10 * time.Second, nil, false},
		"again, unseen":         {cutOf, 10 * time.Second, nil, false},
		"no time":               {cut, 0, ErrUnknown, true},
		"no time, another":      {cut, 0, ErrUnknown, false},
		"no time, unseen":       {cutOf, 0, ErrUnknown, false},
		"context ends":          {lose, 10 * time.Second, context.DeadlineExceeded, true},
		"context ends, another": {lose, 10 * time.Second, context.DeadlineExceeded, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := startReal(t, broker.Options{})
				b.topic(t, 1)
				c := connect(t, b, WithConns(1))
				k := consumer(t, c)
				other := consumer(t, connect(t, b))
				sendN(t, c, 3)
				b.onFrame(firstLease(test.what))
				ctx, cancel := ended()
				defer cancel()
				ds, err := k.Fetch(ctx, 5, Wait(test.wait))
				switch {
				case test.err != nil:
					if ds != nil || !errors.Is(err, test.err) && codeOf(err) != wire.CodeUnknown {
						t.Fatalf("%v, %v, want %v", ds, err, test.err)
					}
					if !test.next {
						k = other
					}
					fetchN(t, k, 3)
				case err != nil || len(ds) != 3:
					t.Fatalf("%d deliveries, %v", len(ds), err)
				default:
					if err := k.Ack(context.Background(), ds...); err != nil {
						t.Error(err)
					}
				}
				if n := b.ended(dispatch.EndedLost); n != 1 {
					t.Errorf("%d leases were lost", n)
				}
			})
		})
	}
}

// What a consumer has it keeps, though it lost the answer to another fetch.
func TestReconcileKeepsWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startReal(t, broker.Options{})
		b.topic(t, 3)
		c := connect(t, b, WithConns(1))
		k := consumer(t, c)
		for key := range 12 {
			if _, err := producer(t, c).Send(context.Background(), &Message{OrderKey: fmt.Sprint(key)}); err != nil {
				t.Fatal(err)
			}
		}
		held, err := k.Fetch(context.Background(), 10)
		if err != nil || len(held) == 0 {
			t.Fatal(held, err)
		}
		if err := held[0].Ack(context.Background()); err != nil { // of a lease that goes on
			t.Fatal(err)
		}
		b.onFrame(firstLease(cut))
		more, err := k.Fetch(context.Background(), 10)
		if err != nil || len(more) == 0 || more[0].Partition == held[0].Partition {
			t.Fatal(more, err)
		}
		if err := k.Ack(context.Background(), append(held[1:], more...)...); err != nil {
			t.Error(err)
		}
		if lost := b.ended(dispatch.EndedLost); lost != 1 {
			t.Errorf("%d leases were lost", lost)
		}
	})
}

// A fetch that was sent over a connection which the client gave up is read by the broker after the one that came over the
// next: it gets nothing.
func TestFetchReadLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startReal(t, broker.Options{})
		b.topic(t, 2)
		c := connect(t, b, WithConns(1))
		k := consumer(t, c)
		if err := k.Subscribe(context.Background()); err != nil {
			t.Fatal(err)
		}
		for i := range 8 {
			if _, err := producer(t, c).Send(context.Background(), &Message{OrderKey: fmt.Sprint(i)}); err != nil {
				t.Fatal(err)
			}
		}
		var late *way
		b.onFrame(func(w *way, f wire.Frame, answer bool) fate {
			if late == nil && !answer && f.Command == wire.CommandFetch {
				late = w
				return hold
			}
			return pass
		})
		ds, err := k.Fetch(context.Background(), 10)
		if err != nil || len(ds) == 0 {
			t.Fatal(ds, err)
		}
		if _, err := late.server.Write(late.held); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if m := b.Metrics(); m.Dispatch.Leased != 1 || m.Refused[wire.CodeTimeout] != 1 {
			t.Errorf("%+v", m)
		}
		if err := k.Ack(context.Background(), ds...); err != nil {
			t.Error(err)
		}
		fetchN(t, consumer(t, connect(t, b)), 8-len(ds))
	})
}

// When Run returns, nothing of it is left at the broker: neither a lease nor a fetch that waits, though its last answer was
// lost with the connection.
func TestRunLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startReal(t, broker.Options{})
		b.topic(t, 1)
		c, sender := connect(t, b, WithConns(1)), connect(t, b, WithConns(1)) // whose answers come, whatever becomes of the other's
		run := func(stop func(cancel context.CancelFunc)) {
			t.Helper()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			ended := make(chan error)
			go func() {
				ended <- consumer(t, c, Concurrency(3)).Run(ctx, func(_ context.Context, d *Delivery) error {
					t.Errorf("message %d was handled", d.Index)
					return nil
				})
			}()
			synctest.Wait()
			if m := b.Metrics().Dispatch; m.Waiting != 3 {
				t.Fatalf("%+v", m)
			}
			stop(cancel)
			begun := time.Now()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if took := time.Since(begun); took != 0 {
				t.Errorf("Run ended after %v", took)
			}
		}
		run(func(cancel context.CancelFunc) { cancel() })
		if m := b.Metrics().Dispatch; m.Waiting != 0 {
			t.Errorf("after Run %+v", m)
		}
		run(func(cancel context.CancelFunc) {
			b.onFrame(func(_ *way, f wire.Frame, answer bool) fate {
				if leaseAnswer(f, answer) {
					b.mu.down = true
					cancel()
					return cut
				}
				return pass
			})
			sendN(t, sender, 2)
			synctest.Wait()
		})
		b.onFrame(nil)
		if m := b.Metrics().Dispatch; m.Leased != 1 {
			t.Errorf("no lease was lost: %+v", m)
		}
		b.setDown(false)
		fetchN(t, consumer(t, connect(t, b)), 2)
	})
}

// Close gives back what was fetched and not acknowledged: who waits gets it at once. So does the end of Run's context with
// what its handlers did not handle.
func TestCloseGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startReal(t, broker.Options{})
		b.topic(t, 1)
		c := connect(t, b)
		sendN(t, c, 5)
		ds, err := consumer(t, c).Fetch(context.Background(), 3)
		if err != nil || len(ds) != 3 {
			t.Fatal(ds, err)
		}
		if err := ds[0].Ack(context.Background()); err != nil {
			t.Fatal(err)
		}
		second, third := connect(t, b), connect(t, b)
		ctx, cancel := context.WithCancel(context.Background())
		var handled []uint64
		ended := make(chan error)
		go func() {
			ended <- consumer(t, second).Run(ctx, func(_ context.Context, d *Delivery) error {
				handled = append(handled, d.Index)
				cancel()
				return nil
			})
		}()
		rest := make(chan []*Delivery)
		go func() {
			time.Sleep(time.Millisecond) // behind second
			ds, err := consumer(t, third).Fetch(context.Background(), 10)
			if err != nil {
				t.Error(err)
			}
			rest <- ds
		}()
		time.Sleep(time.Second)
		begun := time.Now()
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil || !slices.Equal(handled, []uint64{1}) {
			t.Errorf("handled %v, %v", handled, err)
		}
		if ds := <-rest; len(ds) != 3 || ds[0].Index != 2 || time.Since(begun) > 10*time.Millisecond {
			t.Errorf("%d deliveries after %v", len(ds), time.Since(begun))
		}
	})
}

// A handler that takes longer than its lease: the messages go to whoever waits, the one that was late is acknowledged in
// vain, once, and the loop goes on.
func TestHandlerLongerThanLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startReal(t, broker.Options{AckTimeout: 10 * time.Second})
		b.topic(t, 1)
		c := connect(t, b)
		sendN(t, c, 4)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var mu sync.Mutex
		handled := map[string][]uint64{}
		var running sync.WaitGroup
		for _, name := range []string{"slow", "other"} {
			running.Go(func() {
				if name == "other" {
					time.Sleep(time.Second) // slow is first
				}
				if err := consumer(t, c).Run(ctx, func(_ context.Context, d *Delivery) error {
					mu.Lock()
					handled[name] = append(handled[name], d.Index)
					slow := name == "slow" && d.Index == 1 && len(handled[name]) == 2
					mu.Unlock()
					if slow {
						time.Sleep(25 * time.Second)
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(30 * time.Second)
		cancel()
		running.Wait()
		// 0 was acknowledged while 1 was handled.
		if want := map[string][]uint64{"slow": {0, 1}, "other": {1, 2, 3}}; fmt.Sprint(handled) != fmt.Sprint(want) {
			t.Errorf("handled %v, want %v", handled, want)
		}
		m := b.Metrics()
		if m.Acks != 4 || m.AcksRefused != 2 || m.Dispatch.Ended[dispatch.EndedTimeout] != 1 {
			t.Errorf("%+v", m)
		}
	})
}
