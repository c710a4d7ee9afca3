package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Damage below what was proven to be on disk becomes a hole. Its bytes are copied to damaged/FROM-TO.bad, which is synced with its
// name; then they are overwritten with records of KindLost that cover exactly the range, so that whoever reads on comes to
// the next good record, and every later check passes. The name in the folder is the mark: a crash between the two leaves it,
// and recovery overwrites what is left of the range.

// Hole is a range of the journal whose records were lost to damage: [From, To).
type Hole struct{ From, To Position }

// Contains reports whether p lies in the hole.
func (h Hole) Contains(p Position) bool { return h.From <= p && p < h.To }

// LostError: the position lies in a hole.
type LostError struct{ From, To Position }

func (e *LostError) Error() string {
	return fmt.Sprintf("journal: records in [%d, %d) were lost to damage", e.From, e.To)
}

const (
	damagedDir     = "damaged"
	badSuffix      = ".bad"
	partSuffix     = ".part"
	holeNameFormat = "%020d-%020d" + badSuffix
)

var (
	lostRecordBytesMax = len(lostPayload) // a longer hole has several records; lower in a test
	lostPayload        [1 << 20]byte      // never written
)

// hole is a Hole and the file that keeps its bytes.
type hole struct {
	Hole
	size int64 // of the file
}

// findHole returns the hole that p lies in.
func findHole(holes []hole, p Position) (Hole, bool) {
	i, _ := slices.BinarySearchFunc(holes, p, func(h hole, p Position) int {
		if h.To <= p {
			return -1
		}
		return 1
	})
	if i < len(holes) && holes[i].Contains(p) {
		return holes[i].Hole, true
	}
	return Hole{}, false
}

// listHoles reads the names in the folder of what was set aside. Files that were not finished are added to parts.
func listHoles(fsys vfs.FS, dir string, parts []string) ([]hole, []string, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("list %s: %w", dir, err)
	}
	slices.Sort(names)
	var holes []hole
	for _, name := range names {
		if strings.HasSuffix(name, partSuffix) {
			parts = append(parts, fsys.PathJoin(dir, name))
			continue
		}
		from, rest, _ := strings.Cut(name, "-")
		to, ok := strings.CutSuffix(rest, badSuffix)
		h := hole{}
		var fromOK, toOK bool
		h.From, fromOK = parseSegmentName(from + segmentSuffix)
		h.To, toOK = parseSegmentName(to + segmentSuffix)
		if !ok || !fromOK || !toOK || h.From >= h.To {
			continue // not ours
		}
		info, err := fsys.Stat(fsys.PathJoin(dir, name))
		if err != nil {
			return nil, nil, fmt.Errorf("stat %s: %w", name, err)
		}
		h.size = info.Size()
		holes = append(holes, h)
	}
	return holes, parts, nil
}

// holePath is the file that keeps the bytes of h, in the journal's folder dir.
func holePath(fsys vfs.FS, dir string, h Hole) string {
	return fsys.PathJoin(dir, damagedDir, fmt.Sprintf(holeNameFormat, uint64(h.From), uint64(h.To)))
}

// setAside copies the bytes of h, which lies in seg, durably; zeroes stand for what cannot be read. f is nil if there are none.
func setAside(fsys vfs.FS, dir string, f vfs.File, seg *segment, h Hole) (hole, error) {
	fail := func(err error) (hole, error) {
		return hole{}, fmt.Errorf("set damaged [%d, %d) aside: %w", h.From, h.To, err)
	}
	folder := fsys.PathJoin(dir, damagedDir)
	if err := makeDir(fsys, folder); err != nil {
		return fail(err)
	}
	path := holePath(fsys, dir, h)
	part := strings.TrimSuffix(path, badSuffix) + partSuffix
	out, err := fsys.Create(part, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fail(err)
	}
	kept := hole{Hole: h}
	if f != nil {
		kept.size = int64(h.To - h.From)
		err = copyReadable(out, f, 0, seg.offset(h.From), kept.size)
	}
	if err == nil {
		err = out.Sync()
	}
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = fsys.Rename(part, path)
	}
	if err != nil {
		_ = fsys.Remove(part) // if it stays, Open removes it
		return fail(err)
	}
	if err := syncDirAt(fsys, folder); err != nil {
		return fail(err)
	}
	return kept, nil
}

