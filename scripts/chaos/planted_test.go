//go:build planted

package main

import (
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jmqio/jmq/scripts/testenv"
)

// The campaign finds a broker that says ok before it has synced, within 16 schedules of losses of power: a check of the harness itself, from the disk
// that forgets to the line of the row.
func TestPlantedPower(t *testing.T) {
	dir := t.TempDir()
	jmq, chaos := filepath.Join(dir, "jmq"), filepath.Join(dir, "chaos")
	for _, args := range [][]string{{"build", "-tags", "planted", "-o", jmq, "../.."}, {"build", "-o", chaos, "."}} {
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
	}
	rows := filepath.Join(dir, "rows.csv")
	cmd := exec.Command(chaos, "run", "-jmq", jmq, "-planted", "journal: small commit not synced", "-n", "16", "-seed", "8", "-faults", "power-cache",
		"-dir", filepath.Join(dir, "work"), "-resume", rows)
	cmd.Dir = "../.."
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if strings.Contains(out.String(), "left out: ") {
		testenv.Missing(t, "chaos", errors.New(out.String()))
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitViolated {
		t.Errorf("ended with %v\n%s", err, &out)
	}
	list, err := readRows(rows)
	if err != nil || len(list) == 0 || list[len(list)-1].violations() == 0 {
		t.Errorf("rows %+v, %v", list, err)
	}
}
