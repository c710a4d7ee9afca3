package registry

import (
	"context"
	"slices"
	"time"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// pageBytes is about how much a page of objects holds. A version is never told in two pages, so one may hold more. It is small
// against a listener's memory for large frames, since after a new generation all ask at once.
const pageBytes = 512 << 10

// sortedObjects are all objects of a snapshot by revision: made once for all who are told everything anew.
type sortedObjects struct {
	snapshot *meta.Snapshot
	objects  []*meta.Object
}

// WatchObjects implements wire.Registry.
func (f *Feed) WatchObjects(ctx context.Context, r *wire.WatchObjectsRequest, done func(*wire.WatchObjectsResponse, error)) {
	x := &watch{place: -1, peer: wire.PeerFrom(ctx), objects: done, generation: r.Generation, version: r.Version, since: r.Since}
	for {
		w := f.world.Load()
		if w == nil {
			done(nil, f.away())
			return
		}
		answer, err := f.objectsFor(w, x)
		if answer == nil && err == nil && r.WaitMs == 0 {
			f.nothing(x)
			return
		}
		if answer != nil || err != nil {
			f.tellObjects(x, answer, err)
			return
		}
		ok, err := f.park(ctx, w, x, time.Duration(r.WaitMs)*time.Millisecond)
		if err != nil {
			done(nil, err)
			return
		}
		if ok {
			return
		}
	}
}

// objectsFor is what w has for a watch; nil, nil: nothing.
func (f *Feed) objectsFor(w *world, x *watch) (*wire.WatchObjectsResponse, error) {
	if err := w.MayOperate(viewerOf(x.peer).who, meta.BeNode, "", ""); err != nil {
		return nil, err
	}
	if x.generation == uint64(w.Generation) && x.since == 0 && x.version >= uint64(w.Version) || x.generation > uint64(w.Generation) {
		return nil, nil
	}
	// Most who are told of a change know the version before it, and are told the same.
	asked := pageKey{w, x.generation < uint64(w.Generation), x.version, x.since}
	if p := f.page.Load(); p != nil && p.pageKey == asked {
		return p.response, nil
	}
	r, err := f.makePage(w, x)
	if err == nil {
		f.page.Store(&page{asked, r})
	}
	return r, err
}

// page is the last answer that was made; nobody changes it.
type page struct {
	pageKey
	response *wire.WatchObjectsResponse
}

type pageKey struct {
	w              *world
	reset          bool
	version, since uint64
}

func (f *Feed) makePage(w *world, x *watch) (*wire.WatchObjectsResponse, error) {
	r := &wire.WatchObjectsResponse{Generation: uint64(w.Generation), Since: x.since}
	var objects []*meta.Object
	switch {
	case x.generation != uint64(w.Generation):
		r.Reset_ = true
	case x.since != 0:
		// Everything is told anew, by revision, and x.version is how far that came. Deletions above since are told too.
		gone, ok := w.Since(meta.Version(x.since))
		if !ok || x.since > uint64(w.Version) {
			r.Reset_ = true
			break
		}
		objects = f.after(w, meta.Version(x.version))
		for _, o := range gone {
			if o.Spec == nil && uint64(o.Revision) > x.version {
				objects = append(objects, o)
			}
		}
		slices.SortFunc(objects, func(a, b *meta.Object) int {
			if a.Revision != b.Revision {
				return int(int64(a.Revision) - int64(b.Revision))
			}
			return a.Key.Compare(b.Key)
		})
	default:
		var ok bool
		if objects, ok = w.Since(meta.Version(x.version)); !ok {
			r.Reset_ = true
		}
	}
	if r.Reset_ {
		r.Since = uint64(w.Version)
		objects = f.after(w, 0)
	}
	r.Version = uint64(w.Version)
	bytes := 0
	for i, o := range objects {
		if bytes > f.pageBytes && o.Revision != objects[i-1].Revision {
			r.Version, r.More = uint64(objects[i-1].Revision), true
			break
		}
		m, err := meta.ToWire(o)
		if err != nil {
			return nil, err
		}
		bytes += len(m.Spec) + len(m.Name) + 64
		r.Objects = append(r.Objects, m)
	}
	return r, nil
}

// after returns the objects of w with a revision above v, by revision.
func (f *Feed) after(w *world, v meta.Version) []*meta.Object {
	all := f.sorted.Load()
	if all == nil || all.snapshot != w.Snapshot {
		all = &sortedObjects{snapshot: w.Snapshot}
		for _, k := range meta.Kinds {
			for o := range w.All(k) {
				all.objects = append(all.objects, o)
			}
		}
		slices.SortFunc(all.objects, func(a, b *meta.Object) int { return int(int64(a.Revision) - int64(b.Revision)) })
		f.sorted.Store(all)
	}
	from, _ := slices.BinarySearchFunc(all.objects, v, func(o *meta.Object, v meta.Version) int {
		if o.Revision <= v {
			return -1
		}
		return 1
	})
	return slices.Clone(all.objects[from:])
}

func (f *Feed) tellObjects(x *watch, r *wire.WatchObjectsResponse, err error) {
	if err != nil {
		x.objects(nil, err)
		return
	}
	if r.Reset_ {
		f.counts.resets.Add(1)
	}
	f.counts.objects.Add(uint64(len(r.Objects)))
	x.objects(r, nil)
}
