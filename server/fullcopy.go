package server

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/store/local"
)

// A full copy is made in a folder of its own, copyName, beside the store that it replaces; its journal and its index lie beside theirs where
// these have folders of their own. When it is complete and synced the mark is written, and from then on the old store goes: install moves the
// new one to its place, and goes on after a crash where it was, since each step is done while what it moves is still where it was.
const (
	copyName     = "COPY"     // in the data folder
	copyMark     = "COMPLETE" // in it
	copySuffix   = ".copy"    // of folders elsewhere
	seedName     = "SEED"     // of what a copy begins with, while it comes
	seedPrefix   = "seed-"    // of those that are given to others
	divergedName = "diverged" // in the journal's folder: what was set aside, which stays
)

// place is a folder of the store with that of its copy.
type place struct{ own, copy string }

// copies are the places of what is copied.
type copies struct {
	fs             vfs.FS
	dir, from      string // of the store and of its copy
	journal, index place
}

func (s *Server) copies() copies {
	b, vf := &s.config.Broker, s.config.FS
	c := copies{fs: vf, dir: s.dir, from: vf.PathJoin(s.dir, copyName)}
	at := func(own, name string) place {
		if own != "" {
			return place{own, own + copySuffix}
		}
		return place{vf.PathJoin(c.dir, name), vf.PathJoin(c.from, name)}
	}
	c.journal, c.index = at(b.Journal.Folder, "journal"), at(b.Index.Folder, "index")
	return c
}

// options are those of the copy's store.
func (c *copies) options(o local.Options) local.Options {
	o.Dir, o.JournalDir, o.IndexDir = c.from, c.journal.copy, c.index.copy
	return o
}

