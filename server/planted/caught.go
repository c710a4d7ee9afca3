//go:build planted

package planted

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Caught fails t unless the test of that name, of the package that t is in, fails with the bug and passes without, each in a process of its own.
func Caught(t *testing.T, bug, test string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, bug := range []string{bug, ""} {
		c := exec.Command(self, "-test.run=^"+strings.ReplaceAll(test, "/", "$/^")+"$", "-test.count=1", "-test.timeout=10s")
		c.Env = append(os.Environ(), "JMQ_TEST_PLANTED="+bug)
		out, err := c.CombinedOutput()
		// A bug may also have the test wait for ever.
		failed := err != nil && (strings.Contains(string(out), "--- FAIL: "+test) || strings.Contains(string(out), "test timed out"))
		if failed != (bug != "") || bug == "" && err != nil {
			t.Errorf("%s with the bug %q: %v\n%s", test, bug, err, out[:min(len(out), 4000)])
		}
	}
}
