package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// What was written is read again, and a last line that a kill has cut is dropped: its schedule is run again.
func TestRows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows.csv")
	if rows, err := readRows(file); err != nil || rows != nil {
		t.Fatalf("no file: %v, %v", rows, err)
	}
	want := []row{
		{Commit: "c", Digest: "d", Seed: 7, Layer: "processes", Kind: "kill", Faults: "a, b; c", Ops: 9, OK: 5, Unknown: 2, Failed: 1, Duplicate: 3, Recovery: 1500 * time.Millisecond},
		{Commit: "c", Digest: "d", Seed: 8, Kind: "pause", Lost: 1, Phantom: 2, Unexplained: 3, Reordered: 4, Other: 5, Recovery: time.Second},
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
	if want[0].violations() != 0 || want[1].violations() != 15 {
		t.Errorf("violations: %d, %d", want[0].violations(), want[1].violations())
	}
	list := totals(want)
	if len(list) != 3 || list[2].schedules != 2 || list[2].OK != 5 || list[2].Other != 5 || list[0].kind != "kill" {
		t.Errorf("totals: %+v", list)
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

// A kind and a seed name the same schedule, whatever else is asked for; "power" are all kinds that begin so.
func TestKinds(t *testing.T) {
	list, unknown := kindsOf("pause, kill,pause")
	if len(list) != 2 || list[0].name != "pause" || unknown != "" {
		t.Errorf("%v, %q", list, unknown)
	}
	if _, unknown := kindsOf("kill,nothing"); unknown != "nothing" {
		t.Errorf("unknown: %q", unknown)
	}
	for i := range kinds {
		k := &kinds[i]
		if k.shapeOf(8) != k.shapeOf(15) {
			t.Errorf("%s: seeds of one life have other shapes", k.name)
		}
		if again, _ := kindsOf(k.name); len(again) == 0 || again[0] != k {
			t.Errorf("%s is not found", k.name)
		}
	}
}
