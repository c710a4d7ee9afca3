package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server/servertest/check"
)

const (
	topic           = "orders"
	topicPartitions = 8
	producers       = 128              // sends in flight at most; a customer's orders are sent by one of them
	fetchMax        = 50               // orders in a lease
	sendTimeout     = 30 * time.Second // of one Send with all its attempts: longer than a restart
	ackTimeout      = 10 * time.Second // longer than a restart
	headerSeq       = "seq"            // of the order among those of its producer, for the checker
	stillAfter      = 30 * time.Second // without any progress, what is missing counts as lost
)

var groups = []struct {
	name    string
	members int
}{{"payment", 3}, {"shipping", 2}}

// run is one demonstration. Its goroutines are started and waited for by play.
type run struct {
	o       options
	orders  []order
	sent    map[int]order // by number
	want    sums
	broker  *broker  // alone, or
	cluster *cluster // one of the two
	history *check.Writer
	ledgers []*ledger

	acknowledged atomic.Int64
	received     atomic.Int64 // distinct, of all groups
	restarts     atomic.Int64
	begun        time.Time
	took         time.Duration

	mu struct {
		sync.Mutex
		repeated map[int]bool // orders of which an attempt of unknown outcome was repeated
	}
}

func newRun(o options, orders []order) (*run, error) {
	r := &run{o: o, orders: orders, sent: map[int]order{}, want: sumOrders(orders)}
	r.mu.repeated = map[int]bool{}
	for _, o := range orders {
		r.sent[o.Number] = o
	}
	for _, g := range groups {
		r.ledgers = append(r.ledgers, newLedger(g.name, r.sent))
	}
	var err error
	if r.history, err = check.Create(r.historyFile()); err != nil {
		return nil, err
	}
	if o.cluster {
		r.cluster, err = newCluster(o)
	} else if r.broker, err = newBroker(o.binary, o.dir); err == nil && o.retain != nil {
		r.broker.flags = o.retain.flags()
	}
	return r, err
}

// start begins what messages go through, with a topic on it.
func (r *run) start(ctx context.Context) error {
	if r.cluster != nil {
		return r.cluster.start(ctx)
	}
	if err := r.broker.start(ctx); err != nil {
		return err
	}
	c, err := r.dial(ctx, "shop")
	if err != nil {
		return err
	}
	defer closeClient(c)
	return c.CreateTopic(ctx, topic, topicPartitions)
}

// dial connects as an app.
func (r *run) dial(ctx context.Context, app string, options ...client.Option) (*client.Client, error) {
	if r.cluster != nil {
		return r.cluster.dial(ctx, app, options...)
	}
	return client.Dial(ctx, r.broker.wire, append(options, client.WithApp(app))...)
}

// disturb kills what can be killed on the way.
func (r *run) disturb(ctx context.Context) error {
	if r.cluster != nil {
		return r.cluster.disturb(ctx, r)
	}
	return r.killer(ctx)
}

func (r *run) stop() error {
	if r.cluster != nil {
		return r.cluster.stop()
	}
	return r.broker.stop()
}

// partition counts the partitions of all broker groups through.
func (r *run) partition(brokerGroup string, partition uint16) uint16 {
	if r.cluster != nil {
		partition += topicPartitions * r.cluster.number(brokerGroup)
	}
	return partition
}

func (r *run) historyFile() string { return filepath.Join(r.o.dir, "history.jsonl") }

func (r *run) close() {
	if r.cluster != nil {
		r.cluster.close()
	} else {
		r.broker.close()
	}
	_ = r.history.Close() // judge has seen its error
}

