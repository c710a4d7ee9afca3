package replica

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/wire"
)

const (
	pullsMax = 16 // that a session may have waiting; the slave keeps 4
	// answerBytesMax bounds the records of one answer: what a peer takes, less the frame's head and header.
	answerBytesMax = wire.ReplyBytesMax - 4<<10
	readBytes      = 1 << 20 // that a catch-up reads at once
)

// pull is a request of a slave that waits for records.
type pull struct {
	done  func(*wire.PullResponse, []byte, error)
	bytes int // that its answer may have
}

// session is one slave at its master, from its Follow on. In step, the committing goroutine answers a waiting pull with what it is about
// to write; when none waits the session is behind, and its own goroutine, which belongs to the Master, answers from the journal until it
// has caught up.
type session struct {
	m      *Master
	id     uint64
	broker string
	stop   context.CancelFunc
	ctx    context.Context
	kick   chan struct{} // of its goroutine: there may be something to read
	copies atomic.Bool   // a full copy: the seeds hear of it
	inSync atomic.Bool   // for the answers
	buf    []byte        // of its goroutine

	// Of acks, for the figures: when the push that is measured was made, up to where, and how long the last ones took.
	measure struct {
		sync.Mutex
		end  journal.Position // 0: none is measured
		at   time.Time
		took [64]time.Duration
		n    int
		ctx  context.Context // of the connection that the last pull came on
	}

	mu struct {
		sync.Mutex
		pulls   []pull           // that wait; at most pullsMax
		sent    journal.Position // end of what was answered
		reading bool             // its goroutine reads what comes after sent, for the first of pulls, which nobody else takes
		last    time.Time        // of the last answer
		ended   error            // what is answered from now on
	}
}

func (s *session) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// take takes the oldest waiting pull. s.mu is held.
func (s *session) take() pull { return s.takeAt(0) }

func (s *session) takeAt(i int) pull {
	p := s.mu.pulls[i]
	s.mu.pulls = slices.Delete(s.mu.pulls, i, i+1)
	return p
}

// response is the head of an answer.
func (s *session) response(from journal.Position) *wire.PullResponse {
	begin := s.m.Begin() // before committed: what was needed of what lies below it was carried forward, and that is committed
	r := &wire.PullResponse{Epoch: uint64(s.m.Epoch()), From: uint64(from), Committed: s.m.committed.Load(), Begin: uint64(begin), InSync: s.inSync.Load()}
	if r.Committed < uint64(s.m.begins) {
		r.Begin = 0 // how far it had committed when it trimmed is not known yet
	}
	if to := s.m.transfer.Load(); to != nil {
		r.Transfer = *to
	}
	return r
}

// push answers a waiting pull with the records in b, from from on, if the slave has all before; true: it will have them. It is called by
// the committing goroutine, and never waits.
func (s *session) push(from journal.Position, b []byte, now time.Time) bool {
	s.mu.Lock()
	if s.mu.ended != nil || s.mu.reading || s.mu.sent != from || len(s.mu.pulls) == 0 || len(b) > answerBytesMax {
		s.mu.Unlock()
		return false
	}
	p := s.take()
	s.mu.sent = from + journal.Position(len(b))
	s.mu.last = now
	s.mu.Unlock()
	s.measure.Lock()
	if s.measure.end == 0 {
		s.measure.end, s.measure.at = from+journal.Position(len(b)), now
	}
	s.measure.Unlock()
	p.done(s.response(from), b, nil)
	return true
}

// acked takes what a pull says, before it is added. ctx ends with its connection.
func (s *session) acked(ctx context.Context, acked journal.Position, now time.Time) {
	m := &s.measure
	m.Lock()
	if m.end != 0 && acked >= m.end {
		m.took[m.n%len(m.took)] = now.Sub(m.at)
		m.n++
		m.end = 0
	}
	another := m.ctx != ctx
	m.ctx = ctx
	m.Unlock()
	if another {
		context.AfterFunc(ctx, func() { s.m.lose(s, errGone) })
	}
	caught := acked >= journal.Position(s.m.offered.Load())
	if s.copies.Load() {
		s.m.seeds.copied(s.broker, acked, caught, now)
		s.copies.Store(!caught)
	}
}

var errGone = errors.New("replica: the connection has ended")

