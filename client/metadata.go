package client

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jmqio/jmq/wire"
	"google.golang.org/protobuf/proto"
)

const (
	watchWait   = 15 * time.Second      // at the node
	watchLate   = 3 * time.Second       // an answer that is later does not come
	watchShort  = time.Second           // of the last request that may wait: what is added meanwhile waits for its end
	watchMax    = 12                    // requests that wait; a session may have 16
	watchGather = 50 * time.Millisecond // for more topics to go with one request, and many changes with one answer
	watchStale  = 2 * time.Second       // at a node that does not hear the registry: then others are looked for again
	watchLook   = time.Second           // a node that says nothing for so long is pinged; one that is silent for watchLooks of these is left
	watchLooks  = 2
	avoidTime   = 5 * time.Second // a node whose answers were of no use
	topicsMax   = 1000            // of a request
)

// metadata keeps what this client knows of topics as a node that holds metadata has it: one goroutine, over one connection,
// tells what is known and is answered when that is not so any more. When the node goes, the next one is told, so nothing is
// missed; when all go, what is known stays. Where no node holds metadata (a broker without a registry), routes are asked for with
// the command Route, now and then while they are used.
type metadata struct {
	c     *Client
	cache *routeCache // nil: none

	mu struct {
		sync.Mutex
		watches    map[watchKey]*watch
		running    bool
		generation uint64
		version    uint64 // of the metadata, of the last answer
		// cached are views that the route cache has and nobody asked for yet; nil once a node knows newer metadata.
		cached map[watchKey]*wire.TopicView
	}
	kick chan struct{} // one element: there are watches that nobody asked for
	ran  sync.WaitGroup
}

type watchKey struct{ topic, group string }

// watch is one topic that is watched, by producers (without a group) or for a group.
type watch struct {
	watchKey
	version uint64 // of the view that is known. metadata.mu, and so are those below
	asked   bool   // a request with it waits
	used    []*pool
	kept    []byte // the view, for the route cache; nil: it is of no use there
	// take takes a view, which from gave. It returns the pools that it names.
	take func(v *wire.TopicView, from *pool) []*pool
}

func (m *metadata) init(c *Client) {
	m.c = c
	m.mu.watches = map[watchKey]*watch{}
	m.kick = make(chan struct{}, 1)
}

// add makes w be watched, from its next ask on.
func (m *metadata) add(w *watch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.watches[w.watchKey] = w
}

// close waits for the goroutines; the cluster's context has ended.
func (m *metadata) close() {
	m.ran.Wait()
	m.cache.close()
}

// ask asks for a view now, and gives it to take. alone: no node holds metadata.
func (m *metadata) ask(ctx context.Context, op string, key watchKey, take func(v *wire.TopicView, from *pool)) (alone bool, err error) {
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		l, none, err := m.c.cluster.source(ctx)
		if err != nil {
			return false, newError(op, key.topic, -1, "", err)
		}
		if none {
			return true, nil
		}
		m.mu.Lock()
		r := &wire.WatchRoutesRequest{Topics: []*wire.WatchedTopic{{Topic: key.topic, Group: key.group}}, Generation: m.mu.generation, MetadataVersion: m.mu.version}
		m.mu.Unlock()
		var out wire.WatchRoutesResponse
		err = callOnce(ctx, l, wire.CommandWatchRoutes, r, &out)
		if err == nil {
			if err = m.note(l, &out); err == nil {
				if len(out.Views) == 1 && out.Views[0].Topic == key.topic && out.Views[0].Group == key.group {
					take(out.Views[0], l.pool)
					return false, nil
				}
				err = wire.Errorf(wire.CodeMalformed, "%s answered with %d views of one topic", l.addr, len(out.Views))
			}
		}
		if m.useless(l, err) {
			continue
		}
		if e := newError(op, key.topic, -1, l.addr, err); ctx.Err() != nil || wire.Traits[e.Code].Retry == wire.RetryNever || !m.c.cluster.pause(ctx, max(pause, e.RetryAfter)) {
			return false, e
		}
	}
}

// know asks for what w watches and takes it, and watches from then on.
func (m *metadata) know(ctx context.Context, op string, w *watch) (alone bool, err error) {
	if v := m.remembered(w.watchKey); v != nil { // the watch is told what is not so any more
		m.taken(w, v, m.c.cluster.home)
		m.begin()
		return false, nil
	}
	alone, err = m.ask(ctx, op, w.watchKey, func(v *wire.TopicView, from *pool) {
		m.taken(w, v, from)
		// A request that waits may have brought a newer view meanwhile, which this one has replaced: it is asked for once more.
		m.mu.Lock()
		w.asked = false
		m.mu.Unlock()
	})
	if err == nil {
		m.begin()
	}
	return alone, err
}