// play sends everything while the groups consume and the broker is killed, and returns when both groups have all there is
// to get, or have got nothing for a long while.
func (r *run) play(ctx context.Context) error {
	r.begun = time.Now()
	defer func() { r.took = time.Since(r.begun) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := r.start(ctx); err != nil {
		return err
	}
	sender, err := r.dial(ctx, "shop")
	if err != nil {
		return err
	}
	defer closeClient(sender)
	operator, err := r.dial(ctx, "operator")
	if err != nil {
		return err
	}
	defer closeClient(operator)

	consuming, stopConsuming := context.WithCancel(ctx)
	defer stopConsuming()
	var members, others sync.WaitGroup
	for i, g := range groups {
		for n := range g.members {
			m, err := r.newMember(ctx, r.ledgers[i], n)
			if err != nil {
				return err
			}
			members.Go(func() {
				defer closeClient(m.client)
				if err := m.consume(consuming); err != nil {
					cancel(err)
				}
			})
		}
	}
	showing, stopShowing := context.WithCancel(ctx)
	others.Go(func() { r.show(showing) })
	if r.o.retain != nil {
		others.Go(func() {
			if err := r.o.retain.watch(showing, r.broker.data()); err != nil {
				cancel(err)
			}
		})
	}
	killed := make(chan struct{})
	others.Go(func() {
		defer close(killed)
		if err := r.disturb(ctx); err != nil {
			cancel(err)
		}
	})
	if err := r.produce(ctx, sender); err != nil {
		cancel(err)
	}
	<-killed
	drained := r.drain(ctx, operator)
	stopConsuming()
	members.Wait()
	stopShowing()
	others.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if drained != nil {
		fmt.Fprintln(os.Stderr, "demo:", drained)
	}
	return r.stop()
}

func closeClient(c *client.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = c.Close(ctx) // what it had under way was answered, or is given up
}

// produce sends all orders: a customer's one after the other, those of many customers at once.
func (r *run) produce(ctx context.Context, c *client.Client) error {
	p, err := c.Producer(topic, client.Timeout(sendTimeout))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lanes := make([]chan order, producers)
	var running sync.WaitGroup
	for i := range lanes {
		lanes[i] = make(chan order, 16)
		running.Go(func() {
			proc, seq := "producer-"+strconv.Itoa(i), uint64(0)
			for o := range lanes[i] {
				seq++
				if err := r.send(ctx, p, proc, seq, o); err != nil {
					cancel(err)
				}
			}
		})
	}
	begun := time.Now()
feed:
	for i, o := range r.orders {
		if r.cluster != nil && !r.cluster.pace(ctx, begun, i, len(r.orders)) {
			break
		}
		customer, _ := strconv.Atoi(o.Customer) // five digits
		select {
		case lanes[customer%producers] <- o:
		case <-ctx.Done():
			break feed
		}
	}
	for _, l := range lanes {
		close(l)
	}
	running.Wait()
	return context.Cause(ctx)
}

// send sends one order until it is stored: an attempt whose outcome is not known is repeated with the same id.
func (r *run) send(ctx context.Context, p *client.Producer, proc string, seq uint64, o order) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	m := &client.Message{Key: "order-" + strconv.Itoa(o.Number), OrderKey: o.Customer, Body: body, Headers: client.Headers{{Key: headerSeq, Value: strconv.FormatUint(seq, 10)}}}
	if r.o.retain != nil {
		m.Headers = append(m.Headers, r.o.retain.pad())
	}
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e := check.Event{Proc: proc, Op: check.OpSend, Topic: topic, Key: o.Customer, Seq: seq, Hash: hash(body), Call: now()}
		receipt, err := p.Send(ctx, m)
		e.ID, e.Return, e.Unknown = receipt.MessageID, now(), receipt.Unknown
		switch {
		case err == nil:
			e.Result, e.Partition, e.Index = check.OK, r.partition(receipt.BrokerGroup, receipt.Partition), receipt.Index
		case errors.Is(err, client.ErrUnknown):
			e.Result = check.Unknown
		default:
			e.Result = check.Failed
		}
		if receipt.Unknown > 0 || e.Result == check.Unknown {
			r.mu.Lock()
			r.mu.repeated[o.Number] = true
			r.mu.Unlock()
		}
		if e.ID != "" {
			if err := r.history.Write(e); err != nil {
				return err
			}
		}
		if e.Result == check.OK {
			r.acknowledged.Add(1)
			return nil
		}
		if e.Result == check.Failed {
			return fmt.Errorf("order %d: %w", o.Number, err)
		}
		m.ID = receipt.MessageID
	}
}

func hash(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:8])
}

func now() int64 { return time.Now().UnixNano() }

// member is one consumer of a group, with a client of its own as if it were another process.
type member struct {
	r        *run
	ledger   *ledger
	proc     string
	client   *client.Client
	consumer *client.Consumer
}

