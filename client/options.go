package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/jmqio/jmq/wire"
)

// Option is for Dial.
type Option func(*options) error

type options struct {
	app         string
	conns       int
	logger      *slog.Logger
	dialTimeout time.Duration
	dial        func(ctx context.Context, addr string) (net.Conn, error)
	tls         *tls.Config                      // nil: plain
	credentials func() (wire.Credentials, error) // nil: none; asked for each connection
	dataCenter  string                           // empty: as the registry finds by the address
	near        bool                             // broker groups of the data center first
	routeCache  string                           // folder; empty: none
	warnings    []string                         // for the logger
}

func newOptions(list []Option) (*options, error) {
	o := &options{conns: 2, logger: slog.New(slog.DiscardHandler), dialTimeout: 5 * time.Second}
	var d net.Dialer
	o.dial = func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
	return o, apply(o, list)
}

// apply applies all, so that everything that is wrong is told at once.
func apply[O any, F ~func(*O) error](o *O, list []F) error {
	var errs []error
	for _, f := range list {
		errs = append(errs, f(o))
	}
	return errors.Join(errs...)
}

// WithApp names the application. It is the default group of consumers.
func WithApp(name string) Option {
	return func(o *options) error {
		o.app = name
		return wire.CheckApp(name)
	}
}

// WithConns sets how many connections all producers and consumers of the client share, for each broker group that they use.
// Default: 2. More do not make it faster: requests are pipelined.
func WithConns(n int) Option {
	return func(o *options) error {
		o.conns = n
		return between("WithConns", n, 1, 64)
	}
}

// WithLogger gives the logger for changes of state: connections lost and made, leases lost. Default: none.
func WithLogger(l *slog.Logger) Option {
	return func(o *options) error {
		if l == nil {
			return errors.New("WithLogger: nil")
		}
		o.logger = l
		return nil
	}
}

// WithDialTimeout bounds one attempt to connect, hello included. Default: 5 s.
func WithDialTimeout(d time.Duration) Option {
	return func(o *options) error {
		o.dialTimeout = d
		return positive("WithDialTimeout", d)
	}
}

// WithDialer replaces the plain TCP dialer.
func WithDialer(dial func(ctx context.Context, addr string) (net.Conn, error)) Option {
	return func(o *options) error {
		if dial == nil {
			return errors.New("WithDialer: nil")
		}
		o.dial = dial
		return nil
	}
}

// WithDataCenter says where the client is, for broker groups that are near. Default: what the registry knows of its address.
func WithDataCenter(name string) Option {
	return func(o *options) error {
		o.dataCenter = name
		if name == "" {
			return errors.New("WithDataCenter: empty")
		}
		return nil
	}
}

// WithNear sends to broker groups of the client's own data center first (WithDataCenter, or what the registry knows of its address), and
// to others while none of these takes messages. Order keys stay where they are. Default: to all alike, unless the registry's settings of
// the producer say otherwise, which come before this.
func WithNear() Option {
	return func(o *options) error { o.near = true; return nil }
}

// WithRouteCache keeps what the client is told of routes and settings in folder, in a file of mode 0600 for each app (or credential, without
// WithApp) and list of addresses: written at most once a second, and by Close. When none of Dial's addresses answers, the client starts
// from there: it goes to the brokers that are named there, which tell what has changed and decide what it may do, and to the
// addresses again when they are back. A file that is damaged, of another client, or open to others is not looked at, and one that
// cannot be written is done without: the logger is told. Processes may share a folder; it is made if it is not there. Default: none.
func WithRouteCache(folder string) Option {
	return func(o *options) error {
		o.routeCache = folder
		if folder == "" {
			return errors.New("WithRouteCache: empty")
		}
		return nil
	}
}

// Compression of batches. A batch that it does not make smaller is sent without.
type Compression = wire.Compression

const (
	Zstd   = wire.CompressionZstd
	LZ4    = wire.CompressionLZ4
	Snappy = wire.CompressionSnappy
)

// ProducerOption is for Client.Producer.
type ProducerOption func(*producerOptions) error

type producerOptions struct {
	timeout      time.Duration
	compression  Compression
	compressFrom int
	mergeAfter   int // 0: never
	retries      int // at other broker groups; -1: as many as the time allows
	moveKeys     bool

	bufferMessages, bufferBytes int // of sends for which nobody waits
	refuse                      bool
}

// producerDefaults is shared by all producers without options: theirs may go in one batch, and of many producers it is one.
var producerDefaults = producerOptions{timeout: 3 * time.Second, retries: -1, bufferMessages: 10_000, bufferBytes: 32 << 20}

func newProducerOptions(list []ProducerOption) (*producerOptions, error) {
	if len(list) == 0 {
		return &producerDefaults, nil
	}
	o := producerDefaults
	return &o, apply(&o, list)
}

