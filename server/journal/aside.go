package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	divergedDir     = "diverged"
	asideNameFormat = "%020d-%020d-%d.%d" + segmentSuffix
)

// Aside is what CutTo has cut: records that another journal of the broker group has not.
type Aside struct {
	From, To Position
	Epoch    Epoch // of the last one
	Name     string
	Bytes    int64   // of the file
	Resent   *Resent // what became of its messages; nil: nothing yet
}

// Resent says how far the messages of a file that was set aside were sent again, to who has their place now.
type Resent struct {
	Next    Position `json:"next"`          // what lies below is dealt with
	Done    bool     `json:"done"`          // all of it is
	Sent    int64    `json:"sent"`          // messages
	Skipped int64    `json:"skipped"`       // messages
	Why     string   `json:"why,omitempty"` // that some, or all, were not sent
}

// Beside the file, in NAME.resent: three lines, "jmq resent VERSION", a Resent as JSON, and the crc32c of both in hex. One that cannot be read
// is as good as none: messages may be sent twice then, and none is forgotten.
const (
	resentSuffix   = ".resent"
	resentFirst    = "jmq resent 1\n"
	resentBytesMax = 1 << 16
)

func resentPath(fsys vfs.FS, dir, name string) string {
	return fsys.PathJoin(dir, divergedDir, strings.TrimSuffix(name, segmentSuffix)+resentSuffix)
}

// ListAside returns what was set aside in a journal's folder, whoever has that open.
func ListAside(fsys vfs.FS, dir string) ([]Aside, error) {
	folder := fsys.PathJoin(dir, divergedDir)
	if _, err := fsys.Stat(folder); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	asides, _, err := listAsides(fsys, folder, nil)
	return asides, err
}

// NoteResent keeps what became of the messages of a file that was set aside; it is on disk when it returns nil.
func NoteResent(fsys vfs.FS, dir, name string, r Resent) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	b := append([]byte(resentFirst), body...)
	b = append(b, '\n')
	b = fmt.Appendf(b, "%08x\n", crc32.Checksum(b, crcTable))
	path := resentPath(fsys, dir, name)
	f, err := fsys.Create(path+".new", vfs.WriteCategoryUnspecified)
	if err == nil {
		err = writeSync(f, b, 0)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}
	if err == nil {
		err = fsys.Rename(path+".new", path)
	}
	if err != nil {
		_ = fsys.Remove(path + ".new") // only tidy: it is never read
	} else {
		err = syncDirAt(fsys, fsys.PathJoin(dir, divergedDir))
	}
	if err != nil {
		return fmt.Errorf("note what was sent of %s: %w", name, err)
	}
	return nil
}

// readResent returns nil where nothing was noted, or not wholly.
func readResent(fsys vfs.FS, path string) *Resent {
	f, err := fsys.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, resentBytesMax))
	end := bytes.LastIndexByte(bytes.TrimSuffix(b, []byte("\n")), '\n') + 1
	if err != nil || !bytes.HasPrefix(b, []byte(resentFirst)) || end < len(resentFirst) || string(b[end:]) != fmt.Sprintf("%08x\n", crc32.Checksum(b[:end], crcTable)) {
		return nil
	}
	r := new(Resent)
	if json.Unmarshal(b[len(resentFirst):end], r) != nil {
		return nil
	}
	return r
}

// RemoveAside removes a file that was set aside, with what was noted of it: by its name in ListAside. Nothing else removes them.
func RemoveAside(fsys vfs.FS, dir, name string) error {
	err := fsys.Remove(fsys.PathJoin(dir, divergedDir, name))
	if err == nil {
		if rerr := fsys.Remove(resentPath(fsys, dir, name)); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = rerr
		}
	}
	if err == nil {
		err = syncDirAt(fsys, fsys.PathJoin(dir, divergedDir))
	}
	if err != nil {
		return fmt.Errorf("remove what was set aside: %w", err)
	}
	return nil
}

// listAsides reads the names of what was set aside. Files that were not finished are added to parts.
func listAsides(fsys vfs.FS, dir string, parts []string) ([]Aside, []string, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("list %s: %w", dir, err)
	}
	slices.Sort(names)
	var asides []Aside
	for _, name := range names {
		if strings.HasSuffix(name, partSuffix) {
			parts = append(parts, fsys.PathJoin(dir, name))
			continue
		}
		var from, to uint64
		var term, start uint32
		if n, err := fmt.Sscanf(name, asideNameFormat, &from, &to, &term, &start); err != nil || n != 4 {
			continue // not ours
		}
		a := Aside{From: Position(from), To: Position(to), Epoch: MakeEpoch(term, start), Name: name}
		info, err := fsys.Stat(fsys.PathJoin(dir, name))
		if err != nil {
			return nil, nil, fmt.Errorf("stat %s: %w", name, err)
		}
		a.Bytes = info.Size()
		a.Resent = readResent(fsys, fsys.PathJoin(dir, strings.TrimSuffix(name, segmentSuffix)+resentSuffix))
		asides = append(asides, a)
	}
	return asides, parts, nil
}