func (r *run) newMember(ctx context.Context, l *ledger, n int) (*member, error) {
	m := &member{r: r, ledger: l, proc: l.group + "-" + strconv.Itoa(n)}
	var err error
	if m.client, err = r.dial(ctx, l.group, client.WithConns(1)); err != nil {
		return nil, err
	}
	if m.consumer, err = m.client.Consumer(topic, client.Start(client.FromBeginning)); err == nil {
		err = m.consumer.Subscribe(ctx)
	}
	if err != nil {
		closeClient(m.client)
		return nil, err
	}
	return m, nil
}

// consume receives and acknowledges until ctx ends. A broker that is away is waited for.
func (m *member) consume(ctx context.Context) error {
	for ctx.Err() == nil {
		got, err := m.consumer.Fetch(ctx, fetchMax, client.Wait(time.Second))
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, client.ErrDisconnected), errors.Is(err, client.ErrUnknown), errors.Is(err, client.ErrStopping), errors.Is(err, client.ErrTimeout):
			continue // Fetch itself has paused
		default:
			return fmt.Errorf("%s: %w", m.proc, err)
		}
		if len(got) == 0 {
			continue
		}
		if err := m.handle(ctx, got); err != nil {
			return fmt.Errorf("%s: %w", m.proc, err)
		}
	}
	return nil
}

// handle notes what came, in order, and acknowledges it: all of it is one range of one lease, so it is one ack.
func (m *member) handle(ctx context.Context, got []*client.Delivery) error {
	events := make([]check.Event, 0, len(got))
	for _, d := range got {
		text, _ := d.Headers.Get(headerSeq)
		seq, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return fmt.Errorf("message %s has no sequence: %w", d.ID, err)
		}
		events = append(events, check.Event{
			Proc: m.proc, Op: check.OpRecv, Topic: topic, Partition: m.r.partition(d.BrokerGroup, *d.Partition), Group: m.ledger.group, Key: d.OrderKey, ID: d.ID, Seq: seq,
			Index: d.Index, Epoch: d.Epoch, Call: now(), Hash: hash(d.Body), Lease: d.Lease, Member: d.Member, Deadline: d.Deadline.UnixNano(),
		})
	}
	if err := m.r.history.Write(events...); err != nil {
		return err
	}
	for _, d := range got {
		var o order
		if err := json.Unmarshal(d.Body, &o); err != nil {
			return fmt.Errorf("message %s is no order: %w", d.ID, err)
		}
		if m.ledger.received(m.r.location(d), o) {
			m.r.received.Add(1)
		}
	}
	first, last := got[0], got[len(got)-1]
	e := check.Event{
		Proc: m.proc, Op: check.OpAck, Topic: topic, Partition: m.r.partition(first.BrokerGroup, *first.Partition), Group: m.ledger.group, Index: first.Index, To: last.Index + 1,
		Lease: first.Lease, Member: first.Member, Call: now(),
	}
	// An ack under way is not cut by the end of the run: its answer would be missing in the history.
	acking, cancel := context.WithTimeout(context.WithoutCancel(ctx), ackTimeout)
	defer cancel()
	err := m.consumer.Ack(acking, got...)
	e.Return = now()
	switch {
	case err == nil:
		e.Result = check.OK
		for _, d := range got {
			m.ledger.acked(m.r.location(d))
		}
	case errors.Is(err, client.ErrLeaseExpired), errors.Is(err, client.ErrLeaseForeign):
		e.Result, e.Reason = check.Failed, err.Error()
	default:
		// The broker may have had it before it was killed: then the answer that the lease is not known says nothing.
		e.Result, e.Reason = check.Unknown, err.Error()
	}
	return m.r.history.Write(e)
}

func (r *run) location(d *client.Delivery) location {
	return location{r.partition(d.BrokerGroup, *d.Partition), d.Index}
}

