package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server"
)

const benchTopic, benchGroup = "bench", "bench"

// benchServeBrokerCommand runs a broker with all defaults on free ports: alone, with a registry in its process, or as the slave of such
// a one.
func benchServeBrokerCommand() *cobra.Command {
	var data, slaveOf string
	var registry bool
	cmd := &cobra.Command{
		Use: "serve-broker", Hidden: true, Args: cobra.NoArgs,
		Short: "The server of jmq bench produce, consume and e2e",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			c := server.DefaultConfig()
			c.Broker.Data = data
			c.Node.Wire.Listen, c.Node.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
			if registry {
				c.Roles = []server.Role{server.RoleRegistry, server.RoleBroker}
			}
			if slaveOf != "" {
				c.Node.Name, c.Node.Registry.Addresses, c.Broker.Slave = "slave", []string{slaveOf}, true
			}
			s, err := server.New(c)
			if err != nil {
				return err
			}
			var said sync.WaitGroup
			defer said.Wait()
			said.Go(func() {
				select {
				case <-s.Ready():
					fmt.Fprintf(cmd.OutOrStdout(), "listening %s %s\n", s.WireAddress(), s.AdminAddress())
				case <-ctx.Done():
				}
			})
			err = s.Run(ctx)
			stop()
			return err
		},
	}
	cmd.Flags().StringVar(&data, "folder", "", "data folder")
	cmd.Flags().BoolVar(&registry, "registry", false, "with a registry")
	cmd.Flags().StringVar(&slaveOf, "slave-of", "", "address of a broker with a registry")
	return cmd
}

// brokerUnderTest is a broker that the benchmark talks to: one of its own, or that of --address.
type brokerUnderTest struct {
	address string
	process *process // nil: runs already
	slave   *process // nil: there is none
	meter   meter
}

// inSyncWithin is how long a new slave may take until it is in sync.
const inSyncWithin = 30 * time.Second

func startBroker(ctx context.Context, o benchOptions) (*brokerUnderTest, error) {
	if o.address != "" {
		return &brokerUnderTest{address: o.address, meter: meter{pid: o.pid, syncs: func() (int64, error) { return 0, nil }}}, nil
	}
	args := []string{"bench", "serve-broker", "--folder", filepath.Join(o.data, "master")}
	if o.slave {
		args = append(args, "--registry")
	}
	p, err := startProcess(ctx, args...)
	if err != nil {
		return nil, err
	}
	wire, admin, ok := strings.Cut(p.address, " ")
	if !ok {
		p.kill()
		return nil, fmt.Errorf("the broker under measurement said %q instead of two addresses", p.address)
	}
	b := &brokerUnderTest{address: wire, process: p, meter: meter{
		pid:   p.cmd.Process.Pid,
		syncs: func() (int64, error) { return scrape(ctx, admin, "jmq_fsync_duration_seconds_count") },
	}}
	if o.slave {
		if b.slave, err = startProcess(ctx, "bench", "serve-broker", "--folder", filepath.Join(o.data, "slave"), "--slave-of", wire); err == nil {
			err = awaitInSync(ctx, admin)
		}
		if err != nil {
			b.kill()
			return nil, err
		}
	}
	return b, nil
}

// awaitInSync waits until a master has a slave in sync.
func awaitInSync(ctx context.Context, admin string) error {
	ctx, cancel := context.WithTimeout(ctx, inSyncWithin)
	defer cancel()
	for {
		if n, err := scrape(ctx, admin, "jmq_replica_in_sync"); err == nil && n > 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the slave is not in sync: %w", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (b *brokerUnderTest) stop() error {
	var errs []error
	for _, p := range []*process{b.slave, b.process} {
		if p != nil {
			errs = append(errs, p.stop())
		}
	}
	return errors.Join(errs...)
}

func (b *brokerUnderTest) kill() {
	for _, p := range []*process{b.slave, b.process} {
		if p != nil {
			p.kill()
		}
	}
}

// scrape reads one metric from an admin port.
func scrape(ctx context.Context, admin, name string) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			f, err := strconv.ParseFloat(v, 64)
			return int64(f), err
		}
	}
	return 0, errors.Join(fmt.Errorf("no metric %s at %s", name, admin), lines.Err())
}

// benchClient connects and makes sure of the topics.
func benchClient(ctx context.Context, o benchOptions, address string) (*client.Client, error) {
	options, err := o.options()
	if err != nil {
		return nil, err
	}
	c, err := client.Dial(ctx, address, append(options, client.WithApp(benchGroup), client.WithConns(o.connections))...)
	if err != nil {
		return nil, err
	}
	if err := makeTopics(ctx, c, o); err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	return c, nil
}

// topicNames are those of a run; the first one is always the same.
func (o benchOptions) topicNames() []string {
	names := []string{benchTopic}
	for i := 1; i < o.topics; i++ {
		names = append(names, benchTopic+"-"+strconv.Itoa(i))
	}
	return names
}

