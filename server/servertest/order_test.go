package servertest

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/meta"
)

// TestStopAndStart stops and starts nodes of every role in every order while messages flow: what was acknowledged is never lost, and what is
// left goes on. A broker that has never known a registry waits for one, and says so.
func TestStopAndStart(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{BrokerGroups: 2})
	c.Apply(Object{Key(meta.KindTopic, "orders"), &meta.Topic{Partitions: 2, BrokerGroups: []string{"bg1", "bg2"}}})
	r, one, two := c.Registries[0], c.Brokers[0], c.Brokers[1]
	f := startFlow(t, c.Dial(c.BrokerAddresses()), c.Dial(r.Address()), "orders", "shop")
	f.goesOn("all is well", 20)
	for _, step := range []struct {
		what   string
		do     func()
		silent bool // no broker is there, so nothing can flow
	}{
		{"a broker is drained and gone", one.Stop, false},
		{"it is back", one.StartAgain, false},
		{"the registry is gone", r.Stop, false},
		{"a broker starts from its copy", two.Restart, false},
		{"both brokers are gone, after the registry", func() { one.Stop(); two.Stop() }, true},
		{"brokers start before the registry", func() { two.StartAgain(); one.StartAgain() }, false},
		{"the registry starts last", r.StartAgain, false},
		{"brokers go before the registry", func() { one.Stop(); two.Stop(); r.Stop() }, true},
		{"the registry starts first", func() { r.StartAgain(); one.StartAgain(); two.StartAgain() }, false},
	} {
		step.do()
		if !step.silent {
			f.goesOn(step.what, 20)
		}
	}

	r.Stop()
	log := &waitingLog{waits: make(chan struct{})}
	late, err := server.New(func() server.Config {
		s := two.config
		s.Node.Name, s.Broker.BrokerGroup, s.Broker.Data = "b3", "bg3", t.TempDir()
		s.Node.Wire.Listen, s.Node.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
		s.Logger = slog.New(slog.NewTextHandler(log, nil))
		return s
	}())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- late.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the late broker ended with %v", err)
		}
	})
	for _, step := range []struct {
		what  string
		until <-chan struct{}
		next  func()
	}{{"it waits for metadata", log.waits, r.StartAgain}, {"it serves", late.Ready(), func() {}}} {
		select {
		case <-step.until:
			step.next()
		case <-time.After(within):
			t.Fatalf("a broker without metadata and registry: not within %v: %s", within, step.what)
		}
	}
	Apply(t, r, Object{Key(meta.KindTopic, "orders"), &meta.Topic{Partitions: 2, BrokerGroups: []string{"bg1", "bg2", "bg3"}}})
	f.await("the late broker is sent to", within, func() bool { return f.mu.sent["bg3"] > 10 })
	t.Logf("%d messages, none lost", f.settle())
}

// waitingLog tells when the line comes that the node waits for metadata.
type waitingLog struct {
	once  sync.Once
	waits chan struct{}
}

func (w *waitingLog) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "waiting for metadata") {
		w.once.Do(func() { close(w.waits) })
	}
	return len(p), nil
}
