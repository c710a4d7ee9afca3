package server

import (
	"context"
	"testing"

	"github.com/jmqio/jmq/wire"
)

// TestFacadeAllocates: the way of a request through the facade costs no memory, neither to an engine nor, where none serves, to the answer that names
// the master.
func TestFacadeAllocates(t *testing.T) {
	x := &replicas{}
	x.refusal.Store(wire.Errorf(wire.CodeNotMaster, "another is master"))
	f := &facade{role: &brokerRole{replicas: x}}
	x.r = f.role
	ctx := context.Background()
	var code wire.Code
	produced := func(_ *wire.ProduceResponse, err error) { code = wire.CodeOf(err) }
	fetched := func(_ *wire.FetchResponse, err error) { code = wire.CodeOf(err) }
	acked := func(_ *wire.AckResponse, err error) { code = wire.CodeOf(err) }
	produce, fetch, ack := &wire.ProduceRequest{}, &wire.FetchRequest{}, &wire.AckRequest{}
	for name, run := range map[string]func(){
		"produce": func() { f.Produce(ctx, produce, produced) },
		"fetch":   func() { f.Fetch(ctx, fetch, fetched) },
		"ack":     func() { f.Ack(ctx, ack, acked) },
		"commit":  func() { f.Commit() },
	} {
		code = wire.CodeNotMaster
		if n := testing.AllocsPerRun(100, run); n > 0 {
			t.Errorf("%s takes %v allocations", name, n)
		}
		if code != wire.CodeNotMaster {
			t.Errorf("%s is answered %v", name, code)
		}
	}
}
