package servertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/scripts/testenv"
	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/servertest/check"
	"github.com/jmqio/jmq/wire"
)

const (
	smallDiskBytes  = 12 << 20
	fullSendTimeout = 200 * time.Millisecond // of a send, so that its error comes within a second
)

// TestDiskFull fills the disk of the journal, of the index, or of the checkpoints, and frees it, again and again (JMQ_TEST_CYCLES).
// While it is full a send is taken or refused within a second, and says why; what is stored is given, and acks are taken. When
// there is space again sends go on by themselves, and nothing that was acknowledged is lost, nor comes twice. Every other start
// finds the disk full.
func TestDiskFull(t *testing.T) {
	cycles := 3
	if n, asked := cyclesAsked(t); asked {
		cycles = n
	}
	for _, what := range []string{"journal", "index", "checkpoints"} {
		t.Run(what, func(t *testing.T) {
			disk := testenv.Disk(t, smallDiskBytes)
			// Started after the mount, so it is stopped before the disk goes.
			s := Start(t, func(c *server.Config) {
				b := &c.Broker
				b.Journal.SegmentBytesMax = 256 << 10
				b.Store.CheckpointBytes, b.Store.CheckpointEvery = 64<<10, 100*time.Millisecond
				b.Retention.Bytes, b.Retention.Every = 512<<10, 20*time.Millisecond
				// Marks would refuse sends before there is no space at all.
				b.Disk.WarnPercent, b.Disk.EarlyDeletePercent, b.Disk.RefusePercent = 100, 100, 100
				b.Journal.Folder, b.Index.Folder = filepath.Join(t.TempDir(), "journal"), filepath.Join(t.TempDir(), "index")
				switch what {
				case "journal":
					b.Journal.Folder = filepath.Join(disk, "journal")
				case "index":
					b.Index.Folder = filepath.Join(disk, "index")
				default:
					b.Data = filepath.Join(disk, "data")
				}
			})
			f := newFilling(t, s, filepath.Join(disk, "filler"))
			f.full, f.most = what == "journal", 200
			if f.full {
				f.most = 3000 // more than it has spares for
			}
			for n := range cycles {
				f.cycle(n)
			}
			f.judge()
		})
	}
}

// filling is one client of a broker whose disk is filled, and what it saw.
type filling struct {
	t      *testing.T
	s      *Server
	filler string
	c      *campaign // events only
	client *client.Client
	p      *producer
	m      *member

	full              bool // sends must be refused: the disk is the journal's
	most              int  // sends to a disk that is full
	refused, taken    int  // sends, while the disk was full
	slowest, recovers time.Duration
}

