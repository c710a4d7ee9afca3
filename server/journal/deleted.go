package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// dirTick is more than what the clock of a file system may take to go on: two changes within it may have one time.
const dirTick = time.Second

// Restore makes files again that somebody deleted under the open journal: a segment's with all it held where it is still open here, which the
// current one always is; of the others what they held is lost, a hole that Mend can fill. Prepared segments that are gone are made by the preparer.
// It returns the holes that it has made. While the folder is as it was at the last call it costs one look at its time.
//
// Errors: those of the file system; what is not done then is done by a later call. Where the current segment cannot be made again the journal stops:
// what it is given is on no disk.
func (j *Journal) Restore() (lost []Hole, err error) {
	j.trimMu.Lock()
	defer j.trimMu.Unlock()
	if j.Err() != nil {
		return nil, nil // nothing more is written to that disk
	}
	info, err := j.fs.Stat(j.opts.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it was moved away, and may come back
	}
	if err != nil {
		return nil, fmt.Errorf("look at the journal's folder: %w", err)
	}
	changed := info.ModTime()
	if changed.Equal(j.lookedAt) {
		return nil, nil
	}
	l := *j.list.Load() // before the names: what is added to it meanwhile has one already
	spares := j.preparedPaths()
	names, err := j.fs.List(j.opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("list journal %s: %w", j.opts.Dir, err)
	}
	there := make(map[string]bool, len(names))
	for _, name := range names {
		there[name] = true
	}
	j.forgetPrepared(slices.DeleteFunc(spares, func(path string) bool { return there[j.fs.PathBase(path)] }))
	for i, s := range l {
		if there[j.fs.PathBase(s.path)] {
			continue
		}
		hole, err := j.restore(l, i)
		if err != nil {
			return lost, err
		}
		if hole.From < hole.To {
			lost = append(lost, hole)
		}
	}
	if time.Since(changed) > dirTick {
		j.lookedAt = changed
	}
	return lost, nil
}

// restore makes the file of segment i of l again. The zero Hole: nothing of it is lost.
func (j *Journal) restore(l segments, i int) (Hole, error) {
	s := l[i]
	s.mu.Lock()
	old := s.mu.file
	s.mu.Unlock()
	if old == nil {
		h := Hole{s.base, l.end(i, s.limit())}
		if err := makeLost(j.fs, j.opts.Dir, s, h, l, j.epochBefore(s.base)); err != nil {
			return Hole{}, err
		}
		s.footer.Store(false)
		s.size.Store(s.offset(h.To))
		j.addHole(hole{Hole: h})
		j.opts.Logger.Error("a segment of the journal was deleted: what it held is lost", "file", s.path, "position", uint64(h.From), "to", uint64(h.To))
		return h, nil
	}
	err := j.overCommitted(s, func() error {
		if now := *j.list.Load(); i >= len(now) || now[i] != s {
			return nil // an empty one whose place another has taken
		}
		f, err := copyAgain(j.fs, j.opts.Dir, s.path, old)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.mu.retired = append(s.mu.retired, s.mu.file)
		s.mu.file, s.mu.writable = f, true
		s.mu.Unlock()
		return syncDir(j.dir)
	})
	if err != nil {
		return Hole{}, err
	}
	j.opts.Logger.Error("a segment of the journal was deleted: it is written again, nothing of it is lost", "file", s.path, "position", uint64(s.base))
	return Hole{}, nil
}

// copyAgain makes the file at path with what old holds, whose name is gone.
func copyAgain(fsys vfs.FS, dir, path string, old vfs.File) (vfs.File, error) {
	filling := fsys.PathJoin(dir, fmt.Sprintf(fillingNameFormat, 0))
	f, err := fsys.Create(filling, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, fmt.Errorf("make segment again: %w", err)
	}
	info, err := old.Stat()
	if err == nil {
		err = copyReadable(f, old, 0, 0, info.Size())
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = fsys.Rename(filling, path)
	}
	if err != nil {
		_ = f.Close()
		_ = fsys.Remove(filling) // if it stays, Open removes it
		return nil, fmt.Errorf("make segment %s again: %w", path, err)
	}
	return f, nil
}

// epochBefore is the epoch of what lies before a position; 0: that is not known.
func (j *Journal) epochBefore(pos Position) (e Epoch) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range j.mu.history {
		if s.Position >= pos {
			break
		}
		e = s.Epoch
	}
	return e
}

// preparedPaths are the files of the spares and of the reserve.
func (j *Journal) preparedPaths() (paths []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range j.mu.spares {
		paths = append(paths, s.path)
	}
	if j.mu.reserve.file != nil {
		paths = append(paths, j.mu.reserve.path)
	}
	return paths
}

// forgetPrepared gives up spares and the reserve whose files are gone; the preparer makes others.
func (j *Journal) forgetPrepared(paths []string) {
	if len(paths) == 0 {
		return
	}
	j.mu.Lock()
	var given []spare
	j.mu.spares = slices.DeleteFunc(j.mu.spares, func(s spare) bool {
		gone := slices.Contains(paths, s.path)
		if gone {
			given = append(given, s)
		}
		return gone
	})
	if j.mu.reserve.file != nil && slices.Contains(paths, j.mu.reserve.path) {
		given = append(given, j.mu.reserve)
		j.mu.reserve = spare{}
	}
	j.mu.Unlock()
	for _, s := range given {
		_ = s.file.Close() // nothing in it is of use
		j.opts.Logger.Warn("a prepared segment of the journal was deleted: another one is made", "file", s.path)
	}
	j.wakePreparer()
}
