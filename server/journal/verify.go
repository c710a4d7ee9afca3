package journal

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Report is what Verify found.
type Report struct {
	StoreID  [16]byte
	Segments int
	Spares   int // prepared files, and ones whose preparation was not finished
	Bytes    int64
	Records  map[Kind]KindCount
	Epochs   []EpochBegin

	Begin  Position // of the first segment
	From   Position // where reading began
	Last   Position // of the last record; = From if there is none
	End    Position // after the last record
	Proven Position // what the journal says of itself to have been on disk: From <= Proven <= End

	// TornBytes is what lies between End and the last byte that is not zero in the segment: a torn tail, which Open would
	// cut. TornSegments follow it and would be removed.
	TornBytes    int64
	TornSegments int

	// Damage is the first damage found; nil if there is none. A *CorruptError, *VersionError or *ForeignError.
	Damage error
	// Damaged is the ranges that cannot be read; what lies between and behind them was read. Open makes holes of them, unless
	// it is Refused.
	Damaged []Hole
	// Headers counts the segments of which a copy of the header, or both, are damaged. Open makes them again.
	Headers int
	// Refused says that Open does not take the journal as it is; Repair may help.
	Refused bool
	// Holes is what was lost to damage before, and is known to be.
	Holes []Hole
	// Ends is what the ends file says; nil if there is none.
	Ends *Ends
	// SetAside is what was cut because another journal of the broker group has other records.
	SetAside []Aside
}

// KindCount counts the records of one kind.
type KindCount struct {
	Records int64
	Bytes   int64 // of payloads
}

// EpochBegin is where an epoch's first record was seen.
type EpochBegin struct {
	Epoch    Epoch
	Position Position
}

// Verify reads the journal in dir from a position on (0 is its begin), and checks every record as recovery would. It
// changes nothing; nobody may be writing. The error is for what could not be read at all; damage is in the report.
func Verify(fsys vfs.FS, dir string, from Position, progress func(done, total int64)) (Report, error) {
	return VerifyOf(fsys, dir, nil, from, progress)
}

// VerifyOf is Verify for who knows the store's id, as Open does: with it, a segment alone is read that has no good header.
func VerifyOf(fsys vfs.FS, dir string, store *[16]byte, from Position, progress func(done, total int64)) (Report, error) {
	r := Report{Records: map[Kind]KindCount{}, From: from, Last: from, End: from, Proven: from}
	damaged := func(err error) (Report, error) {
		var corrupt *CorruptError
		var version *VersionError
		var foreign *ForeignError
		if errors.As(err, &corrupt) || errors.As(err, &version) || errors.As(err, &foreign) {
			r.Damage, r.Refused = err, true
			return r, nil
		}
		return r, fmt.Errorf("verify journal: %w", err)
	}
	found, err := list(fsys, dir, store)
	r.Segments, r.Spares = len(found.segments), len(found.spares)+len(found.filling)
	if err != nil {
		return damaged(err)
	}
	l := found.segments
	r.SetAside = found.asides
	if found.endsKnown {
		r.Ends = &found.ends
	}
	if len(l) == 0 {
		return r, nil
	}
	defer func() {
		for _, s := range l {
			s.release()
		}
	}()
	r.StoreID, r.Begin = l[0].store, l[0].base
	r.Damage = l.chain(fsys, dir) // what lies behind a gap is read all the same
	r.Refused, r.Headers = r.Damage != nil, len(found.damaged)
	for _, h := range found.holes {
		r.Holes = append(r.Holes, h.Hole)
	}
	for _, d := range found.damaged {
		r.Damage = cmp.Or[error](r.Damage, &CorruptError{File: d.segment.path, Position: d.segment.base, Reason: d.reason})
	}
	if from == 0 {
		r.From, r.Last = r.Begin, r.Begin
	}
	s := scanner{fs: fsys, list: l, holes: found.holes, start: from, cut: found.cut, synced: found.ends.Synced, progress: progress, damage: func(err *CorruptError, h Hole) {
		r.Damage = cmp.Or[error](r.Damage, err)
		r.Damaged = append(r.Damaged, h)
	}, record: func(rec Record) error {
		c := r.Records[rec.Kind]
		c.Records++
		c.Bytes += int64(len(rec.Payload))
		r.Records[rec.Kind] = c
		r.Bytes += int64(RecordBytes(len(rec.Payload)))
		r.Last = rec.Position
		if n := len(r.Epochs); n == 0 || r.Epochs[n-1].Epoch != rec.Epoch {
			r.Epochs = append(r.Epochs, EpochBegin{Epoch: rec.Epoch, Position: rec.Position})
		}
		return nil
	}}
	err = s.run()
	r.End, r.Proven = max(s.end, r.From), max(s.proven, r.From)
	if err != nil {
		return damaged(err)
	}
	r.TornBytes = max(int64(s.leftover-s.end), 0)
	r.TornSegments = len(l) - 1 - s.at
	return r, nil
}

// Dump gives every record of the journal in dir from a position on to each, in order; payloads are valid during the call. It
// changes nothing; nobody may be writing. dir may also be one file that CutTo has set aside. What is damaged is left out, and the first
// damage is the error returned when all that can be read was given. Other errors: each's, and what could not be read at all.
func Dump(fsys vfs.FS, dir string, from Position, each func(Record) error) error {
	var found folder
	info, err := fsys.Stat(dir)
	if err == nil && !info.IsDir() {
		found, err = readAside(fsys, dir)
	} else if err == nil {
		found, err = list(fsys, dir, nil)
	}
	if err != nil {
		return fmt.Errorf("dump journal: %w", err)
	}
	l := found.segments
	defer func() {
		for _, s := range l {
			s.release()
		}
	}()
	if len(l) == 0 {
		return nil
	}
	start := Position(0)
	if i := l.find(from); i > 0 {
		start = l[i].base // from need not be where a record begins
	}
	damage := l.chain(fsys, dir) // what lies behind a gap is shown all the same
	s := scanner{fs: fsys, list: l, holes: found.holes, start: start, cut: found.cut, synced: found.proven(),
		damage: func(err *CorruptError, h Hole) {
			if h.To > from {
				damage = cmp.Or[error](damage, err)
			}
		},
		record: func(r Record) error {
			if r.Position < from {
				return nil
			}
			return each(r)
		},
	}
	return cmp.Or(s.run(), damage)
}
