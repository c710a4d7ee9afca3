package server

import (
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/listener"
	"github.com/jmqio/jmq/wire"
)

// brokerRole is the broker of this process: the facade that clients reach, and the engine that is open now.
type brokerRole struct {
	s       *Server
	flusher *listener.Flusher
	facade  *facade
	engine  atomic.Pointer[engine] // that is open; nil: none is
}

// newBroker returns the role, without an engine.
func (s *Server) newBroker(flusher *listener.Flusher) *brokerRole {
	r := &brokerRole{s: s, flusher: flusher}
	r.facade = &facade{role: r}
	r.facade.mu.peers = map[*wire.Peer]struct{}{}
	return r
}

// openAlone opens the engine of a broker that is replicated nowhere.
func (r *brokerRole) openAlone() error {
	e, err := r.openEngine(nil)
	if err != nil {
		return err
	}
	r.engine.Store(e)
	r.facade.put(e)
	return nil
}

// close stops all of it.
func (r *brokerRole) close() error {
	r.facade.put(nil)
	if e := r.engine.Swap(nil); e != nil {
		return e.close()
	}
	return nil
}

// notMaster is the answer to who asks for what only a master does.
func (r *brokerRole) notMaster() error {
	return wire.Errorf(wire.CodeStopping, "the broker is being stopped")
}

// epoch is that of the journal, 0 while nothing is appended to it.
func (r *brokerRole) epoch() uint64 {
	if e := r.facade.now.Load(); e != nil {
		return uint64(e.store.Epoch())
	}
	return 0
}

// condition says why sends are refused, "" while they are taken, and why the store stopped or is gone, nil while it is well.
func (r *brokerRole) condition() (refusing string, failed error) {
	if e := r.engine.Load(); e != nil {
		return e.condition()
	}
	return "", nil
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
