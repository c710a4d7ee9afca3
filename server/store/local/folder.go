package local

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Version is the format of a store's folder: what lies where, and the checkpoints.
const Version = 1

const (
	identityName  = "STORE" // format version and store id
	lockName      = "LOCK"  // held as long as the store is open; never opened for anything else, or the lock would fall
	ownerName     = "OWNER" // process id of the holder, for the error message of the next one
	journalDir    = "journal"
	indexDir      = "index"
	identityFirst = "jmq store"
)

var (
	// ErrInUse: another process, or this one, has the folder open.
	ErrInUse = errors.New("store: folder is in use")
	// ErrVersion: the folder was written by a newer version.
	ErrVersion = errors.New("store: folder of a newer version")
	// ErrNoJournal: the folder of the journal is not there, though the store was made.
	ErrNoJournal = errors.New("store: the journal is missing")
	// ErrIdentity: the file that says whose the folder is is missing or damaged.
	ErrIdentity = errors.New("store: the store's identity is not there")
	// ErrReplaced: under the open store its folder was deleted, or another one is there under its name. What is written goes nowhere.
	ErrReplaced = errors.New("store: the folder was deleted or replaced under the open store")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// folder is the place of one store, locked.
type folder struct {
	fs      vfs.FS
	dir     string
	journal string // folders of the log and of the index, in dir or elsewhere
	index   string
	storeID [16]byte
	lock    io.Closer
	held    []held
	locked  fs.FileInfo // of the lock, which is open; nil: not known
}

// held is a folder as it was when the store was opened. That it is open keeps others from getting its inode.
type held struct {
	path string
	file vfs.File
}

func (f *folder) path(name string) string { return f.fs.PathJoin(f.dir, name) }

// openFolder makes the folder if need be, locks it, and reads or writes its identity.
func openFolder(o *Options) (_ *folder, err error) {
	vf, dir := o.FS, o.Dir
	defer func() {
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
			err = fmt.Errorf("store: folder %s cannot be written: %w", dir, err)
		}
	}()
	if err := vf.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("store: make folder %s: %w", dir, err)
	}
	if onDisk(vf) {
		// A lock under two spellings would be two locks.
		if dir, err = filepath.Abs(dir); err == nil {
			dir, err = filepath.EvalSymlinks(dir)
		}
		if err != nil {
			return nil, fmt.Errorf("store: find folder: %w", err)
		}
	}
	f := &folder{fs: vf, dir: dir, journal: o.JournalDir, index: o.IndexDir}
	if f.journal == "" {
		f.journal = f.path(journalDir)
	}
	if f.index == "" {
		f.index = f.path(indexDir)
	}
	if f.lock, err = vf.Lock(f.path(lockName)); err != nil {
		// What cannot be opened is not held by anyone.
		if _, open := errors.AsType[*fs.PathError](err); open || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
			return nil, fmt.Errorf("store: lock folder %s: %w", dir, err)
		}
		owner := ""
		if b, err := readFile(vf, f.path(ownerName)); err == nil {
			if pid, _, ok := strings.Cut(string(b), "\n"); ok {
				owner = " by process " + pid
			}
		}
		return nil, fmt.Errorf("%w%s: %s (%w)", ErrInUse, owner, dir, err)
	}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	// Only for people: a stale one does no harm, so it is not synced, and on a full disk it can be missing.
	if err := writeFile(vf, f.path(ownerName), []byte(strconv.Itoa(os.Getpid())+"\n"), false); err != nil && !vfs.IsNoSpaceError(err) {
		return nil, err
	}
	if err := f.identify(); err != nil {
		return nil, err
	}
	// STORE is made after the folders: a journal that is not there was lost. The index can be made again.
	if _, err := vf.Stat(f.journal); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is not there", ErrNoJournal, f.journal)
	} else if err != nil {
		return nil, fmt.Errorf("store: folder %s is not whole: %w", dir, err)
	}
	if err := f.notLeftBehind(); err != nil {
		return nil, err
	}
	if err := vf.MkdirAll(f.index, 0o700); err != nil {
		return nil, fmt.Errorf("store: make folder %s: %w", f.index, err)
	}
	if f.index != f.path(indexDir) {
		if err := syncDir(vf, vf.PathDir(f.index)); err != nil {
			return nil, err
		}
	}
	// Names that are seen here may have been made by a process that died, or failed, before it had synced them.
	if err := syncDir(vf, dir); err != nil {
		return nil, err
	}
	if err := f.hold(); err != nil {
		return nil, err
	}
	return f, nil
}

