package client

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/wire"
	"google.golang.org/protobuf/proto"
)

// topic is what the client knows of one topic: its route, and a lane for each partition. All producers of the client
// share it, so that one order key has one lane.
type topic struct {
	c        *Client
	name     string
	route    atomic.Pointer[route]
	checked  atomic.Int64  // when the route was asked for, unix time in nanoseconds
	turn     atomic.Uint32 // round robin
	checking atomic.Bool   // refresh is under way
	free     lane          // of merged sends without order key
	load     chan struct{} // one element: who holds it asks for the route

	mu struct {
		sync.Mutex
		lanes []*lane // by partition
	}
}

// route is a route as it was answered; immutable.
type route struct {
	version    uint64
	topicID    uint64
	partitions []routePartition // by number, up to the highest
	active     []uint16         // numbers of those that may be sent to; nil: all
}

type routePartition struct {
	lane        *lane
	brokerGroup string
}

// next is the partition of the n-th send to any.
func (r *route) next(n uint32) uint16 {
	if r.active == nil {
		return uint16(n % uint32(len(r.partitions)))
	}
	return r.active[n%uint32(len(r.active))]
}

const partitionActive = 0

func (c *Client) topic(name string) *topic {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.mu.topics[name]
	if t == nil {
		t = &topic{c: c, name: name, load: make(chan struct{}, 1)}
		t.load <- struct{}{}
		t.free.init(t, 0)
		c.mu.topics[name] = t
	}
	return t
}

// routed returns the route, asking for it if it is not known or no newer than old.
func (t *topic) routed(ctx context.Context, old *route) (*route, error) {
	if r := t.route.Load(); r != nil && r != old {
		return r, nil
	}
	select {
	case <-t.load:
	case <-ctx.Done():
		return nil, newError(opRoute, t.name, -1, "", ctx.Err())
	}
	defer func() { t.load <- struct{}{} }()
	if r := t.route.Load(); r != nil && r != old {
		return r, nil
	}
	t.checked.Store(time.Now().UnixNano())
	var answer wire.RouteResponse
	if err := t.c.cluster.call(ctx, opRoute, t.name, repeatAlways, wire.CommandRoute, &wire.RouteRequest{Topic: t.name}, &answer); err != nil {
		return nil, err
	}
	r, err := t.read(&answer)
	if err != nil {
		return nil, err
	}
	t.route.Store(r)
	return r, nil
}

// read makes a route of an answer.
func (t *topic) read(answer *wire.RouteResponse) (*route, error) {
	r := &route{version: answer.Version, topicID: answer.TopicId}
	partitions := 0
	for _, p := range answer.Partitions {
		if p.Partition > math.MaxUint16 {
			return nil, newError(opRoute, t.name, -1, "", wire.Errorf(wire.CodeMalformed, "partition %d in the route", p.Partition))
		}
		partitions = max(partitions, int(p.Partition)+1)
		if p.State == partitionActive {
			r.active = append(r.active, uint16(p.Partition))
		}
	}
	if len(r.active) == 0 {
		return nil, newError(opRoute, t.name, -1, "", wire.Errorf(wire.CodePartitionNotFound, "no partition of %q takes messages", t.name))
	}
	if len(r.active) == partitions {
		r.active = nil
	}
	r.partitions = make([]routePartition, partitions)
	for _, p := range answer.Partitions {
		r.partitions[p.Partition].brokerGroup = p.BrokerGroup
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	more := make([]lane, max(partitions-len(t.mu.lanes), 0))
	for i := range more {
		more[i].init(t, uint32(len(t.mu.lanes)))
		t.mu.lanes = append(t.mu.lanes, &more[i])
	}
	for i := range r.partitions {
		r.partitions[i].lane = t.mu.lanes[i]
	}
	return r, nil
}

// routePause is how long after it was asked for a route is not asked for again, though an answer said that there is another.
const routePause = time.Second

// refresh asks for the route again, without waiting, since an answer said that old is not it any more. Its reading goroutine calls it,
// which flushes l.
func (t *topic) refresh(old *route, l *link) {
	now := time.Now().UnixNano()
	if now-t.checked.Load() < int64(routePause) || !t.checking.CompareAndSwap(false, true) {
		return
	}
	t.checked.Store(now)
	header, err := proto.Marshal(&wire.RouteRequest{Topic: t.name})
	if err != nil {
		t.checking.Store(false)
		return
	}
	if _, err := l.Start(wire.CommandRoute, header, nil, func(f wire.Frame, err error) {
		defer t.checking.Store(false)
		var answer wire.RouteResponse
		if err != nil || proto.Unmarshal(f.Header, &answer) != nil {
			return // the next answer says it again
		}
		if r, err := t.read(&answer); err == nil && !r.same(old) {
			t.route.CompareAndSwap(old, r)
		}
	}); err != nil {
		t.checking.Store(false)
	}
}

// same says whether r knows no other partitions than o.
func (r *route) same(o *route) bool {
	return r.version == o.version && len(r.partitions) == len(o.partitions) && slices.Equal(r.active, o.active)
}
