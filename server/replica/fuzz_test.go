package replica_test

import (
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/replica/replicatest"
	"github.com/jmqio/jmq/server/servertest/mutate"
	"github.com/jmqio/jmq/wire"
)

func meet(g *replicatest.Group, term uint32) *wire.MeetRequest {
	return &wire.MeetRequest{BrokerGroup: g.Name, Broker: "c", Term: term}
}

// code is that of an answer.
func code(err error) wire.Code {
	var e *wire.CodeError
	if errors.As(err, &e) {
		return e.Code
	}
	return wire.CodeOK
}

// asker sends any bytes as a header.
type asker interface {
	Ask(context.Context, wire.Command, []byte) (wire.Frame, error)
}

// promises says whether a request tells of a higher term, which ends a master, as it must.
func promises(c wire.Command, header []byte) bool {
	var m wire.MeetRequest
	var f wire.FollowRequest
	return c == wire.CommandMeet && proto.Unmarshal(header, &m) == nil && m.Term > 1 && m.Term < 1<<21 ||
		c == wire.CommandFollow && proto.Unmarshal(header, &f) == nil && f.SeenTerm > 1 && f.SeenTerm < 1<<21
}

// hostile makes requests that cannot be right, of all kinds that a master answers.
func hostile(rng *rand.Rand, g *replicatest.Group) (wire.Command, proto.Message) {
	position := func() uint64 {
		switch rng.IntN(5) {
		case 0:
			return 0
		case 1:
			return math.MaxUint64 - rng.Uint64N(3)
		case 2:
			return uint64(math.MaxInt64) + rng.Uint64N(3)
		case 3:
			return rng.Uint64N(1 << 14)
		}
		return rng.Uint64()
	}
	high := func(good int) uint32 { // a term, or one that would leave none to come
		if rng.IntN(3) == 0 {
			return math.MaxUint32 - rng.Uint32N(1<<20)
		}
		return uint32(good)
	}
	text := func(good string) string {
		switch rng.IntN(6) {
		case 0:
			return ""
		case 1:
			return "../" + good
		case 2:
			return "other"
		}
		return good
	}
	switch rng.IntN(6) {
	case 0:
		r := &wire.FollowRequest{BrokerGroup: text(g.Name), Broker: text("c"), Store: text("00112233445566778899aabbccddeeff"), Boot: text("boot"),
			SeenTerm: high(rng.IntN(2)), Begin: position(), End: position(), Committed: position(), Session: position() % 8}
		for range rng.IntN(4) {
			r.History = append(r.History, &wire.EpochStart{Epoch: position(), Position: position(), Forced: rng.IntN(2) == 0})
		}
		return wire.CommandFollow, r
	case 1:
		return wire.CommandPull, &wire.PullRequest{Session: position() % 8, Epoch: 1<<32 | position()%3, Acked: position(), Synced: position(), Window: rng.Uint32(), BytesMax: rng.Uint32()}
	case 2:
		return wire.CommandMeet, &wire.MeetRequest{BrokerGroup: text(g.Name), Broker: text("c"), Term: high(0)}
	case 3:
		return wire.CommandReadLog, &wire.ReadLogRequest{From: position(), To: position(), BytesMax: rng.Uint32(), Committed: rng.IntN(2) == 0, WaitMs: uint32(rng.IntN(20)), Observer: text("o")}
	case 4:
		return wire.CommandReadSeed, &wire.ReadSeedRequest{Session: position() % 8, Seed: position(), Offset: position(), BytesMax: rng.Uint32()}
	}
	return wire.CommandLogSums, &wire.LogSumsRequest{From: position(), To: position(), Every: position()}
}

