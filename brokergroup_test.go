package main

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmqio/jmq/wire"
)

// saysOf is a registry that answers what is done to broker groups with what a test puts there.
type saysOf struct {
	wire.Registry
	mu     sync.Mutex
	asked  []*wire.BrokerGroupRequest
	answer func(r *wire.BrokerGroupRequest) (*wire.BrokerGroupResponse, error)
}

func (s *saysOf) BrokerGroup(_ context.Context, r *wire.BrokerGroupRequest) (*wire.BrokerGroupResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r)
	return s.answer(r)
}

func (s *saysOf) ListObjects(_ context.Context, r *wire.ListObjectsRequest) (*wire.ListObjectsResponse, error) {
	return &wire.ListObjectsResponse{Objects: []*wire.Object{
		{Kind: "topic", Namespace: "default", Name: "orders", Spec: []byte(`{"partitions":2,"brokerGroups":["b1","b2","b3"]}`)},
		{Kind: "topic", Namespace: "default", Name: "other", Spec: []byte(`{"partitions":2,"brokerGroups":["b2"]}`)},
	}}, nil
}

// saying starts such a registry.
func saying(t *testing.T) (shell, *saysOf) {
	s := &saysOf{}
	handler := wire.NewHandler(wire.Services{Registry: s}, wire.HandlerOptions{Broker: "r1", Roles: []string{wire.RoleRegistry}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				_ = handler.NewSession(c, wire.SessionOptions{}).Serve()
				c.Close()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		running.Wait()
	})
	return shell{t, l.Addr().String()}, s
}

// b1 is a broker group with a master and a slave, as a registry says it.
func b1() *wire.BrokerGroupStatus {
	return &wire.BrokerGroupStatus{
		BrokerGroup: "b1", Mode: "fixed", State: "active", Condition: "degraded: 0 of 1 slaves in sync; broker b1-2 is catching-up, 2048 bytes behind, since 2026-01-02T03:04:05Z",
		Row: []byte(`{"term":3,"master":{"broker":"b1-1","boot":"b","store":"s"},"set":[{"broker":"b1-2","boot":"b","store":"s"}],"change":9,"transfer":"b1-2"}`),
		Brokers: []*wire.Node{
			{SilentMs: 120, Last: &wire.HeartbeatRequest{Node: "b1-1", Roles: []string{"broker"}, BrokerGroup: "b1", Addresses: []string{"h:1"}, State: "serving", Replica: &wire.ReplicaStatus{
				Role: "master", Epoch: 3<<32 | 2, End: 5000, Synced: 5000, Committed: 4900, Store: "s", Boot: "b",
				Slaves: []*wire.SlaveStatus{{Broker: "b1-2", State: "catching-up", LagBytes: 2048, LagMs: 30, AckUs: 410}},
			}}},
			{SilentMs: 320, Last: &wire.HeartbeatRequest{Node: "b1-2", Roles: []string{"broker"}, BrokerGroup: "b1", Addresses: []string{"h:2"}, State: "serving", Replica: &wire.ReplicaStatus{
				Role: "slave", Epoch: 3<<32 | 2, End: 2952, Committed: 2900, Why: "it was away", Store: "s2", Boot: "b2",
			}}},
		},
	}
}

// What is known of a broker group is printed for people and for programs.
func TestBrokerGroupStatus(t *testing.T) {
	sh, s := saying(t)
	s.answer = func(r *wire.BrokerGroupRequest) (*wire.BrokerGroupResponse, error) {
		if r.BrokerGroup == "nobody" {
			return nil, wire.Errorf(wire.CodeNotFound, "broker group nobody is not there")
		}
		return &wire.BrokerGroupResponse{Groups: []*wire.BrokerGroupStatus{b1()}, Done: true}, nil
	}
	all := `NAME  MODE   STATE   TERM  MASTER        IN SYNC  BROKERS  CONDITION
b1    fixed  active     3  b1-1 -> b1-2  -              2  degraded: 0 of 1 slaves in sync; broker b1-2 is catching-up, 2048 bytes behind, since 2026-01-02T03:04:05Z
`
	if out := sh.ok("", "broker-group status"); out != all {
		t.Errorf("%s", out)
	}
	if out, want := sh.ok("", "broker-group status b1"), all+`
BROKER  COPY    STATE    IN SYNC      EPOCH  COMMITTED   END  BEHIND         ACK    SILENT  WHY
b1-1    master  serving  -            3.2         4900  5000  -              -       100ms
b1-2    slave   serving  catching-up  3.2         2900  2952  2.0 KiB, 30ms  410µs   300ms  it was away
`; out != want {
		t.Errorf("%s\nwant\n%s", out, want)
	}
	// One that is silent is what it was; a slave in step says when it joins; its master takes one whose disk is full as away, for it backs off.
	answer := s.answer
	for want, change := range map[string]func(slave *wire.Node, told *wire.SlaveStatus){
		"  was slave  ":   func(slave *wire.Node, _ *wire.SlaveStatus) { slave.SilentMs = 3100 },
		"  joins in 5s  ": func(_ *wire.Node, told *wire.SlaveStatus) { told.JoinMs = 4100 },
		"  no room  ": func(slave *wire.Node, told *wire.SlaveStatus) {
			slave.Last.Replica.NoRoom, told.State = "no space left on device", "away"
		},
	} {
		s.answer = func(*wire.BrokerGroupRequest) (*wire.BrokerGroupResponse, error) {
			g := b1()
			change(g.Brokers[1], g.Brokers[0].Last.Replica.Slaves[0])
			return &wire.BrokerGroupResponse{Groups: []*wire.BrokerGroupStatus{g}, Done: true}, nil
		}
		if out := sh.ok("", "broker-group status b1"); !strings.Contains(out, want) {
			t.Errorf("%q is not in %s", want, out)
		}
	}
	s.answer = answer
	var infos []brokerGroupInfo
	if out := sh.ok("", "broker-group status -o json"); json.Unmarshal([]byte(out), &infos) != nil || infos[0].Term != 3 || infos[0].Master != "b1-1" || len(infos[0].InSync) != 0 || infos[0].Transfer != "b1-2" ||
		infos[0].Brokers[0].Replica.Slaves[0].BehindBytes != 2048 || infos[0].Brokers[1].Replica.Epoch != "3.2" {
		t.Errorf("%s", out)
	}
	sh.fails(exitNotFound, "broker group nobody is not there", "", "broker-group status nobody")
	// A node that is paused takes connections, and says nothing: the next address is asked, within the time that connecting may take. Which one is
	// asked first is drawn.
	paused, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer paused.Close()
	for range 5 {
		shell{t, paused.Addr().String() + "," + sh.address}.ok("", "broker-group status --connect-timeout 1500ms")
	}
	sh.fails(exitUsage, "--every", "", "broker-group status --watch --every 1ms")
	sh.fails(exitUsage, "", "", "broker-group status", "a b")
}