func newFilling(t *testing.T, s *Server, filler string) *filling {
	seed := newSeed()
	t.Logf("-seed=%d", seed)
	f := &filling{t: t, s: s, filler: filler, c: &campaign{t: t}}
	f.c.rng.Rand = rand.New(rand.NewPCG(seed, 13))
	s.CreateTopic(topicName, 1)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var err error
	if f.client, err = client.Dial(ctx, s.Address(), client.WithApp(fetchGroup)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeNow(f.client) })
	f.p = f.c.producer(f.client, "p", 1, patience{timeout: fullSendTimeout})
	f.m = &member{c: f.c, rng: f.c.fork(), proc: "m"}
	f.m.consumer, err = f.client.Consumer(topicName, client.Start(client.FromBeginning), client.OnGap(f.m.gap))
	if err == nil {
		err = f.m.consumer.Subscribe(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// send sends one message and returns how long it took, and its error.
func (f *filling) send() (time.Duration, error) {
	m := f.p.message()
	e := f.p.sent(m)
	began := time.Now()
	r, err := f.p.p.Send(context.Background(), m)
	took := time.Since(began)
	f.p.note(e, r, err)
	return took, err
}

// consume takes and acks what there is, up to n; all must be taken and acked.
func (f *filling) consume(n int) (got int) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	for got < n {
		ds, err := f.m.consumer.Fetch(ctx, min(50, n-got), client.Wait(0))
		if errors.Is(err, client.ErrDisconnected) && ctx.Err() == nil { // the broker was just started
			pause(ctx, time.Millisecond)
			continue
		}
		if err != nil {
			f.t.Fatalf("fetch: %v", err)
		}
		if len(ds) == 0 {
			return got
		}
		got += len(ds)
		f.m.receivedAll(ds, time.Now())
		e := f.m.about(check.OpAck, ds[0], ds[len(ds)-1].Index+1)
		if err := f.m.consumer.Ack(ctx, ds...); err != nil {
			f.t.Fatalf("ack: %v", err)
		}
		e.Return, e.Result = now(), check.OK
		f.c.event(e)
	}
	return got
}

func (f *filling) fill() { fill(f.t, f.filler) }

// fill takes all space that is left on a disk, by a file there.
func fill(t *testing.T, filler string) {
	t.Helper()
	file, err := os.OpenFile(filler, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for size := 64 << 10; size >= 512; {
		if _, err := file.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// sendAll sends until so many were taken one after the other. The disk has just had space again, which nobody has told the broker.
func (f *filling) sendAll(cycle, messages int) {
	f.t.Helper()
	began := time.Now()
	for running := 0; running < messages; running++ {
		_, err := f.send()
		switch {
		case err == nil:
		case time.Since(began) > within || !f.c.excused(err):
			f.t.Fatalf("cycle %d: a send while there is space: %v, after %v", cycle, err, time.Since(began))
		default:
			running = -1
		}
	}
	f.recovers = max(f.recovers, time.Since(began))
}

func (f *filling) cycle(n int) {
	t := f.t
	t.Helper()
	f.sendAll(n, 20)
	f.fill()
	// Until it is refused twice running, or has filled far more than was there.
	before := f.refused
	for running, left := 0, f.most; running < 2 && left > 0; left-- {
		took, err := f.send()
		f.slowest = max(f.slowest, took)
		switch {
		case err == nil:
			running = 0
			f.taken++
		case errors.Is(err, client.ErrDiskFull) && !errors.Is(err, client.ErrUnknown):
			running++
			f.refused++
			f.fill() // what it has freed meanwhile
		case errors.Is(err, client.ErrUnknown), errors.Is(err, client.ErrBusy):
			// The time of a send ended while an attempt was under way, or while the journal found out that there is no space.
		default:
			t.Fatalf("cycle %d: a send to a full disk: %v", n, err)
		}
		if took > time.Second {
			t.Errorf("cycle %d: a send to a full disk took %v: %v", n, took, err)
		}
	}
	if f.full && f.refused == before {
		t.Errorf("cycle %d: no send was refused", n)
	}
	if n%2 == 1 {
		f.s.config.Node.Wire.Listen, f.s.config.Node.Admin.Listen = f.s.Address(), f.s.AdminAddress()
		if err := f.s.end(); err != nil && !errors.Is(err, syscall.ENOSPC) { // of the last checkpoint, which nothing needs
			t.Fatalf("cycle %d: stop: %v", n, err)
		}
		if err := f.s.start(); err != nil {
			t.Fatalf("cycle %d: start on a full disk: %v", n, err)
		}
		f.c.event(check.Event{Op: check.OpRestart, Proc: "broker", Call: now() - int64(within), Return: now()})
	}
	if f.consume(40) == 0 {
		t.Errorf("cycle %d: nothing came while the disk was full", n)
	}
	if err := os.Remove(f.filler); err != nil {
		t.Fatal(err)
	}
	f.sendAll(n, 20)
	f.consume(1 << 30)
}

// judge has everything read again by a new group, what is kept, and the history checked.
func (f *filling) judge() {
	t := f.t
	t.Helper()
	t.Logf("%d sends were taken while the disk was full, %d refused, the slowest after %v; at most %v until all sends were taken again", f.taken, f.refused, f.slowest, f.recovers)
	f.s.Restart()
	f.c.event(check.Event{Op: check.OpDrain, Topic: topicName, Group: fetchGroup, Call: now()})
	f.c.admin = f.client
	if err := f.c.audit(context.Background(), topicName); err != nil {
		t.Errorf("audit: %v", err)
	}
	k := check.NewChecker()
	for _, e := range f.c.history.events {
		if err := k.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	if r := k.Report(); !r.OK() {
		name, err := check.Keep(check.Kept(), "disk-full", f.c.history.events)
		t.Errorf("the history is in %s (%v)\n%v", name, err, r)
	}
	for _, p := range f.c.problems.list {
		t.Error(p)
	}
}

// onSmallDisks starts a broker group of a master and a slave, each on a disk of its own, with the topic orders.
func onSmallDisks(t *testing.T) (g *ReplicaGroup, cl *client.Client, disks map[string]string) {
	t.Helper()
	disks = map[string]string{}
	c := StartCluster(t, ClusterOptions{Slaves: 1, Each: func(c *server.Config) {
		fast(c)
		if len(c.Roles) == 1 && c.Roles[0] == server.RoleBroker {
			disks[c.Node.Name] = testenv.Disk(t, smallDiskBytes)
			c.Broker.Data = filepath.Join(disks[c.Node.Name], "data")
			c.Broker.Journal.SegmentBytesMax = 256 << 10
		}
	}})
	g = c.Groups[0]
	g.InSync(1)
	c.Registries[0].CreateTopic("orders", 1)
	return g, c.Dial(strings.Join(Addresses(g.Brokers), ",")), disks
}

// TestSlaveDiskFull: a slave whose disk is full says so, and answers what its disk holds; the master goes on without it. When it has room again it takes what it missed.
// A master whose disk is full says that it takes no messages.
func TestSlaveDiskFull(t *testing.T) {
	g, cl, disks := onSmallDisks(t)
	condition := func() string {
		r, err := g.Do(&wire.BrokerGroupRequest{Action: "status"})
		if err != nil {
			t.Fatal(err)
		}
		return r.Groups[0].Condition
	}
	filler := filepath.Join(disks["b1s1"], "filler")
	fill(t, filler)
	body := strings.Repeat("x", 32<<10)
	sent := 0
	until(t, "the slave has no room", func() bool {
		if err := send(t, cl, "orders", body); err != nil {
			t.Fatal(err)
		}
		sent++
		return strings.Contains(g.Status()["b1s1"].GetNoRoom(), "no room for a segment")
	})
	until(t, "it is told", func() bool {
		return strings.Contains(condition(), "0 of 1 slaves in sync; broker b1s1: its disk has no room for a segment of the journal")
	})
	if u, err := g.Broker("b1s1").Admin().StoreUsage(t.Context(), &wire.StoreUsageRequest{}); err != nil || u.State != "refusing" || u.Disks[0].Free != 0 {
		t.Errorf("usage of the slave: %v, %v", u, err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	g.InSync(1)
	g.SameEnds()
	if full := g.Status()["b1s1"].GetNoRoom(); strings.Contains(full, "no room") {
		t.Errorf("it has room, and says %q", full)
	}
	received(t, cl, "orders", sent)
	until(t, "the master's is told", func() bool {
		fill(t, filepath.Join(disks["b1"], "filler")) // also what it frees
		return strings.HasPrefix(condition(), "full: broker b1, its master, takes no messages: the disk of the journal is 100 % full, since ")
	})
}

// TestFullDisksHandOver: on disks with no byte left a broker hands over and takes over, by a transfer and by force, tells what is wrong, and lives.
func TestFullDisksHandOver(t *testing.T) {
	g, cl, disks := onSmallDisks(t)
	for i := range 3 {
		if err := send(t, cl, "orders", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	g.SameEnds()
	for _, dir := range disks {
		fill(t, filepath.Join(dir, "filler"))
	}
	for i, to := range []string{"b1s1", "b1", "b1s1"} {
		request := &wire.BrokerGroupRequest{Action: "transfer", Broker: to}
		if i == 2 {
			request.Action, request.Force = "promote", true
		}
		g.Await("the registry takes it", func(map[string]*wire.ReplicaStatus) bool {
			_, err := g.Do(request)
			if err != nil && wire.CodeOf(err) != wire.CodeInUse && wire.CodeOf(err) != wire.CodeInvalid {
				t.Fatal(err)
			}
			return g.Row().Master.Broker == to
		})
		if m := g.Master(); m.Name() != to {
			t.Fatalf("%s is master, not %s", m.Name(), to)
		}
		g.InSync(1)
	}
	for _, dir := range disks {
		if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
			t.Fatal(err)
		}
	}
	if err := send(t, cl, "orders", "when there is space"); err != nil {
		t.Error(err)
	}
	g.SameEnds()
	received(t, cl, "orders", 4)
}
