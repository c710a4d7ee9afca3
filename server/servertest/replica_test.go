package servertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server"
)

// fast makes slaves join soon.
func fast(c *server.Config) { c.Broker.Replication.JoinAfter = 200 * time.Millisecond }

func send(t testing.TB, c *client.Client, topic, body string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	p, err := c.Producer(topic)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Send(ctx, &client.Message{Body: []byte(body)})
	return err
}

// TestReplicates: a broker group of a master and a slave takes sends, the slave holds what the master holds, and both go on after restarts.
func TestReplicates(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{Slaves: 1, Each: fast})
	g := c.Groups[0]
	if m := g.Master(); m != g.Brokers[0] {
		t.Fatalf("%s is the master", m.Name())
	}
	c.Registries[0].CreateTopic("orders", 2)
	g.InSync(1)
	cl := c.Dial(c.BrokerAddresses())
	for i := range 50 {
		if err := send(t, cl, "orders", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	g.sameEnds()
	g.Brokers[1].Restart()
	g.InSync(1)
	if err := send(t, cl, "orders", "after the slave"); err != nil {
		t.Fatal(err)
	}
	g.Brokers[0].Restart()
	g.Master()
	if err := send(t, cl, "orders", "after the master"); err != nil {
		t.Fatal(err)
	}
	g.InSync(1)
	g.sameEnds()
}
