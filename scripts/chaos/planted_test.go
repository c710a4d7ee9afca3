//go:build planted

package main

import (
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jmqio/jmq/scripts/testenv"
)

// The campaign finds what was planted, within a few schedules: a check of the harness itself, from the fault to the line of the row.
func TestPlanted(t *testing.T) {
	dir := t.TempDir()
	jmq, chaos := filepath.Join(dir, "jmq"), filepath.Join(dir, "chaos")
	for _, args := range [][]string{{"build", "-tags", "planted", "-o", jmq, "../.."}, {"build", "-o", chaos, "."}} {
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
	}
	for _, c := range []struct {
		bug, faults, says string
		n, runs           int // of schedules, and how often so many, until it is found
	}{
		{"journal: small commit not synced", "power-cache", "", 3, 8}, // a broker says ok before it has synced
		{"listener: session leaves a goroutine", "kill", "C11 no leak                VIOLATED", 1, 1},
	} {
		t.Run(c.bug, func(t *testing.T) {
			t.Parallel()
			for run := range c.runs {
				dir := t.TempDir()
				rows := filepath.Join(dir, "rows.csv")
				cmd := exec.Command(chaos, "run", "-jmq", jmq, "-planted", c.bug, "-n", strconv.Itoa(c.n), "-seed", strconv.Itoa(1+run*c.n), "-faults", c.faults,
					"-dir", filepath.Join(dir, "work"), "-resume", rows)
				cmd.Dir = "../.."
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				err := cmd.Run()
				if strings.Contains(out.String(), "left out: ") {
					testenv.Missing(t, "chaos", errors.New(out.String()))
				}
				if err == nil && run < c.runs-1 {
					continue
				}
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode() != exitViolated || !strings.Contains(out.String(), c.says) {
					t.Errorf("run %d ended with %v\n%s", run+1, err, &out)
				}
				list, err := readRows(rows)
				if err != nil || len(list) == 0 || list[len(list)-1].Violations() == 0 {
					t.Errorf("rows %+v, %v", list, err)
				}
				return
			}
		})
	}
}