// Timeout bounds a Send with all its attempts; one takes at most a third of it. Default: 3 s. A context may end it earlier.
func Timeout(d time.Duration) ProducerOption {
	return func(o *producerOptions) error {
		o.timeout = d
		return positive("Timeout", d)
	}
}

// Retries bounds how often a Send is tried at another broker group than the first, when one fails, refuses or does not answer; 0: never.
// Tries at the same broker group are bounded by Timeout alone. Default: as many as Timeout allows. The registry's settings of the
// producer come before this.
func Retries(n int) ProducerOption {
	return func(o *producerOptions) error {
		o.retries = n
		return between("Retries", n, 0, 1000)
	}
}

// MoveOrderKeys sends messages with an order key to another broker group while that of their key is away. So they are not held up, but
// those before and after the move are in two partitions, and their order is lost. Default: they wait for their broker group, until
// Timeout. A message with a Partition never moves. They move too where the topic's setting in the registry says so.
func MoveOrderKeys() ProducerOption {
	return func(o *producerOptions) error { o.moveKeys = true; return nil }
}

// Compress compresses batches of at least from bytes. Default: none.
func Compress(c Compression, from int) ProducerOption {
	return func(o *producerOptions) error {
		o.compression, o.compressFrom = c, from
		if c > wire.CompressionSnappy {
			return fmt.Errorf("Compress: unknown compression %d", uint8(c))
		}
		return between("Compress: from", from, 0, wire.BatchBytesMax)
	}
}

// MergeAfter merges Sends without order key too: once n of this process's batches to the topic are in flight, further
// Sends wait for one of them to return, and go together in one batch. 0, the default, sends each at once, on its own.
// (Sends with an order key are always merged while a batch of their partition is in flight: that keeps their order.)
func MergeAfter(n int) ProducerOption {
	return func(o *producerOptions) error {
		o.mergeAfter = n
		return between("MergeAfter", n, 0, 1024)
	}
}

// Buffer bounds the sends of SendAsync and SendOneway whose outcome is not there yet, and whose callback has not returned.
// One message always has room. Default: 10,000 messages, 32 MiB.
func Buffer(messages, bytes int) ProducerOption {
	return func(o *producerOptions) error {
		o.bufferMessages, o.bufferBytes = messages, bytes
		return errors.Join(between("Buffer: messages", messages, 1, 1<<24), between("Buffer: bytes", bytes, 1, 1<<40))
	}
}

// BusyWhenFull makes SendAsync and SendOneway fail with ErrBusy while their buffer is full. Default: they wait for room.
func BusyWhenFull() ProducerOption {
	return func(o *producerOptions) error { o.refuse = true; return nil }
}

// StartAt says where a new group begins.
type StartAt uint32

const (
	FromEnd       = StartAt(wire.StartEnd)       // with what is sent from now on
	FromBeginning = StartAt(wire.StartBeginning) // with the first message that is kept
)

const (
	concurrencyMax = 4096
	pollWaitMax    = 30 * time.Second
)

// ConsumerOption is for Client.Consumer.
type ConsumerOption func(*consumerOptions) error

type consumerOptions struct {
	group       string
	start       StartAt
	concurrency int
	batch       int
	batchBytes  int
	wait        time.Duration
	ackAfter    time.Duration
	stopTimeout time.Duration
	backoffMin  time.Duration
	backoffMax  time.Duration
	policy      *wire.GroupPolicy // nil: as it is
	onGap       func(Gap)         // nil: a warning is logged
	extend      time.Duration     // 0: leases are not extended
}

func newConsumerOptions(app string, list []ConsumerOption) (*consumerOptions, error) {
	o := &consumerOptions{
		group: app, concurrency: 1, batch: 10, batchBytes: 1 << 20, wait: 5 * time.Second, ackAfter: 100 * time.Millisecond,
		stopTimeout: 10 * time.Second, backoffMin: 100 * time.Millisecond, backoffMax: 5 * time.Second,
	}
	err := apply(o, list)
	if o.group == "" {
		err = errors.Join(err, errors.New("a consumer needs a group: Group(name), or WithApp(name) at Dial"))
	}
	return o, err
}

// Group names the consumer group: an app, or app.subgroup. Each group gets every message. Default: the client's app.
func Group(name string) ConsumerOption {
	return func(o *consumerOptions) error {
		o.group = name
		return wire.CheckGroup(name)
	}
}

// Start says where the group begins if it is new. Default: FromEnd.
func Start(at StartAt) ConsumerOption {
	return func(o *consumerOptions) error {
		o.start = at
		return between("Start", int(at), int(FromEnd), int(FromBeginning))
	}
}

