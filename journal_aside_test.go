package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal"
)

// What was set aside is said by verify, listed with what became of its messages, dumped, and removed when that is said: by name, or all that was
// dealt with. The ends file of a copy is said too.
func TestJournalAside(t *testing.T) {
	folder := t.TempDir()
	dir := filepath.Join(folder, "journal")
	o := journal.Options{FS: vfs.Default, Dir: dir, StoreID: [16]byte{1}}
	j, err := journal.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		done := make(chan error, 1)
		if err := j.Append(&journal.Append{Entries: []journal.Entry{{Kind: journal.KindNoop, Payload: make([]byte, 100)}}, Done: func(_ *journal.Append, err error) { done <- err }}); err != nil {
			t.Fatal(err)
		}
		j.Kick()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	local := shell{t, ""}
	if out := local.ok("", "journal aside ls", folder); !strings.Contains(out, "nothing was set aside") {
		t.Errorf("%s", out)
	}
	var positions []journal.Position
	if err := journal.Dump(vfs.Default, dir, 0, func(r journal.Record) error { positions = append(positions, r.Position); return nil }); err != nil || len(positions) < 5 {
		t.Fatal(positions, err)
	}
	o.Follow = true
	if j, err = journal.Open(o); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, at := range []int{4, 2} {
		file, err := j.CutTo(positions[at])
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, filepath.Base(file))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}

	if out := local.ok("", "journal verify", folder); !strings.Contains(out, "its file of ends says: synced below") || !strings.Contains(out, "2 ends that another copy has not") {
		t.Errorf("verify says %s", out)
	}
	var v verifyResult
	if err := json.Unmarshal([]byte(local.ok("", "journal verify -o json", folder)), &v); err != nil || v.Ends == nil || v.Ends.Synced != uint64(positions[2]) || len(v.SetAside) != 2 || v.SetAside[1].Name != names[0] {
		t.Errorf("verify -o json: %+v, %v", v, err)
	}
	if out := local.ok("", "journal dump -o csv", filepath.Join(dir, "diverged", names[1])); strings.Count(out, ",noop,") != 2 {
		t.Errorf("the dump of a file: %s", out)
	}
	if err := journal.NoteResent(vfs.Default, dir, names[0], journal.Resent{Done: true, Sent: 3, Skipped: 1, Why: "topic orders is gone"}); err != nil {
		t.Fatal(err)
	}
	if out := local.ok("", "journal aside ls", folder); !strings.Contains(out, "3 sent again, 1 not: topic orders is gone") || !strings.Contains(out, "nothing yet") {
		t.Errorf("%s", out)
	}
	local.fails(exitUsage, "give names, or --all", "", "journal aside rm", folder)
	local.fails(exitNotFound, "was not set aside", "", "journal aside rm --yes", folder, "other.journal")
	local.fails(exitUsage, "were not all sent again: "+names[1], "", "journal aside rm", folder, names[1])
	held, err := vfs.Default.Lock(filepath.Join(folder, "LOCK")) // as a broker that runs
	if err != nil {
		t.Fatal(err)
	}
	if out := local.ok("", "journal aside ls", folder); !strings.Contains(out, names[0]) || !strings.Contains(out, names[1]) {
		t.Errorf("while its broker runs: %s", out)
	}
	local.fails(exitError, "in use; stop its broker first, or wait: while it runs it may send", "", "journal aside rm --all --yes", folder)
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if out := local.ok("", "journal aside rm --all --yes", folder); out != "removed "+names[0]+"\n" {
		t.Errorf("%s", out)
	}
	if out := local.ok("", "journal aside rm --yes", folder, names[1]); out != "removed "+names[1]+"\n" {
		t.Errorf("%s", out)
	}
	if list, err := vfs.Default.List(filepath.Join(dir, "diverged")); err != nil || len(list) != 0 {
		t.Errorf("left are %v, %v", list, err)
	}
}
