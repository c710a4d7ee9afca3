package sqlstore

import (
	"context"
	"flag"
	"io"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/jmqio/jmq/scripts/testenv"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/meta/metatest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// They wait for disks and deadlines, not for processors.
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(testenv.Main(m))
}

// engines are the databases that every test runs over: each call is for an empty one.
var engines = []struct {
	name  string
	place func(t *testing.T) Location
}{
	{"mysql", func(t *testing.T) Location { return Location{DSN: testenv.MariaDB(t), Insecure: true} }},
	{"sqlite", func(t *testing.T) Location { return Location{File: filepath.Join(t.TempDir(), "registry.db")} }},
}

func onEach(t *testing.T, f func(t *testing.T, l Location)) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			f(t, e.place(t))
		})
	}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func open(t testing.TB, l Location) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{Location: l, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// TestContract holds both engines to what meta says of stores.
func TestContract(t *testing.T) {
	t.Parallel()
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			metatest.Run(t, func(t *testing.T) metatest.Place {
				l := e.place(t)
				return metatest.Place{Open: func(t *testing.T) meta.Store {
					t.Helper()
					s, err := Open(t.Context(), Options{Location: l, Logger: quiet()})
					if err != nil {
						t.Fatal(err)
					}
					return s
				}}
			})
		})
	}
}

// soon is far more than anything here takes.
const soon = 30 * time.Second

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
