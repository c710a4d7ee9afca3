package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/client/admin"
	"github.com/jmqio/jmq/scripts/localcluster"
	"github.com/jmqio/jmq/server/servertest/check"
)

const (
	clusterBrokers = 3
	// A limit must be in force so soon after the command that sets it has begun.
	limitWithin = 2 * time.Second
	limitWindow = 500 * time.Millisecond // over which the rate is measured
	// How long a master stays away, so that its slave takes over reading, within so long.
	masterAway = 6 * time.Second
)

// cluster is what the orders go through with -with-cluster. disturb and stop belong to the goroutine of disturb, and then to that of play.
type cluster struct {
	*localcluster.Cluster
	o      options
	groups []string      // broker groups
	takes  time.Duration // how long sending shall take, so that all that is done on the way falls into it
	limit  int           // messages a second at one broker
	took   time.Duration // until it was in force; 0: it was not
}

func newCluster(o options) (*cluster, error) {
	segment := int64(64 << 20)
	c := &cluster{o: o, takes: time.Minute}
	if o.small {
		segment, c.takes = 4<<20, 25*time.Second
	}
	var err error
	c.Cluster, err = localcluster.Open(localcluster.Options{Dir: filepath.Join(o.dir, "cluster"), Binary: o.binary, Brokers: clusterBrokers, Slaves: 1, Segment: segment, Attached: true})
	if err != nil {
		return nil, err
	}
	c.groups = c.Groups()
	return c, nil
}

func (c *cluster) number(brokerGroup string) uint16 {
	return uint16(slices.Index(c.groups, brokerGroup))
}

func (c *cluster) data() []string {
	var all []string
	for _, n := range c.Of("broker") {
		all = append(all, n.DataFolder())
	}
	return all
}

// start makes the topic and the apps, by the commands that a person would use.
func (c *cluster) start(ctx context.Context) error {
	if err := c.Up(ctx); err != nil {
		return err
	}
	commands := []string{"app create shop", "topic create " + topic + " --partitions 8 --broker-groups " + strings.Join(c.groups, ","), "topic grant " + topic + " --app shop --produce"}
	for _, g := range groups {
		commands = append(commands, "app create "+g.name, "topic grant "+topic+" --consume --app "+g.name)
	}
	for _, app := range []string{"shop", groups[0].name, groups[1].name} {
		commands = append(commands, "credential create --app "+app+" --out "+c.credential(app))
	}
	for _, line := range commands {
		if err := c.Jmq(ctx, strings.Fields(line)...); err != nil {
			return err
		}
	}
	return c.inForce(ctx)
}

// inForce returns when every node has the newest metadata.
func (c *cluster) inForce(ctx context.Context) error {
	cl, err := c.dial(ctx, "operator", client.WithConns(1))
	if err != nil {
		return err
	}
	defer closeClient(cl)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return admin.New(cl).InForce(ctx, 0)
}

func (c *cluster) credential(app string) string {
	if app == "operator" {
		return c.AdminFile()
	}
	return filepath.Join(c.o.dir, app+".credential")
}

// dial connects to all broker groups, through any of the nodes.
func (c *cluster) dial(ctx context.Context, app string, options ...client.Option) (*client.Client, error) {
	return client.Dial(ctx, strings.Join(c.Addresses(""), ","), append(options, client.WithApp(app), client.WithCredentialsFile(c.credential(app)))...)
}

// pace holds order i of n back until its time; false: ctx ended.
func (c *cluster) pace(ctx context.Context, begun time.Time, i, n int) bool {
	wait := time.Until(begun.Add(c.takes * time.Duration(i) / time.Duration(n)))
	if wait <= 0 {
		return true
	}
	select {
	case <-time.After(wait):
		return true
	case <-ctx.Done():
		return false
	}
}

