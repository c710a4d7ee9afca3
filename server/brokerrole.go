package server

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/listener"
	"github.com/jmqio/jmq/wire"
)

// brokerRole is the broker of this process: the facade that clients reach, and the engine that is open now.
type brokerRole struct {
	s        *Server
	flusher  *listener.Flusher
	facade   *facade
	engine   atomic.Pointer[engine] // that is open; nil: none is
	replicas *replicas              // nil: no registry rules the broker, and it is replicated nowhere
}

// newBroker returns the role. A broker that no registry rules has its engine open then; others open theirs when replicas.start was called.
func (s *Server) newBroker(flusher *listener.Flusher) (r *brokerRole, err error) {
	r = &brokerRole{s: s, flusher: flusher}
	r.facade = &facade{role: r}
	r.facade.mu.peers = map[*wire.Peer]struct{}{}
	if s.followsMetadata() {
		r.replicas, err = r.newReplicas()
		return r, err
	}
	e, err := r.openEngine(opening{})
	if err != nil {
		return nil, err
	}
	r.engine.Store(e)
	r.facade.put(e)
	return r, nil
}

// close stops all of it.
func (r *brokerRole) close() (err error) {
	if r.replicas != nil {
		return r.replicas.close()
	}
	r.facade.put(nil)
	if e := r.engine.Swap(nil); e != nil {
		err = e.close()
	}
	return err
}

// notMaster is the answer to who asks for what only a master does.
func (r *brokerRole) notMaster() error {
	if r.replicas != nil {
		return r.replicas.notMaster()
	}
	return wire.Errorf(wire.CodeStopping, "the broker is being stopped")
}

// masters are the addresses of the master of the broker group, if it is another one and known.
func (r *brokerRole) masters() []string {
	if r.replicas != nil {
		return r.replicas.masters()
	}
	return nil
}

// epoch is that of the journal, 0 while nothing is appended to it.
func (r *brokerRole) epoch() uint64 {
	if e := r.facade.now.Load(); e != nil && e.slave == nil {
		return uint64(e.store.Epoch())
	}
	return 0
}

// condition says why sends are refused, "" while they are taken, and why the store stopped or is gone, nil while it is well.
func (r *brokerRole) condition() (refusing string, failed error) {
	e := r.engine.Load()
	if e == nil {
		return "", nil
	}
	refusing, failed = e.condition()
	if e.master != nil && isClosed(e.master.Fenced()) {
		failed = nil // it becomes a slave
	}
	return refusing, failed
}

// graceOf turns the configuration's 0, no grace, into the broker's word for it.
func graceOf(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// verifyRate is the store's meaning of broker.journal.verifyBytesPerSecond: below 0 not at all.
func verifyRate(bytesPerSecond int64) int64 {
	if bytesPerSecond == 0 {
		return -1
	}
	return bytesPerSecond
}

// checkEvery is a slave's meaning of broker.replication.compareEvery: below 0 not at all.
func checkEvery(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// close ends deciding, closes what is open, and marks a clean stop.
func (x *replicas) close() error {
	x.stop()
	x.r.facade.put(nil)
	e := x.r.engine.Swap(nil)
	if e == nil {
		return nil
	}
	err := e.close()
	x.master.Store(nil)
	x.slave.Store(nil)
	if e.slave != nil {
		x.lost(err)
	}
	if errors.Is(err, journal.ErrFenced) {
		// The slaves of the set were gone, or another is master: what was appended last may be committed or not, and nobody was told that it is.
		x.s.log.Warn("the master stopped before all of its journal was committed", "brokerGroup", x.group(), "err", err)
		return nil
	}
	if err == nil {
		err = x.state.CleanStop()
	}
	return err
}
