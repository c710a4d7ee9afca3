package journal

import (
	"slices"
	"strings"
	"testing"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// TestNothingBeside: where a small file cannot be written anew, what was begun beside it does not stay.
func TestNothingBeside(t *testing.T) {
	for name, write := range map[string]func(fs *journaltest.FS) error{
		"epochs": func(fs *journaltest.FS) error {
			return writeHistory(fs, "/j", [storeIDBytes]byte{1}, []EpochStart{{Epoch: 1}})
		},
		"resent": func(fs *journaltest.FS) error { return NoteResent(fs, "/j", "file", Resent{}) },
	} {
		for _, call := range []journaltest.Call{journaltest.Write, journaltest.Sync, journaltest.Rename} {
			fs := journaltest.New(nil)
			if err := fs.MkdirAll("/j/"+divergedDir, 0o755); err != nil {
				t.Fatal(err)
			}
			fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
				if op.Call == call || call == journaltest.Sync && op.Call == journaltest.SyncData {
					return journaltest.Fault{Err: journaltest.ErrInjected}
				}
				return journaltest.Fault{}
			})
			err := write(fs)
			var left []string
			for _, dir := range []string{"/j", "/j/" + divergedDir} {
				names, err := fs.List(dir)
				if err != nil {
					t.Fatal(err)
				}
				left = append(left, names...)
			}
			if left = slices.DeleteFunc(left, func(n string) bool { return !strings.HasSuffix(n, ".new") }); err == nil || len(left) > 0 {
				t.Errorf("%s, %v fails: %v; %v is left", name, call, err, left)
			}
		}
	}
}