// A promotion says what may be lost and needs --force for it, and a confirmation; a drain says what is left, and what comes next.
func TestBrokerGroupOperate(t *testing.T) {
	sh, s := saying(t)
	lost, left := []string{"broker b1-1 has 48 bytes more"}, []string{"topic orders: group pay has not consumed 7 messages"}
	s.answer = func(r *wire.BrokerGroupRequest) (*wire.BrokerGroupResponse, error) {
		a := &wire.BrokerGroupResponse{Groups: []*wire.BrokerGroupStatus{b1()}, Done: !r.DryRun}
		switch r.Action {
		case "promote":
			a.Lost = lost
			a.Done = a.Done && (r.Force || len(lost) == 0)
		case "drain":
			a.Left, a.Done = left, len(left) == 0
		case "transfer":
			if r.Broker == "b1-9" {
				return nil, wire.Errorf(wire.CodeInUse, "broker b1-9 is no slave in sync")
			}
		}
		return a, nil
	}
	last := func() *wire.BrokerGroupRequest {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.asked[len(s.asked)-1]
	}
	code, out, errs := sh.run("", "broker-group promote b1 --yes")
	if code != exitError || !strings.HasPrefix(out, "may be lost: broker b1-1 has 48 bytes more\n") || !strings.Contains(errs, "accept it with --force") || !last().DryRun {
		t.Errorf("%d %s %s", code, out, errs)
	}
	sh.fails(exitUsage, "name b1-2 master of broker group b1, and have no other broker act as it: say --yes", "", "broker-group promote b1 --to b1-2 --force")
	if out := sh.ok("", "broker-group promote b1 --to b1-2 --off b1-1 --force --yes --reason burned -o json"); !strings.Contains(out, `"done": true`) {
		t.Errorf("%s", out)
	}
	if r := last(); r.Broker != "b1-2" || len(r.Off) != 1 || r.Off[0] != "b1-1" || !r.Force || r.DryRun || r.Reason != "burned" {
		t.Errorf("%v", r)
	}
	if out := sh.ok("", "broker-group promote b1 --dry-run -o json"); !strings.Contains(out, `"done": false`) || !last().DryRun {
		t.Errorf("%s", out)
	}
	lost = nil
	sh.ok("", "broker-group promote b1 --yes")
	sh.ok("", "broker-group transfer b1 --to b1-2")
	sh.fails(exitError, "broker b1-9 is no slave in sync", "", "broker-group transfer b1 --to b1-9")
	sh.fails(exitUsage, "", "", "broker-group transfer b1 --to", "a b")
	if out := sh.ok("", "broker-group drain b1"); !strings.HasSuffix(out, "\nleft: topic orders: group pay has not consumed 7 messages\n") {
		t.Errorf("%s", out)
	}
	// What is waited for is said again only when it is something else.
	drainEvery = time.Millisecond
	defer func() { drainEvery = 2 * time.Second }()
	asked := 0
	before := s.answer
	s.answer = func(r *wire.BrokerGroupRequest) (*wire.BrokerGroupResponse, error) {
		if r.Action == "drain" {
			if asked++; asked == 3 {
				left = nil
			}
		}
		return before(r)
	}
	if code, _, errs := sh.run("", "broker-group drain b1 --wait"); code != exitOK || errs != "1 left: topic orders: group pay has not consumed 7 messages\n" || asked != 3 {
		t.Errorf("%d %q, asked %d times", code, errs, asked)
	}
	if out := sh.ok("", "broker-group drain b1 --wait"); !strings.HasSuffix(out, "\nnothing is left; next: jmq topic alter orders --broker-groups b2,b3\n") {
		t.Errorf("%s", out)
	}
	sh.ok("", "broker-group activate b1")
}