// hold notes what the folders are, so that replaced can tell.
func (f *folder) hold() (err error) {
	if !onDisk(f.fs) {
		return nil
	}
	for _, path := range []string{f.dir, f.journal} {
		d, err := f.fs.OpenDir(path)
		if err != nil {
			return fmt.Errorf("store: open folder %s: %w", path, err)
		}
		f.held = append(f.held, held{path, d})
	}
	if f.locked, err = f.fs.Stat(f.path(lockName)); err != nil {
		return fmt.Errorf("store: look at the lock: %w", err)
	}
	return nil
}

// replaced is ErrReplaced where the folders were deleted, or others are there under their names. One that was moved away may come back: it is no
// error.
func (f *folder) replaced() error {
	for _, h := range f.held {
		was, err := h.file.Stat()
		if err != nil {
			continue // it is not known
		}
		old, ok := was.Sys().(*syscall.Stat_t)
		if !ok {
			continue
		}
		is, err := f.fs.Stat(h.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if old.Nlink == 0 {
				return fmt.Errorf("%w: %s was deleted", ErrReplaced, h.path)
			}
			return nil
		case err == nil && !same(was, is):
			return fmt.Errorf("%w: %s is another folder", ErrReplaced, h.path)
		}
	}
	if f.locked == nil {
		return nil
	}
	switch is, err := f.fs.Stat(f.path(lockName)); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: what was in %s was deleted", ErrReplaced, f.dir)
	case err == nil && !same(f.locked, is):
		return fmt.Errorf("%w: what is in %s is another store's", ErrReplaced, f.dir)
	}
	return nil
}

// same says whether two files are one; also if that cannot be known.
func same(a, b fs.FileInfo) bool {
	x, ok := a.Sys().(*syscall.Stat_t)
	y, too := b.Sys().(*syscall.Stat_t)
	return !ok || !too || x.Dev == y.Dev && x.Ino == y.Ino
}

// identify reads STORE, or writes it when the folder is new.
func (f *folder) identify() error {
	path := f.path(identityName)
	b, err := readFile(f.fs, path)
	if err == nil {
		if f.storeID, err = parseIdentity(b); err != nil {
			return identityError(path, err)
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("store: read %s: %w", path, err)
	}
	if err := f.mustBeNew(); err != nil {
		return err
	}
	// STORE comes last: where it is, the folders' names and that of the store's own folder are on disk. openFolder syncs it.
	if err := f.makeFolders(); err != nil {
		return err
	}
	return f.writeIdentity()
}

// makeFolders makes those of journal and index, durably, and gives the store an id.
func (f *folder) makeFolders() error {
	parents := []string{f.dir, f.fs.PathDir(f.dir)}
	for _, sub := range []string{f.journal, f.index} {
		if err := f.fs.MkdirAll(sub, 0o700); err != nil {
			return fmt.Errorf("store: make folder %s: %w", sub, err)
		}
		if p := f.fs.PathDir(sub); !slices.Contains(parents, p) {
			parents = append(parents, p)
		}
	}
	for _, dir := range parents {
		if err := syncDir(f.fs, dir); err != nil {
			return err
		}
	}
	if _, err := rand.Read(f.storeID[:]); err != nil {
		return fmt.Errorf("store: make a store id: %w", err)
	}
	return nil
}

func (f *folder) writeIdentity() error {
	path := f.path(identityName)
	if err := writeFile(f.fs, path+temporary, formatIdentity(f.storeID), true); err != nil {
		return err
	}
	if err := f.fs.Rename(path+temporary, path); err != nil {
		return fmt.Errorf("store: rename %s: %w", path+temporary, err)
	}
	return nil
}

// identityError is what to say of a STORE that cannot be understood.
func identityError(path string, err error) error {
	if errors.Is(err, ErrVersion) {
		return fmt.Errorf("store: %s: %w", path, err)
	}
	return fmt.Errorf("%w: %s %w", ErrIdentity, path, err)
}

// mustBeNew refuses a folder that has what a store leaves, but no STORE.
func (f *folder) mustBeNew() error {
	for _, dir := range []string{f.dir, f.journal, f.index} {
		names, err := f.fs.List(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("store: list folder %s: %w", dir, err)
		}
		for _, n := range names {
			if n == "lost+found" { // the folder is a disk's
				continue
			}
			if _, checkpoint := parseCheckpointName(n); checkpoint || dir != f.dir {
				return fmt.Errorf("%w: there is %s but no %s: the store is not whole, and is left as it is", ErrIdentity, f.fs.PathJoin(dir, n), f.path(identityName))
			}
		}
	}
	return nil
}

// notLeftBehind refuses a journal elsewhere when one is still in the store's own folder: without it messages would be missing.
func (f *folder) notLeftBehind() error {
	own := f.path(journalDir)
	if f.journal == own || onDisk(f.fs) && sameFolder(f.journal, own) {
		return nil
	}
	names, err := f.fs.List(own)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("store: list folder %s: %w", own, err)
	}
	if len(names) > 0 {
		return fmt.Errorf("store: the journal is to be in %s, but %s is there: move it, or name its folder", f.journal, f.fs.PathJoin(own, names[0]))
	}
	return nil
}