// TestHostile: requests that cannot be right get an answer, and neither they nor random bytes disturb what goes on beside them: sends are
// replicated, nothing panics, and the slave that is there stays in sync.
func TestHostile(t *testing.T) {
	rng := random(t)
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a := pair(t, g, "b")
		begun := g.Net.Peer("c", "a")
		defer begun.Close()
		counts := map[wire.Code]int{}
		for i := range 3000 {
			command, r := hostile(rng, g)
			header, err := proto.Marshal(r)
			must(t, err)
			if rng.IntN(4) == 0 {
				for range 1 + rng.IntN(3) {
					header = append(header, 0)
					header[rng.IntN(len(header))] = byte(rng.Uint32())
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			if promises(command, header) {
				cancel()
				continue
			}
			_, err = begun.(asker).Ask(ctx, command, header)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("%v %v is not answered", command, r)
			}
			counts[code(err)]++
			if i%100 == 0 {
				send(t, a, "x", true)
			}
		}
		t.Logf("answers: %v", counts)
		if n := g.Net.Panics("a"); n > 0 {
			t.Errorf("%d requests panicked", n)
		}
		if counts[wire.CodeInvalid] < 100 || counts[wire.CodeStaleTerm] < 10 {
			t.Errorf("few were refused: %v", counts)
		}
		if !a.InSync("b") {
			t.Errorf("the slave left: %v", a.Master.Status())
		}
		caughtUp(g, a, g.Nodes["b"])
		equal(t, a.Master, g.Nodes["b"].Slave)
	}, "a", "b", "c")
}

// FuzzReplication: no bytes as the header of any command make a master panic or stop.
func FuzzReplication(f *testing.F) {
	g := replicatest.NewGroup(f, "a", "b", "c")
	f.Cleanup(g.Close)
	a := g.Nodes["a"]
	if err := a.StartMaster(context.Background()); err != nil {
		f.Fatal(err)
	}
	peer := g.Net.Peer("c", "a")
	f.Cleanup(func() { peer.Close() })
	commands := []wire.Command{wire.CommandFollow, wire.CommandPull, wire.CommandMeet, wire.CommandReadLog, wire.CommandReadSeed, wire.CommandLogSums}
	rng := rand.New(rand.NewPCG(1, 2))
	var seeds [][]byte // the command's number first
	for range 200 {
		command, r := hostile(rng, g)
		header, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint16(command), header)
		seeds = append(seeds, append([]byte{byte(slices.Index(commands, command))}, header...))
	}
	hello, err := proto.Marshal(&wire.HelloRequest{VersionMin: 1, VersionMax: 1, ClientId: "c"})
	if err != nil {
		f.Fatal(err)
	}
	greeting := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindRequest, Command: wire.CommandHello, Request: 1, Header: hello})
	handler := g.Net.Handler("a")
	conn, buffers := new(mutate.Conn), new(wire.Buffers)
	said := make([]byte, 0, 4096)
	mutate.Run(f, mutate.Decoder{Seeds: seeds, Slowness: 10, Check: func(t testing.TB, b []byte) bool {
		if len(b) == 0 {
			return false
		}
		c := commands[int(b[0])%len(commands)]
		if promises(c, b[1:]) {
			return false
		}
		said = wire.AppendFrame(append(said[:0], greeting...), wire.Frame{Kind: wire.KindRequest, Command: c, Request: 2, Header: b[1:]})
		conn.Say(said, nil)
		s := handler.NewSession(conn, wire.SessionOptions{Buffers: buffers})
		conn.Last = func() { // a pull may wait for records that never come
			for range 100 {
				if s.InFlight() == 0 {
					break
				}
				runtime.Gosched()
			}
		}
		if err := s.Serve(); err != io.EOF || g.Net.Panics("a") > 0 || a.Master.Err() != nil {
			t.Fatalf("%v ends with %v, %d panics, master: %v", c, err, g.Net.Panics("a"), a.Master.Err())
		}
		answer := conn.Heard()
		for {
			a, n, err := wire.ParseFrame(answer, wire.ReplyBytesMax)
			if err != nil || n == 0 || n > len(answer) || a.Request > 1 {
				return err == nil && n > 0 && a.Kind == wire.KindResponse
			}
			answer = answer[n:]
		}
	}})
	f.Fuzz(func(t *testing.T, command uint16, header []byte) {
		c := commands[int(command)%len(commands)]
		if promises(c, header) || len(header) > 1<<16 {
			return
		}
		var l wire.ReadLogRequest
		if c == wire.CommandReadLog && proto.Unmarshal(header, &l) == nil && l.WaitMs > 20 {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := peer.(asker).Ask(ctx, c, header)
		if errors.Is(err, context.DeadlineExceeded) || g.Net.Panics("a") > 0 || a.Master.Err() != nil {
			t.Fatalf("%v, %d panics, master: %v", err, g.Net.Panics("a"), a.Master.Err())
		}
	})
}

