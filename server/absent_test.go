package server

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jmqio/jmq/scripts/testenv"
)

// A process whose database is away waits for it, and says so, instead of giving up.
func TestStartsBeforeItsDatabase(t *testing.T) {
	db := testenv.NewMariaDB(t)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if err := db.CreateDatabase(ctx, "jmq_absent"); err != nil {
		t.Fatal(err)
	}
	db.Stop()

	c := testConfig(t)
	c.Roles = Roles
	c.Registry.DSN, c.Registry.Insecure = db.DSN("jmq_absent"), true
	if os.Getenv("JMQ_TEST_LOG") != "" {
		c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(run) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	}()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for s.health.state() != stateMetadata {
		select {
		case <-look.C:
		case <-s.Ready():
			t.Fatal("ready without metadata")
		case <-ctx.Done():
			t.Fatalf("it is %s, not waiting for metadata", s.health.state())
		}
	}
	if err := db.Start(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Ready():
	case <-ctx.Done():
		t.Fatal("not ready although the database is back")
	}
}
