package journal

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// RepairOptions of Repair.
type RepairOptions struct {
	// StoreID is the store's, needed when no segment's header says it; nil is not known.
	StoreID *[16]byte
	// End is a position that the caller has proof for (a checkpoint): a journal that ends before it is made to reach it. 0 is none.
	End Position
	// DryRun changes nothing, and reports what would be done.
	DryRun   bool
	Progress func(done, total int64)
}

// RepairReport is what Repair has done, or would do.
type RepairReport struct {
	Headers  []string // files whose header was made anew
	Lost     []Hole   // damage that is now lost ranges
	Missing  []Hole   // what no segment was there for; now lost ranges
	SetAside string   // the last segment, which had neither a header nor a record: moved to the folder of what is damaged
	// End is where the journal ends; behind it there may be a torn tail, which the next Open cuts.
	End Position
}

// StoreOf returns the id of the store that the journal in dir is of, as its segments say. It changes nothing.
func StoreOf(fsys vfs.FS, dir string) (id [16]byte, err error) {
	found, err := list(fsys, dir, nil)
	for _, s := range found.segments {
		id = s.store
		s.release()
	}
	if err == nil && len(found.segments) == 0 {
		err = errors.New("there is no segment")
	}
	if err != nil {
		return id, fmt.Errorf("find the store of journal %s: %w", dir, err)
	}
	return id, nil
}

// Nothing reports whether nothing was to be done.
func (r RepairReport) Nothing() bool {
	return len(r.Headers)+len(r.Lost)+len(r.Missing) == 0 && r.SetAside == ""
}

// Repair brings the journal in dir, which nobody has open, into a state that Open takes: it does what Open would do about
// damage, and what Open refuses to do by itself: segments that are missing in between become lost ranges, and a last segment of
// which nothing is known goes. Nothing that can be read is changed. It can be interrupted and called again.
//
// Errors: *VersionError, *ForeignError, *CorruptError (a segment under another's name: rename it), the file system's.
func Repair(fsys vfs.FS, dir string, o RepairOptions) (RepairReport, error) {
	var r RepairReport
	err := repairFolder(fsys, dir, o, &r)
	if err != nil {
		err = fmt.Errorf("repair journal: %w", err)
	}
	return r, err
}