// TestForeign: who is not of the broker group, or says what cannot be, is refused, and the session that is there goes on.
func TestForeign(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a := pair(t, g, "b")
		send(t, a, "1", true)
		peer := g.Net.Peer("x", "a")
		defer peer.Close()
		ctx := t.Context()
		good := &wire.FollowRequest{BrokerGroup: g.Name, Broker: "c", Store: "00112233445566778899aabbccddeeff", Boot: "boot", SeenTerm: 1}
		for _, one := range []struct {
			what   string
			change func(*wire.FollowRequest)
			want   wire.Code
		}{
			{"another broker group", func(r *wire.FollowRequest) { r.BrokerGroup = "other" }, wire.CodeInvalid},
			{"a broker that is not of the group", func(r *wire.FollowRequest) { r.Broker = "x" }, wire.CodeForbidden},
			{"the master's own name", func(r *wire.FollowRequest) { r.Broker = "a" }, wire.CodeForbidden},
			{"no store", func(r *wire.FollowRequest) { r.Store = "" }, wire.CodeInvalid},
			{"begin beyond end", func(r *wire.FollowRequest) { r.Begin = 8 }, wire.CodeInvalid},
			{"records without an epoch", func(r *wire.FollowRequest) { r.End = 8 }, wire.CodeInvalid},
			{"a session that never was", func(r *wire.FollowRequest) { r.Session = 999 }, wire.CodeStaleTerm},
		} {
			r := proto.Clone(good).(*wire.FollowRequest)
			one.change(r)
			if _, err := peer.Follow(ctx, r); code(err) != one.want {
				t.Errorf("%s: %v, want %v", one.what, err, one.want)
			}
		}
		w, err := peer.Follow(ctx, good)
		must(t, err)
		begin := proto.Clone(good).(*wire.FollowRequest)
		begin.Session = w.Session
		w, err = peer.Follow(ctx, begin)
		must(t, err)
		pull := func(r *wire.PullRequest) error {
			done := make(chan error, 1)
			peer.Pull(ctx, r, func(_ *wire.PullResponse, _ []byte, err error) { done <- err })
			return <-done
		}
		epoch := w.Epoch
		for what, r := range map[string]*wire.PullRequest{
			"an ack beyond the end":        {Session: w.Session, Epoch: epoch, Acked: math.MaxUint64},
			"synced beyond what is acked":  {Session: w.Session, Epoch: epoch, Acked: 0, Synced: 8},
			"an ack in another epoch":      {Session: w.Session, Epoch: epoch + 1},
			"an ack in a session long ago": {Session: w.Session - 1, Epoch: epoch},
		} {
			if err := pull(r); code(err) != wire.CodeInvalid && code(err) != wire.CodeStaleTerm {
				t.Errorf("%s: %v", what, err)
			}
		}
		must(t, pull(&wire.PullRequest{Session: w.Session, Epoch: epoch})) // all that was refused has not ended it
		send(t, a, "2", false)
	}, "a", "b", "c")
}

// TestTwins: two slaves with one identity: the newer session ends the older one, and they count once.
func TestTwins(t *testing.T) {
	inGroup(t, func(t *testing.T, g *replicatest.Group) {
		a := pair(t, g, "b")
		send(t, a, "1", true)
		twin := g.Net.Peer("b", "a")
		defer twin.Close()
		st := g.Nodes["b"].Slave.Status()
		r := &wire.FollowRequest{BrokerGroup: g.Name, Broker: "b", Store: st.Store, Boot: st.Boot, SeenTerm: 1}
		w, err := twin.Follow(t.Context(), r)
		must(t, err)
		r.Session = w.Session
		_, err = twin.Follow(t.Context(), r)
		must(t, err)
		if n := len(a.Master.Status().Slaves); n != 1 {
			t.Errorf("%d slaves are counted", n)
		}
		// The twin has nothing: what is sent now is not on two machines until the other one is back, or it has left.
		_, short, err := a.Send([]byte("2"), true)
		if err == nil && !short {
			if acked := a.Master.Status().Slaves[0].Acked; acked < uint64(a.Master.Committed()) {
				t.Errorf("a replicated send is ok, and the slave has %d", acked)
			}
		} else if !errors.Is(err, replica.ErrNotMaster) && err != nil && code(err) != wire.CodeOK {
			t.Errorf("send: %v", err)
		}
		g.Await(func() bool { return a.InSync("b") && g.Nodes["b"].Slave.Committed() == a.Master.Committed() }, "b is back: %v", a.Master.Status())
		equal(t, a.Master, g.Nodes["b"].Slave)
	}, "a", "b")
}
