package servertest

import (
	"context"
	"testing"

	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/wire"
)

// A restart keeps addresses and data; two servers do not meet; options reach the configuration.
func TestRestart(t *testing.T) {
	one := Start(t, func(c *server.Config) { c.Node.Name = "one" })
	two := Start(t)
	one.CreateTopic("orders", 3)
	address, admin := one.Address(), one.AdminAddress()
	one.Restart()
	if one.Address() != address || one.AdminAddress() != admin {
		t.Errorf("after the restart it listens on %s and %s, before on %s and %s", one.Address(), one.AdminAddress(), address, admin)
	}
	for s, want := range map[*Server]int{one: 1, two: 0} {
		r, err := s.Admin().ListTopics(context.Background(), &wire.ListTopicsRequest{})
		if err != nil || len(r.Topics) != want {
			t.Errorf("topics %v, %v, want %d", r, err, want)
		}
	}
	one.Stop()
	one.Stop() // the second does nothing
}
