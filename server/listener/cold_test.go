package listener

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/jmqio/jmq/wire"
)

// A client that asks much and goes away costs what runs at that moment, not all that it had asked for.
func TestColdEnds(t *testing.T) {
	var run atomic.Int64
	b := &fakeBroker{route: func(ctx context.Context, _ *wire.RouteRequest) (*wire.RouteResponse, error) {
		run.Add(1)
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	l := start(t, b, wire.HandlerOptions{ColdMax: 2}, Options{})
	c := dial(t, l, "c")
	for range 50 {
		if _, err := c.Start(wire.CommandRoute, []byte{10, 1, 't'}, nil, func(wire.Frame, error) {}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.CallMessage(t.Context(), wire.CommandPing, &wire.PingRequest{}, &wire.PingResponse{}); err != nil { // all were read
		t.Fatal(err)
	}
	for run.Load() < 2 {
		runtime.Gosched()
	}
	c.Close(nil)
	for len(l.Sessions()) > 0 {
		runtime.Gosched()
	}
	if got := run.Load(); got != 2 {
		t.Fatalf("%d were run, 48 of them for nobody", got)
	}
}
