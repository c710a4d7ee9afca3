package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/wire"
)

const (
	sumEvery      = 256 << 10 // a checksum for the records that begin in so many bytes
	sumBytes      = 8 << 20   // compared by one question
	sumPause      = 50 * time.Millisecond
	mendEvery     = 5 * time.Second
	mendBytesMax  = 256 << 20 // of one hole
	differMax     = 1000      // differences that are told
	checkPatience = 5 * time.Second
)

// Difference is a range in which a slave's records are not the master's. It lies below what is committed, so it is damage or a defect.
type Difference struct {
	From, To journal.Position
}

// Check is what the last comparison with the master found.
type Check struct {
	From, To    journal.Position // what was compared
	Ended       time.Time        // zero: none has ended yet
	Differences []Difference
	Err         error // why it ended early; nil: it did not
}

// LastCheck returns what the last comparison found.
func (s *Slave) LastCheck() Check {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.check
}

// checker compares checksums with the master's now and then, and mends holes.
func (s *Slave) checker() {
	defer s.wg.Done()
	every := s.n.Timing.CheckEvery
	next := s.n.Now().Add(every)
	for sleep(s.ctx, mendEvery) {
		s.mender.all(s.ctx, s.n.others())
		if every < 0 || s.n.Now().Before(next) {
			continue
		}
		if _, err := s.Compare(s.ctx); err == nil || s.ctx.Err() != nil {
			next = s.n.Now().Add(every)
		}
	}
}

// Compare compares checksums of everything that is committed with the master that is followed, and mends what differs for damage on either
// side. It reads slowly, and is told in the log, and by LastCheck.
func (s *Slave) Compare(ctx context.Context) (Check, error) {
	master, _, _ := s.Following()
	if master == "" {
		return Check{}, errors.New("replica: no master is followed")
	}
	var c Check
	err := s.n.ask(master, func(peer Peer) error { return s.compare(ctx, peer, &c) })
	c.Ended, c.Err = s.n.Now(), err
	s.mu.Lock()
	s.mu.check = c
	s.mu.Unlock()
	if n := len(c.Differences); n > 0 {
		s.n.Logger.Error("slave's records differ from the master's", "broker", s.n.Self.Broker, "brokerGroup", s.n.BrokerGroup, "master", master,
			"ranges", n, "position", uint64(c.Differences[0].From), "to", uint64(c.Differences[0].To))
		s.n.Changed()
	}
	return c, err
}

func (s *Slave) compare(ctx context.Context, peer Peer, c *Check) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call := func(do func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, checkPatience)
		defer cancel()
		return do(ctx)
	}
	var met *wire.MeetResponse
	err := call(func(ctx context.Context) (err error) {
		met, err = peer.Meet(ctx, &wire.MeetRequest{BrokerGroup: s.n.BrokerGroup, Broker: s.n.Self.Broker})
		return err
	})
	if err != nil {
		return err
	}
	c.From = max(s.Begin(), journal.Position(met.Status.GetBegin()))
	c.To = c.From
	end := min(s.Committed(), journal.Position(met.Status.GetCommitted()))
	for c.To < end {
		var theirs *wire.LogSumsResponse
		err := call(func(ctx context.Context) (err error) {
			theirs, err = peer.LogSums(ctx, &wire.LogSumsRequest{From: uint64(c.To), To: uint64(min(end, c.To+sumBytes)), Every: sumEvery})
			return err
		})
		if err != nil {
			return err
		}
		ours, err := s.log.sums(&wire.LogSumsRequest{From: uint64(c.To), To: uint64(min(end, c.To+sumBytes)), Every: sumEvery})
		if err != nil {
			return err
		}
		at := c.To
		for i := range max(len(ours.Sums), len(theirs.Sums)) {
			if i >= len(ours.Sums) || i >= len(theirs.Sums) || ours.Ends[i] != theirs.Ends[i] {
				to := min(end, c.To+sumBytes)
				if i < len(ours.Ends) {
					to = journal.Position(ours.Ends[i])
				}
				c.Differences = append(c.Differences, Difference{at, to})
				break
			}
			to := journal.Position(ours.Ends[i])
			if ours.Sums[i] != theirs.Sums[i] && len(c.Differences) < differMax {
				c.Differences = append(c.Differences, Difference{at, to})
			}
			at = to
		}
		if at <= c.To {
			return fmt.Errorf("%w: no checksum from position %d on", ErrPeer, c.To)
		}
		c.To = at
		if !sleep(ctx, sumPause) {
			return ctx.Err()
		}
	}
	return nil
}

// mender brings what holes had in them from other copies.
type mender struct {
	j *journal.Journal
	n Node
}

// all tries every hole that is there.
func (m *mender) all(ctx context.Context, from []string) {
	for _, h := range m.j.Holes() {
		if ctx.Err() == nil {
			_ = m.mend(ctx, h.From, h.To, from) // it is tried again later
		}
	}
}

// Repair brings what a hole [from, to) of the journal had in it from another broker of the broker group: nil when it is there again.
func (m *Master) Repair(ctx context.Context, from, to journal.Position) error {
	return m.mender.mend(ctx, from, to, m.n.others())
}

// Repair as Master's; the master is asked first.
func (s *Slave) Repair(ctx context.Context, from, to journal.Position) error {
	list := s.n.others()
	master, _, _ := s.Following()
	if i := slices.Index(list, master); i > 0 {
		list[0], list[i] = list[i], list[0]
	}
	return s.mender.mend(ctx, from, to, list)
}

func (m *mender) mend(ctx context.Context, from, to journal.Position, brokers []string) error {
	if to-from > mendBytesMax {
		return fmt.Errorf("replica: a hole of %d bytes is not mended, at most %d are", to-from, mendBytesMax)
	}
	err := errors.New("replica: there is no other copy")
	for _, broker := range brokers {
		e := m.n.ask(broker, func(peer Peer) error { return m.from(ctx, peer, from, to) })
		if e == nil {
			m.n.Logger.Info("a damaged range is mended from another copy", "broker", m.n.Self.Broker, "brokerGroup", m.n.BrokerGroup, "from", broker,
				"position", uint64(from), "to", uint64(to))
			m.n.Changed()
			return nil
		}
		err = fmt.Errorf("mend from broker %s: %w", broker, e)
	}
	return err
}

func (m *mender) from(ctx context.Context, peer Peer, from, to journal.Position) error {
	var records []byte
	var store [16]byte
	for at := from; at < to; {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		a, b, err := peer.ReadLog(ctx, &wire.ReadLogRequest{From: uint64(at), To: uint64(to), Committed: true})
		cancel()
		if err != nil {
			return err
		}
		if a.From != uint64(at) || len(b) == 0 || journal.Position(len(b)) > to-at {
			return fmt.Errorf("%w: %d bytes from %d, for [%d,%d)", ErrPeer, len(b), a.From, at, to)
		}
		if store, err = storeID(a.Store); err != nil {
			return err
		}
		records = append(records, b...)
		at += journal.Position(len(b))
	}
	return m.j.Mend(journal.Hole{From: from, To: to}, records, store)
}
