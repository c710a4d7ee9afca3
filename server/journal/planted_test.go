//go:build planted

package journal

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Each bug makes the test fail that is there for it, in a process of its own. Others are in server/servertest.
func TestPlanted(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []struct{ bug, test string }{
		{"journal: record of a former life", "TestFormerLife"},
		{"journal: sends use the reserve", "TestReserve"},
	} {
		for _, bug := range []string{p.bug, ""} {
			c := exec.Command(self, "-test.run=^"+p.test+"$", "-test.count=1", "-test.timeout=5s")
			c.Env = append(os.Environ(), "JMQ_TEST_PLANTED="+bug)
			out, err := c.CombinedOutput()
			// One reads the same record for ever.
			failed := err != nil && (strings.Contains(string(out), "--- FAIL: "+p.test) || strings.Contains(string(out), "test timed out"))
			if failed != (bug != "") || bug == "" && err != nil {
				t.Errorf("%s with the bug %q: %v\n%s", p.test, bug, err, out)
			}
		}
	}
}