// await returns when share of all orders is acknowledged; false: ctx ended.
func (r *run) await(ctx context.Context, share float64) bool {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for r.acknowledged.Load() < int64(share*float64(len(r.orders))) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// killer kills the broker with SIGKILL at moments spread over the run, and starts it again at once.
func (r *run) killer(ctx context.Context) error {
	random := rand.New(rand.NewPCG(r.o.seed, 2))
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for k := range r.o.kills {
		// Somewhere in the middle of its part of the orders.
		part := len(r.orders) / (r.o.kills + 1)
		at := int64(part*(k+1) - part/4 + random.IntN(part/2+1))
		for r.acknowledged.Load() < at {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil
			}
		}
		e := check.Event{Op: check.OpRestart, Call: now()}
		r.broker.kill()
		if err := r.broker.start(ctx); err != nil {
			return fmt.Errorf("after kill %d: %w", k+1, err)
		}
		e.Return = now()
		r.restarts.Add(1)
		if err := r.history.Write(e); err != nil {
			return err
		}
	}
	return nil
}

// drain waits until every group has received every order and the broker knows it, or until nothing has come for long.
func (r *run) drain(ctx context.Context, c *client.Client) error {
	all := int64(len(r.orders) * len(groups))
	seen, since := int64(-1), time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if n := r.received.Load(); n != seen {
			seen, since = n, time.Now()
		}
		if seen == all {
			at := now()
			lags, err := r.lags(ctx, c)
			if err == nil && !slices.ContainsFunc(lags, func(l client.PartitionLag) bool { return l.Lag > 0 }) {
				for _, l := range lags {
					if err := r.history.Write(check.Event{
						Op: check.OpBalance, Topic: topic, Group: l.Group, Partition: r.partition(l.BrokerGroup, l.Partition), Index: l.First, To: l.End, Pending: l.Lag, Call: at, Return: now(),
					}); err != nil {
						return err
					}
				}
				for _, g := range groups {
					if err := r.history.Write(check.Event{Op: check.OpDrain, Topic: topic, Group: g.name, Call: now()}); err != nil {
						return err
					}
				}
				return nil
			}
		}
		if time.Since(since) > stillAfter {
			return fmt.Errorf("nothing has come for %v", stillAfter)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *run) lags(ctx context.Context, c *client.Client) ([]client.PartitionLag, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return c.GroupLag(ctx, topic, "")
}

// data are the folders of the brokers.
func (r *run) data() []string {
	if r.cluster != nil {
		return r.cluster.data()
	}
	return []string{r.broker.data()}
}

// judge prints a line a group to out, the rest to stderr, and returns an error if anything is not as it must be.
func (r *run) judge(out io.Writer) error {
	r.mu.Lock()
	repeated := r.mu.repeated
	r.mu.Unlock()
	var wrong []string
	for _, l := range r.ledgers {
		v := l.judge(r.want, int(r.acknowledged.Load()), repeated)
		fmt.Fprintln(out, v)
		for _, reason := range sortedKeys(v.reasons) {
			fmt.Fprintf(os.Stderr, "  %s: %d again since %s\n", v.group, v.reasons[reason], reason)
		}
		wrong = append(wrong, v.wrong()...)
	}
	if n := int(r.acknowledged.Load()); n != len(r.orders) {
		wrong = append(wrong, fmt.Sprintf("%d of %d orders were acknowledged", n, len(r.orders)))
	}
	if r.o.retain != nil {
		wrong = append(wrong, r.o.retain.judge(out, len(r.orders))...)
	}
	if err := r.history.Close(); err != nil {
		return err
	}
	report, err := check.CheckFiles(r.historyFile())
	if err != nil {
		return err
	}
	report.Print(os.Stderr)
	if !report.OK() {
		wrong = append(wrong, "the history violates a promise, see above")
	}
	if r.cluster != nil {
		wrong = append(wrong, r.cluster.judge(out)...)
	}
	fmt.Fprintf(os.Stderr, "killed %d times; %.1f s; seed %d\n", r.restarts.Load(), r.took.Seconds(), r.o.seed)
	if !r.o.temporary || len(wrong) > 0 {
		fmt.Fprintf(os.Stderr, "checked: every send, reception and ack in %s\n", r.historyFile())
		for _, data := range r.data() {
			fmt.Fprintf(os.Stderr, "kept: %s; see it with: %s journal verify %s\n", data, r.o.binary, data)
		}
	}
	for _, w := range wrong {
		fmt.Fprintln(os.Stderr, "WRONG:", w)
	}
	if len(wrong) > 0 {
		return errors.New("a promise was broken")
	}
	return nil
}
