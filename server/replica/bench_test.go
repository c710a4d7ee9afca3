package replica_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/replica/replicatest"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

// tcp is a broker on the disk and on loopback.
type tcp struct {
	name  string
	dir   string
	id    [16]byte
	state *replica.StateFile
	row   term.Row
	peer  string // address of the other one
}

func newTCP(b *testing.B, name string) *tcp {
	dir := b.TempDir()
	state, err := replica.OpenState(vfs.Default, dir, "1")
	if err != nil {
		b.Fatal(err)
	}
	return &tcp{name: name, dir: dir, id: [16]byte{name[0]}, state: state}
}

func (n *tcp) node(other string) replica.Node {
	return replica.Node{
		BrokerGroup: "group", State: n.state, Self: term.Member{Broker: n.name, Boot: n.state.Get().Boot, Store: hex.EncodeToString(n.id[:])},
		Peers: func() map[string][]string { return map[string][]string{other: {n.peer}} },
		Dial:  func(_ string, addresses []string) replica.Peer { return replicatest.DialTCP(n.name, addresses[0]) },
		Row:   func() (term.Row, bool) { return n.row, true },
		Ask: func(_ context.Context, a term.Ask) (term.Row, bool, error) {
			return term.Row{Term: 1, Master: n.row.Master, Set: a.Set, Change: a.Change + 1}, true, nil
		},
		Timing: replica.Timing{JoinAfter: 100 * time.Millisecond},
	}
}

func (n *tcp) options() journal.Options {
	return journal.Options{Dir: filepath.Join(n.dir, "journal"), StoreID: n.id}
}

// begin opens a master and, with a slave, that too; it waits until it is in sync.
func begin(b *testing.B, slave bool) (*replica.Master, *tcp) {
	a, s := newTCP(b, "a"), newTCP(b, "b")
	a.row = term.Row{Term: 1, Master: a.node("b").Self, Change: 1}
	s.row = a.row
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var sessions sync.WaitGroup
	m, err := replica.OpenMaster(context.Background(), a.node("b"), 1, false, a.options(), func(m *replica.Master) {
		h := wire.NewHandler(wire.Services{Replication: replicatest.Serve(m, nil)}, wire.HandlerOptions{Broker: "a"})
		sessions.Go(func() {
			for {
				nc, err := l.Accept()
				if err != nil {
					return
				}
				sessions.Go(func() { _ = h.NewSession(nc, wire.SessionOptions{}).Serve() })
			}
		})
	})
	if err != nil {
		b.Fatal(err)
	}
	s.peer = l.Addr().String()
	b.Cleanup(func() {
		l.Close()
		_ = m.Close()
		sessions.Wait()
	})
	if slave {
		follow(b, m, s)
	}
	return m, s
}

func follow(b *testing.B, m *replica.Master, n *tcp) *replica.Slave {
	s, err := replica.OpenSlave(context.Background(), n.node("a"), n.options(), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if l := m.Status().Slaves; len(l) == 1 && l[0].InSync {
			return s
		}
		if time.Now().After(end) {
			b.Fatalf("the slave is not in sync: %v, %v", m.Status(), s.Status())
		}
	}
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCommit is one message of 1 KiB by each of so many producers at a time, alone and with a slave in the same process.
func BenchmarkCommit(b *testing.B) {
	for _, slave := range []bool{false, true} {
		for _, producers := range []int{1, 64} {
			b.Run(fmt.Sprintf("slave=%v/producers=%d", slave, producers), func(b *testing.B) {
				m, _ := begin(b, slave)
				payload := make([]byte, 1024)
				var wg sync.WaitGroup
				b.ReportAllocs()
				b.ResetTimer()
				before, commits := cpu(), m.Metrics().Commits
				for p := range producers {
					wg.Go(func() {
						done := make(chan error, 1)
						a := &journal.Append{Entries: []journal.Entry{{Kind: journal.KindMessages, Payload: payload}}}
						a.Done = func(_ *journal.Append, err error) { done <- err }
						for i := p; i < b.N; i += producers {
							for err := m.Append(a); err != nil; err = m.Append(a) {
								if err := m.WaitRoom(context.Background()); err != nil {
									b.Error(err)
									return
								}
							}
							m.Kick()
							if err := <-done; err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				n := m.Metrics().Commits - commits
				b.ReportMetric(float64((cpu()-before).Microseconds())/float64(n), "cpu-µs/commit")
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
			})
		}
	}
}

// BenchmarkCatchUp is an empty slave that takes 1 GiB.
func BenchmarkCatchUp(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		m, n := begin(b, false)
		payload := make([]byte, 64<<10)
		var wg sync.WaitGroup
		for range 1 << 14 {
			wg.Add(1)
			a := &journal.Append{Entries: []journal.Entry{{Kind: journal.KindMessages, Payload: payload}}}
			a.Done = func(_ *journal.Append, err error) { wg.Done() }
			for m.Append(a) != nil {
				_ = m.WaitRoom(context.Background())
			}
			m.Kick()
		}
		wg.Wait()
		b.StartTimer()
		s := follow(b, m, n)
		b.SetBytes(int64(s.Written()))
	}
}
