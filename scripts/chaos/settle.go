package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/oklog/ulid/v2"

	"github.com/jmqio/jmq/scripts/localcluster"
	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/servertest/check"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

// figures has the history so far checked. Under mu.
func (t *trial) figures() check.Figures {
	k := check.NewChecker()
	var sends [3]int // by outcome: an attempt that was repeated is one
	type sending struct {
		id   string
		call int64
	}
	begun := map[sending]bool{} // and not known to have ended
	for _, e := range t.mu.events {
		ok, problem := t.past.admit(&e)
		if problem != "" {
			t.mu.problems = append(t.mu.problems, problem)
		}
		if !ok {
			continue
		}
		if err := k.Add(e); err != nil {
			t.mu.problems = append(t.mu.problems, fmt.Sprintf("event %+v: %v", e, err))
		}
		if e.Op != check.OpSend {
			continue
		}
		if delete(begun, sending{e.ID, e.Call}); e.Result == "" {
			begun[sending{e.ID, e.Call}] = true
			continue
		}
		switch e.Result {
		case check.OK:
			sends[0]++
		case check.Failed:
			sends[1]++
		default:
			sends[2]++
		}
	}
	report := k.Report()
	f := report.Figures()
	f.OK, f.Failed, f.Unknown = sends[0], sends[1], sends[2]+len(begun)
	f.Other += len(t.mu.problems)
	if !report.OK() || len(t.mu.problems) > 0 {
		t.report = strings.TrimSpace(report.String() + "\n" + strings.Join(t.mu.problems, "\n"))
	}
	return f
}

// judge has the history so far checked, and puts what is new of it into r.
func (t *trial) judge(r *row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, was := t.figures(), t.told
	t.told = f
	r.Ops += f.Ops - was.Ops
	r.OK += f.OK - was.OK
	r.Unknown += f.Unknown - was.Unknown
	r.Failed += f.Failed - was.Failed
	r.Lost += max(0, f.Lost-was.Lost)
	r.Phantom += max(0, f.Phantom-was.Phantom)
	r.Duplicate += max(0, f.Duplicate-was.Duplicate)
	r.Unexplained += max(0, f.Unexplained-was.Unexplained)
	r.Reordered += max(0, f.Reordered-was.Reordered)
	r.Other += max(0, f.Other-was.Other)
}

func (t *trial) row(seed uint64) row {
	r := row{Commit: t.c.commit, Digest: t.c.digest, Layer: "processes", Kind: t.k.name}
	r.Seed, r.Faults, r.Recovery, r.Count = seed, strings.Join(t.happened, "; "), t.recovery, t.count
	t.judge(&r)
	return r
}

// keep writes the history and what is wrong with it into the trial's folder.
func (t *trial) keep() error {
	w, err := check.Create(filepath.Join(t.dir, "history.jsonl"))
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(w.Write(t.mu.events...), w.Close(), os.WriteFile(filepath.Join(t.dir, "report"), []byte(t.report+"\n"), 0o644))
}

// keepDisks copies what is on disks of their own into the folders of their nodes, when something is wrong: they go.
func (t *trial) keepDisks() error {
	if t.report == "" || t.disks == nil {
		return nil
	}
	var errs []error
	for _, b := range t.Of("broker") {
		errs = append(errs, os.CopyFS(filepath.Join(b.Dir(), "data"), readable(b.DataFolder())))
	}
	return errors.Join(errs...)
}

// readable is a folder without what mkfs puts there.
func readable(folder string) fs.FS { return withoutLost{os.DirFS(folder)} }

type withoutLost struct{ fs.FS }

func (w withoutLost) ReadDir(name string) ([]fs.DirEntry, error) {
	list, err := fs.ReadDir(w.FS, name)
	return slices.DeleteFunc(list, func(e fs.DirEntry) bool { return e.Name() == "lost+found" }), err
}

// same waits until all brokers have what their masters have, committed.
func (t *trial) same(ctx context.Context) error {
	return t.await(ctx, "all copies are the same", func() bool {
		for _, g := range t.groups {
			var ends []uint64
			for _, b := range t.of(g) {
				n := t.look(ctx, b)
				ends = append(ends, n.end, n.committed)
			}
			if slices.Min(ends) != slices.Max(ends) {
				return false
			}
		}
		return true
	})
}