// copyReadable copies n bytes of in at off to out at to; zeroes stand for what cannot be read.
func copyReadable(out, in vfs.File, to, off, n int64) error {
	w := window{file: in, size: scanBytes}
	for done := int64(0); done < n; {
		size := int(min(zeroCompareBytes-(off+done)%zeroCompareBytes, n-done))
		b, err := w.bytes(off+done, size, off+n)
		if isUnreadable(err) {
			size = min(size, sectorBytes-int((off+done)%sectorBytes))
			b, err = w.bytes(off+done, size, off+n)
		}
		if isUnreadable(err) {
			b, err = zeroes[:size], nil
		}
		if err != nil {
			return err
		}
		if err := writeAt(out, b, to+done); err != nil {
			return err
		}
		done += int64(size)
	}
	return nil
}

func syncDirAt(fsys vfs.FS, path string) error {
	d, err := fsys.OpenDir(path)
	if err != nil {
		return fmt.Errorf("open folder %s: %w", path, err)
	}
	defer d.Close()
	return syncDir(d)
}

// lostRecords calls each with the records of KindLost that cover h exactly, one after the other. Invariant: h is at least a record's
// header long, and begins and ends at multiples of 8. Durable says that what is before each was on disk, as it was.
func lostRecords(h Hole, epoch Epoch, stored int64, each func(Record) error) error {
	for pos := h.From; pos < h.To; {
		n := min(int(h.To-pos), lostRecordBytesMax)
		if rest := int(h.To-pos) - n; rest > 0 && rest < recordHeaderBytes {
			n -= recordHeaderBytes
		}
		r := Record{Kind: KindLost, Epoch: epoch, Position: pos, Durable: pos, Stored: stored, Payload: lostPayload[:n-recordHeaderBytes]}
		if err := each(r); err != nil {
			return err
		}
		pos += Position(n)
	}
	return nil
}

// overwrite writes records of KindLost over h in f, which is seg's, and syncs. An interrupted sync is repeated with its writes, as in
// writeSync.
func overwrite(f vfs.File, seg *segment, h Hole, epoch Epoch, stored int64) error {
	const tries = 10
	var buf []byte
	for try := 1; ; try++ {
		err := lostRecords(h, epoch, stored, func(r Record) error {
			buf = appendRecord(buf[:0], &r)
			seal(buf, r.Position, r.Durable, seg.seed)
			return writeAt(f, buf, seg.offset(r.Position))
		})
		if err == nil {
			err = f.Sync()
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EINTR) || try == tries {
			return fmt.Errorf("overwrite damaged [%d, %d) of %s: %w", h.From, h.To, seg.path, err)
		}
	}
}

// removeHoles removes, durably, what says that there are holes in [from, to), and shortens one that reaches into it from below.
func removeHoles(fsys vfs.FS, dir string, holes []hole, from, to Position) ([]hole, error) {
	var kept []hole
	changed := false
	for _, h := range holes {
		path := holePath(fsys, dir, h.Hole)
		switch {
		case h.To <= from || h.From >= to:
			kept = append(kept, h)
			continue
		case h.From < from:
			h.To = from
			if err := fsys.Rename(path, holePath(fsys, dir, h.Hole)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return holes, fmt.Errorf("shorten hole: %w", err)
			}
			kept = append(kept, h)
		default:
			if err := fsys.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return holes, fmt.Errorf("remove hole: %w", err)
			}
		}
		changed = true
	}
	if changed {
		if err := syncDirAt(fsys, fsys.PathJoin(dir, damagedDir)); err != nil {
			return holes, err
		}
	}
	return kept, nil
}