// sameFolder says whether two names, relative or through links, are one folder.
func sameFolder(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

func (f *folder) close() error {
	if f.replaced() == nil {
		_ = f.fs.Remove(f.path(ownerName)) // only for people
	}
	for _, h := range f.held {
		_ = h.file.Close() // it was only looked at
	}
	return f.lock.Close()
}

// formatIdentity returns the content of STORE: lines of text, the last one the CRC32C of those before it.
func formatIdentity(id [16]byte) []byte {
	s := fmt.Sprintf("%s\nversion %d\nid %x\n", identityFirst, Version, id)
	return fmt.Appendf([]byte(s), "sum %08x\n", crc32.Checksum([]byte(s), castagnoli))
}

func parseIdentity(b []byte) (id [16]byte, err error) {
	first, rest, _ := strings.Cut(string(b), "\n")
	version, rest, _ := strings.Cut(rest, "\n")
	if first != identityFirst || !strings.HasPrefix(version, "version ") {
		return id, errors.New("is not the identity of a store")
	}
	v, err := strconv.ParseUint(strings.TrimPrefix(version, "version "), 10, 32)
	if err != nil || v == 0 || version != "version "+strconv.FormatUint(v, 10) {
		return id, fmt.Errorf("has %q where its version should be", version)
	}
	if v > Version {
		return id, fmt.Errorf("%w: it has version %d, this program reads up to %d", ErrVersion, v, Version)
	}
	line, sum, _ := strings.Cut(rest, "\n")
	h, ok := strings.CutPrefix(line, "id ")
	raw, err := hex.DecodeString(h)
	if !ok || err != nil || len(raw) != len(id) || h != hex.EncodeToString(raw) {
		return id, errors.New("has no store id")
	}
	body := len(b) - len(sum)
	if sum != fmt.Sprintf("sum %08x\n", crc32.Checksum(b[:body], castagnoli)) {
		return id, errors.New("has a wrong checksum")
	}
	copy(id[:], raw)
	return id, nil
}

// onDisk says whether paths are the operating system's.
func onDisk(f vfs.FS) bool {
	for {
		u := f.Unwrap()
		if u == nil {
			return f == vfs.Default
		}
		f = u
	}
}

// temporary is the end of the names of files that are being written; one that is found was left by a crash.
const temporary = ".new"

func writeFile(f vfs.FS, name string, b []byte, synced bool) error {
	if err := f.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("store: remove %s: %w", name, err)
	}
	w, err := f.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("store: make %s: %w", name, err)
	}
	_, err = w.WriteAt(b, 0)
	if err == nil && synced {
		err = w.Sync()
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("store: write %s: %w", name, err)
	}
	return nil
}

// smallFileBytesMax bounds what readFile takes.
const smallFileBytesMax = 64 << 10

func readFile(f vfs.FS, name string) ([]byte, error) {
	r, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.NewSectionReader(r, 0, smallFileBytesMax))
}

func syncDir(f vfs.FS, dir string) error {
	d, err := f.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("store: open folder %s: %w", dir, err)
	}
	err = d.Sync()
	if err = errors.Join(err, d.Close()); err != nil {
		return fmt.Errorf("store: sync folder %s: %w", dir, err)
	}
	return nil
}