// atOnce is how many topics are made, or sent to for the first time, at the same time.
const atOnce = 64

// each calls f for all names, some at a time, and returns the first error.
func each(names []string, f func(name string) error) error {
	var wg sync.WaitGroup
	var next atomic.Int64
	errs := make([]error, min(atOnce, len(names)))
	for i := range errs {
		wg.Go(func() {
			for errs[i] == nil {
				n := int(next.Add(1)) - 1
				if n >= len(names) {
					return
				}
				errs[i] = f(names[n])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func makeTopics(ctx context.Context, c *client.Client, o benchOptions) error {
	if o.topics <= 1 {
		return c.CreateTopic(ctx, benchTopic, o.partitions)
	}
	there, err := c.ListTopics(ctx)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, t := range there {
		known[t.Name] = t.Partitions == o.partitions
	}
	return each(slices.DeleteFunc(o.topicNames(), func(name string) bool { return known[name] }), func(name string) error {
		return c.CreateTopic(ctx, name, o.partitions)
	})
}

// senders returns the call of each producer. With more topics than one each call takes the next topic, and every topic has
// got one message before; with async each producer stays with one.
func senders(ctx context.Context, c *client.Client, o benchOptions) (func(worker int) call, error) {
	names := o.topicNames()
	producers := make([]*client.Producer, len(names))
	for i, name := range names {
		p, err := c.Producer(name)
		if err != nil {
			return nil, err
		}
		producers[i] = p
	}
	if len(names) > 1 {
		of := map[string]*client.Producer{}
		for i, name := range names {
			of[name] = producers[i]
		}
		err := each(names, func(name string) error {
			_, err := of[name].Send(ctx, &client.Message{Body: make([]byte, o.size)})
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if !o.async {
		return func(worker int) call { return sender(producers, worker, o) }, nil
	}
	own := make([]*client.Producer, o.producers) // each has a buffer of its own
	for i := range own {
		p, err := c.Producer(names[i%len(names)])
		if err != nil {
			return nil, err
		}
		own[i] = p
	}
	return func(worker int) call { return asyncSender(own[worker], o) }, nil
}

// sender returns the call of one producer.
func sender(producers []*client.Producer, worker int, o benchOptions) call {
	body := make([]byte, o.size)
	next := worker * len(producers) / max(o.producers, 1) // they start far from each other
	turn := func() *client.Producer {
		next++
		return producers[next%len(producers)]
	}
	if o.batch == 1 {
		m := &client.Message{Body: body}
		return func(ctx context.Context) (int, error) {
			_, err := turn().Send(ctx, m)
			return 1, err
		}
	}
	batch := make([]*client.Message, o.batch)
	for i := range batch {
		batch[i] = &client.Message{Body: body}
	}
	return func(ctx context.Context) (int, error) {
		_, err := turn().SendBatch(ctx, batch)
		return len(batch), err
	}
}

// asyncSender returns the call of one producer that does not wait for answers, only for room in the producer's buffer; it returns
// how many messages were answered since the call before.
func asyncSender(p *client.Producer, o benchOptions) call {
	m := &client.Message{Body: make([]byte, o.size)}
	var answered atomic.Int64
	var failed atomic.Pointer[error]
	done := func(_ client.Receipt, err error) {
		if err != nil {
			failed.CompareAndSwap(nil, &err)
		}
		answered.Add(1)
	}
	return func(ctx context.Context) (int, error) {
		if err := failed.Load(); err != nil {
			return 0, *err
		}
		p.SendAsync(ctx, m, done)
		return int(answered.Swap(0)), nil
	}
}

func benchProduce(ctx context.Context, o benchOptions) (benchResult, error) {
	return benchBroker(ctx, o, "broker", func(ctx context.Context, c *client.Client, b *brokerUnderTest) (loadResult, error) {
		send, err := senders(ctx, c, o)
		if err != nil {
			return loadResult{}, err
		}
		return load{workers: o.producers, warmUp: o.warmUp, duration: o.duration, progress: o.progress}.run(ctx, send, b.meter.mark)
	})
}

// benchFill stores messages until there are enough. With one topic a group stands at its beginning.
func benchFill(ctx context.Context, o benchOptions) (benchResult, error) {
	return benchBroker(ctx, o, "broker", func(ctx context.Context, c *client.Client, b *brokerUnderTest) (loadResult, error) {
		if !o.nobody {
			g, err := c.Consumer(benchTopic, client.Group(benchGroup), client.Start(client.FromBeginning))
			if err == nil {
				err = g.Subscribe(ctx)
			}
			if err != nil {
				return loadResult{}, err
			}
		}
		send, err := senders(ctx, c, o)
		if err != nil {
			return loadResult{}, err
		}
		begin := time.Now()
		var stored atomic.Int64
		var wg sync.WaitGroup
		errs := make([]error, o.producers)
		b.meter.mark(true)
		for i := range errs {
			one := send(i)
			wg.Go(func() {
				for errs[i] == nil && stored.Load() < int64(o.messages) {
					var n int
					n, errs[i] = one(ctx)
					o.progress.set(stored.Add(int64(n)), int64(o.messages))
				}
			})
		}
		wg.Wait()
		b.meter.mark(false)
		return loadResult{messages: stored.Load(), latency: newLatency(), elapsed: time.Since(begin)}, errors.Join(errs...)
	})
}

// benchConsume stores messages first, as many as the producers can in the time of the measurement, then drains them.
func benchConsume(ctx context.Context, o benchOptions) (benchResult, error) {
	return benchBroker(ctx, o, "broker", func(ctx context.Context, c *client.Client, b *brokerUnderTest) (loadResult, error) {
		fill := o
		fill.batch = min(100, max(1, (1<<20)/o.size))
		send, err := senders(ctx, c, fill)
		if err != nil {
			return loadResult{}, err
		}
		stored, err := load{workers: 8, duration: o.duration, progress: o.progress}.run(ctx, send, func(bool) {})
		if err != nil {
			return loadResult{}, err
		}
		g, err := startConsumers(ctx, c, o, client.FromBeginning)
		if err != nil {
			return loadResult{}, err
		}
		begin := time.Now()
		b.meter.consumed = g.count.Load
		b.meter.mark(true)
		for g.count.Load() < stored.messages && g.err() == nil && ctx.Err() == nil && time.Since(begin) < time.Minute {
			time.Sleep(time.Millisecond)
		}
		b.meter.mark(false)
		elapsed := time.Since(begin)
		if err := g.stop(); err != nil {
			return loadResult{}, err
		}
		return loadResult{latency: newLatency(), elapsed: elapsed}, ctx.Err()
	})
}

// benchEndToEnd reports the messages consumed; latency is that of the producers' calls.
func benchEndToEnd(ctx context.Context, o benchOptions) (benchResult, error) {
	return benchBroker(ctx, o, "broker", func(ctx context.Context, c *client.Client, b *brokerUnderTest) (loadResult, error) {
		send, err := senders(ctx, c, o)
		if err != nil {
			return loadResult{}, err
		}
		g, err := startConsumers(ctx, c, o, client.FromEnd)
		if err != nil {
			return loadResult{}, err
		}
		b.meter.consumed = g.count.Load
		r, err := load{workers: o.producers, warmUp: o.warmUp, duration: o.duration, progress: o.progress}.run(ctx, send, b.meter.mark)
		return r, errors.Join(err, g.stop())
	})
}

func benchBroker(ctx context.Context, o benchOptions, system string, run func(context.Context, *client.Client, *brokerUnderTest) (loadResult, error)) (benchResult, error) {
	b, err := startBroker(ctx, o)
	if err != nil {
		return benchResult{}, err
	}
	defer b.kill()
	c, err := benchClient(ctx, o, b.address)
	if err != nil {
		return benchResult{}, err
	}
	r, err := run(ctx, c, b)
	err = errors.Join(err, c.Close(ctx))
	if err != nil {
		return benchResult{}, err
	}
	use, err := b.meter.use()
	if err != nil {
		return benchResult{}, err
	}
	return o.result(system, r, use), b.stop()
}

// consumers are the members of one group.
type consumers struct {
	count  atomic.Int64
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu struct {
		sync.Mutex
		errs []error
	}
}

func startConsumers(ctx context.Context, c *client.Client, o benchOptions, start client.StartAt) (*consumers, error) {
	g := &consumers{}
	ctx, g.cancel = context.WithCancel(ctx)
	for i := range o.consumers {
		m, err := c.Consumer(benchTopic, client.Group(benchGroup), client.Start(start), client.Batch(100),
			client.Concurrency(max(1, o.partitions/o.consumers)))
		if err == nil && i == 0 && o.parallel {
			if err = m.Subscribe(ctx); err == nil {
				_, err = c.AlterGroup(ctx, benchTopic, benchGroup, client.GroupPolicy{Parallel: true}, "jmq bench --parallel")
			}
		}
		if err != nil {
			g.cancel()
			return nil, err
		}
		g.wg.Go(func() {
			err := m.Run(ctx, func(context.Context, *client.Delivery) error {
				g.count.Add(1)
				return nil
			})
			if err != nil && ctx.Err() == nil {
				g.fail(err)
			}
		})
	}
	return g, nil
}

func (g *consumers) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.errs = append(g.mu.errs, err)
}

func (g *consumers) err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Join(g.mu.errs...)
}

// stop ends the consumers, waits for them and returns what made one end before.
func (g *consumers) stop() error {
	g.cancel()
	g.wg.Wait()
	return g.err()
}
