package retention

import (
	"io/fs"
	"slices"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/store"
)

var errNotExist = fs.ErrNotExist

// What goes of a topic by age and size: partitions of messages of 100 bytes, one a second from second 0 on, at second 100.
func TestDecide(t *testing.T) {
	type part struct{ first, end, floor index.Index }
	second := func(n int64) int64 { return n * int64(time.Second) }
	for name, c := range map[string]struct {
		parts []part
		l     limits
		want  []trim
	}{
		"no limits":                     {[]part{{0, 100, 100}}, limits{}, nil},
		"age":                           {[]part{{0, 100, 100}}, limits{age: 40 * time.Second}, []trim{{0, 60, byAge}}},
		"age, all are young":            {[]part{{0, 100, 100}}, limits{age: 200 * time.Second}, nil},
		"age, from where it begins":     {[]part{{59, 100, 100}, {60, 100, 100}}, limits{age: 40 * time.Second}, []trim{{0, 60, byAge}}},
		"age, all are old":              {[]part{{0, 50, 50}}, limits{age: 40 * time.Second}, []trim{{0, 50, byAge}}},
		"age, up to the slowest group":  {[]part{{0, 100, 7}}, limits{age: 40 * time.Second}, []trim{{0, 7, byAge}}},
		"age, a group has read nothing": {[]part{{0, 100, 0}}, limits{age: 40 * time.Second}, nil},
		"age, a group that was trimmed over holds nothing more": {[]part{{30, 100, 10}}, limits{age: 40 * time.Second}, nil},
		"age, discarded unconsumed":                             {[]part{{0, 100, 7}}, limits{age: 40 * time.Second, discard: true}, []trim{{0, 60, byAge}}},
		"size":                                                  {[]part{{0, 100, 100}}, limits{bytes: 3000}, []trim{{0, 70, bySize}}},
		"size, it fits":                                         {[]part{{0, 100, 100}}, limits{bytes: 10_000}, nil},
		"size, over partitions by what they have":               {[]part{{0, 100, 100}, {0, 50, 50}}, limits{bytes: 7500}, []trim{{0, 50, bySize}, {1, 25, bySize}}},
		"size, one partition is held":                           {[]part{{0, 100, 3}, {0, 100, 100}}, limits{bytes: 10_000}, []trim{{0, 3, bySize}, {1, 50, bySize}}},
		"size, discarded unconsumed":                            {[]part{{0, 100, 3}}, limits{bytes: 3000, discard: true}, []trim{{0, 70, bySize}}},
		"both: the later one counts":                            {[]part{{0, 100, 100}, {80, 100, 100}}, limits{age: 10 * time.Second, bytes: 6000}, []trim{{0, 90, byAge}, {1, 90, byAge}}},
		"both: size takes more":                                 {[]part{{0, 100, 100}}, limits{age: 90 * time.Second, bytes: 1000}, []trim{{0, 90, bySize}}},
		"empty":                                                 {[]part{{100, 100, 100}}, limits{age: time.Second, bytes: 1}, nil},
	} {
		s := newFakeStore(1 << 20)
		topic := s.create("t", uint32(len(c.parts)), store.Settings{})
		var ps []partition
		for i, x := range c.parts {
			for n := range int64(x.end) {
				s.produce(topic, i, 100, time.Unix(n, 0))
			}
			p := partition{first: x.first, end: x.end, floor: x.floor, bytes: 100 * int64(x.end-x.first), consumed: true, oldest: second(int64(x.first))}
			if err := s.Trim(partitionOf(&topic, i), x.first); err != nil {
				t.Fatal(err)
			}
			ps = append(ps, p)
		}
		before := second(100) - int64(c.l.age)
		got, err := decide(topic, ps, c.l, before, s)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, c.want)
		}
	}
}

// A topic's own settings come before the broker's; below 0 is none.
func TestLimits(t *testing.T) {
	o := Options{Age: time.Hour, Bytes: 1000}
	for _, c := range []struct {
		s    store.Settings
		want limits
	}{
		{store.Settings{}, limits{age: time.Hour, bytes: 1000}},
		{store.Settings{RetentionAge: time.Minute, RetentionBytes: 5, DiscardUnconsumed: true}, limits{age: time.Minute, bytes: 5, discard: true}},
		{store.Settings{RetentionAge: -1, RetentionBytes: -1}, limits{}},
	} {
		if got := o.limitsOf(c.s); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.s, got, c.want)
		}
	}
}

