package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeStore is a log of messages in segments of a fixed size that frees the oldest segments as the contract says: a segment goes
// when at most a quarter of it is still kept, which is appended again.
type fakeStore struct {
	store.Store  // nil: what a Keeper never calls
	segmentBytes int64

	mu      sync.Mutex
	topics  []store.Topic
	parts   map[store.Partition]*fakePart
	log     []fakeRecord // from the oldest segment on, in order of position
	end     int64
	begun   map[int64]int64 // when a segment was begun, by its number
	err     error           // of Usage
	trims   int             // calls of Trim
	carried int
}

type fakePart struct {
	first  index.Index
	stored []int64 // of all messages from 0 on
	bytes  []int64
}

type fakeRecord struct {
	position, bytes int64
	p               store.Partition
	i               index.Index
}

func newFakeStore(segmentBytes int64) *fakeStore {
	return &fakeStore{segmentBytes: segmentBytes, parts: map[store.Partition]*fakePart{}, begun: map[int64]int64{0: time.Now().UnixNano()}}
}

func (s *fakeStore) create(name string, partitions uint32, settings store.Settings) store.Topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := store.Topic{ID: store.TopicID(len(s.topics) + 1), Incarnation: 1, Name: name, Partitions: partitions, Settings: settings}
	s.topics = append(s.topics, t)
	for i := range int(partitions) {
		s.parts[partitionOf(&t, i)] = &fakePart{}
	}
	return t
}

func (s *fakeStore) alter(name string, settings store.Settings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.topics {
		if s.topics[i].Name == name {
			s.topics[i].Settings = settings
		}
	}
}

// produce appends a message stored at a time.
func (s *fakeStore) produce(t store.Topic, p int, bytes int64, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := partitionOf(&t, p)
	part, stored := s.parts[key], at.UnixNano()
	if n := len(part.stored); n > 0 {
		stored = max(stored, part.stored[n-1])
	}
	s.append(key, index.Index(len(part.stored)), bytes, stored)
	part.stored, part.bytes = append(part.stored, stored), append(part.bytes, bytes)
}

func (s *fakeStore) append(p store.Partition, i index.Index, bytes, stored int64) {
	if n := s.end / s.segmentBytes; s.begun[n] == 0 {
		s.begun[n] = stored
	}
	s.log = append(s.log, fakeRecord{s.end, bytes, p, i})
	s.end += bytes
}

func (s *fakeStore) part(p store.Partition) (*fakePart, error) {
	if part := s.parts[p]; part != nil {
		return part, nil
	}
	return nil, store.ErrNoPartition
}

func (s *fakeStore) Topics() []store.Topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.topics)
}

func (s *fakeStore) Bounds(p store.Partition) (first, end index.Index, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	part, err := s.part(p)
	if err != nil {
		return 0, 0, err
	}
	return part.first, index.Index(len(part.stored)), nil
}

func (s *fakeStore) Seek(p store.Partition, t int64) (index.Index, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	part, err := s.part(p)
	if err != nil {
		return 0, err
	}
	return max(part.first, index.Index(sort.Search(len(part.stored), func(i int) bool { return part.stored[i] >= t }))), nil
}

func (s *fakeStore) Stored(p store.Partition, i index.Index) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	part, err := s.part(p)
	if err != nil {
		return 0, err
	}
	if i < part.first {
		return 0, store.ErrTrimmed
	}
	if int(i) >= len(part.stored) {
		return 0, store.ErrBeyond
	}
	return part.stored[i], nil
}

func (s *fakeStore) Bytes(p store.Partition) (n int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	part, err := s.part(p)
	if err != nil {
		return 0, err
	}
	for _, b := range part.bytes[part.first:] {
		n += b
	}
	return n, nil
}

func (s *fakeStore) SeekBytes(p store.Partition, bytes int64) (index.Index, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	part, err := s.part(p)
	if err != nil {
		return 0, err
	}
	i := len(part.bytes)
	for ; i > int(part.first) && part.bytes[i-1] <= bytes; i-- {
		bytes -= part.bytes[i-1]
	}
	return index.Index(i), nil
}

func (s *fakeStore) Trim(p store.Partition, first index.Index) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	part, err := s.part(p)
	if err != nil {
		return err
	}
	s.trims++
	part.first = max(part.first, min(first, index.Index(len(part.stored))))
	return nil
}

// oldest returns the number of the oldest segment and what of it is kept.
func (s *fakeStore) oldest() (number, bytes int64) {
	number = s.end / s.segmentBytes
	if len(s.log) > 0 {
		number = s.log[0].position / s.segmentBytes
	}
	for _, r := range s.log {
		if r.position/s.segmentBytes != number {
			break
		}
		if part := s.parts[r.p]; part != nil && r.i >= part.first {
			bytes += r.bytes
		}
	}
	return number, bytes
}

func (s *fakeStore) Reclaim(ctx context.Context) (freed int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ctx.Err() == nil {
		number, bytes := s.oldest()
		if number == s.end/s.segmentBytes || bytes > s.segmentBytes/4 {
			return freed, nil
		}
		old := s.log
		for len(s.log) > 0 && s.log[0].position/s.segmentBytes == number {
			s.log = s.log[1:]
		}
		for _, r := range old[:len(old)-len(s.log)] {
			if part := s.parts[r.p]; part != nil && r.i >= part.first {
				s.carried++
				s.append(r.p, r.i, r.bytes, s.begun[s.end/s.segmentBytes])
			}
		}
		freed += s.segmentBytes
	}
	return freed, nil
}

