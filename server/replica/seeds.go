package replica

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/wire"
)

// seeds are what full copies begin with, one a slave. Each is kept, and what it holds back with it, until the copy has caught up, or nothing is
// heard of it for seedIdle.
type seeds struct {
	mu   sync.Mutex
	last uint64
	of   map[string]*seed // by broker
}

type seed struct {
	Seed
	id   uint64
	used time.Time
}

// ReadSeed reads what a full copy begins with; r.Seed 0 makes one.
func (m *Master) ReadSeed(ctx context.Context, r *wire.ReadSeedRequest) (*wire.ReadSeedResponse, []byte, error) {
	m.mu.Lock()
	broker, _, ok := m.mu.leader.Session(r.Session)
	m.mu.Unlock()
	if !ok {
		return nil, nil, wire.Errorf(wire.CodeStaleTerm, "session %d is not there any more", r.Session)
	}
	if m.n.Seed == nil {
		return nil, nil, wire.Errorf(wire.CodeBusy, "no copy can be made now")
	}
	id := r.Seed
	if id == 0 {
		s, err := m.n.Seed(ctx)
		if err != nil {
			return nil, nil, coded(err)
		}
		id = m.seeds.add(broker, s, m.n.Now())
		m.n.Logger.Info("full copy begins", "broker", m.n.Self.Broker, "brokerGroup", m.n.BrokerGroup, "slave", broker, "position", uint64(s.Position()),
			"begin", uint64(s.Begin()), "bytes", s.Size())
		m.n.Changed()
	}
	return m.seeds.read(broker, id, r.Offset, int(r.BytesMax), m.n.Now())
}

func (s *seeds) add(broker string, made Seed, now time.Time) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[string]*seed{}
	}
	s.forget(broker)
	s.last++
	s.of[broker] = &seed{Seed: made, id: s.last, used: now}
	return s.last
}

// forget closes a broker's seed. s.mu is held.
func (s *seeds) forget(broker string) {
	if one := s.of[broker]; one != nil {
		_ = one.Close() // it was only read
		delete(s.of, broker)
	}
}

func (s *seeds) read(broker string, id, offset uint64, bytes int, now time.Time) (*wire.ReadSeedResponse, []byte, error) {
	s.mu.Lock() // also while it is read: it must not be closed meanwhile, and copies are few
	defer s.mu.Unlock()
	one := s.of[broker]
	if one == nil || one.id != id {
		return nil, nil, wire.Errorf(wire.CodeNotFound, "seed %d is not there any more: ask for another one", id)
	}
	one.used = now
	size := one.Size()
	if offset > uint64(size) {
		return nil, nil, wire.Errorf(wire.CodeInvalid, "the seed has %d bytes, not %d", size, offset)
	}
	a := &wire.ReadSeedResponse{Seed: id, Size: uint64(size), Position: uint64(one.Position()), Begin: uint64(one.Begin())}
	b := make([]byte, min(int64(bytes), size-int64(offset)))
	if n, err := one.ReadAt(b, int64(offset)); n < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, nil, coded(err)
	}
	return a, b, nil
}

// copied says that a slave has all below at; caught: it has caught up.
func (s *seeds) copied(broker string, at journal.Position, caught bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.of[broker]; one != nil && at >= one.Begin() { // below: its former store
		one.used = now
		if caught {
			s.forget(broker)
		}
	}
}

func (s *seeds) copying(broker string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[broker] != nil
}

// drop forgets copies that are not heard of any more.
func (s *seeds) drop(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for broker, one := range s.of {
		if now.Sub(one.used) >= seedIdle {
			s.forget(broker)
		}
	}
}

func (s *seeds) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for broker := range s.of {
		s.forget(broker)
	}
}
