package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/servertest/check"
)

// What was written is read again, and a last line that a kill has cut is dropped: its schedule is run again.
func TestRows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows.csv")
	if rows, err := readRows(file); err != nil || rows != nil {
		t.Fatalf("no file: %v, %v", rows, err)
	}
	want := []row{
		{Commit: "c", Digest: "d", Layer: "processes", Kind: "kill", Figures: check.Figures{Seed: 7, Faults: "a, b; c", Ops: 9, OK: 5, Unknown: 2, Failed: 1, Duplicate: 3, Recovery: 1500 * time.Millisecond, Count: 4}},
		{Commit: "c", Digest: "d", Kind: "partition", Figures: check.Figures{Seed: 8, Lost: 1, Phantom: 2, Unexplained: 3, Reordered: 4, Other: 5, Recovery: time.Second}},
		{Commit: "c", Digest: "d", Kind: "partition", Figures: check.Figures{Seed: 9, Count: 2}},
	}
	for _, r := range want {
		if err := appendRows(file, r); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, torn := range []string{"", "c,d,9,pro"} {
		if err := os.WriteFile(file, []byte(string(b)+torn), 0o644); err != nil {
			t.Fatal(err)
		}
		if rows, err := readRows(file); err != nil || !reflect.DeepEqual(rows, want) {
			t.Errorf("with %q at the end: %+v, %v", torn, rows, err)
		}
	}
	if want[0].Violations() != 0 || want[1].Violations() != 15 {
		t.Errorf("violations: %d, %d", want[0].Violations(), want[1].Violations())
	}
	list := totals(want)
	if len(list) != 3 || list[2].schedules != 3 || list[2].OK != 5 || list[2].Other != 5 || list[0].kind != "kill" {
		t.Errorf("totals: %+v", list)
	}
	for i, text := range []string{"4 of 1000 kill -9 cycles for a release", "1 of 500 schedules for a release, with 2 partitions", ""} {
		if got := list[i].reached(); got != text {
			t.Errorf("%s: %q", list[i].kind, got)
		}
	}
	for _, bad := range []string{"a,b\n", strings.Join(columns, ",") + "\nx,y\n", strings.Join(columns, ",") + strings.Repeat("\n"+strings.Repeat("x,", len(columns)-1)+"x", 1) + "\n"} {
		if err := os.WriteFile(file, []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := readRows(file); err == nil {
			t.Errorf("taken: %q", bad)
		}
	}
}

// Tests and what is only theirs change no digest.
func TestOfProduct(t *testing.T) {
	for name, want := range map[string]bool{
		"server/journal/cut.go": true, "server/journal/cut_test.go": false, "server/servertest/cluster.go": false, "server/servertest/check/rules.go": false,
		"server/replica/replicatest/disk.go": false, "server/journal/testdata/x.go": false, "server/meta/sqlstore/migrations/1.sql": true, "wire/jmq.proto": false,
	} {
		if got := ofProduct(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	commit, one, err := digest(t.Context(), "../..")
	if err != nil || len(one) != 12 || commit == "" {
		t.Fatalf("%q %q %v", commit, one, err)
	}
}

// A kind and a seed name the same schedule, whatever else is asked for; "power" are all kinds that begin so, and what a release needs is known of each.
func TestKinds(t *testing.T) {
	names := func(list []*kind) (all string) {
		for _, k := range list {
			all += k.name + " "
		}
		return all
	}
	for asked, want := range map[string]string{
		"pause, kill,pause": "pause kill ",
		"kill,power,partition,slave,two-masters,disk-full": "kill power-ext4 power-xfs power-cache partition slave two-masters disk-full ",
	} {
		if list, unknown := kindsOf(asked); names(list) != want || unknown != "" {
			t.Errorf("%s: %s, %q", asked, names(list), unknown)
		}
	}
	_, err := campaignOf([]string{"-faults", "kill,nothing"})
	if err == nil || !strings.Contains(err.Error(), `"nothing"`) || !strings.Contains(err.Error(), "two-masters") || !strings.Contains(err.Error(), "clones") {
		t.Errorf("unknown: %v", err)
	}
	for i := range kinds {
		k := &kinds[i]
		if k.test == nil && k.shapeOf(8) != k.shapeOf(15) {
			t.Errorf("%s: seeds of one life have other shapes", k.name)
		}
		if again, _ := kindsOf(k.name); len(again) == 0 || again[0] != k {
			t.Errorf("%s is not found", k.name)
		}
		if g, ok := goalOf(k.name); !ok || g.what == "" {
			t.Errorf("nobody knows what %s is counted by", k.name)
		}
	}
}