// SetAside returns what CutTo has cut, also in earlier lives; the files are in the folder "diverged" and can be read by Dump.
func (j *Journal) SetAside() []Aside {
	if p := j.asides.Load(); p != nil {
		return slices.Clone(*p)
	}
	return nil
}

// CutTo cuts everything from to on of a journal that follows, durably, after it was set aside in a file, whose path it returns; "" if
// there is nothing to cut. to must be where a record begins, or the end. Readers at or below to go on, others get ErrBeyond. What was
// committed is cut too, if it lies beyond: whether that may be is the caller's to know.
//
// Errors: ErrTrimmed, ErrBeyond, *CorruptError if no record begins there, what the file system said when it was set aside (nothing was
// cut); ErrLeads, ErrClosed; any other has stopped the journal.
func (j *Journal) CutTo(to Position) (aside string, err error) {
	j.trimMu.Lock()
	defer j.trimMu.Unlock()
	j.syncMu.Lock()
	defer j.syncMu.Unlock()
	if err := j.ownFollowing(); err != nil {
		return "", err
	}
	defer j.disown()
	if to == j.Written() {
		return "", nil
	}
	if err := j.syncCopied(); err != nil { // a cut proves what is below it
		return "", err
	}
	if err := j.checkBoundary(to); err != nil {
		return "", err
	}
	a, err := j.setTailAside(to)
	if err != nil {
		return "", err
	}
	list := j.SetAside()
	list = slices.DeleteFunc(list, func(o Aside) bool { return o.Name == a.Name })
	list = append(list, a)
	slices.SortFunc(list, func(a, b Aside) int { return strings.Compare(a.Name, b.Name) })
	j.asides.Store(&list)
	aside = j.fs.PathJoin(j.opts.Dir, divergedDir, a.Name)
	j.opts.Logger.Warn("journal's end is set aside and cut", "position", uint64(to), "to", uint64(a.To), "epoch", a.Epoch.String(), "file", aside)
	j.mu.Lock()
	last := Epoch(0)
	if h := below(j.mu.history, to); len(h) > 0 {
		last = h[len(h)-1].Epoch
	}
	n, _ := slices.BinarySearch(j.mu.bounds, to+1)
	j.mu.bounds = j.mu.bounds[:n]
	j.mu.Unlock()
	j.epoch.Store(uint64(last))
	j.copied.begun = noPrevious
	return aside, j.cutEnd(to)
}

// setTailAside copies everything from to on into a file, durably. It is a segment of its own.
func (j *Journal) setTailAside(to Position) (Aside, error) {
	end := j.Written()
	e := j.Epoch()
	a := Aside{From: to, To: end, Epoch: e, Name: fmt.Sprintf(asideNameFormat, uint64(to), uint64(end), e.Term(), e.Start()),
		Bytes: headerBlockBytes + int64(end-to)}
	fail := func(err error) (Aside, error) {
		return a, fmt.Errorf("set [%d, %d) aside: %w", to, end, err)
	}
	folder := j.fs.PathJoin(j.opts.Dir, divergedDir)
	if err := makeDir(j.fs, folder); err != nil {
		return fail(err)
	}
	path := j.fs.PathJoin(folder, a.Name)
	part := strings.TrimSuffix(path, segmentSuffix) + partSuffix
	out, err := j.fs.Create(part, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fail(err)
	}
	h := header{store: j.opts.StoreID, base: to, previous: noPrevious, durable: to, capacity: int64(end - to), created: j.opts.Now().UnixNano()}
	err = writeHeader(out, &h)
	l := *j.list.Load()
	for i := l.find(to); i < len(l) && err == nil; i++ {
		from, limit := max(to, l[i].base), l.end(i, end)
		var in vfs.File
		if in, err = l[i].acquire(j.fs); err == nil {
			err = copyReadable(out, in, headerBlockBytes+int64(from-to), l[i].offset(from), int64(limit-from))
			l[i].release()
		}
	}
	if err == nil {
		err = out.Sync()
	}
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = j.fs.Rename(part, path)
	}
	if err != nil {
		_ = j.fs.Remove(part) // if it stays, Open removes it
		return fail(err)
	}
	if err := syncDirAt(j.fs, folder); err != nil {
		return fail(err)
	}
	return a, nil
}

// readAside takes a file that CutTo has set aside as a journal of one segment, all of which was synced.
func readAside(fsys vfs.FS, path string) (found folder, err error) {
	h, size, err := readHeader(fsys, path)
	if err != nil && !errors.Is(err, errHeaderCopy) {
		return found, fmt.Errorf("read %s: %w", path, err)
	}
	s := newSegment(h, path, nil)
	s.size.Store(size)
	found.segments, found.ends, found.endsKnown = segments{s}, Ends{Synced: s.limit()}, true
	return found, nil
}