// ackTime is the median of the last acks' times from push to ack.
func (s *session) ackTime() time.Duration {
	s.measure.Lock()
	defer s.measure.Unlock()
	n := min(s.measure.n, len(s.measure.took))
	if n == 0 {
		return 0
	}
	took := s.measure.took
	slices.Sort(took[:n])
	return took[n/2]
}

// wakeBehind wakes the session's goroutine if pulls wait and what was written up to end was not pushed.
func (s *session) wakeBehind(end journal.Position) {
	s.mu.Lock()
	behind := s.mu.sent < end && len(s.mu.pulls) > 0
	s.mu.Unlock()
	if behind {
		s.wake()
	}
}

// add takes a pull, whose slave has written all below acked.
func (s *session) add(p pull) {
	s.mu.Lock()
	switch {
	case s.mu.ended != nil:
		err := s.mu.ended
		s.mu.Unlock()
		p.done(nil, nil, err)
		return
	case len(s.mu.pulls) == pullsMax:
		s.mu.Unlock()
		p.done(nil, nil, wire.Errorf(wire.CodeBusy, "%d pulls are under way already", pullsMax))
		return
	}
	s.mu.pulls = append(s.mu.pulls, p)
	behind := s.mu.sent < journal.Position(s.m.offered.Load())
	s.mu.Unlock()
	if behind {
		s.wake()
	}
}

// keepAlive answers a waiting pull with nothing, if nothing was said for so long.
func (s *session) keepAlive(now time.Time, every time.Duration) {
	s.mu.Lock()
	at := 0
	if s.mu.reading { // which may take long: it waits for its pace
		at = 1
	}
	if len(s.mu.pulls) <= at || s.mu.ended != nil || now.Sub(s.mu.last) < every {
		s.mu.Unlock()
		return
	}
	p := s.takeAt(at)
	s.mu.last = now
	sent := s.mu.sent
	s.mu.Unlock()
	p.done(s.response(sent), nil, nil)
}

// end answers all pulls with err, now and later.
func (s *session) end(err error) {
	s.mu.Lock()
	if s.mu.ended != nil {
		s.mu.Unlock()
		return
	}
	s.mu.ended = err
	pulls := s.mu.pulls
	s.mu.pulls = nil
	s.mu.Unlock()
	s.stop()
	for _, p := range pulls {
		p.done(nil, nil, err)
	}
}

// serve is the session's goroutine: it answers pulls from the journal while the session is behind.
func (s *session) serve() {
	defer s.m.wg.Done()
	for {
		select {
		case <-s.kick:
		case <-s.ctx.Done():
			return
		}
		for s.catchUp() {
		}
	}
}

// catchUp answers one pull from the journal; false: there is nothing to do, or nothing to do it with.
func (s *session) catchUp() bool {
	s.mu.Lock()
	if s.mu.ended != nil || len(s.mu.pulls) == 0 || s.mu.sent >= journal.Position(s.m.offered.Load()) {
		s.mu.Unlock()
		return false
	}
	s.mu.reading = true
	from, bytes := s.mu.sent, s.mu.pulls[0].bytes
	s.mu.Unlock()

	n, err := s.read(from, bytes)
	if err == nil && n > 0 && !s.inSync.Load() {
		err = s.m.pace.wait(s.ctx, n)
	}
	s.mu.Lock()
	if s.mu.ended != nil || err != nil || n == 0 { // n == 0: it is being written, and whoever writes it wakes us
		s.mu.reading = false
		ended := s.mu.ended != nil
		s.mu.Unlock()
		if err != nil && !ended {
			s.m.lose(s, err)
		}
		return false
	}
	p := s.take()
	s.mu.Unlock()
	end := from + journal.Position(n)
	p.done(s.response(from), s.buf[:n], nil)
	s.mu.Lock()
	s.mu.sent = end
	s.mu.last = s.m.n.Now()
	s.mu.reading = false // not before the answer is on its way: a push must not overtake it
	s.mu.Unlock()
	return true
}

// read reads whole records into s.buf.
func (s *session) read(from journal.Position, bytes int) (int, error) {
	if s.buf == nil {
		s.buf = make([]byte, readBytes)
	}
	return readRecords(s.m.Journal, from, bytes, &s.buf)
}
