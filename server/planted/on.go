//go:build planted

package planted

import (
	"os"
	"sync/atomic"
)

var bug atomic.Pointer[string]

func init() { Set(os.Getenv("JMQ_TEST_PLANTED")) }

// Bug reports whether the bug of that name is there.
func Bug(name string) bool { return *bug.Load() == name }

// Set plants the bug of that name, in the place of the one before; "" plants none.
func Set(name string) { bug.Store(&name) }