// has says whether a file or folder is there. An error is neither: what cannot be seen is not taken as gone.
func (c *copies) has(name string) (bool, error) {
	_, err := c.fs.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// clear removes what an earlier copy has left.
func (c *copies) clear() error {
	var errs []error
	for _, dir := range []string{c.from, c.journal.copy, c.index.copy} {
		there, err := c.has(dir)
		if there {
			err = c.fs.RemoveAll(dir)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// complete marks that the copy is whole.
func (c *copies) complete() error {
	f, err := c.fs.Create(c.fs.PathJoin(c.from, copyMark), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return c.sync(c.from, c.dir)
}

func (c *copies) sync(dirs ...string) error {
	for _, dir := range dirs {
		d, err := c.fs.OpenDir(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			return err
		}
	}
	return nil
}

// install puts a copy that is complete in the place of the store, or removes one that is not.
func (c *copies) install() error {
	whole, err := c.has(c.fs.PathJoin(c.from, copyMark))
	if err != nil {
		return err
	}
	if !whole {
		return c.clear()
	}
	there, err := c.has(c.journal.copy)
	if err != nil {
		return err
	}
	if there {
		if err := c.keepAside(); err != nil {
			return err
		}
		if err := c.removeStore(); err != nil {
			return err
		}
		if err := c.move(c.journal); err != nil {
			return err
		}
	}
	if there, err = c.has(c.index.copy); err != nil {
		return err
	}
	if there {
		if err := c.move(c.index); err != nil {
			return err
		}
	}
	names, err := c.fs.List(c.from)
	if err != nil {
		return err
	}
	for _, n := range names {
		if strings.HasPrefix(n, "checkpoint-") {
			if err := c.fs.Rename(c.fs.PathJoin(c.from, n), c.fs.PathJoin(c.dir, n)); err != nil {
				return err
			}
		}
	}
	if err := c.sync(c.dir); err != nil { // STORE comes last: where it is, all is
		return err
	}
	id := c.fs.PathJoin(c.from, "STORE")
	if there, err = c.has(id); err != nil {
		return err
	}
	if there {
		if err := c.fs.Rename(id, c.fs.PathJoin(c.dir, "STORE")); err != nil {
			return err
		}
	}
	if err := c.sync(c.dir); err != nil {
		return err
	}
	return c.clear()
}

// keepAside has the copy's journal take what was set aside of the old one.
func (c *copies) keepAside() error {
	aside, to := c.fs.PathJoin(c.journal.own, divergedName), c.fs.PathJoin(c.journal.copy, divergedName)
	there, err := c.has(aside)
	moved, merr := c.has(to)
	if err := errors.Join(err, merr); err != nil || !there || moved {
		return err
	}
	if err := c.fs.Rename(aside, to); err != nil {
		return err
	}
	return c.sync(c.journal.copy)
}

// removeStore removes what makes the old store one, and its content.
func (c *copies) removeStore() error {
	names, err := c.fs.List(c.dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if n == "STORE" || strings.HasPrefix(n, "checkpoint-") {
			if err := c.fs.Remove(c.fs.PathJoin(c.dir, n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return c.sync(c.dir)
}

// move puts a copy's folder in the place of the store's.
func (c *copies) move(p place) error {
	there, err := c.has(p.own)
	if err != nil {
		return err
	}
	if there {
		if err := c.fs.RemoveAll(p.own); err != nil {
			return err
		}
	}
	if err := c.fs.Rename(p.copy, p.own); err != nil {
		return err
	}
	return c.sync(c.fs.PathDir(p.own), c.fs.PathDir(p.copy))
}

// copyAll replaces the store by a copy of the master's, unless that ends before: another is named meanwhile. The engine is closed.
func (x *replicas) copyAll() error {
	if err := x.closeEngine(); err != nil {
		x.s.log.Warn("the store was not closed well", "err", err)
	}
	x.mu.Lock()
	x.mu.copying = true
	x.mu.Unlock()
	defer func() {
		x.mu.Lock()
		x.mu.copying = false
		x.mu.Unlock()
	}()
	ctx, cancel := context.WithCancel(x.ctx)
	defer cancel()
	c := x.s.copies()
	begun := time.Now()
	done := make(chan error, 1)
	go func() { done <- x.copyTo(ctx, &c) }()
	for {
		select {
		case err := <-done:
			if err != nil {
				if x.ctx.Err() == nil {
					x.s.log.Warn("the full copy was given up", "brokerGroup", x.group(), "err", err)
					err = c.clear()
				}
				return err
			}
			if err := c.install(); err != nil {
				return FolderError(x.s.dir, err)
			}
			if err := x.look(); err != nil {
				return err
			}
			x.s.log.Info("the store is a full copy of the master's now", "brokerGroup", x.group(), "took", time.Since(begun).Round(time.Millisecond))
			return nil
		case <-x.wake:
			if row, ok := x.row(); ok && row.Master.Broker == x.name() {
				cancel()
			}
		}
	}
}

// copyTo makes the copy, up to its mark.
func (x *replicas) copyTo(ctx context.Context, c *copies) error {
	vf := x.s.config.FS
	var seed vfs.File
	path := vf.PathJoin(c.from, seedName)
	size := int64(0)
	shut := func() error {
		if seed == nil {
			return nil
		}
		err := seed.Close()
		seed = nil
		return err
	}
	err := replica.FullCopy(ctx, x.node(), replica.CopyOptions{
		Clear: func() error { return errors.Join(shut(), c.clear()) },
		Seed: func(b []byte, offset, all int64) (err error) {
			if seed == nil {
				if err := vf.MkdirAll(c.from, 0o700); err != nil {
					return err
				}
				if seed, err = vf.OpenReadWrite(path, vfs.WriteCategoryUnspecified); err != nil {
					return err
				}
			}
			size = all
			_, err = seed.WriteAt(b, offset)
			return err
		},
		Plant: func(_, begin journal.Position) (journal.Options, error) {
			o := c.options(x.r.storeOptions())
			made, err := local.BeginFromSeed(o, seed, size)
			if err = errors.Join(err, shut()); err != nil {
				return journal.Options{}, err
			}
			return journal.Options{
				FS: vf, Dir: c.journal.copy, StoreID: made.StoreID, SegmentBytesMax: o.SegmentBytesMax, Now: o.Now, Logger: o.Logger,
			}, vf.Remove(path)
		},
		Progress: x.s.progress,
	})
	if err = errors.Join(err, shut()); err != nil {
		return err
	}
	return c.complete()
}

// copyFrom does what replica.ActCopy says: the own journal, cut, goes on as another broker's. The engine is closed.
func (x *replicas) copyFrom(d replica.Decision) (err error) {
	if d.Full {
		return fmt.Errorf("nothing of the journal of broker %s is here, and it does not begin at 0: promote that broker", d.From)
	}
	if err := x.closeEngine(); err != nil {
		x.s.log.Warn("the store was not closed well", "err", err)
	}
	o := x.r.storeOptions()
	j, err := local.OpenFollowing(o)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, j.Close())
		x.lost(err)
		err = errors.Join(err, x.look())
	}()
	return replica.CopyMissing(x.ctx, x.node(), d, j.Journal)
}

// look looks at the closed store anew.
func (x *replicas) look() error {
	looked, err := local.Look(x.r.storeOptions())
	if err != nil {
		return FolderError(x.s.dir, err)
	}
	x.mu.Lock()
	x.mu.looked = looked
	x.mu.Unlock()
	id := hex.EncodeToString(looked.StoreID[:])
	x.store.Store(&id)
	return nil
}

// seed is what a full copy of this store begins with: a file that goes with it.
type seed struct {
	vfs.File
	fs      vfs.FS
	path    string
	size    int64
	of      local.Seed
	release func()
}

func (s *seed) Size() int64                { return s.size }
func (s *seed) Position() journal.Position { return s.of.Position }
func (s *seed) Begin() journal.Position    { return s.of.Begin }

func (s *seed) Close() error {
	s.release()
	return errors.Join(s.File.Close(), s.fs.Remove(s.path))
}

// makeSeed has the store of the master that is open write one.
func (x *replicas) makeSeed(context.Context) (_ replica.Seed, err error) {
	e := x.r.engine.Load()
	if e == nil || e.master == nil {
		return nil, x.notMaster()
	}
	vf := x.s.config.FS
	s := &seed{fs: vf, path: vf.PathJoin(x.s.dir, fmt.Sprintf("%s%d", seedPrefix, x.seeds.Add(1)))}
	if s.File, err = vf.OpenReadWrite(s.path, vfs.WriteCategoryUnspecified); err != nil {
		return nil, err
	}
	w := &counted{f: s.File}
	b := bufio.NewWriterSize(w, 1<<20)
	if s.of, s.release, err = e.store.WriteSeed(b); err == nil {
		if err = b.Flush(); err != nil {
			s.release()
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.File.Close(), vf.Remove(s.path))
	}
	s.size = w.n
	return s, nil
}

// counted writes one after the other.
type counted struct {
	f vfs.File
	n int64
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.f.WriteAt(b, c.n)
	c.n += int64(n)
	return n, err
}

// removeSeeds removes those of an earlier life.
func (x *replicas) removeSeeds() {
	vf := x.s.config.FS
	names, err := vf.List(x.s.dir)
	if err != nil {
		return // there is no folder yet
	}
	for _, n := range names {
		if strings.HasPrefix(n, seedPrefix) {
			_ = vf.Remove(vf.PathJoin(x.s.dir, n)) // it costs room, no more
		}
	}
}
