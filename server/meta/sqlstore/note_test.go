package sqlstore

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/server/meta"
)

// A database that is away and back again and again, as on a full disk, does not flood the log; one that stays away is told.
func TestToldSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &Store{o: Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
		s.seen.Store(&state{Snapshot: new(meta.Snapshot)})
		full := errors.New("disk is full")
		check := func(away, back int) {
			t.Helper()
			text := log.String()
			if a, b := strings.Count(text, "is away"), strings.Count(text, "is back"); a != away || b != back {
				t.Errorf("away told %d times, back %d, want %d and %d:\n%s", a, b, away, back, text)
			}
		}
		for range 40 { // 8 s
			s.note(&s.mu.writeErr, full)
			s.note(&s.mu.readErr, nil)
			time.Sleep(tellEvery / 100)
			s.note(&s.mu.writeErr, nil)
			time.Sleep(tellEvery / 100)
		}
		check(1, 1)
		s.note(&s.mu.writeErr, full)
		check(1, 1)
		time.Sleep(tellEvery)
		s.note(&s.mu.readErr, nil)
		check(2, 1)
		s.note(&s.mu.writeErr, nil)
		check(2, 2)
	})
}
