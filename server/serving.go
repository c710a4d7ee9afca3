package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jmqio/jmq/server/broker"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/wire"
)

const (
	awayAfter  = 2 * time.Second        // without a word of its master a slave may serve
	looksEvery = time.Second            // at whether another one serves
	shipRetry  = 200 * time.Millisecond // consumers wait for it
	holdFor    = 30 * time.Second       // consuming waits for slaves that may have served
)

// serves is what a slave's engine knows of its reads, of the goroutine that decides but for what is guarded.
type serves struct {
	on     bool
	looked time.Time // at whether it may serve
	mu     struct {
		sync.Mutex
		leases   []*wire.SideLease // of clients, to be shipped
		shipping bool
		tried    time.Time
		said     string // of the last try, in the log
	}
	ships sync.WaitGroup
}

// mayHaveServed is what a master must hear of: whether this slave has acks for it, and whether it served since it heard one.
func (x *replicas) mayHaveServed() (acks, served bool) {
	e := x.r.engine.Load()
	return e != nil && e.side != nil && !e.side.Empty(), x.state.Get().Serving != 0
}

// tendSlave begins and ends that a slave serves reads: while its master is away it is the first living one in sync, in the order of names.
func (x *replicas) tendSlave(e *engine) {
	v := &e.serves
	now := time.Now()
	heard := e.slave.Heard()
	last := heard
	if last.Before(e.opened) {
		last = e.opened
	}
	silent := now.Sub(last) > awayAfter
	switch {
	case v.on && !silent:
		x.endServing(e)
	case !v.on && silent && now.Sub(v.looked) > looksEvery:
		v.looked = now
		if how, ok := x.mayServe(); ok {
			x.beginServing(e, how)
		}
	}
	if !v.on && !silent && !heard.IsZero() {
		x.ship(e)
	}
}

// mayServe says whether this slave is the one that serves: the master does not answer, no other slave serves, and none that is in sync comes
// before it.
func (x *replicas) mayServe() (how broker.Serving, ok bool) {
	row, known := x.row()
	if !known || row.Master.Broker == x.name() {
		return how, false
	}
	self := x.self()
	member, in := row.Member(self.Broker)
	in = in && member == self
	var mu sync.Mutex
	ok = true
	ctx, cancel := context.WithTimeout(x.ctx, meetWithin)
	defer cancel()
	var all sync.WaitGroup
	for name, addresses := range x.peers() {
		all.Go(func() {
			p := x.dialer.peer(addresses)
			defer p.Close()
			r, err := p.Meet(ctx, &wire.MeetRequest{BrokerGroup: x.group(), Broker: x.name()})
			if err != nil {
				return
			}
			st := r.GetStatus()
			m, theirs := row.Member(name)
			theirs = theirs && m.Boot == st.GetBoot() && m.Store == st.GetStore()
			before := theirs && (!in || name < self.Broker) || !in && !theirs && name < self.Broker
			mu.Lock()
			defer mu.Unlock()
			if st.GetRole() == roleMaster || st.GetServing() || (st.GetRole() == roleSlave || st.GetRole() == roleWaiting) && before {
				ok = false
			}
		})
	}
	all.Wait()
	how = broker.Serving{Behind: !in, Why: fmt.Sprintf("master %s is silent", row.Master.Broker)}
	return how, ok && x.ctx.Err() == nil
}

func (x *replicas) beginServing(e *engine, how broker.Serving) {
	if err := x.state.Update(func(s *replica.State) { s.Serving = time.Now().UnixNano() }); err != nil {
		x.s.log.Warn("the slave does not serve", "err", err)
		return
	}
	ctx, cancel := context.WithTimeout(x.ctx, meetWithin)
	defer cancel()
	if err := e.store.WaitApplied(ctx, e.slave.Committed()); err != nil {
		x.s.log.Warn("the slave does not serve yet", "err", err)
		return
	}
	if err := e.broker.Serve(how); err != nil {
		x.s.log.Warn("the slave does not serve", "err", err)
		return
	}
	e.serves.on = true
	x.serving.Store(true)
}

func (x *replicas) endServing(e *engine) {
	leases := e.broker.StopServing()
	e.serves.mu.Lock()
	e.serves.mu.leases = append(e.serves.mu.leases, leases...)
	e.serves.mu.Unlock()
	e.serves.on = false
	x.serving.Store(false)
}

// ship gives the master what was acked here, by a goroutine that closing the engine waits for.
func (x *replicas) ship(e *engine) {
	v := &e.serves
	if acks, served := x.mayHaveServed(); !acks && !served {
		return
	}
	master, epoch, ok := e.slave.Session()
	if !ok {
		return // its next session is told of it
	}
	v.mu.Lock()
	again, leases := !v.mu.shipping && time.Since(v.mu.tried) > shipRetry, v.mu.leases
	if again {
		v.mu.shipping, v.mu.tried, v.mu.leases = true, time.Now(), nil
	}
	v.mu.Unlock()
	if !again {
		return
	}
	v.ships.Go(func() {
		p := x.dialer.peer(x.peers()[master])
		defer p.Close()
		_, err := e.broker.ShipSide(x.ctx, p, epoch, leases)
		if err == nil {
			err = x.state.Update(func(s *replica.State) { s.Serving = 0 })
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.mu.shipping = false; err == nil {
			v.mu.said = ""
			return
		}
		v.mu.leases = append(leases, v.mu.leases...)
		if text := err.Error(); text != v.mu.said {
			v.mu.said = text
			x.s.log.Warn("the master does not have yet what was acked here, trying on", "brokerGroup", x.group(), "master", master, "err", err)
		}
	})
}

// waits are the brokers that may have served while no master did, and have not come yet to tell what was acked there: consuming waits for them.
type waits struct {
	mu sync.Mutex
	on map[string]bool
}

// awaitServed notes, before a master opens, for whom consuming will wait: the slaves that were in sync, and those that live. While
// the broker followed its predecessor until a moment ago none has served.
func (x *replicas) awaitServed(met []replica.Met, heard time.Time) {
	w := &x.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on = map[string]bool{}
	if !heard.IsZero() && time.Since(heard) < awayAfter {
		return
	}
	row, _ := x.row()
	peers := x.peers()
	for _, m := range row.Set {
		if _, there := peers[m.Broker]; there {
			w.on[m.Broker] = true
		}
	}
	for _, m := range met {
		w.on[m.Broker] = true
	}
}

// cameFrom notes that a broker has nothing to tell any more.
func (x *replicas) cameFrom(name string) {
	w := &x.waits
	w.mu.Lock()
	was := w.on[name]
	delete(w.on, name)
	last := was && len(w.on) == 0
	w.mu.Unlock()
	if e := x.r.engine.Load(); last && e != nil && e.master != nil {
		e.broker.ReleaseConsuming("every slave that may have served has come")
	}
}

// awaited are those that have not come.
func (x *replicas) awaited() []string {
	w := &x.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.on))
}