// Concurrency is how many messages Run handles at the same time, of different partitions. Default: 1.
func Concurrency(n int) ConsumerOption {
	return func(o *consumerOptions) error {
		o.concurrency = n
		return between("Concurrency", n, 1, concurrencyMax)
	}
}

// Batch is how many messages are leased at once: more are faster, fewer spread better and come again in smaller numbers
// after a failure. Default: 10.
func Batch(n int) ConsumerOption {
	return func(o *consumerOptions) error {
		o.batch = n
		return between("Batch", n, 1, wire.BatchMessagesMax)
	}
}

// BatchBytes bounds the bytes leased at once; at least one message comes. Default: 1 MiB.
func BatchBytes(n int) ConsumerOption {
	return func(o *consumerOptions) error {
		o.batchBytes = n
		return between("BatchBytes", n, 1, wire.FetchBytesMax)
	}
}

// PollWait is how long a fetch waits at the broker for messages. Default: 5 s.
func PollWait(d time.Duration) ConsumerOption {
	return func(o *consumerOptions) error {
		o.wait = d
		if d < time.Millisecond || d > pollWaitMax {
			return fmt.Errorf("PollWait: %v is not 1 ms to 30 s", d)
		}
		return nil
	}
}

// AckAfter bounds how long Run keeps the ack of a message that was handled, to send it with those of the same lease.
// Default: 100 ms. At the end of a lease the ack is sent at once.
func AckAfter(d time.Duration) ConsumerOption {
	return func(o *consumerOptions) error {
		o.ackAfter = d
		return positive("AckAfter", d)
	}
}

// StopTimeout is how long handlers may go on after the context of Run has ended; then their own context ends too.
// Default: 10 s.
func StopTimeout(d time.Duration) ConsumerOption {
	return func(o *consumerOptions) error {
		o.stopTimeout = d
		return positive("StopTimeout", d)
	}
}

// Backoff is how long Run pauses, keeping the message, after its handler failed: first at first, doubled each time that it
// fails again, at most most. Default: 100 ms, 5 s.
func Backoff(first, most time.Duration) ConsumerOption {
	return func(o *consumerOptions) error {
		o.backoffMin, o.backoffMax = first, most
		if first <= 0 || most < first {
			return fmt.Errorf("Backoff: %v to %v is not a range above 0", first, most)
		}
		return nil
	}
}

// Parallel gives messages of one partition to several members at the same time, so that a slow one holds up no others: up to
// window of a partition, at most half of them to one member; 0: 2000. Their order is not kept. It is the group's: it holds for
// all its consumers, until Client.AlterGroup changes it. Default: as the group is; a new one keeps the order.
func Parallel(window int) ConsumerOption {
	return func(o *consumerOptions) (err error) {
		o.policy, err = GroupPolicy{Parallel: true, Window: window}.wire()
		return err
	}
}

// OnGap is told of messages that the group will never get, because the disk damaged them or retention removed them. It is
// called where they were fetched for, by several goroutines if there are, and fetching goes on when it returns. Each gap is
// told to one consumer of the group, at least once. Default: a warning is logged.
func OnGap(f func(Gap)) ConsumerOption {
	return func(o *consumerOptions) error {
		o.onGap = f
		if f == nil {
			return errors.New("OnGap: nil")
		}
		return nil
	}
}

// ExtendLeases makes Run extend the lease of a message while its handler runs, for at most most from the handler's begin. A
// handler that hangs keeps its partition for that long. Default: a lease ends at the ack timeout.
func ExtendLeases(most time.Duration) ConsumerOption {
	return func(o *consumerOptions) error {
		o.extend = most
		return positive("ExtendLeases", most)
	}
}

// FetchOption is for Consumer.Fetch.
type FetchOption func(*fetchOptions) error

type fetchOptions struct {
	wait       time.Duration
	partitions []uint32
}

// Wait is how long Fetch waits at the broker for messages; 0: not at all. Default: the consumer's PollWait.
func Wait(d time.Duration) FetchOption {
	return func(o *fetchOptions) error {
		o.wait = d
		if d < 0 || d > 30*time.Second {
			return fmt.Errorf("Wait: %v is not 0 to 30 s", d)
		}
		return nil
	}
}

// FromPartition fetches from this partition only; it may be given several times.
func FromPartition(p uint16) FetchOption {
	return func(o *fetchOptions) error {
		o.partitions = append(o.partitions, uint32(p))
		return nil
	}
}

func between(name string, n, from, to int) error {
	if n < from || n > to {
		return fmt.Errorf("%s: %d is not %d to %d", name, n, from, to)
	}
	return nil
}

func positive(name string, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("%s: %v is not above 0", name, d)
	}
	return nil
}
