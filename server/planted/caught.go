//go:build planted

package planted

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Caught looks for the bugs of pkg, whose test t is, that tests of it find: such a test fails with the bug within its runs, and passes as often without,
// each run in a process of its own.
func Caught(t *testing.T, pkg string) {
	t.Helper()
	found := 0
	for _, e := range Of(pkg) {
		if !strings.HasPrefix(e.By, "Test") {
			continue
		}
		found++
		t.Run(e.Name, func(t *testing.T) {
			n := 1
			for ; n <= e.Runs; n++ {
				failed, out := run(t, e.Name, e.By)
				if failed {
					break
				}
				if n == e.Runs {
					t.Errorf("%s has not found it in %d runs; the last:\n%s", e.By, n, out)
				}
			}
			if failed, out := run(t, "", e.By); failed {
				t.Errorf("%s fails without the bug:\n%s", e.By, out)
			}
			t.Logf("found by %s in run %d", e.By, n)
		})
	}
	if found == 0 {
		t.Errorf("%s has none", pkg)
	}
}

// run runs a test with a bug.
func run(t *testing.T, bug, test string) (failed bool, out string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self, "-test.run=^"+strings.ReplaceAll(test, "/", "$/^")+"$", "-test.count=1", "-test.v", "-test.timeout=10s")
	c.Env = append(os.Environ(), "JMQ_TEST_PLANTED="+bug)
	b, err := c.CombinedOutput()
	out = string(b)
	switch {
	case err == nil && strings.Contains(out, "--- PASS: "+test):
		return false, out
	case err == nil, bug == "":
	case strings.Contains(out, "--- FAIL: "+test), strings.Contains(out, "test timed out"), strings.Contains(out, "panic: "):
		return true, "" // a bug may also have the test wait for ever
	}
	t.Fatalf("%s with the bug %q: %v\n%s", test, bug, err, out[:min(len(out), 4000)])
	return false, ""
}