// autopsy looks at the disks of brokers that are stopped: what their journals have, and what a store makes of it.
func (t *trial) autopsy() {
	for _, g := range t.groups {
		copies := map[string]map[journal.Position]sum{}
		derived := derivedCopies{}
		for _, b := range t.of(g) {
			// A copy is looked at: opening a store writes.
			folder := filepath.Join(t.dir, "autopsy", b.Name)
			err := os.CopyFS(folder, readable(b.DataFolder()))
			if err == nil {
				copies[b.Name], err = journalOf(folder)
			}
			if err == nil {
				err = t.storeOf(b, folder, derived)
			}
			if err != nil {
				t.problem("the disk of %s: %v", b.Name, err)
			}
		}
		t.compare(g, copies)
		t.compareDerived(g, derived)
	}
	_ = os.RemoveAll(filepath.Join(t.dir, "autopsy")) // the originals are there
}

// sumRecords of a journal are compared at once.
const sumRecords = 100

// sum is a record without what is each copy's own.
type sum struct {
	kind     journal.Kind
	flags    uint8
	epoch    journal.Epoch
	position journal.Position
	stored   int64
	payload  uint32
}

// compare notes what the copies of a broker group have between the last begin and the first end.
func (t *trial) compare(group string, copies map[string]map[journal.Position]sum) {
	var from, to journal.Position
	first := true
	for _, sums := range copies {
		if len(sums) == 0 {
			return // told already
		}
		begin, last := slices.Min(keys(sums)), slices.Max(keys(sums))
		if first {
			from, to, first = begin, last, false
		}
		from, to = max(from, begin), min(to, last)
	}
	at := now()
	for name, sums := range copies {
		var list []sum
		for position, s := range sums {
			if from <= position && position <= to {
				list = append(list, s)
			}
		}
		slices.SortFunc(list, func(a, b sum) int { return int(a.position) - int(b.position) })
		for i := 0; i < len(list); i += sumRecords {
			part := list[i:min(i+sumRecords, len(list))]
			all := crc32.NewIEEE()
			for _, s := range part {
				fmt.Fprintln(all, s)
			}
			t.event(check.Event{
				Op: check.OpCopy, Proc: name, BrokerGroup: group, Index: uint64(i), To: uint64(i + sumRecords), Hash: fmt.Sprintf("%08x", all.Sum32()), Call: at,
			})
		}
	}
}

// derivedCopies are the indexes of partitions that copies of a journal gave, by partition and by broker.
type derivedCopies map[derivedKey]map[string]derivedCopy

type derivedKey struct {
	topic     string
	partition uint16
}

type derivedCopy struct {
	first   index.Index
	entries []entry // from first on
}

// entry is what an index says of a message.
type entry struct {
	position journal.Position
	epoch    journal.Epoch
	stored   int64
}

// compareDerived notes what the indexes of a broker group have between the last begin and the first end.
func (t *trial) compareDerived(group string, derived derivedCopies) {
	at := now()
	for k, copies := range derived {
		var from, to index.Index
		first := true
		for _, c := range copies {
			end := c.first + index.Index(len(c.entries))
			if first {
				from, to, first = c.first, end, false
			}
			from, to = max(from, c.first), min(to, end)
		}
		for name, c := range copies {
			for i := from; i < to; i += sumRecords {
				end := min(i+sumRecords, to)
				all := crc32.NewIEEE()
				for _, e := range c.entries[i-c.first : end-c.first] {
					fmt.Fprintln(all, e)
				}
				t.event(check.Event{
					Op: check.OpCopy, Proc: name, BrokerGroup: group, Topic: k.topic, Partition: k.partition, Index: uint64(i), To: uint64(end),
					Hash: fmt.Sprintf("%08x", all.Sum32()), Call: at,
				})
			}
		}
	}
}

func keys[K comparable, V any](m map[K]V) []K {
	all := make([]K, 0, len(m))
	for k := range m {
		all = append(all, k)
	}
	return all
}

func storeOptions(folder string) local.Options {
	return local.Options{FS: vfs.Default, Dir: folder, SegmentBytesMax: segmentBytes}
}

// journalOf returns the records of a journal, up to what it knows to be committed.
func journalOf(folder string) (sums map[journal.Position]sum, err error) {
	j, err := local.OpenFollowing(storeOptions(folder))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	sums = map[journal.Position]sum{}
	r := j.NewReader(j.Begin())
	defer r.Close()
	for r.Position() < j.Committed() {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return sums, err
		}
		sums[rec.Position] = sum{rec.Kind, rec.Flags, rec.Epoch, rec.Position, rec.Stored, crc32.ChecksumIEEE(rec.Payload)}
	}
	return sums, nil
}

