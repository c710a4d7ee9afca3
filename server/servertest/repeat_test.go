package servertest

import (
	"context"
	"testing"

	"github.com/jmqio/jmq/wire"
)

// repeat gives one batch to the broker group's master, and returns the index of its first message.
func repeat(t *testing.T, c *Cluster, batch []byte) uint64 {
	t.Helper()
	type answer struct {
		first uint64
		err   error
	}
	var got answer
	until(t, "the batch has an answer", func() bool {
		cl, err := c.TryDial(c.Groups[0].Master().Address())
		if err != nil {
			return false
		}
		defer cl.Close(context.Background())
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		answers := make(chan answer, 1)
		cl.Cluster().Produce(ctx, &wire.ProduceRequest{Topic: "orders", TimeoutMs: 1000, Batch: append([]byte(nil), batch...)}, func(r *wire.ProduceResponse, err error) {
			a := answer{err: err}
			if err == nil {
				a.first = r.FirstIndex
			}
			answers <- a
		})
		got = <-answers
		return got.err == nil
	})
	return got.first
}

// TestRepeats: a batch that is sent again is found, and not stored again, after the restart of its master, after a transfer, and at a slave that
// was promoted when its master died: what makes sends idempotent comes from the journal alone.
func TestRepeats(t *testing.T) {
	t.Parallel()
	c, g, cl := replicated(t, ClusterOptions{Auto: true})
	for i := range 3 {
		if err := send(t, cl, "orders", string(rune('a'+i))); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := wire.AppendBatch(nil, [16]byte{1, 2, 3}, 7, []wire.Message{{ID: [16]byte{1}, Body: []byte("x")}, {ID: [16]byte{2}, Body: []byte("y")}})
	if err != nil {
		t.Fatal(err)
	}
	first := repeat(t, c, batch)
	again := func(when string) {
		t.Helper()
		if got := repeat(t, c, batch); got != first {
			t.Errorf("%s the batch is at %d, it was stored at %d", when, got, first)
		}
	}
	again("at once")
	g.InSync(1)
	g.Master().Restart()
	again("after a restart")

	g.InSync(1)
	old := g.Master()
	next := g.Brokers[0]
	if next == old {
		next = g.Brokers[1]
	}
	g.Await("the registry takes the transfer", func(map[string]*wire.ReplicaStatus) bool {
		_, err := g.Do(&wire.BrokerGroupRequest{Action: "transfer", Broker: next.Name()})
		return err == nil
	})
	until(t, "the other is master", func() bool { return g.Master() == next })
	again("after a transfer")

	g.InSync(1)
	c.Kill(next)
	until(t, "the slave is promoted", func() bool { return g.Master() == old })
	again("after a promotion")

	// One more send ends right behind what was stored: nothing was stored by the repeats.
	end, err := wire.AppendBatch(nil, [16]byte{9}, 0, []wire.Message{{ID: [16]byte{3}, Body: []byte("z")}})
	if err != nil {
		t.Fatal(err)
	}
	if got := repeat(t, c, end); got != first+2 {
		t.Errorf("the next batch is at %d, the one before at %d with 2 messages", got, first)
	}
}