// Early goes what was consumed by every group, up to a time; what no group consumes stays.
func TestDecideEarly(t *testing.T) {
	s := newFakeStore(1 << 20)
	topic := s.create("t", 4, store.Settings{})
	for i := range 4 {
		for n := range int64(100) {
			s.produce(topic, i, 100, time.Unix(n, 0))
		}
	}
	ps := []partition{
		{end: 100, floor: 100, consumed: true, oldest: 0},
		{end: 100, floor: 10, consumed: true, oldest: 0},
		{end: 100, floor: 100, oldest: 0},              // no group counts
		{first: 0, end: 100, floor: 0, consumed: true}, // a group has read nothing
	}
	got, err := decideEarly(topic, ps, time.Unix(30, 0).UnixNano(), s)
	if want := []trim{{0, 30, early}, {1, 10, early}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}

// A group that was not seen since a time does not count; one of which nothing is known does.
func TestJudge(t *testing.T) {
	groups := []Group{{Name: "old", Active: 10, Acks: []index.Index{1}}, {Name: "new", Active: 30, Acks: []index.Index{5, 9}}, {Name: "unknown", Acks: []index.Index{7, 8}}}
	count, abandoned := judge(groups, 20)
	if len(abandoned) != 1 || abandoned[0].Name != "old" || len(count) != 2 {
		t.Errorf("%v count, %v are abandoned", count, abandoned)
	}
	if by, ack := slowest(count, 0); by.Name != "new" || ack != 5 {
		t.Errorf("slowest is %s at %d, want new at 5", by.Name, ack)
	}
	if by, ack := slowest(groups, 1); by.Name != "old" || ack != 0 {
		t.Errorf("in a partition made later the slowest is %s at %d, want old at 0", by.Name, ack)
	}
	if by, _ := slowest(nil, 0); by != nil {
		t.Errorf("of no groups the slowest is %v", by)
	}
	if count, abandoned := judge(groups, 0); len(count) != 3 || len(abandoned) != 0 {
		t.Errorf("when all count: %v, %v", count, abandoned)
	}
}

// A level begins at its mark and is left a little below it.
func TestLevels(t *testing.T) {
	m := marks{Warn: 0.75, EarlyDelete: 0.80, Refuse: 0.90}
	level := OK
	for _, c := range []struct {
		share float64
		want  Level
	}{
		{0.74, OK}, {0.75, Warn}, {0.74, Warn}, {0.73, OK}, {0.85, EarlyDelete}, {0.79, EarlyDelete}, {0.77, Warn}, {0.99, Refuse},
		{0.89, Refuse}, {0.88, EarlyDelete}, {0.90, Refuse}, {0.1, OK}, {0.9, Refuse}, {0.76, Warn},
	} {
		if level = m.next(level, c.share); level != c.want {
			t.Errorf("at %v: %v, want %v", c.share, level, c.want)
		}
	}
	low := marks{Warn: 0.01, EarlyDelete: 0.01, Refuse: 0.01}
	if l := low.next(low.next(OK, 0.5), 0); l != OK {
		t.Errorf("the lowest marks are never left: %v", l)
	}
}

// The guard looks again before the fastest disk could have filled what is left, however large or small that is.
func TestLookAfter(t *testing.T) {
	m := marks{Warn: 0.75, EarlyDelete: 0.80, Refuse: 0.90}
	gib := int64(1) << 30
	for name, c := range map[string]struct {
		l     Level
		rooms []room
		every time.Duration
		want  time.Duration
	}{
		"nothing can be read": {OK, []room{{}}, 10 * time.Second, 10 * time.Second},
		"much is free":        {OK, []room{{total: 1 << 60}}, time.Hour, time.Hour},
		"4 GiB are left":      {Warn, []room{{total: 1 << 60}, {used: 86 * gib, total: 100 * gib}}, 10 * time.Second, 4 * time.Second},
		"little is left":      {Warn, []room{{used: 899, total: 1000}}, 10 * time.Second, lookEveryMin},
		"nothing is left":     {EarlyDelete, []room{{used: 1200, total: 1000}}, 10 * time.Second, lookEveryMin},
		"refusing":            {Refuse, []room{{used: 950, total: 1000}}, 10 * time.Second, lookEveryFull},
		"more often by wish":  {Refuse, []room{{used: 950, total: 1000}}, time.Millisecond, time.Millisecond},
	} {
		if got := m.lookAfter(c.l, c.rooms, c.every); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// What is consumed in the oldest segment may go early, wherever in it that begins, and however large the other segments are.
func TestDeletable(t *testing.T) {
	key := partitionOf(&store.Topic{ID: 1, Incarnation: 1}, 0)
	views := []topicView{{topic: store.Topic{ID: 1, Incarnation: 1, Partitions: 1}, ps: []partition{{first: 5, end: 9, floor: 9, consumed: true}}}}
	u := store.Usage{Begin: 1000, OldestEnd: 1500, End: 3000, Segments: 20}
	for position, want := range map[journal.Position]bool{1000: true, 1400: true, 1499: true, 1500: false, 2000: false} {
		u.Holds = []store.Hold{{Partition: key, First: 5, Stored: 7, Bytes: int64(u.End - position)}}
		if at, ok := deletable(&u, views); ok != want || ok && at != 7 {
			t.Errorf("a message at %d: %d, %v, want %v", position, at, ok, want)
		}
	}
}
