package local

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal"
)

// Known says what the folder of a store that nobody has open knows besides its journal: the store's id, and the position of its
// newest whole checkpoint, which the journal had reached. A nil id: nothing says it; 0: there is no such checkpoint. It
// changes nothing. It is for tools that repair a journal. Errors: ErrIdentity, which Identify helps against, and the file system's.
func Known(fsys vfs.FS, dir string) (id *[16]byte, reached journal.Position, err error) {
	f := &folder{fs: fsys, dir: dir}
	path := f.path(identityName)
	b, err := readFile(fsys, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("store: read %s: %w", path, err)
	}
	if f.storeID, err = parseIdentity(b); err != nil {
		return nil, 0, identityError(path, err)
	}
	reached, err = Reached(fsys, dir, f.storeID)
	return &f.storeID, reached, err
}

// Identify writes the identity of a store again, whose file is missing or damaged. Nobody may have the folder open.
func Identify(fsys vfs.FS, dir string, id [16]byte) error {
	f := &folder{fs: fsys, dir: dir, storeID: id}
	if err := f.writeIdentity(); err != nil {
		return err
	}
	return syncDir(fsys, dir)
}

// Reached is Known's position for a store whose id is known from elsewhere.
func Reached(fsys vfs.FS, dir string, id [16]byte) (reached journal.Position, err error) {
	f := &folder{fs: fsys, dir: dir, storeID: id}
	names, err := fsys.List(dir)
	if err != nil {
		return 0, fmt.Errorf("store: list folder %s: %w", dir, err)
	}
	for _, n := range names {
		if p, ok := parseCheckpointName(n); ok && p > reached {
			if _, err := f.openCheckpoint(p, nil); err == nil { // a damaged one proves nothing
				reached = p
			}
		}
	}
	return reached, nil
}