func repairFolder(fsys vfs.FS, dir string, o RepairOptions, r *RepairReport) error {
	found, err := read(fsys, dir, o.StoreID)
	if err != nil {
		return err
	}
	l := found.segments
	defer func() {
		for _, s := range l {
			s.release()
		}
	}()
	if bad := found.hopeless; bad != nil {
		r.SetAside = bad.File
		if !o.DryRun {
			folder := fsys.PathJoin(dir, damagedDir)
			if err := makeDir(fsys, folder); err != nil {
				return err
			}
			if err := fsys.Rename(bad.File, fsys.PathJoin(folder, fsys.PathBase(bad.File))); err != nil {
				return fmt.Errorf("set %s aside: %w", bad.File, err)
			}
			if err := syncDirAt(fsys, folder); err != nil {
				return err
			}
			if err := syncDirAt(fsys, dir); err != nil {
				return err
			}
		}
	}
	if len(l) == 0 {
		return nil
	}
	if found.cut != nil { // what is beyond is as good as gone
		l = l[:l.find(*found.cut)+1]
	}
	if found.proven() == 0 && found.cut == nil {
		o.End = max(o.End, found.ends.Synced)
	}
	header := map[*segment]bool{}
	for _, d := range found.damaged {
		header[d.segment] = true
		r.Headers = append(r.Headers, d.segment.path)
	}
	var missing []*segment // to be made
	before := l[0]
	for _, s := range l[1:] {
		if s.previous != before.base {
			if lost := (Hole{before.limit(), s.base}); lost.From < lost.To {
				before = lostSegment(fsys, dir, before, lost)
				missing = append(missing, before)
				r.Missing = append(r.Missing, lost)
			}
			if s.previous != before.base {
				s.previous = before.base
				header[s] = true
			}
		}
		before = s
	}
	if !o.DryRun {
		for _, s := range missing {
			if err := makeLost(fsys, dir, s, Hole{s.base, s.limit()}, l, 0); err != nil {
				return err
			}
		}
		for s := range header {
			if err := s.openForWriting(fsys); err != nil {
				return err
			}
			if err := writeHeader(s.mu.file, &s.header); err != nil {
				return fmt.Errorf("write header of %s: %w", s.path, err)
			}
		}
		if len(missing) > 0 { // they are segments now
			for _, s := range l {
				s.release()
			}
			if found, err = list(fsys, dir, &l[0].store); err != nil {
				return err
			}
			l = found.segments
			if found.cut != nil {
				l = l[:l.find(*found.cut)+1]
			}
		}
	}
	s := scanner{fs: fsys, list: l, holes: found.holes, cut: found.cut, synced: found.proven(), progress: o.Progress}
	s.damage = func(_ *CorruptError, h Hole) {
		for _, m := range r.Missing {
			if m == h {
				return
			}
		}
		r.Lost = append(r.Lost, h)
	}
	if !o.DryRun {
		s.heal = func(seg *segment, h Hole, known bool, epoch Epoch, _ string) error {
			if err := seg.openForWriting(fsys); err != nil {
				return err
			}
			if !known {
				if _, err := setAside(fsys, dir, seg.mu.file, seg, h); err != nil {
					return err
				}
				r.Lost = append(r.Lost, h)
			}
			s.window.file = seg.mu.file
			return overwrite(seg.mu.file, seg, h, epoch, time.Now().UnixNano())
		}
	}
	if err := s.run(); err != nil {
		return err
	}
	r.End = s.end
	last := l[s.at]
	if o.End <= s.end || found.cut != nil {
		return nil
	}
	lost := Hole{s.end, max(o.End, s.end+recordHeaderBytes)}
	r.Missing = append(r.Missing, lost)
	r.End = lost.To
	if o.DryRun {
		return nil
	}
	if rest := (Hole{s.end, min(lost.To, last.limit())}); rest.To-rest.From >= recordHeaderBytes { // else the last segment has no room for a record
		known := len(r.Lost)
		if err := s.heal(last, rest, false, s.last, ""); err != nil {
			return err
		}
		r.Lost = r.Lost[:known] // it is part of what is missing
		lost.From = rest.To
	}
	if lost.To-lost.From == 0 {
		return nil
	}
	lost.To = max(lost.To, lost.From+recordHeaderBytes)
	r.End = lost.To
	return makeLost(fsys, dir, lostSegment(fsys, dir, last, lost), lost, l, s.last)
}

// lostSegment is a segment of nothing but what is lost.
func lostSegment(fsys vfs.FS, dir string, before *segment, lost Hole) *segment {
	h := header{store: before.store, base: lost.From, previous: before.base, durable: lost.From, capacity: int64(lost.To - lost.From), created: before.created}
	return newSegment(h, fsys.PathJoin(dir, segmentName(lost.From)), nil)
}

// makeLost makes the file of s, whose records h are all lost, between the segments of l. Epoch 0 is that of the next record there is.
func makeLost(fsys vfs.FS, dir string, s *segment, h Hole, l segments, epoch Epoch) error {
	for i := 0; epoch == 0 && i < len(l); i++ {
		if l[i].base < h.To {
			continue
		}
		r, _, err := firstRecord(fsys, l[i])
		if err != nil {
			return err
		}
		epoch = r.Epoch
	}
	if _, err := setAside(fsys, dir, nil, s, h); err != nil {
		return err
	}
	filling := fsys.PathJoin(dir, fmt.Sprintf(fillingNameFormat, 0))
	f, err := fsys.Create(filling, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("make segment: %w", err)
	}
	err = overwrite(f, s, h, epoch, time.Now().UnixNano())
	if err == nil {
		err = writeHeader(f, &s.header)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = fsys.Rename(filling, s.path)
	}
	if err != nil {
		_ = fsys.Remove(filling)
		return fmt.Errorf("make segment %s: %w", s.path, err)
	}
	return syncDirAt(fsys, dir)
}
