package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/wire"
	"github.com/oklog/ulid/v2"
)

// Client is a process's access to jmq: its producers and consumers share a few connections. Make one with Dial, use it
// from any goroutine, Close it at the end.
type Client struct {
	o        *options
	cluster  *Cluster
	metadata metadata
	ids      *idGenerator
	producer [16]byte // id of this process in batches
	codec    wire.Codec
	members  atomic.Uint32

	sends    gate // Sends and the batches of those that were given up
	finished finished
	runs     gate // of consumers
	flights  sync.Pool
	pendings sync.Pool
	fetches  sync.Pool
	open     open

	stopping context.Context // ends when Close begins
	stop     context.CancelFunc
	closing  sync.Once
	closed   chan struct{} // Close is through

	mu struct {
		sync.Mutex
		topics        map[string]*topic
		subscriptions map[watchKey]*subscription
	}
}

// Dial connects to a node at one of the addresses: "jmq://host:port,host:port" or "host:port,host:port". The port is
// 50088 where it is left out, and an empty string is the broker of `jmq dev` on this machine. Any nodes will do, registry nodes or
// brokers: where the topics are is learnt from them. Dial returns when one connection is good, and with an error when ctx ends
// first or no address answers (see WithRouteCache for what helps then). From then on the client connects again by itself.
func Dial(ctx context.Context, addresses string, opts ...Option) (*Client, error) {
	addrs, err := parseAddresses(addresses)
	o, optErr := newOptions(opts)
	if err = errors.Join(err, optErr); err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	c := &Client{o: o, ids: newIDGenerator(rand.Reader), closed: make(chan struct{})}
	c.producer = [16]byte(c.ids.next(time.Now()))
	c.mu.topics, c.mu.subscriptions = map[string]*topic{}, map[watchKey]*subscription{}
	c.metadata.init(c)
	c.stopping, c.stop = context.WithCancel(context.Background())
	c.sends.init()
	c.runs.init()
	for _, w := range o.warnings {
		o.logger.Warn(w)
	}
	c.cluster = newCluster(o, addrs, ulid.ULID(c.producer).String())
	c.cluster.connected, c.cluster.routes = c.connected, c.routes
	cache := newRouteCache(o, addrs)
	kept := cache.load()
	c.metadata.cache = cache
	if err := c.cluster.start(ctx, kept); err != nil {
		c.stop()
		c.cluster.close()
		c.metadata.close()
		return nil, err
	}
	if kept != nil && c.cluster.home.ready() == nil {
		c.metadata.resume(kept)
		o.logger.Warn("no address answers: routes and settings are those of the route cache until a node tells others", "file", cache.path())
	}
	cache.begin(c.cluster.ctx, c.metadata.content)
	return c, nil
}

// Cluster is the client's connections, for those who speak the protocol themselves. It ends with the client.
func (c *Client) Cluster() *Cluster { return c.cluster }

// Close refuses new calls, ends the Runs of consumers as the end of their contexts would, waits for them, for sends
// under way and for callbacks until ctx ends, gives back what was fetched and not acknowledged, and then ends the connections. What was not
// answered by then has the outcome unknown, and callbacks are told so before Close returns. It returns ctx's error when it did
// not wait for everything; the client is closed then too. Only the first call waits.
func (c *Client) Close(ctx context.Context) error {
	var err error
	c.closing.Do(func() {
		c.stop()
		err = errors.Join(c.runs.close(ctx), c.sends.close(ctx), c.finished.wait(ctx))
		c.giveAllBack(ctx)
		c.cluster.close()
		c.metadata.close()
		// Without connections every batch ends soon.
		c.sends.wait()
		// Callbacks have a moment more, but one that hangs does not keep Close.
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
		defer cancel()
		err = errors.Join(err, c.finished.wait(grace))
		close(c.closed)
	})
	return err
}

// errClosed is the error of calls after Close.
func errClosed(op, topic string) error {
	return newError(op, topic, -1, "", wire.Errorf(wire.CodeClosed, "the client was closed"))
}

// gate counts who is inside, and can be closed: then nobody comes in any more, and who closed it waits for the others.
type gate struct {
	n     atomic.Int64 // inside; with gateClosed added once it is closed
	empty chan struct{}
}

const gateClosed = int64(1) << 60 // closed; twice as much: and empty was told

func (g *gate) init() { g.empty = make(chan struct{}) }

// enter is false when the gate is closed.
func (g *gate) enter() bool {
	if g.n.Add(1) < gateClosed {
		return true
	}
	g.leave()
	return false
}

// add counts another one; someone must be inside.
func (g *gate) add() { g.n.Add(1) }

func (g *gate) leave() {
	if g.n.Add(-1) == gateClosed {
		g.signal()
	}
}

// signal may come twice: when close finds nobody while someone is refused.
func (g *gate) signal() {
	if g.n.CompareAndSwap(gateClosed, 2*gateClosed) {
		close(g.empty)
	}
}

// close closes, and waits until nobody is inside or ctx ends.
func (g *gate) close(ctx context.Context) error {
	if g.n.Add(gateClosed) == gateClosed {
		g.signal()
	}
	select {
	case <-g.empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gate) wait() { <-g.empty }
