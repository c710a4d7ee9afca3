package retention

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// state is what outlives a restart, one line of JSON and its CRC32C in hex on the next:
//
//	{"version":1,"wall":1790000000000000000,"sinceJump":0}
//	1a2b3c4d
//
// The store does not depend on it: without it the clock is compared with the newest message.
type state struct {
	Version   int   `json:"version"`
	Wall      int64 `json:"wall"`      // when it was written, unix nanoseconds
	SinceJump int64 `json:"sinceJump"` // uptime since the clock jumped; 0: it did not
}

const (
	stateVersion  = 1
	stateBytesMax = 1 << 10
	temporary     = ".new"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// readState returns nil without an error when there is none.
func readState(fs vfs.FS, name string) (*state, error) {
	f, err := fs.Open(name)
	if notExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("retention: open %s: %w", name, err)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, stateBytesMax))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("retention: read %s: %w", name, err)
	}
	s, line := new(state), max(0, len(b)-len("12345678\n"))
	if string(b[line:]) != sumLine(b[:line]) {
		return nil, fmt.Errorf("retention: %s has a wrong checksum", name)
	}
	if err := json.Unmarshal(b[:line], s); err != nil || s.Version != stateVersion {
		return nil, fmt.Errorf("retention: %s is not of version %d", name, stateVersion)
	}
	return s, nil
}

func sumLine(b []byte) string { return fmt.Sprintf("%08x\n", crc32.Checksum(b, castagnoli)) }

func writeState(fs vfs.FS, name string, s state) (err error) {
	s.Version = stateVersion
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	b = append(b, sumLine(b)...)
	defer func() {
		if err != nil {
			err = fmt.Errorf("retention: write %s: %w", name, err)
		}
	}()
	if err := fs.Remove(name + temporary); err != nil && !notExist(err) {
		return err
	}
	f, err := fs.OpenReadWrite(name+temporary, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = fs.Rename(name+temporary, name)
	}
	if err != nil {
		_ = fs.Remove(name + temporary) // only tidy: it is never read
		return err
	}
	d, err := fs.OpenDir(fs.PathDir(name))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
