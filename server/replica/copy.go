package replica

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

// seedBytesMax bounds a seed.
const seedBytesMax = 64 << 30

// CopyOptions are of FullCopy.
type CopyOptions struct {
	// Clear removes what an earlier copy that was not completed has left.
	Clear func() error
	// Seed takes the seed's bytes, in order.
	Seed func(b []byte, offset, size int64) error
	// Plant begins the new store from the seed, all of which is there, and returns the options of its journal, whose folder is empty. Begin and
	// Follow are set by FullCopy.
	Plant func(position, begin journal.Position) (journal.Options, error)
	// Progress is told how much of the journal is there; nil: nobody.
	Progress func(done, total int64)
}

// FullCopy makes a copy of the master's store beside the old one: what its tables say, and then its whole journal, up to where it is
// in step. When it returns nil the copy is complete and synced, and its journal is closed. n.Self is the new store's member.
//
// It goes on through lost connections and other masters, until ctx ends; whatever it left then is to be cleared.
func FullCopy(ctx context.Context, n Node, o CopyOptions) error {
	n = n.withDefaults()
	said := ""
	for {
		err := fullCopy(ctx, n, o)
		if err == nil || ctx.Err() != nil || errors.Is(err, errCopyFailed) {
			return err
		}
		if text := err.Error(); text != said {
			said = text
			n.Logger.Warn("full copy begins again", "broker", n.Self.Broker, "brokerGroup", n.BrokerGroup, "err", err)
		}
		if !sleep(ctx, backOffMax) {
			return ctx.Err()
		}
	}
}

// errCopyFailed: the own disk, not the master.
var errCopyFailed = errors.New("replica: the full copy has failed")

func fullCopy(ctx context.Context, n Node, o CopyOptions) error {
	row, ok := n.Row()
	if !ok {
		return ErrRegistryFirst
	}
	if !n.knows(row.Master.Broker) {
		return fmt.Errorf("replica: no other master is known: the registry names %q", row.Master.Broker)
	}
	if err := o.Clear(); err != nil {
		return fmt.Errorf("%w: %w", errCopyFailed, err)
	}
	var position, begin, end journal.Position
	err := n.ask(row.Master.Broker, func(peer Peer) (err error) {
		position, begin, end, err = readSeed(ctx, n, row, peer, o)
		return err
	})
	if err != nil {
		return err
	}
	opts, err := o.Plant(position, begin)
	if err != nil {
		return fmt.Errorf("%w: %w", errCopyFailed, err)
	}
	opts.Begin = begin
	n.Self.Store, n.copying = hex.EncodeToString(opts.StoreID[:]), true
	s, err := OpenSlave(ctx, n, opts, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", errCopyFailed, err)
	}
	err = s.copied(ctx, max(position, end), o.Progress)
	if cerr := s.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("%w: %w", errCopyFailed, cerr)
	}
	return err
}

// readSeed has the master make a seed, and reads it. end is how far the master's journal is committed.
func readSeed(ctx context.Context, n Node, row term.Row, peer Peer, o CopyOptions) (position, begin, end journal.Position, err error) {
	call := func(do func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, 10*callTimeout) // a seed is made of all tables
		defer cancel()
		return do(ctx)
	}
	var f *wire.FollowResponse
	if err := call(func(ctx context.Context) (err error) {
		r := &wire.FollowRequest{BrokerGroup: n.BrokerGroup, Broker: n.Self.Broker, Store: n.Self.Store, Boot: n.Self.Boot, SeenTerm: row.Term, Copying: true}
		r.Side, r.Served = n.Side()
		f, err = peer.Follow(ctx, r)
		return err
	}); err != nil {
		return 0, 0, 0, err
	}
	if journal.Epoch(f.Epoch).Term() < row.Term {
		return 0, 0, 0, fmt.Errorf("%w: a master of term %d, and the registry is at %d", ErrStale, journal.Epoch(f.Epoch).Term(), row.Term)
	}
	var id uint64
	for at := int64(0); ; {
		var a *wire.ReadSeedResponse
		var b []byte
		if err := call(func(ctx context.Context) (err error) {
			a, b, err = peer.ReadSeed(ctx, &wire.ReadSeedRequest{Session: f.Session, Seed: id, Offset: uint64(at), BytesMax: readBytes})
			return err
		}); err != nil {
			return 0, 0, 0, err
		}
		size := int64(a.Size)
		switch {
		case a.Size > seedBytesMax || at+int64(len(b)) > size || len(b) == 0 && at < size, a.Begin > a.Position:
			return 0, 0, 0, fmt.Errorf("%w: a seed of %d bytes, of [%d,%d), %d bytes from %d", ErrPeer, a.Size, a.Begin, a.Position, len(b), at)
		case id != 0 && (a.Seed != id || a.Begin != uint64(begin) || a.Position != uint64(position)):
			return 0, 0, 0, fmt.Errorf("%w: the seed has become another one", ErrPeer)
		}
		id, begin, position = a.Seed, journal.Position(a.Begin), journal.Position(a.Position)
		if err := o.Seed(b, at, size); err != nil {
			return 0, 0, 0, fmt.Errorf("%w: %w", errCopyFailed, err)
		}
		if at += int64(len(b)); at == size {
			return position, begin, journal.Position(f.Committed), nil
		}
	}
}

