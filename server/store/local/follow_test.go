package local

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/store"
)

// onlooker is a FollowedLog that is another store's log, as it is: what is appended there is committed here when news says so.
type onlooker struct {
	Log
	o  LogOptions
	mu struct {
		sync.Mutex
		trimmed journal.Position
	}
}

func (l *onlooker) Append(*journal.Append) error                      { return replica.ErrNotMaster }
func (l *onlooker) Synced() journal.Position                          { return l.Committed() }
func (l *onlooker) Sync() error                                       { return nil }
func (l *onlooker) WriteFooter(base journal.Position, b []byte) error { return nil }
func (l *onlooker) Close() error                                      { return nil }
func (l *onlooker) news()                                             { l.o.OnCommitted(l.Committed()) }

func (l *onlooker) Begin() journal.Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.Log.Begin(), l.mu.trimmed)
}

func (l *onlooker) Trim(before journal.Position) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.trimmed = before
	return nil
}

// onlook opens a store that follows the log of another.
func onlook(t testing.TB, of *Store, o Options) (*Store, *onlooker) {
	t.Helper()
	l := &onlooker{Log: of.log}
	o.Follow = true
	o.OpenLog = func(lo LogOptions) (Log, error) {
		l.o = lo
		r := of.log.NewReader(lo.Start)
		defer r.Close()
		for r.Position() < of.log.Committed() {
			rec, err := r.Next()
			if err == nil {
				err = lo.Recovered(rec)
			}
			if err != nil {
				return nil, err
			}
		}
		return l, nil
	}
	return mustOpen(t, o), l
}

// TestFollow: a store that follows has what the other has when it is told that it is committed, tells Watch of it, and takes no appends.
// Its tables say the same, also when it is opened again from its checkpoint.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		master := mustOpen(t, options(vfs.NewMem()))
		topic := mustTopic(t, master, "orders", 2)
		p := partitionOfTopic(topic, 1)
		send := func(n int) {
			for i := range n {
				if r := appendWait(master, p, batchOf(t, fmt.Sprint(i))); r.err != nil {
					t.Fatal(r.err)
				}
			}
		}
		send(3)
		fs := vfs.NewMem()
		o := options(fs)
		var mu sync.Mutex
		flushes := 0
		o.AfterCommit = func() { mu.Lock(); flushes++; mu.Unlock() }
		slave, log := onlook(t, master, o)
		var grown []string
		slave.Watch(func(p store.Partition, end index.Index) {
			mu.Lock()
			defer mu.Unlock()
			grown = append(grown, fmt.Sprintf("%d:%d", p.Partition, end))
		})
		send(5)
		log.news()
		if err := slave.WaitApplied(t.Context(), master.Committed()); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		if fmt.Sprint(grown) != "[1:8]" || flushes != 1 {
			t.Fatalf("watch was told %v, AfterCommit %d times, want [1:8] and once", grown, flushes)
		}
		mu.Unlock()
		if got, _ := bodies(t, slave, p, 0, 8); fmt.Sprint(got) != "[0 1 2 0 1 2 3 4]" {
			t.Fatal(got)
		}
		if r := appendWait(slave, p, batchOf(t, "x")); !errors.Is(r.err, replica.ErrNotMaster) {
			t.Fatalf("append at a slave: %v", r.err)
		}
		if _, err := slave.CreateTopic(t.Context(), store.Topic{Name: "more", Partitions: 1}, ""); !errors.Is(err, replica.ErrNotMaster) {
			t.Fatalf("topic at a slave: %v", err)
		}
		late := mustTopic(t, master, "late", 1)
		log.news()
		if err := slave.WaitApplied(t.Context(), master.Committed()); err != nil {
			t.Fatal(err)
		}
		if got, ok := slave.TopicByID(late.ID, late.Incarnation); !ok || got.Name != "late" {
			t.Fatal("the topic is not there", got, ok)
		}
		short, cancel := context.WithCancel(t.Context())
		waited := make(chan error)
		go func() { waited <- slave.WaitApplied(short, master.Committed()+1) }()
		synctest.Wait()
		cancel()
		if err := <-waited; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		mustClose(t, slave)
		if got := slave.Metrics().Checkpoint; got != master.Committed() {
			t.Fatalf("checkpoint of the end is of position %d, want %d", got, master.Committed())
		}
		slave, _ = onlook(t, master, o)
		if got, _ := bodies(t, slave, p, 7, 8); fmt.Sprint(got) != "[4]" {
			t.Fatal(got)
		}
		if slave.Applied() != master.Committed() {
			t.Fatalf("applied %d, want %d", slave.Applied(), master.Committed())
		}
		mustClose(t, slave)
		mustClose(t, master)
	})
}

// TestFollowPace: news that come fast are applied together, at once when it is much.
func TestFollowPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		master := mustOpen(t, options(vfs.NewMem()))
		topic := mustTopic(t, master, "orders", 1)
		p := partitionOfTopic(topic, 0)
		o := options(vfs.NewMem())
		flushes := 0
		o.AfterCommit = func() { flushes++ }
		slave, log := onlook(t, master, o)
		synctest.Wait()
		for range 50 { // in no time
			if r := appendWait(master, p, batchOf(t, "x")); r.err != nil {
				t.Fatal(r.err)
			}
			log.news()
			synctest.Wait()
		}
		if flushes != 0 {
			t.Fatalf("applied in %d steps within the pause that follows the first look", flushes)
		}
		if err := slave.WaitApplied(t.Context(), master.Committed()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if flushes != 1 {
			t.Fatalf("applied in %d steps, want 1", flushes)
		}
		mustClose(t, slave)
		mustClose(t, master)
	})
}