// storeOf opens a store with the engine alone, and notes what is there: all messages, where groups stand, and the index.
func (t *trial) storeOf(b *localcluster.Node, folder string, derived derivedCopies) (err error) {
	offsets := offset.NewTable()
	at := now()
	o := storeOptions(folder)
	o.Tables, o.Term = []store.Table{offsets}, 1<<20
	st, err := local.Open(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	for _, topic := range topics {
		at0, ok := st.Topic(0, topic)
		if !ok {
			return fmt.Errorf("it has no topic %s", topic)
		}
		key := offset.Topic{ID: uint64(at0.ID), Incarnation: at0.Incarnation}
		for p := range uint16(at0.Partitions) {
			for _, g := range offsets.GroupsOf(key) {
				progress, _, ok := offsets.Progress(g.ID, key, p)
				if !ok {
					return fmt.Errorf("group %s has no progress in partition %d of %s", g.Name, p, topic)
				}
				e := check.Event{Op: check.OpOffset, Topic: topic, Group: g.Name, Partition: t.partition(b.Group, p), Index: uint64(progress.Ack), Call: at, Return: at}
				for _, r := range progress.Consumed {
					e.Ranges = append(e.Ranges, [2]uint64{uint64(r.From), uint64(r.To)})
				}
				t.event(e)
				stands := e
				stands.Op, stands.Proc, stands.BrokerGroup, stands.Ranges, stands.Return = check.OpCopy, b.Name, b.Group, nil, 0
				stands.Index, stands.To, stands.Hash = 0, 1, fmt.Sprint(progress.Ack, progress.Consumed)
				t.event(stands)
			}
			if err := t.scan(st, b, derived, topic, store.Partition{Topic: at0.ID, Incarnation: at0.Incarnation, Partition: p}, at); err != nil {
				return fmt.Errorf("partition %d of %s: %w", p, topic, err)
			}
		}
	}
	return nil
}

// scan notes each message of a partition, and what the index says of it.
func (t *trial) scan(st *local.Store, b *localcluster.Node, derived derivedCopies, topic string, p store.Partition, at int64) error {
	first, end, err := st.Bounds(p)
	if err != nil {
		return err
	}
	partition := t.partition(b.Group, p.Partition)
	listed := derivedCopy{first: first}
	var codec wire.Codec
	var buf []byte
	for next := first; next < end; {
		var read index.Index
		if buf, read, err = st.Read(p, next, end, 256<<10, buf[:0]); err != nil {
			return err
		}
		for rest := buf; len(rest) > 0; {
			var batch wire.Batch
			if batch, rest, err = wire.SplitBatch(rest); err != nil {
				return err
			}
			raw, err := codec.Messages(batch, nil)
			if err != nil {
				return err
			}
			it := wire.IterateMessages(batch, raw)
			for it.Next() {
				m := it.View.Message()
				e := check.Event{
					Op: check.OpScan, Proc: b.Name, BrokerGroup: b.Group, Topic: topic, Partition: partition, Index: batch.FirstIndex() + uint64(it.Slot()),
					ID: ulid.ULID(m.ID).String(), Key: m.OrderKey, Seq: seqOf(m.Headers), Hash: hash(m.Body), Call: at,
				}
				position, epoch, err := st.Written(p, index.Index(e.Index))
				if err != nil {
					return err
				}
				stored, err := st.Stored(p, index.Index(e.Index))
				if err != nil {
					return err
				}
				e.Epoch = uint64(epoch)
				t.event(e)
				listed.entries = append(listed.entries, entry{position, epoch, stored})
			}
			if err := it.Err(); err != nil {
				return err
			}
		}
		if read <= next {
			return fmt.Errorf("nothing is read at index %d, before the end %d", next, end)
		}
		next = read
	}
	k := derivedKey{topic, partition}
	if derived[k] == nil {
		derived[k] = map[string]derivedCopy{}
	}
	derived[k][b.Name] = listed
	t.event(check.Event{Op: check.OpScanned, Proc: b.Name, Topic: topic, Partition: partition, Index: uint64(first), To: uint64(end), Call: at})
	return nil
}
