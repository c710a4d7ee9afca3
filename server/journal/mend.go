package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const mendedSuffix = ".mended"

// Mend puts records back that were lost to damage: those of another copy of this journal, which fill the hole exactly, and whose
// checksums begin with that store's id. The hole is one of Holes, or records of KindLost that were copied. They are durable when it
// returns, and what was set aside gets another name. A crash in the middle leaves the hole, as it was or with some records back. records is changed.
//
// Errors: ErrNotCopied if these are not the records that can have been there (nothing was changed), ErrTrimmed, ErrBeyond, ErrClosed,
// ErrFailed, the file system's: then Mend can be called again. A failed write or sync in the segment that is written to stops the journal.
func (j *Journal) Mend(h Hole, records []byte, store [16]byte) error {
	j.trimMu.Lock()
	defer j.trimMu.Unlock()
	if err := j.Err(); err != nil {
		return err
	}
	seg, limit, err := j.locate(h.From)
	if err != nil {
		return err
	}
	if h.To > limit {
		return ErrBeyond
	}
	if _, err := seg.acquire(j.fs); err != nil {
		return err
	}
	defer seg.release()
	f, err := j.fs.OpenReadWrite(seg.path, vfs.WriteCategoryUnspecified) // our own: what its sync says is of no commit
	if err != nil {
		return fmt.Errorf("open segment %s: %w", seg.path, err)
	}
	defer f.Close()
	listed := false
	for _, known := range j.holeList() {
		listed = listed || known.Hole == h
	}
	least, most, err := j.around(f, seg, h, limit, listed)
	if err != nil {
		return err
	}
	started, err := checkMend(h, records, crcSeed(store), least, most)
	if err != nil {
		return err
	}
	for off := 0; off < len(records); { // what is before each was on disk, as it was
		length := int(binary.LittleEndian.Uint32(records[off+atLength:]))
		seal(records[off:off+align8(length)], h.From+Position(off), h.From+Position(off), j.seed)
		off += align8(length)
	}
	if err := j.overCommitted(seg, func() error { return writeOver(f, seg, h.From, records) }); err != nil {
		return err
	}
	for _, s := range started {
		j.startsAt(s)
	}
	if listed {
		path := holePath(j.fs, j.opts.Dir, h)
		err := j.fs.Rename(path, strings.TrimSuffix(path, badSuffix)+mendedSuffix)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = syncDirAt(j.fs, j.fs.PathJoin(j.opts.Dir, damagedDir))
		}
		if err != nil {
			return fmt.Errorf("mend [%d, %d): %w", h.From, h.To, err)
		}
		var rest []hole
		for _, known := range j.holeList() {
			if known.Hole != h {
				rest = append(rest, known)
			}
		}
		j.holes.Store(&rest)
	}
	j.opts.Logger.Info("journal's lost records are put back", "file", seg.path, "position", uint64(h.From), "to", uint64(h.To))
	return nil
}

// around returns the epochs between which those of the records in h can be. Where the hole is not one that was listed, nothing but records of
// KindLost may be in it.
func (j *Journal) around(f vfs.File, seg *segment, h Hole, limit Position, listed bool) (least, most Epoch, err error) {
	w := window{file: f, size: readAheadBytes}
	refuse := func(pos Position, reason string) (Epoch, Epoch, error) {
		return 0, 0, fmt.Errorf("%w: at position %d: %s", ErrNotCopied, pos, reason)
	}
	most = j.Epoch()
	if h.To < limit {
		r, reason, err := w.record(seg, h.To, limit)
		if err != nil {
			return 0, 0, err
		}
		if reason != "" {
			return refuse(h.To, "no record is there: "+reason)
		}
		most = r.Epoch
	}
	for pos := h.From; pos < h.To; {
		r, reason, err := w.record(seg, pos, h.To)
		switch {
		case err != nil:
			return 0, 0, err
		case reason != "":
			return refuse(pos, reason)
		case !listed && r.Kind != KindLost:
			return refuse(pos, "nothing was lost here")
		}
		if pos == h.From && r.Kind == KindLost {
			least = r.Epoch
		}
		pos = r.End()
	}
	return min(least, most), most, nil
}

// checkMend looks at records that are to fill h, and returns the epochs that begin with one of them.
func checkMend(h Hole, b []byte, seed uint32, least, most Epoch) (started []EpochStart, err error) {
	if h.From >= h.To || int64(len(b)) != int64(h.To-h.From) {
		return nil, fmt.Errorf("%w: %d bytes for [%d, %d)", ErrNotCopied, len(b), h.From, h.To)
	}
	for off := 0; off < len(b); {
		pos := h.From + Position(off)
		refuse := func(reason string) ([]EpochStart, error) {
			return nil, fmt.Errorf("%w: at position %d: %s", ErrNotCopied, pos, reason)
		}
		if len(b)-off < recordHeaderBytes {
			return refuse("no record")
		}
		length, reason := recordLength(b[off:], pos, int64(len(b)-off))
		if reason != "" {
			return refuse(reason)
		}
		if crc32.Update(seed, crcTable, b[off+atKind:off+length]) != binary.LittleEndian.Uint32(b[off+atCRC:]) {
			return refuse("checksum is wrong")
		}
		r := fields(b[off : off+length])
		switch {
		case r.Kind == KindLost:
			return refuse("it is lost there too")
		case r.Epoch < least || r.Epoch > most:
			return refuse(fmt.Sprintf("epoch %v is not within [%v, %v]", r.Epoch, least, most))
		case r.Kind == KindEpoch:
			started = append(started, EpochStart{r.Epoch, pos, r.Flags&epochForced != 0})
		}
		least = r.Epoch
		clear(b[off+length : off+align8(length)])
		off += align8(length)
	}
	return started, nil
}

// writeOver writes b at pos in f, which is seg's, and syncs. An interrupted sync is repeated with its write.
func writeOver(f vfs.File, seg *segment, pos Position, b []byte) error {
	const tries = 10
	for try := 1; ; try++ {
		err := writeAt(f, b, seg.offset(pos))
		if err == nil {
			err = f.Sync()
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EINTR) || try == tries {
			return fmt.Errorf("mend %s: %w", seg.path, err)
		}
	}
}

// startsAt corrects the history by an epoch's record that was lost.
func (j *Journal) startsAt(s EpochStart) {
	j.mu.Lock()
	h := append([]EpochStart(nil), j.mu.history...)
	j.mu.Unlock()
	for i, known := range h {
		if known.Epoch == s.Epoch && known.Position != s.Position {
			h[i] = s
			j.setHistory(h)
			return
		}
		if known.Epoch > s.Epoch {
			j.setHistory(append(h[:i:i], append([]EpochStart{s}, h[i:]...)...))
			return
		}
	}
}

// removeMended removes what was set aside of holes that are mended, below a position.
func removeMended(fsys vfs.FS, dir string, to Position) error {
	folder := fsys.PathJoin(dir, damagedDir)
	names, err := fsys.List(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", folder, err)
	}
	for _, name := range names {
		stem, ok := strings.CutSuffix(name, mendedSuffix)
		_, end, _ := strings.Cut(stem, "-")
		if p, named := parseSegmentName(end + segmentSuffix); !ok || !named || p > to {
			continue
		}
		if err := fsys.Remove(fsys.PathJoin(folder, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove what was mended: %w", err)
		}
	}
	return nil
}
