package retention

import (
	"fmt"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/store"
)

// BenchmarkPass is a pass over 10,000 topics of 4 partitions with 2 groups each, nothing of which can go.
func BenchmarkPass(b *testing.B) {
	s := newFakeStore(1 << 30)
	var groups fakeGroups
	for i := range 10_000 {
		t := s.create(fmt.Sprint("topic", i), 4, store.Settings{})
		for p := range 4 {
			s.produce(t, p, 100, time.Now())
		}
		groups.set(t, "a", time.Now(), []index.Index{1, 1, 1, 1}...)
		groups.set(t, "b", time.Now(), []index.Index{1, 1, 1, 1}...)
	}
	k, err := Start(Options{Store: s, Groups: groups.of, FS: newFakeFS(), SetWritable: func(bool, string) {}, Age: time.Hour, Every: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	b.ReportAllocs()
	for b.Loop() {
		k.once(b.Context())
	}
}