func (m *metadata) taken(w *watch, v *wire.TopicView, from *pool) {
	kept := m.keep(v) // before take puts it in order
	used := w.take(v, from)
	m.mu.Lock()
	defer m.mu.Unlock()
	w.version, w.used, w.kept = v.Version, used, kept
	m.cache.changed()
}

// note takes what an answer says of the metadata. An error: the node has an older generation.
func (m *metadata) note(l *link, r *wire.WatchRoutesResponse) error {
	m.c.cluster.addRegistry(r.Registry)
	if l.stale.Store(r.Stale); r.Stale {
		l.avoid.Store(time.Now().Add(avoidTime).UnixNano())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Generation < m.mu.generation {
		return wire.Errorf(wire.CodeMetadataAway, "%s has generation %d, %d is known", l.addr, r.Generation, m.mu.generation)
	}
	if r.Generation > m.mu.generation {
		m.mu.generation, m.mu.version = r.Generation, 0
	}
	if r.MetadataVersion > m.mu.version {
		m.mu.version, m.mu.cached = r.MetadataVersion, nil
	}
	return nil
}

// useless notes that a node holds no metadata, or that another one should be asked first. It returns whether another try, at
// another node, needs no pause.
func (m *metadata) useless(l *link, err error) bool {
	e, _ := errors.AsType[*wire.CodeError](err)
	switch codeOf(err) {
	case wire.CodeRoleElsewhere, wire.CodeUnknownCommand:
		if e != nil {
			m.c.cluster.addRegistry(e.Nodes)
		}
		l.noMetadata.Store(true)
		return true
	}
	l.avoid.Store(time.Now().Add(avoidTime).UnixNano())
	return false
}

// begin starts the goroutine, or tells it that there is more to watch.
func (m *metadata) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.mu.running && m.c.cluster.ctx.Err() == nil {
		m.mu.running = true
		m.ran.Add(1)
		go m.run()
	}
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

func (m *metadata) run() {
	defer m.ran.Done()
	cluster := m.c.cluster
	ctx := cluster.ctx
	told := ""
	for pause := retryMin; ctx.Err() == nil; {
		up := cluster.watchLinks()
		l, none, err := cluster.source(ctx)
		if none {
			select {
			case <-up: // another node may answer then
			case <-ctx.Done():
			}
			continue
		}
		if err != nil {
			cluster.pause(ctx, refusedMin)
			continue
		}
		if told != l.addr {
			told = l.addr
			m.c.o.logger.Info("routes and settings come from", "broker", l.addr)
		}
		answered, err := m.follow(ctx, l)
		if answered {
			pause = retryMin
		}
		if err == errStale {
			cluster.wakeRegistry()
			cluster.pause(ctx, retryMax)
			continue
		}
		if ctx.Err() != nil || m.useless(l, err) {
			continue
		}
		m.c.o.logger.Warn("routes and settings are watched at another node", "broker", l.addr, "err", err)
		cluster.wakeRegistry()
		cluster.pause(ctx, pause)
		pause = min(2*pause, time.Second)
	}
}

// errStale: the node does not hear the registry. What it says is taken, and another one is watched if there is any.
var errStale = errors.New("client: metadata may be stale")

// asking is one request that waits.
type asking struct {
	request uint64
	watches []*watch
	timer   *time.Timer
	out     *wire.WatchRoutesResponse
	err     error
}

// follow watches at one node until that fails.
func (m *metadata) follow(ctx context.Context, l *link) (answered bool, err error) {
	begun := time.Now()
	answers := make(chan *asking, watchMax)
	waiting := map[*asking]bool{}
	m.mu.Lock()
	for _, w := range m.mu.watches {
		w.asked = false
	}
	m.mu.Unlock()
	defer func() {
		for a := range waiting {
			a.timer.Stop()
			l.Cancel(a.request)
		}
	}()
	look := time.NewTicker(watchLook)
	defer look.Stop()
	read, silent := l.BytesRead(), 0
	for {
		for len(waiting) < watchMax {
			// All end at the same moments: so those of topics that came one by one go together from then on.
			most := watchWait
			if l.stale.Load() {
				most = watchStale
			}
			wait := most - time.Since(begun)%most
			if wait < watchShort {
				wait += most
			}
			if len(waiting) == watchMax-1 {
				wait = watchShort
			}
			a, err := m.start(l, wait, answers)
			if err != nil {
				return answered, err
			}
			if a == nil {
				break
			}
			waiting[a] = true
		}
		select {
		case a := <-answers:
			err = m.end(a, l)
			delete(waiting, a)
			answered = answered || err == nil
		case <-m.kick:
		case <-look.C:
			if now := l.BytesRead(); now != read || l.Handling() {
				read, silent = now, 0
			} else if silent++; silent > watchLooks {
				return answered, wire.Errorf(wire.CodeTimeout, "%s is silent", l.addr)
			} else {
				l.ping(nil)
			}
			continue
		case <-ctx.Done():
			return answered, nil
		}
		m.c.cluster.pause(ctx, watchGather)
		for more := true; more && err == nil; {
			select {
			case a := <-answers:
				err = m.end(a, l)
				delete(waiting, a)
			default:
				more = false
			}
		}
		if err != nil {
			return answered, err
		}
		m.sweep(l)
		if l.stale.Load() {
			return answered, errStale
		}
	}
}

// end takes the answer of a request.
func (m *metadata) end(a *asking, l *link) error {
	a.timer.Stop()
	m.mu.Lock()
	for _, w := range a.watches {
		w.asked = false
	}
	m.mu.Unlock()
	if a.err == nil {
		a.err = m.note(l, a.out)
	}
	if a.err == nil {
		m.apply(a, l)
	}
	return a.err
}

// start asks for watches that nobody asks for; nil: there are none.
func (m *metadata) start(l *link, wait time.Duration, answers chan<- *asking) (*asking, error) {
	a := &asking{}
	r := &wire.WatchRoutesRequest{WaitMs: uint32(wait.Milliseconds())}
	m.mu.Lock()
	r.Generation, r.MetadataVersion = m.mu.generation, m.mu.version
	for _, w := range m.mu.watches {
		if len(a.watches) == topicsMax {
			break
		}
		if !w.asked {
			w.asked = true
			a.watches = append(a.watches, w)
			r.Topics = append(r.Topics, &wire.WatchedTopic{Topic: w.topic, Group: w.group, Version: w.version})
		}
	}
	m.mu.Unlock()
	if len(a.watches) == 0 {
		return nil, nil
	}
	header, err := proto.Marshal(r)
	if err != nil {
		return nil, wire.Errorf(wire.CodeInvalid, "%v", err)
	}
	// Only one of answer and timer comes.
	a.request, err = l.Start(wire.CommandWatchRoutes, header, nil, func(f wire.Frame, err error) {
		if err == nil {
			a.out = new(wire.WatchRoutesResponse)
			if err = proto.Unmarshal(f.Header, a.out); err != nil {
				err = wire.Errorf(wire.CodeMalformed, "%v", err)
			}
		}
		a.err = err
		answers <- a
	})
	if err != nil {
		return nil, err
	}
	request := a.request
	a.timer = time.AfterFunc(wait+watchLate, func() {
		if l.Cancel(request) {
			a.err = wire.Errorf(wire.CodeTimeout, "%s did not answer a watch in time", l.addr)
			answers <- a
		}
	})
	l.Flush()
	return a, nil
}

// apply takes the views of an answer.
func (m *metadata) apply(a *asking, l *link) {
	for _, v := range a.out.Views {
		if i := slices.IndexFunc(a.watches, func(w *watch) bool { return w.topic == v.Topic && w.group == v.Group }); i >= 0 {
			m.taken(a.watches[i], v, l.pool)
		}
	}
}

// sweep ends connections that no route names any more.
func (m *metadata) sweep(l *link) {
	cluster := m.c.cluster
	now := time.Now()
	cluster.mu.Lock()
	due := now.Sub(cluster.mu.swept) >= sweepEvery
	if due {
		cluster.mu.swept = now
	}
	cluster.mu.Unlock()
	if !due {
		return
	}
	used := map[*pool]bool{l.pool: true}
	m.mu.Lock()
	for _, w := range m.mu.watches {
		for _, p := range w.used {
			used[p] = true
		}
	}
	m.mu.Unlock()
	for _, k := range m.c.tracked() {
		used[k.pool] = true
	}
	cluster.sweep(now, used)
}

// routes returns the pools of a topic's broker groups, as they are now.
func (c *Client) routes(ctx context.Context, topic string) (pools []*pool, err error) {
	var refused *wire.CodeError
	alone, err := c.metadata.ask(ctx, opRoute, watchKey{topic: topic}, func(v *wire.TopicView, from *pool) {
		at := c.cluster.locate(v.Route, from)
		for _, p := range v.Route.GetPartitions() {
			if l := at.pools[p.BrokerGroup]; p.State != partitionGone && !slices.Contains(pools, l) {
				pools = append(pools, l)
			}
		}
		if v.Code != 0 {
			refused = &wire.CodeError{Code: wire.Code(v.Code), Message: v.Message}
		}
	})
	switch {
	case err != nil:
		return nil, err
	case alone:
		return []*pool{c.cluster.home}, nil
	case len(pools) > 0: // whoever may not send may still look
		return pools, nil
	case refused != nil:
		return nil, newError(opRoute, topic, -1, "", refused)
	}
	return nil, newError(opRoute, topic, -1, "", wire.Errorf(wire.CodePartitionNotFound, "topic %q has no partition", topic))
}
