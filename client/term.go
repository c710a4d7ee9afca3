package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jmqio/jmq/wire"
	"google.golang.org/protobuf/proto"
)

// term is how long a lease lasts, as far as this side can tell: the broker's view is earlier by the way of its answer. Its
// member, its deliveries and its loop share it.
type term struct {
	mu struct {
		sync.Mutex
		until time.Time
		timer *time.Timer // of whom watch told; nil: nobody
	}
}

func newTerm(leaseMs uint32) *term {
	t := new(term)
	t.mu.until = leaseEnd(leaseMs)
	return t
}

// leaseEnd is when a lease that was just told of ends.
func leaseEnd(leaseMs uint32) time.Time {
	d := time.Duration(leaseMs) * time.Millisecond
	return time.Now().Add(d - min(d/20, time.Second))
}

func (t *term) end() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.until
}

// over says that the lease has ended by itself.
func (t *term) over() bool { return time.Now().After(t.end()) }

// extend moves the end, never back.
func (t *term) extend(until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if until.After(t.mu.until) {
		t.mu.until = until
		if t.mu.timer != nil {
			t.mu.timer.Reset(time.Until(until))
		}
	}
}

// watch calls f when the lease ends, unless stop was called before. One at a time.
func (t *term) watch(f func()) (stop func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	stopped := false
	t.mu.timer = time.AfterFunc(time.Until(t.mu.until), func() {
		t.mu.Lock()
		early := stopped || time.Now().Before(t.mu.until) // it was extended while the timer went off
		t.mu.Unlock()
		if !early {
			f()
		}
	})
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		stopped = true
		t.mu.timer.Stop()
		t.mu.timer = nil
	}
}

const extendMax = 12 * time.Hour // the broker's bound

// Extend makes the delivery's lease last until by from now, 0: the ack timeout from now; never shorter than before. All
// messages of the lease have that time, and the context of a handler goes on. It is repeated until ctx ends or the lease is
// over. Errors that are ErrLeaseExpired, ErrLeaseUnknown or ErrLeaseForeign mean that the message was given away meanwhile.
func (d *Delivery) Extend(ctx context.Context, by time.Duration) error {
	c := d.consumer
	if c == nil {
		return invalid(opExtend, d.Topic, errors.New("a delivery of no consumer"))
	}
	if by < 0 || by > extendMax {
		return invalid(opExtend, c.topic, fmt.Errorf("%v is not 0 to %v", by, extendMax))
	}
	ctx, cancel := context.WithTimeout(ctx, max(time.Until(d.term.end()), callTimeout))
	defer cancel()
	var out wire.ExtendResponse
	r := c.extendRequest(d.Member, d.partition, d.Lease, by)
	if err := d.pool.call(ctx, opExtend, c.topic, repeatAlways, wire.CommandExtend, r, &out); err != nil {
		return err
	}
	if err := extended(&out, d.term); err != nil {
		return newError(opExtend, c.topic, int(d.partition), "", err)
	}
	d.Deadline = d.term.end()
	return nil
}

func (c *Consumer) extendRequest(member uint32, partition uint16, lease uint64, by time.Duration) *wire.ExtendRequest {
	return &wire.ExtendRequest{
		Topic: c.topic, Group: c.o.group, Member: member, Leases: []*wire.LeaseName{{Partition: uint32(partition), Lease: lease}}, ExtendMs: waitMs(by),
	}
}

// extended takes the answer about one lease.
func extended(r *wire.ExtendResponse, t *term) error {
	if len(r.Codes) != 1 {
		return wire.Errorf(wire.CodeMalformed, "%d codes for one lease", len(r.Codes))
	}
	if code := wire.Code(r.Codes[0]); code != wire.CodeOK {
		return wire.Errorf(code, "the lease")
	}
	t.extend(leaseEnd(r.LeaseMs))
	return nil
}

// keeper extends the lease of a loop while its handler runs (ExtendLeases). It is driven by a timer, and asks one thing at a
// time. What it does not get shows when the lease ends.
type keeper struct {
	l         *loop
	m         *member
	lease     *wire.FetchResponse
	term      *term
	leaseTime time.Duration

	mu struct {
		sync.Mutex
		timer *time.Timer
		at    *pool     // who has the lease
		begun time.Time // when the handler was called that runs
		over  bool
	}
}

// keep starts to extend r's lease.
func (l *loop) keep(r *wire.FetchResponse, t *term) *keeper {
	k := &keeper{l: l, m: l.m, lease: r, term: t, leaseTime: time.Duration(r.LeaseMs) * time.Millisecond}
	k.mu.begun, k.mu.at = time.Now(), l.m.pool
	k.mu.timer = time.AfterFunc(k.leaseTime/3, k.tick)
	return k
}

// begin notes that the handler is called with another message.
func (k *keeper) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.begun = time.Now()
}

func (k *keeper) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.over = true
	k.mu.timer.Stop()
}

// tick extends the lease if two thirds of it are left at most, and sees to the next tick.
func (k *keeper) tick() {
	c := k.l.c
	k.mu.Lock()
	begun, over, at := k.mu.begun, k.mu.over, k.mu.at
	if !over {
		k.mu.timer.Reset(k.leaseTime / 3)
	}
	k.mu.Unlock()
	by := min(k.leaseTime, time.Until(begun.Add(c.o.extend)))
	if over || by <= 0 || time.Until(k.term.end()) > k.leaseTime*2/3 {
		return
	}
	link := at.giver(k.m.number, 0)
	header, err := proto.Marshal(c.extendRequest(k.m.number, k.lease.Partition, k.lease.Lease, by))
	if link == nil || err != nil {
		return // at the next tick
	}
	if _, err := link.Start(wire.CommandExtend, header, nil, func(f wire.Frame, err error) { k.answered(link, f, err) }); err == nil {
		link.Flush()
	}
}

// answered runs on the connection's reading goroutine.
func (k *keeper) answered(link *link, f wire.Frame, err error) {
	var out wire.ExtendResponse
	if err == nil {
		if err = proto.Unmarshal(f.Header, &out); err == nil {
			err = extended(&out, k.term)
		}
	}
	k.mu.Lock()
	k.mu.at = k.mu.at.elsewhere(link, err) // at the next tick
	k.mu.Unlock()
	if err != nil {
		k.l.logger().Warn("a lease could not be extended", "topic", k.l.c.topic, "group", k.l.c.o.group, "partition", k.lease.Partition, "index", k.lease.From, "err", err)
	}
}