// Holes returns what was lost to damage, by position.
func (j *Journal) Holes() []Hole {
	p := j.holes.Load()
	if p == nil {
		return nil
	}
	out := make([]Hole, len(*p))
	for i, h := range *p {
		out[i] = h.Hole
	}
	return out
}

func (j *Journal) holeList() []hole {
	if p := j.holes.Load(); p != nil {
		return *p
	}
	return nil
}

// addHole makes h known. One at a time: Open's goroutine, or under trimMu.
func (j *Journal) addHole(h hole) {
	old := j.holeList()
	for _, o := range old {
		if o.Hole == h.Hole {
			return
		}
	}
	l := append(slices.Clone(old), h)
	slices.SortFunc(l, func(a, b hole) int {
		if a.From < b.From {
			return -1
		}
		return 1
	})
	j.holes.Store(&l)
}

// Heal sees to damage that a reader found at a position: what of the segment there is damaged is set aside and overwritten
// (KindLost), and the hole that holds at is returned, durable. The zero Hole and nil when the record can be read after all. It reads
// the whole segment. Appends wait while the range is overwritten, if it is in the segment that they go to.
//
// Errors: ErrTrimmed, ErrBeyond, ErrClosed, ErrFailed, the file system's; after those the damage is as before, or partly overwritten
// and set aside, and Heal can be called again. A failed write or sync in the segment that appends go to stops the journal.
func (j *Journal) Heal(at Position) (Hole, error) {
	j.trimMu.Lock()
	defer j.trimMu.Unlock()
	if err := j.Err(); err != nil {
		return Hole{}, err
	}
	seg, limit, err := j.locate(at)
	if err != nil {
		return Hole{}, err
	}
	if _, err := seg.acquire(j.fs); err != nil {
		return Hole{}, err
	}
	defer seg.release()
	f, err := j.fs.OpenReadWrite(seg.path, vfs.WriteCategoryUnspecified) // our own: what its sync says is of no commit
	if err != nil {
		return Hole{}, fmt.Errorf("open segment %s: %w", seg.path, err)
	}
	defer f.Close()
	l := *j.list.Load()
	s := scanner{fs: j.fs, list: l, at: l.find(at), holes: j.holeList(), unknown: j.Epoch()}
	s.heal = func(seg *segment, h Hole, known bool, epoch Epoch, reason string) error {
		return j.heal(f, seg, h, known, epoch, reason)
	}
	if _, err := s.walk(f, seg, limit); err != nil {
		return Hole{}, err
	}
	h, _ := findHole(j.holeList(), at)
	return h, nil
}

// heal sets h aside, unless that was done, and overwrites it.
func (j *Journal) heal(f vfs.File, seg *segment, h Hole, known bool, epoch Epoch, reason string) error {
	now := j.opts.Now()
	if !known {
		kept, err := setAside(j.fs, j.opts.Dir, f, seg, h)
		if err != nil {
			return err
		}
		j.addHole(kept)
		j.opts.Logger.Error("journal is damaged: the range is set aside and lost", "file", seg.path, "position", uint64(h.From), "to", uint64(h.To),
			"reason", reason)
	}
	return j.overCommitted(seg, func() error { return overwrite(f, seg, h, epoch, now.UnixNano()) })
}

// overCommitted runs write, which writes over what is below the end in seg and syncs. Where seg may have bytes that are not synced yet, it holds the
// right to commit and lets no Sync run meanwhile, for a failed sync of ours may have been the one that lost them: then no commit may
// follow it, and the journal stops.
func (j *Journal) overCommitted(seg *segment, write func() error) error {
	if !j.opened {
		return write()
	}
	j.syncMu.Lock()
	defer j.syncMu.Unlock()
	l := *j.list.Load()
	if i := l.find(seg.base); i+1 < len(l) && l[i+1].base <= j.Synced() {
		return write()
	}
	j.mu.Lock()
	err := j.ownLocked()
	j.mu.Unlock()
	if err != nil {
		return err
	}
	err = write()
	if err != nil {
		err = j.fail(err)
	}
	j.disown()
	return err
}
