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
// changes nothing. It is for tools that repair a journal.
func Known(fsys vfs.FS, dir string) (id *[16]byte, reached journal.Position, err error) {
	f := &folder{fs: fsys, dir: dir}
	b, err := readFile(fsys, f.path(identityName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err == nil {
		f.storeID, err = parseIdentity(b)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("store: %s: %w", f.path(identityName), err)
	}
	names, err := fsys.List(dir)
	if err != nil {
		return nil, 0, fmt.Errorf("store: list folder %s: %w", dir, err)
	}
	for _, n := range names {
		if p, ok := parseCheckpointName(n); ok && p > reached {
			if _, err := f.openCheckpoint(p, nil); err == nil { // a damaged one proves nothing
				reached = p
			}
		}
	}
	return &f.storeID, reached, nil
}