// disturb kills and brings back, at shares of the orders that are acknowledged: each next one shows that messages went on.
func (c *cluster) disturb(ctx context.Context, r *run) error {
	registries, brokers := c.Of("registry"), c.Of("broker")
	broker := brokers[1]
	// The first masters come first, in the order of their broker groups; then the slaves.
	master, whole := brokers[0], []*localcluster.Node{brokers[2], brokers[2+clusterBrokers]}
	slave := brokers[1+clusterBrokers]
	type step struct {
		at   float64
		what string
		do   func() error
	}
	steps := []step{
		{0.10, "the database is killed", func() error { c.Database.Kill(); return nil }},
	}
	for i, n := range registries {
		what := "registry node " + n.Name + " is killed"
		if i == len(registries)-1 {
			what += ": none is left"
		}
		steps = append(steps, step{0.15 + 0.05*float64(i), what, func() error { n.Kill(); return nil }})
	}
	steps = append(steps, []step{
		{0.32, "broker " + broker.Name + " is killed, and started again from what it knows", func() error { return c.restart(ctx, r, broker) }},
		{0.50, "the database and the registry nodes are brought back", func() error {
			errs := []error{c.Database.Start(ctx)}
			for _, n := range registries {
				errs = append(errs, n.Start(ctx))
			}
			return errors.Join(errs...)
		}},
		{0.60, "a limit is set by jmq apply -f", func() error { return c.setLimit(ctx, r) }},
		{0.68, "slave " + slave.Name + " is killed", func() error { slave.Kill(); return nil }},
		{0.72, "slave " + slave.Name + " is started again", func() error { return slave.Start(ctx) }},
		{0.76, "master " + master.Name + " is killed", func() error { return c.restartLater(ctx, r, master) }},
		{0.88, "broker group " + whole[0].Group + " is killed, master and slave, and started again", func() error { return c.restart(ctx, r, whole...) }},
	}...)
	for _, s := range steps {
		if !r.await(ctx, s.at) {
			return nil
		}
		fmt.Fprintf(os.Stderr, "%5.1f s, %d orders: %s\n", time.Since(r.begun).Seconds(), r.acknowledged.Load(), s.what)
		if err := s.do(); err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
}

// restartLater kills a master, and starts it again after a while in which its slave gives out what is there.
func (c *cluster) restartLater(ctx context.Context, r *run, n *localcluster.Node) error {
	e := check.Event{Op: check.OpRestart, Call: now()}
	n.Kill()
	select {
	case <-time.After(masterAway):
	case <-ctx.Done():
		return nil
	}
	return c.again(ctx, r, e, n)
}

// restart kills nodes, all before the first is started again.
func (c *cluster) restart(ctx context.Context, r *run, nodes ...*localcluster.Node) error {
	e := check.Event{Op: check.OpRestart, Call: now()}
	for _, n := range nodes {
		n.Kill()
	}
	return c.again(ctx, r, e, nodes...)
}

func (c *cluster) again(ctx context.Context, r *run, e check.Event, nodes ...*localcluster.Node) error {
	for _, n := range nodes {
		if err := n.Start(ctx); err != nil {
			return err
		}
	}
	e.Return = now()
	r.restarts.Add(1)
	return r.history.Write(e)
}

// setLimit has the app that sends held to a fraction of its rate, measures how soon that is in force, and lifts the limit again.
func (c *cluster) setLimit(ctx context.Context, r *run) error {
	rate := float64(len(r.orders)) / c.takes.Seconds()
	c.limit = max(1, int(rate/float64(len(c.groups))/5))
	set := time.Now() // before the command begins
	if err := c.applyLimit(ctx, c.limit); err != nil {
		return err
	}
	// What a window may have: what flows in, and some that were under way.
	most := int64(float64(c.limit*len(c.groups))*limitWindow.Seconds()*1.3) + 3
	type sample struct {
		at    time.Time
		count int64
	}
	var samples []sample
	for tick := time.NewTicker(10 * time.Millisecond); time.Since(set) < 2*limitWithin+limitWindow; {
		samples = append(samples, sample{time.Now(), r.acknowledged.Load()})
		last := samples[len(samples)-1]
		i := slices.IndexFunc(samples, func(s sample) bool { return last.at.Sub(s.at) <= limitWindow })
		if i > 0 && last.count-samples[i-1].count <= most {
			c.took = samples[i-1].at.Sub(set)
			tick.Stop()
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return nil
		}
	}
	return c.applyLimit(ctx, 0)
}

func (c *cluster) applyLimit(ctx context.Context, limit int) error {
	file := filepath.Join(c.o.dir, "limit.yaml")
	text := fmt.Sprintf("kind: app\nname: shop\nspec:\n  limit:\n    messagesPerSecond: %d\n", limit)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	return c.Jmq(ctx, "apply", "-f", file, "--yes", "--reason", "the demo shows a limit")
}

// judge says how soon the limit was in force, and what is wrong with it.
func (c *cluster) judge(out io.Writer) []string {
	if c.took == 0 {
		return []string{fmt.Sprintf("the limit of %d messages/s a broker was not in force within %v", c.limit, 2*limitWithin)}
	}
	fmt.Fprintf(out, "limit %d messages/s a broker, in force %.2f s after jmq apply began\n", c.limit, c.took.Seconds())
	if c.took > limitWithin {
		return []string{fmt.Sprintf("the limit was in force after %v, not within %v", c.took, limitWithin)}
	}
	return nil
}

func (c *cluster) stop() error { return c.Down() }

func (c *cluster) close() { _ = c.Down() } // stop has told its error
