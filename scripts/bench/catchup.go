package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/jmqio/jmq/server/meta"
)

// How soon a slave that has nothing has all, and what sends notice of it.

// catchUpSize says how much there is to copy.
type catchUpSize struct {
	rounds int
	bytes  int64
	before time.Duration // of sends without a slave
	write  int64         // bytes of the file that says what the disk can do
}

// sequential is how many bytes a second the disk takes of one writer that syncs once, at the end.
func sequential(folder string, size int64) (rate float64, err error) {
	f, err := os.Create(filepath.Join(folder, "sequential"))
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	b := make([]byte, 1<<20)
	for i := range b {
		b[i] = byte(i * 7)
	}
	begin := time.Now()
	for at := int64(0); at < size; at += int64(len(b)) {
		if _, err := f.WriteAt(b, at); err != nil {
			return 0, err
		}
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	return float64(size) / time.Since(begin).Seconds(), nil
}

// p99 is that of the sends' times, in ms.
func p99(sends []send) float64 {
	var took []float64
	for _, s := range sends {
		took = append(took, milliseconds(s.end.Sub(s.begin)))
	}
	slices.Sort(took)
	if len(took) == 0 {
		return 0
	}
	return took[len(took)*99/100]
}

// catchUp: an empty slave comes to a master that has a lot, and takes a fifth of what it can.
func (f *full) catchUp(ctx context.Context) error {
	const row, producers = "catch-up", 64
	size := f.size.catchUp
	s, err := f.newSite(ctx, row, []*meta.Object{
		object(meta.KindBrokerGroup, "b1", &meta.BrokerGroup{}),
		object(meta.KindTopic, "bench", &meta.Topic{Partitions: 8, BrokerGroups: []string{"b1"}}),
	}, "b1")
	if err != nil {
		return err
	}
	defer s.drop()
	g := s.groups[0]
	master := g.members[0]
	f.step(fmt.Sprintf("filling a master with %s", humanize.IBytes(uint64(size.bytes))))
	_, err = f.bench(ctx, master, "fill", "--messages", strconv.FormatInt(size.bytes/bodyBytes, 10), "--batch", "100", "--producers", "8", "--nobody")
	if err != nil {
		return err
	}
	most, err := f.bench(ctx, master, "produce", f.timed("--producers", strconv.Itoa(producers))...)
	if err != nil {
		return err
	}
	rate := most.MessagesPerSec / 5
	c, err := s.dial(ctx, "bench")
	if err != nil {
		return err
	}
	defer c.Close(context.WithoutCancel(ctx))
	var reached, rates, goals, disks, took, slower, befores, durings, sent []float64
	var failed []float64
	for i := range size.rounds {
		f.step(fmt.Sprintf("an empty slave: %d of %d", i+1, size.rounds))
		before, err := sequential(f.data, size.write)
		if err != nil {
			return err
		}
		load, err := pace(ctx, c, "bench", producers, time.Duration(producers/rate*float64(time.Second)))
		if err != nil {
			return err
		}
		time.Sleep(f.size.warmUp)
		alone := time.Now()
		time.Sleep(size.before)
		begin := time.Now()
		calm := load.since(alone)
		err = s.startNew(ctx, g, 1)
		if err == nil {
			_, _, err = g.inSync(ctx)
		}
		end := time.Now()
		sends := load.stop()
		if err != nil {
			return err
		}
		busy := slices.DeleteFunc(sends, func(s send) bool { return s.end.Before(begin) || s.end.After(end) })
		slave := g.members[1]
		copied, err := slave.metric(ctx, "jmq_replica_copied_bytes_total")
		if err != nil {
			return err
		}
		slave.drop()
		after, err := sequential(f.data, size.write)
		if err != nil {
			return err
		}
		disk := (before + after) / 2
		goal := min(100e6, 0.6*disk)
		got := copied / end.Sub(begin).Seconds()
		reached, rates, goals, disks = append(reached, got/goal), append(rates, got/1e6), append(goals, goal/1e6), append(disks, disk/1e6)
		took = append(took, end.Sub(begin).Seconds())
		a, b := p99(calm), p99(busy)
		befores, durings, slower = append(befores, a), append(durings, b), append(slower, b/a)
		failed = append(failed, judged(busy).errors)
		sent = append(sent, float64(len(busy))/end.Sub(begin).Seconds())
	}
	l := newLine(row, fmt.Sprintf("an empty slave of a master with %s, to the lower of 100 MB/s and 0.6 of the disk's", humanize.IBytes(uint64(size.bytes))), "x", reached).atLeast(1)
	_, l.Got, _ = interval(rates)
	_, l.Base, _ = interval(goals)
	f.add(l)
	f.add(newLine(row, "the same", "MB/s", rates))
	f.add(newLine(row, "one sequential write with one sync at its end", "MB/s", disks))
	f.add(newLine(row, "from the start of its process until it is in sync", "s", took))
	l = newLine(row, fmt.Sprintf("p99 of %d producers at a fifth of what they can, during to before", producers), "x", slower).atMost(1.5)
	_, l.Got, _ = interval(durings)
	_, l.Base, _ = interval(befores)
	f.add(l)
	f.add(newLine(row, "what they sent meanwhile", "messages/s", sent))
	f.add(newLine(row, "sends that returned an error", "sends", failed).atMost(0))
	return nil
}
