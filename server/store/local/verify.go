package local

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// verifier reads sealed segments in the background, at a bounded rate: each once after it was sealed, and again after
// VerifyEvery. What it finds damaged becomes a hole. Of what it has read it writes a footer behind the segment.
type verifier struct {
	cancel context.CancelFunc
	done   chan struct{}
	// verified says when a segment was read; it is the goroutine's own.
	verified map[journal.Position]int64 // unix nanoseconds

	mu struct {
		sync.Mutex
		bytes, segments, footers int64
	}
}

const (
	verifyLookEvery = 30 * time.Second // whether there is a segment to be read
	footerVersion   = 1
)

func (s *Store) startVerifier() {
	v := &s.verifier
	ctx, cancel := context.WithCancel(context.Background())
	v.cancel, v.done = cancel, make(chan struct{})
	v.verified = map[journal.Position]int64{}
	go s.runVerifier(ctx)
}

func (v *verifier) stop() {
	v.cancel()
	<-v.done
}

func (s *Store) runVerifier(ctx context.Context) {
	defer close(s.verifier.done)
	if s.opt.VerifyBytesPerSecond < 0 {
		return
	}
	tick := time.NewTicker(verifyLookEvery)
	defer tick.Stop()
	for {
		for {
			seg, ok := s.nextToVerify()
			if !ok || ctx.Err() != nil || s.Err() != nil {
				break
			}
			s.verifySegment(ctx, &seg)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// nextToVerify returns the sealed segment that was read longest ago, if that is long enough.
func (s *Store) nextToVerify() (next journal.SegmentInfo, ok bool) {
	v := &s.verifier
	segments := s.sealed()
	for base := range v.verified {
		if !slices.ContainsFunc(segments, func(i journal.SegmentInfo) bool { return i.Base == base }) {
			delete(v.verified, base)
		}
	}
	oldest := s.opt.Now().Add(-s.opt.VerifyEvery).UnixNano()
	for _, seg := range segments {
		at, known := v.verified[seg.Base]
		if !known && seg.Footer {
			if b, err := s.log.ReadFooter(seg.Base); err == nil {
				if f, err := decodeFooter(b); err == nil {
					at = f.Verified
				}
			}
			v.verified[seg.Base] = at
		}
		if at < oldest {
			next, ok, oldest = seg, true, at
		}
	}
	return next, ok
}

// verifySegment reads a segment and writes its footer.
func (s *Store) verifySegment(ctx context.Context, seg *journal.SegmentInfo) {
	v := &s.verifier
	now := s.opt.Now().UnixNano()
	var f footer
	pace := s.pacer(ctx)
	scrub := func() error {
		f = footer{Verified: now, partitions: map[store.Partition]*span{}}
		return s.log.Scrub(seg.Base, pace, f.add)
	}
	err := scrub()
	var c *journal.CorruptError
	if errors.As(err, &c) {
		if _, err = s.healNow(c.Position); err == nil {
			err = scrub()
		}
	}
	switch {
	case ctx.Err() != nil, errors.Is(err, journal.ErrTrimmed), errors.Is(err, journal.ErrClosed):
		return
	case err != nil:
		// Whoever reads the damaged record hears of it; the next round tries again.
		s.opt.Logger.Error("segment cannot be verified", "folder", s.folder.journal, "position", seg.Base, "err", err)
	default:
		err = s.log.WriteFooter(seg.Base, f.encode(nil))
		if err != nil && !errors.Is(err, journal.ErrTrimmed) {
			// Only a note of what was read: it is read again after the next start.
			s.opt.Logger.Warn("footer of a segment cannot be written", "folder", s.folder.journal, "position", seg.Base, "err", err)
		}
	}
	v.verified[seg.Base] = now
	v.mu.Lock()
	v.mu.segments++
	if err == nil {
		v.mu.footers++
	}
	v.mu.Unlock()
}

// pacer returns a function that waits as long as reading so many bytes may take.
func (s *Store) pacer(ctx context.Context) func(bytes int) error {
	v := &s.verifier
	timer := time.NewTimer(0)
	if !timer.Stop() {
		<-timer.C
	}
	return func(bytes int) error {
		v.mu.Lock()
		v.mu.bytes += int64(bytes)
		v.mu.Unlock()
		timer.Reset(time.Duration(float64(bytes) / float64(s.opt.VerifyBytesPerSecond) * float64(time.Second)))
		select {
		case <-timer.C:
			return ctx.Err()
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// footer is what is written behind a sealed segment that was read: when, and what is in it.
//
//	version u8 | verified i64 | records u64 | messages u64 | stored first i64, last i64 | partitions u32
//	of each partition, in order: topic u64 | incarnation u32 | partition u16 | first index u64 | end u64
type footer struct {
	Verified          int64 // unix nanoseconds
	Records, Messages uint64
	First, Last       int64 // lowest and highest stored time of a batch; 0 without one
	partitions        map[store.Partition]*span
}

// span is [From, To), perhaps with holes.
type span struct{ From, To index.Index }

const (
	footerFixedBytes     = 45
	footerPartitionBytes = 30
)

func (f *footer) add(rec journal.Record) error {
	f.Records++
	if rec.Kind != journal.KindMessages {
		return nil
	}
	b, err := wire.ParseBatch(rec.Payload)
	if err != nil {
		return nil // sound, and not ours to judge
	}
	f.Messages += uint64(b.Count())
	if f.First == 0 || rec.Stored < f.First {
		f.First = rec.Stored
	}
	f.Last = max(f.Last, rec.Stored)
	p, from := partitionOf(b), index.Index(b.FirstIndex())
	to := from + index.Index(b.Count())
	if x := f.partitions[p]; x != nil {
		x.From, x.To = min(x.From, from), max(x.To, to)
	} else {
		f.partitions[p] = &span{from, to}
	}
	return nil
}

func comparePartitions(a, b store.Partition) int {
	switch {
	case a.Topic != b.Topic:
		return cmp.Compare(a.Topic, b.Topic)
	case a.Incarnation != b.Incarnation:
		return cmp.Compare(a.Incarnation, b.Incarnation)
	}
	return cmp.Compare(a.Partition, b.Partition)
}

func (f *footer) encode(b []byte) []byte {
	b = append(b, footerVersion)
	for _, n := range []uint64{uint64(f.Verified), f.Records, f.Messages, uint64(f.First), uint64(f.Last)} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.partitions)))
	list := make([]store.Partition, 0, len(f.partitions))
	for p := range f.partitions {
		list = append(list, p)
	}
	slices.SortFunc(list, comparePartitions)
	for _, p := range list {
		b = binary.LittleEndian.AppendUint64(b, uint64(p.Topic))
		b = binary.LittleEndian.AppendUint32(b, p.Incarnation)
		b = binary.LittleEndian.AppendUint16(b, p.Partition)
		b = binary.LittleEndian.AppendUint64(b, uint64(f.partitions[p].From))
		b = binary.LittleEndian.AppendUint64(b, uint64(f.partitions[p].To))
	}
	return b
}

func decodeFooter(b []byte) (footer, error) {
	if len(b) < footerFixedBytes || b[0] != footerVersion {
		return footer{}, errors.New("store: not a footer of this version")
	}
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(b[1+8*i:]) }
	f := footer{Verified: int64(at(0)), Records: at(1), Messages: at(2), First: int64(at(3)), Last: int64(at(4)), partitions: map[store.Partition]*span{}}
	n := binary.LittleEndian.Uint32(b[41:])
	b = b[footerFixedBytes:]
	if uint64(len(b)) != uint64(n)*footerPartitionBytes {
		return footer{}, fmt.Errorf("store: footer of %d partitions has %d bytes of them", n, len(b))
	}
	for ; len(b) > 0; b = b[footerPartitionBytes:] {
		p := store.Partition{
			Topic: store.TopicID(binary.LittleEndian.Uint64(b)), Incarnation: binary.LittleEndian.Uint32(b[8:]), Partition: binary.LittleEndian.Uint16(b[12:]),
		}
		f.partitions[p] = &span{index.Index(binary.LittleEndian.Uint64(b[14:])), index.Index(binary.LittleEndian.Uint64(b[22:]))}
	}
	return f, nil
}
