// Package testenv starts real servers for tests and for programs under scripts, on free ports of the loopback address, and mounts small disks.
//
// A test that needs a database says MariaDB(t): one server a test process, one fresh database a test. A test that stops, kills or
// pauses a server starts its own: NewMariaDB(t). Where the server's program is missing the test is skipped, and the reason names
// the package; it fails instead when JMQ_TEST_REQUIRE (a list with commas) names the server or is all. JMQ_TEST_MYSQL, a DSN whose user may create
// databases, puts another server, say a MySQL, in the place of the shared one.
//
// A package whose tests use the shared server hands its tests to Main, which stops it at the end:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Main(m)) }
//
// A test that needs a disk that can be full says Disk(t).
//
// Nothing outlives the process in any case: the kernel ends servers when it ends, and folders and mounts that one left are removed by the next.
package testenv

import (
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// M runs the tests of a package and stops what they shared.
type M struct{ m *testing.M }

// Main is for TestMain.
func Main(m *testing.M) *M { return &M{m} }

// Run runs the tests.
func (m *M) Run() int {
	code := m.m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		_ = shared.server.Remove() // the next process removes what stays
		shared.server = nil
	}
	return code
}

// shared is the one server of this process; started at first use.
var shared struct {
	sync.Mutex
	server *Server
	err    error
}

// Required reports whether JMQ_TEST_REQUIRE names what, or is all.
func Required(what string) bool {
	required := strings.Split(os.Getenv("JMQ_TEST_REQUIRE"), ",")
	return slices.Contains(required, what) || slices.Contains(required, "all")
}

// Missing skips the test that lacks what, as err says; where it is Required the test fails.
func Missing(t testing.TB, what string, err error) {
	t.Helper()
	if Required(what) {
		t.Fatalf("%v (JMQ_TEST_REQUIRE asks for it)", err)
	} else {
		t.Skip(err)
	}
}
