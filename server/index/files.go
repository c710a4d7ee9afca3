package index

import (
	"container/list"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// files are the open ones, for reading only, by last use.
type files struct {
	fs  vfs.FS
	dir string
	max int

	mu struct {
		sync.Mutex
		open   map[*run]*list.Element // of *file
		used   *list.List             // front: last used
		closed bool
	}
}

// file is one open file. It is closed when it is dropped and nobody reads it.
type file struct {
	vfs.File
	run     *run
	readers int  // guarded by files.mu
	dropped bool // guarded by files.mu
}

func (s *files) init() {
	s.mu.open = map[*run]*list.Element{}
	s.mu.used = list.New()
}

func (s *files) path(name string) string { return s.fs.PathJoin(s.dir, name) }

// acquire opens the file of r, or finds it open. The caller releases it. Its content was judged when r was loaded or written.
func (s *files) acquire(r *run) (*file, error) {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	if el, ok := s.mu.open[r]; ok {
		f := el.Value.(*file)
		f.readers++
		s.mu.used.MoveToFront(el)
		s.mu.Unlock()
		return f, nil
	}
	s.mu.Unlock()

	path := s.path(r.name())
	vf, err := s.fs.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &DamageError{Run: r.RunID, File: path, Reason: "file is missing"}
	} else if err != nil {
		return nil, fmt.Errorf("index: open run: %w", err)
	}
	f := &file{File: vf, run: r, readers: 1}

	var closing []*file
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		vf.Close()
		return nil, ErrClosed
	}
	if el, ok := s.mu.open[r]; ok { // another reader was quicker
		closing = append(closing, f)
		f = el.Value.(*file)
		f.readers++
		s.mu.used.MoveToFront(el)
	} else if r.gone.Load() { // it is not looked for any more, so it would never be dropped
		f.dropped = true
	} else {
		s.mu.open[r] = s.mu.used.PushFront(f)
		for s.mu.used.Len() > s.max {
			if old := s.dropLocked(s.mu.used.Back()); old != nil {
				closing = append(closing, old)
			}
		}
	}
	s.mu.Unlock()
	for _, c := range closing {
		c.Close() // it was only read
	}
	return f, nil
}

func (s *files) release(f *file) {
	s.mu.Lock()
	f.readers--
	last := f.dropped && f.readers == 0
	s.mu.Unlock()
	if last {
		f.Close()
	}
}

// drop forgets the file of r, which was set gone before.
func (s *files) drop(r *run) {
	s.mu.Lock()
	var f *file
	if el, ok := s.mu.open[r]; ok {
		f = s.dropLocked(el)
	}
	s.mu.Unlock()
	if f != nil {
		f.Close()
	}
}

// dropLocked takes a file off the list and returns it when nobody reads it, for the caller to close.
func (s *files) dropLocked(el *list.Element) *file {
	f := el.Value.(*file)
	s.mu.used.Remove(el)
	delete(s.mu.open, f.run)
	f.dropped = true
	if f.readers == 0 {
		return f
	}
	return nil
}

func (s *files) closeAll() {
	s.mu.Lock()
	s.mu.closed = true
	var closing []*file
	for s.mu.used.Len() > 0 {
		if f := s.dropLocked(s.mu.used.Front()); f != nil {
			closing = append(closing, f)
		}
	}
	s.mu.Unlock()
	for _, f := range closing {
		f.Close()
	}
}

func (s *files) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.used.Len()
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("index: open folder %s: %w", dir, err)
	}
	err = d.Sync()
	if err = errors.Join(err, d.Close()); err != nil {
		return fmt.Errorf("index: sync folder %s: %w", dir, err)
	}
	return nil
}