// copied waits until everything up to end is here and committed.
func (s *Slave) copied(ctx context.Context, end journal.Position, progress func(done, total int64)) error {
	begin := s.Begin()
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		have := s.Committed()
		if progress != nil {
			progress(int64(min(have, end)-min(begin, have)), int64(end-begin))
		}
		if have >= end {
			return nil
		}
		select {
		case <-t.C:
		case <-s.MustReopen():
			if s.Why() == WhyFailed {
				return fmt.Errorf("%w: %s", errCopyFailed, s.Why())
			}
			return fmt.Errorf("replica: the copy cannot go on: %s", s.Why())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// CopyMissing does what an ActCopy decision says, with the journal of the closed store, open and following: it sets aside and cuts what that has beyond
// d.Cut, takes the records up to d.To from broker d.From, and syncs. Then the caller closes it and decides again. Where nothing is in common
// (d.Full) that cannot be done.
func CopyMissing(ctx context.Context, n Node, d Decision, j *journal.Journal) error {
	n = n.withDefaults()
	if d.Full {
		return fmt.Errorf("replica: nothing of the journal of broker %s is here, and it does not begin at 0", d.From)
	}
	if end := j.Written(); d.Cut < end {
		aside, err := j.CutTo(d.Cut)
		if err != nil {
			return err
		}
		n.Logger.Warn("journal's end differs from what is most complete: it is set aside and cut", "broker", n.Self.Broker, "brokerGroup", n.BrokerGroup,
			"from", d.From, "position", uint64(d.Cut), "end", uint64(end), "file", aside)
	}
	from, took := j.Written(), 0
	err := n.ask(d.From, func(peer Peer) (err error) {
		took, err = takeRecords(ctx, peer, j, d.To)
		return err
	})
	if err == nil {
		err = j.Sync()
	}
	if err != nil {
		return fmt.Errorf("copy from broker %s: %w", d.From, err)
	}
	n.Logger.Info("journal is completed from another broker's", "broker", n.Self.Broker, "brokerGroup", n.BrokerGroup, "from", d.From,
		"position", uint64(from), "bytes", took, "why", d.Why)
	return nil
}

// takeRecords takes a peer's records from the journal's end up to end.
func takeRecords(ctx context.Context, peer Peer, j *journal.Journal, end journal.Position) (took int, err error) {
	for j.Written() < end {
		from := j.Written()
		asking, cancel := context.WithTimeout(ctx, callTimeout)
		a, records, err := peer.ReadLog(asking, &wire.ReadLogRequest{From: uint64(from), To: uint64(end)})
		cancel()
		if err != nil {
			return took, err
		}
		if a.From != uint64(from) || len(records) == 0 {
			return took, fmt.Errorf("%w: asked for [%d,%d), it answers with %d bytes from %d", ErrPeer, from, end, len(records), a.From)
		}
		store, err := storeID(a.Store)
		if err != nil {
			return took, err
		}
		for {
			err = j.CopyRecords(from, records, store)
			if !errors.Is(err, journal.ErrBusy) {
				break
			}
			if err := j.WaitRoom(ctx); err != nil {
				return took, err
			}
		}
		if err != nil {
			return took, err
		}
		took += len(records)
	}
	return took, nil
}
