package retention

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// The answer names what holds the space, and why, in each state that a store can be in.
func TestUsage(t *testing.T) {
	var out strings.Builder
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1<<30)
		b.o.BytesMax, b.o.Age, b.o.AbandonedAfter = 20<<30, 7*day, 3*time.Hour
		orders := b.store.create("orders", 4, store.Settings{})
		logs := b.store.create("logs", 1, store.Settings{RetentionAge: -1})
		sized := b.store.create("sized", 1, store.Settings{RetentionAge: -1, RetentionBytes: 100 << 30})
		audit := b.store.create("audit", 1, store.Settings{RetentionAge: 60 * day})
		seen := func() {
			b.groups.set(orders, "pay", b.now(), 1000, 1000, 1000, 1000)
			b.groups.set(sized, "all", b.now(), 1000)
			b.groups.set(audit, "all", b.now(), 1000)
		}
		seen()
		b.groups.set(orders, "old", time.Now(), 1000, 1000, 1000, 0)
		b.start()
		defer b.keeper.Close()
		say := func(what string) {
			t.Helper()
			r, err := b.keeper.Usage(t.Context(), &wire.StoreUsageRequest{})
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, "# %s\nstate %s, %d segments, %d of %d bytes\n%s\n", what, r.State, r.Segments, r.LimitedBytes, r.LimitBytes, r.Why)
			if r.Retention != "" {
				fmt.Fprintf(&out, "retention: %s\n", r.Retention)
			}
			for _, h := range r.Holds {
				fmt.Fprintf(&out, "hold %s/%d from %d, group %q, %d bytes, since %s: %s\n", h.Topic, h.Partition, h.First, h.Group, h.Bytes,
					time.Unix(0, h.SinceNs).Sub(time.Unix(0, r.OldestNs)).Round(time.Second), h.Why)
			}
			out.WriteString("\n")
		}
		say("empty")
		fill := func(segments int, of ...store.Topic) {
			for range segments {
				for i := range 16 {
					topic := of[i%len(of)]
					b.store.produce(topic, int(topic.Partitions)-1, 64<<20, time.Now())
				}
				time.Sleep(5 * time.Minute)
			}
		}
		fill(2, orders, orders, logs, sized, audit)
		say("a group has not consumed the most, topics keep the rest")
		b.groups.set(orders, "pay", b.now(), 1000, 1000, 1000, 0)
		say("two groups have not")
		seen()
		b.groups.set(orders, "old", time.Now(), 1000, 1000, 1000, 100)
		say("every group has consumed it")
		b.groups.set(orders, "old", time.Now(), 1000, 1000, 1000, 0)
		fill(12, orders)
		say("warned")
		fill(1, orders)
		say("early deletion, blocked by a group")
		fill(2, orders)
		say("refusing")
		b.fs.change(func(f *fakeFS) { f.gone = "/data/journal" })
		b.minute()
		say("a folder is gone")
		b.fs.change(func(f *fakeFS) { f.gone = "" })
		for range 4 {
			seen()
			time.Sleep(time.Hour)
		}
		say("the group is abandoned")
		b.jump(100 * day)
		b.minute()
		say("the clock jumped")
	})
	file := filepath.Join("testdata", "usage.golden")
	if *rewrite {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("%s differs (go test ./server/retention -rewrite, then read the diff):\n%s", file, &out)
	}
}
