package client

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/wire"
)

// lagTime is how long a broker may take to hear of what a registry says: so long its answer that there is no such topic, or no
// right, does not end a consumer whose view says otherwise.
const lagTime = 10 * time.Second

// subscription is what the client knows of a topic as one of its groups consumes it. All its consumers share it.
type subscription struct {
	c     *Client
	watch watch
	view  atomic.Pointer[subView]
	load  chan struct{} // one element: who holds it asks for the view

	mu struct {
		sync.Mutex
		changed chan struct{} // closed with another view; renewed
	}
}

// subView is a view; immutable.
type subView struct {
	pools    []*pool // of all broker groups that have partitions; not empty without err
	watched  bool
	err      error // not nil: nothing may be fetched
	settings *wire.ConsumerSettings
}

func (c *Client) subscription(topic, group string) *subscription {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := watchKey{topic, group}
	s := c.mu.subscriptions[key]
	if s == nil {
		s = &subscription{c: c, load: make(chan struct{}, 1)}
		s.load <- struct{}{}
		s.mu.changed = make(chan struct{})
		s.watch = watch{watchKey: key, take: s.take}
		c.mu.subscriptions[key] = s
	}
	return s
}

// known returns the view, asking for it when there is none.
func (s *subscription) known(ctx context.Context) (*subView, error) {
	if v := s.view.Load(); v != nil {
		return v, v.err
	}
	select {
	case <-s.load:
	case <-ctx.Done():
		return nil, newError(opSubscribe, s.watch.topic, -1, "", ctx.Err())
	}
	defer func() { s.load <- struct{}{} }()
	if v := s.view.Load(); v != nil {
		return v, v.err
	}
	s.c.metadata.add(&s.watch)
	alone, err := s.c.metadata.know(ctx, opSubscribe, &s.watch)
	if err != nil {
		return nil, err
	}
	if alone { // the broker at home has the topic, as far as anybody says
		s.set(&subView{pools: []*pool{s.c.cluster.home}})
	}
	v := s.view.Load()
	return v, v.err
}

func (s *subscription) set(v *subView) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.view.Store(v)
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
}

func (s *subscription) changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.changed
}

// take takes the view of a node that holds metadata.
func (s *subscription) take(v *wire.TopicView, from *pool) []*pool {
	n := &subView{watched: true, settings: v.Consumer}
	at := s.c.cluster.locate(v.Route, from)
	for _, p := range v.Route.GetPartitions() {
		if l := at.pools[p.BrokerGroup]; p.State != partitionGone && !slices.Contains(n.pools, l) {
			n.pools = append(n.pools, l)
		}
	}
	switch {
	case v.Code == uint32(wire.CodePaused):
		n.settings = &wire.ConsumerSettings{Paused: new(true)}
		if v.Consumer != nil {
			v.Consumer.Paused = new(true)
			n.settings = v.Consumer
		}
	case v.Code != 0:
		n.err = newError(opSubscribe, s.watch.topic, -1, "", &wire.CodeError{Code: wire.Code(v.Code), Message: v.Message})
	case len(n.pools) == 0:
		n.err = newError(opSubscribe, s.watch.topic, -1, "", wire.Errorf(wire.CodePartitionNotFound, "topic %q has no partition", s.watch.topic))
	}
	s.set(n)
	return n.pools
}

// consumerSettings are a consumer's options as they are in force.
type consumerSettings struct {
	batch, concurrency int
	wait               time.Duration
	paused             bool
}

func (c *Consumer) settings(v *subView) consumerSettings {
	s := consumerSettings{c.o.batch, c.o.concurrency, c.o.wait, false}
	if v == nil {
		return s
	}
	if n := v.settings.GetBatchMessages(); n > 0 {
		s.batch = int(min(n, wire.BatchMessagesMax))
	}
	if n := v.settings.GetConcurrency(); n > 0 {
		s.concurrency = int(min(n, concurrencyMax))
	}
	if n := v.settings.GetPollWaitMs(); n > 0 {
		s.wait = min(time.Duration(n)*time.Millisecond, pollWaitMax)
	}
	s.paused = v.settings.GetPaused()
	return s
}

// subscribing is what a Consumer knows of its group at the broker groups.
type subscribing struct {
	sync.Mutex
	at map[*pool]*subscribedAt
	// Where a group that is not new is not yet at a broker group, that was added to the topic since: what it holds was sent for
	// the group too, so it begins at the beginning there.
	decided chan struct{} // one element: who holds it finds out; closed: it was found out
	begun   bool
	existed bool
	first   []*pool // that there were then
}

