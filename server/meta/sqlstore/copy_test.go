package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/meta"
)

// TestCopyEnded ends a copy in the middle: no registry takes its target, the source is as it was, and the next copy does it.
func TestCopyEnded(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, to Location) {
		from := Location{File: filepath.Join(t.TempDir(), "from.db")}
		s := open(t, from)
		want := update(t, s, user("first"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		o := CopyOptions{From: from, To: to, Logger: quiet(), Progress: func(done, total int64) {
			if done > total/2 {
				cancel()
			}
		}}
		if _, err := Copy(ctx, o); !errors.Is(err, context.Canceled) {
			t.Fatalf("copy: got %v, want that it ended", err)
		}
		if _, err := Open(within(t, soon), Options{Location: to, Logger: quiet()}); err == nil || !strings.Contains(err.Error(), "jmq migrate metadata") {
			t.Fatalf("open: got %v, want that the copy is not finished", err)
		}
		var last, all int64
		o.Progress = func(done, total int64) { last, all = done, total }
		copied, err := Copy(t.Context(), o)
		if err != nil || copied.Kinds[meta.KindUser] != 1 || last != all {
			t.Fatalf("copy: got %+v, %v, %d of %d", copied, err, last, all)
		}
		if got := open(t, to).View(); got.Generation != want.Generation+1 || got.User("first") == nil {
			t.Fatalf("view: got generation %d", got.Generation)
		}
		update(t, s, user("second")) // the source goes on if somebody wants it
	})
}

// TestCopyDisturbed has others at work on both databases meanwhile: each is noticed.
func TestCopyDisturbed(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, to Location) {
		from := Location{File: filepath.Join(t.TempDir(), "from.db")}
		s := open(t, from)
		update(t, s, user("first"))
		n := 0
		source := func() { n++; update(t, s, user(fmt.Sprintf("meanwhile%d", n))) }
		target := func() {
			db, err := connect(to, quiet())
			if err != nil {
				t.Error(err)
				return
			}
			defer db.close()
			if _, err := db.write.ExecContext(t.Context(), "UPDATE jmq_object SET spec = '{\"role\":\"admin\"}' WHERE name = 'first'"); err != nil {
				t.Error(err)
			}
		}
		for _, c := range []struct {
			disturb func()
			says    string
		}{{source, ErrInUse.Error()}, {target, "its user rows are not those of the source"}} {
			o := CopyOptions{From: from, To: to, Logger: quiet()}
			disturb := c.disturb
			o.Progress = func(done, total int64) {
				// Once, behind the objects and before they are compared.
				if done >= total/4 && disturb != nil {
					disturb()
					disturb = nil
				}
			}
			if _, err := Copy(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("copy: got %v, want %q", err, c.says)
			}
		}
		// A node that lives on the source is one that would write.
		stop, stopped := make(chan struct{}), make(chan struct{})
		beat := func(i uint64) {
			if _, err := s.Beat(t.Context(), []meta.Beat{{Node: "n", Count: i}}); err != nil {
				t.Error(err)
			}
		}
		beat(1)
		go func() {
			defer close(stopped)
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for i := uint64(2); ; i++ {
				select {
				case <-stop:
					return
				case <-tick.C:
					beat(i)
				}
			}
		}()
		_, err := Copy(t.Context(), CopyOptions{From: from, To: to, Logger: quiet()})
		close(stop)
		<-stopped
		if !errors.Is(err, ErrInUse) {
			t.Fatalf("copy: got %v, want %v", err, ErrInUse)
		}
	})
}
