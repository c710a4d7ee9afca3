package replica_test

import (
	"github.com/jmqio/jmq/server/replica/replicatest"
	"github.com/jmqio/jmq/wire"
)

func meet(g *replicatest.Group, term uint32) *wire.MeetRequest {
	return &wire.MeetRequest{BrokerGroup: g.Name, Broker: "c", Term: term}
}