type subscribedAt struct {
	done atomic.Bool
	turn chan struct{} // one element: who holds it subscribes
}

// subscribeAt makes sure that the group is there at p.
func (c *Consumer) subscribeAt(ctx context.Context, p *pool) error {
	at := c.subscribing.of(p)
	if at.done.Load() {
		return nil
	}
	select {
	case <-at.turn:
	case <-ctx.Done():
		return newError(opSubscribe, c.topic, -1, "", ctx.Err())
	}
	defer func() { at.turn <- struct{}{} }()
	if at.done.Load() {
		return nil
	}
	start, err := c.startAt(ctx, p)
	if err != nil {
		return err
	}
	r := &wire.SubscribeRequest{Topic: c.topic, Group: c.o.group, Start: uint32(start), Policy: c.o.policy}
	for begun := time.Now(); ; {
		err := p.call(ctx, opSubscribe, c.topic, repeatAlways, wire.CommandSubscribe, r, new(wire.SubscribeResponse))
		if err == nil {
			at.done.Store(true)
			return nil
		}
		if !c.lags(err, begun) || !c.c.cluster.pause(ctx, retryMax) {
			return err
		}
	}
}

// lags reports whether a broker may only not have heard yet of what our view says.
func (c *Consumer) lags(err error, since time.Time) bool {
	v := c.sub.view.Load()
	return v != nil && v.watched && v.err == nil && lags(codeOf(err)) && time.Since(since) < lagTime
}

func (s *subscribing) of(p *pool) *subscribedAt {
	s.Lock()
	defer s.Unlock()
	at := s.at[p]
	if at == nil {
		if s.at == nil {
			s.at = map[*pool]*subscribedAt{}
		}
		at = &subscribedAt{turn: make(chan struct{}, 1)}
		at.turn <- struct{}{}
		s.at[p] = at
	}
	return at
}

// startAt is where the group begins at p, if it is new there.
func (c *Consumer) startAt(ctx context.Context, p *pool) (StartAt, error) {
	if c.o.start == FromBeginning {
		return FromBeginning, nil
	}
	s := &c.subscribing
	select {
	case <-s.decided:
	case <-ctx.Done():
		return 0, newError(opSubscribe, c.topic, -1, "", ctx.Err())
	}
	defer func() { s.decided <- struct{}{} }()
	if !s.begun {
		v, err := c.sub.known(ctx)
		if err != nil {
			return 0, err
		}
		s.first = v.pools
		s.existed = len(v.pools) > 1 && c.existed(ctx, v.pools)
		s.begun = true
	}
	if s.existed || !slices.Contains(s.first, p) {
		return FromBeginning, nil
	}
	return FromEnd, nil
}

// existed reports whether the group is at one of the broker groups. While it is only at some, another consumer may be making
// it: that is looked at twice.
func (c *Consumer) existed(ctx context.Context, pools []*pool) bool {
	for range 2 {
		var mu sync.Mutex
		there, missing := 0, 0
		var asking sync.WaitGroup
		for _, p := range pools {
			asking.Go(func() {
				try, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				err := c.look(try, p)
				mu.Lock()
				defer mu.Unlock()
				switch codeOf(err) {
				case wire.CodeOK:
					there++
				case wire.CodeGroupNotFound:
					missing++
				}
			})
		}
		asking.Wait()
		if there == 0 || missing == 0 {
			return there > 0
		}
		if !c.c.cluster.pause(ctx, 500*time.Millisecond) {
			break
		}
	}
	return true
}

// look asks a broker group for the group: a member that never was leaves.
func (c *Consumer) look(ctx context.Context, p *pool) error {
	l, err := p.await(ctx, 0)
	if err != nil {
		return err
	}
	r := &wire.FetchRequest{Topic: c.topic, Group: c.o.group, Member: c.c.members.Add(1), Round: 1, Reconcile: true, Leave: true}
	_, err = l.Call(ctx, wire.CommandFetch, wire.AppendFetchRequest(nil, r), nil)
	return err
}

// Subscribe makes sure that the group exists on the topic, at all its broker groups, so that what is sent from now on will be
// given to it. Run and Fetch do it themselves.
func (c *Consumer) Subscribe(ctx context.Context) error {
	v, err := c.sub.known(ctx)
	if err != nil {
		return err
	}
	if len(v.pools) == 1 {
		return c.subscribeAt(ctx, v.pools[0])
	}
	errs := make([]error, len(v.pools))
	var asking sync.WaitGroup
	for i, p := range v.pools {
		asking.Go(func() { errs[i] = c.subscribeAt(ctx, p) })
	}
	asking.Wait()
	return errors.Join(errs...)
}
