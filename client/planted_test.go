//go:build planted

package client

import (
	"testing"

	"github.com/jmqio/jmq/server/planted"
)

// Each bug of the client makes the test fail that is there for it.
func TestPlanted(t *testing.T) { planted.Caught(t, "client") }