func (s *fakeStore) Usage(holdsMax int) (u store.Usage, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return u, s.err
	}
	number, _ := s.oldest()
	last := s.end / s.segmentBytes
	u = store.Usage{
		Segments: int(last - number + 1), JournalBytes: (last - number + 1) * s.segmentBytes,
		Begin: journal.Position(number * s.segmentBytes), End: journal.Position(s.end), Oldest: s.begun[number],
		OldestEnd: journal.Position(min((number+1)*s.segmentBytes, s.end)),
	}
	seen := map[store.Partition]bool{}
	for _, r := range s.log {
		if r.position/s.segmentBytes == last && len(u.Holds) == 0 {
			break // there is the active segment only
		}
		if part := s.parts[r.p]; part != nil && r.i >= part.first && !seen[r.p] && len(u.Holds) < holdsMax {
			seen[r.p] = true
			u.Holds = append(u.Holds, store.Hold{Partition: r.p, First: part.first, Stored: part.stored[part.first], Bytes: s.end - r.position})
		}
	}
	slices.SortFunc(u.Holds, func(a, b store.Hold) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Partition.Topic, b.Partition.Topic), cmp.Compare(a.Partition.Partition, b.Partition.Partition))
	})
	u.Holds = u.Holds[:min(len(u.Holds), holdsMax)]
	return u, nil
}

// fakeGroups is where groups stand.
type fakeGroups struct {
	mu     sync.Mutex
	groups map[offset.Topic][]Group
}

func (g *fakeGroups) of(t offset.Topic) []Group {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []Group
	for _, x := range g.groups[t] {
		x.Acks = slices.Clone(x.Acks)
		out = append(out, x)
	}
	return out
}

// set puts a group where it is told.
func (g *fakeGroups) set(t store.Topic, name string, active time.Time, acks ...index.Index) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.groups == nil {
		g.groups = map[offset.Topic][]Group{}
	}
	key := topicKey(&t)
	for i := range g.groups[key] {
		if x := &g.groups[key][i]; x.Name == name {
			x.Acks, x.Active = acks, active.UnixNano()
			return
		}
	}
	g.groups[key] = append(g.groups[key], Group{ID: offset.GroupID(len(g.groups[key]) + 1), Name: name, Active: active.UnixNano(), Acks: acks})
}

// fakeFS is a memory with a disk's figures.
type fakeFS struct {
	vfs.FS
	mu   sync.Mutex
	disk vfs.DiskUsage
	err  error
	gone string // a path that is not there
}

func newFakeFS() *fakeFS {
	return &fakeFS{FS: vfs.NewMem(), disk: vfs.DiskUsage{AvailBytes: 1 << 40, UsedBytes: 1 << 30, TotalBytes: 1<<40 + 1<<30}}
}

func (f *fakeFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.disk, f.err
}

func (f *fakeFS) Stat(name string) (vfs.FileInfo, error) {
	f.mu.Lock()
	gone := f.gone
	f.mu.Unlock()
	if name == gone {
		return nil, fmt.Errorf("stat %s: %w", name, errNotExist)
	}
	return f.FS.Stat(name)
}

func (f *fakeFS) change(c func(*fakeFS)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c(f)
}

// logs keeps what was logged at a level or above.
type logs struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
}

func (l *logs) Enabled(context.Context, slog.Level) bool { return true }
func (l *logs) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	l.lines = append(l.lines, line)
	return nil
}

// with returns how many lines hold all of the words.
func (l *logs) with(words ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
lines:
	for _, line := range l.lines {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue lines
			}
		}
		n++
	}
	return n
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// bench is a Keeper with all that is around it. It is used within a synctest bubble.
type bench struct {
	t      *testing.T
	store  *fakeStore
	groups fakeGroups
	fs     *fakeFS
	logs   logs
	o      Options
	keeper *Keeper

	mu       sync.Mutex
	shift    time.Duration // of the wall clock
	writable []string      // what SetWritable was told
}

func newBench(t *testing.T, segmentBytes int64) *bench {
	b := &bench{t: t, store: newFakeStore(segmentBytes), fs: newFakeFS()}
	for _, dir := range []string{"/data/journal", "/data/index"} {
		if err := b.fs.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.o = Options{
		Store: b.store, Groups: b.groups.of, FS: b.fs, StateFile: "/data/RETENTION",
		Folders: []Folder{{What: "journal", Path: "/data/journal"}, {What: "index", Path: "/data/index"}},
		Now:     b.now,
		Logger:  slog.New(&b.logs),
		SetWritable: func(ok bool, why string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.writable = append(b.writable, fmt.Sprint(ok, " ", why))
		},
	}
	return b
}

func (b *bench) now() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Now().Add(b.shift)
}

func (b *bench) jump(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shift += d
}

func (b *bench) told() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.writable, "; ")
}

func (b *bench) start() {
	b.t.Helper()
	k, err := Start(b.o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.keeper = k
}

// firsts are the first indexes of a topic's partitions.
func (b *bench) firsts(t store.Topic) (out []index.Index) {
	for i := range int(t.Partitions) {
		first, _, err := b.store.Bounds(partitionOf(&t, i))
		if err != nil {
			b.t.Fatal(err)
		}
		out = append(out, first)
	}
	return out
}

func (b *bench) want(t store.Topic, firsts ...index.Index) {
	b.t.Helper()
	if got := b.firsts(t); !slices.Equal(got, firsts) {
		b.t.Errorf("topic %s begins at %v, want %v; log:\n%s", t.Name, got, firsts, &b.logs)
	}
}

var errBroken = errors.New("broken")
