package wire

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

// session serves one connection with h until the test ends, and returns its client, which said hello.
func session(t testing.TB, h *Handler, hello *HelloRequest) (*Conn, *Session, *HelloResponse) {
	t.Helper()
	client, server := net.Pipe()
	s := h.NewSession(server, SessionOptions{})
	done := make(chan struct{})
	go func() { s.Serve(); close(done) }()
	t.Cleanup(func() { s.Conn().Close(nil); <-done })
	c := serve(t, NewConn(client, ConnOptions{}))
	r, err := c.Hello(context.Background(), hello)
	if err != nil {
		t.Fatal(err)
	}
	return c, s, r
}

// TestRoles goes through every pair of (services that a node has, command): who has the service carries the command out, who
// has not names those who run its role. No number that is not a command does anything.
func TestRoles(t *testing.T) {
	nodes := map[string][]string{RoleBroker: {"b1:7000", "b2:7000"}, RoleRegistry: {"r1:7000"}}
	for has := range 8 {
		var services Services
		if has&1 != 0 {
			services.Broker = every{}
		}
		if has&2 != 0 {
			services.Admin = every{}
		}
		if has&4 != 0 {
			services.Registry = every{}
		}
		h := NewHandler(services, HandlerOptions{Broker: "n1", Roles: []string{"some"}, Elsewhere: func(role string) []string { return nodes[role] }})
		c, _, hello := session(t, h, &HelloRequest{ClientId: "c"})
		if !slices.Equal(hello.Roles, []string{"some"}) || !slices.Equal(hello.Registry, nodes[RoleRegistry]) || hello.Authenticate {
			t.Fatalf("hello says %v", hello)
		}
		for command := range Command(countedCommands + 2) {
			f, err := c.Call(context.Background(), command, goodHeader(command), nil)
			_, known := commandNames[command]
			service, ofService := commandServices[command]
			switch {
			case !known:
				if CodeOf(err) != CodeUnknownCommand {
					t.Errorf("services %b: %v: %v", has, command, err)
				}
			case command == CommandPing || command == CommandWhoAmI:
				if err != nil {
					t.Errorf("services %b: %v: %v", has, command, err)
				}
			case command == CommandHello || command == CommandAuthenticate:
				if CodeOf(err) != CodeInvalid {
					t.Errorf("services %b: %v: %v", has, command, err)
				}
			case !ofService:
				t.Errorf("%v is of no service", command)
			case services.has(service):
				if err != nil || f.Kind != KindResponse {
					t.Errorf("services %b: %v: %v", has, command, err)
				}
			default:
				e, _ := asCodeError(err)
				if e == nil || e.Code != CodeRoleElsewhere || !slices.Equal(e.Nodes, nodes[service.role()]) || !strings.Contains(e.Message, service.role()) {
					t.Errorf("services %b: %v: %v", has, command, err)
				}
			}
		}
	}
}

// copyOnly is the Registry of a node that holds a copy of the metadata only.
type copyOnly struct{ every }

func (copyOnly) ListObjects(context.Context, *ListObjectsRequest) (*ListObjectsResponse, error) {
	return nil, Errorf(CodeRoleElsewhere, "a copy")
}

// TestElsewhereFilled shows that a service which says role-elsewhere need not know the nodes.
func TestElsewhereFilled(t *testing.T) {
	h := NewHandler(Services{Registry: copyOnly{}}, HandlerOptions{Elsewhere: func(role string) []string { return []string{role + ":1"} }})
	c, _, _ := session(t, h, &HelloRequest{ClientId: "c"})
	_, err := c.Call(context.Background(), CommandListObjects, nil, nil)
	if e, _ := asCodeError(err); e == nil || e.Code != CodeRoleElsewhere || !slices.Equal(e.Nodes, []string{"registry:1"}) || e.Message != "a copy" {
		t.Fatalf("got %v", err)
	}
}

// parking is a Registry whose watches wait until they are released, or their session ends.
type parking struct {
	every
	waits chan func(*WatchRoutesResponse, error)
}

func (p parking) WatchRoutes(ctx context.Context, r *WatchRoutesRequest, done func(*WatchRoutesResponse, error)) {
	p.waits <- done
	context.AfterFunc(ctx, func() { done(nil, ctx.Err()) })
}

// TestWatches shows that a session has at most 16 watches waiting, that one that ended makes room, that draining ends them,
// and that an answer given twice is dropped.
func TestWatches(t *testing.T) {
	p := parking{waits: make(chan func(*WatchRoutesResponse, error), 2*watchesMax)}
	h := NewHandler(Services{Registry: p}, HandlerOptions{Broker: "n1"})
	c, s, _ := session(t, h, &HelloRequest{ClientId: "c"})
	answers := make(chan error, 2*watchesMax)
	watch := func() {
		t.Helper()
		if _, err := c.Start(CommandWatchRoutes, goodHeader(CommandWatchRoutes), nil, func(f Frame, err error) {
			r := new(WatchRoutesResponse)
			if err == nil && (proto.Unmarshal(f.Header, r) != nil || r.Generation != 7) {
				err = Errorf(CodeMalformed, "%v", r)
			}
			answers <- err
		}); err != nil {
			t.Fatal(err)
		}
		c.Flush()
	}
	for range watchesMax {
		watch()
	}
	watch()
	wantCode(t, <-answers, CodeBusy)
	done := <-p.waits
	done(&WatchRoutesResponse{Generation: 7}, nil)
	done(&WatchRoutesResponse{Generation: 8}, nil)
	if err := <-answers; err != nil {
		t.Fatal(err)
	}
	if n := h.Metrics().Twice; n != 1 {
		t.Errorf("%d answers were given twice", n)
	}
	watch()
	for range watchesMax {
		<-p.waits
	}
	if n := s.InFlight(); n != watchesMax {
		t.Errorf("%d requests in flight", n)
	}
	s.Drain(t.Context())
	for range watchesMax {
		if err := <-answers; CodeOf(err) != CodeStopping {
			t.Errorf("got %v", err)
		}
	}
}

// TestRegistryChecks shows what is refused before the registry sees it.
func TestRegistryChecks(t *testing.T) {
	long := strings.Repeat("x", ObjectNameBytesMax+1)
	h := NewHandler(Services{Registry: every{}}, HandlerOptions{})
	c, _, _ := session(t, h, &HelloRequest{ClientId: "c"})
	object := func(o *Object) *ApplyObjectsRequest { return &ApplyObjectsRequest{Writes: []*ObjectWrite{{Object: o}}} }
	for _, row := range []struct {
		command Command
		r       proto.Message
	}{
		{CommandWatchRoutes, &WatchRoutesRequest{Topics: []*WatchedTopic{{Topic: "a/b"}}}},
		{CommandWatchRoutes, &WatchRoutesRequest{Topics: []*WatchedTopic{{Topic: ""}}}},
		{CommandWatchRoutes, &WatchRoutesRequest{Topics: []*WatchedTopic{{Topic: "a", Group: "a..b"}}}},
		{CommandWatchRoutes, &WatchRoutesRequest{Topics: slices.Repeat([]*WatchedTopic{{Topic: "a"}}, WatchedTopicsMax+1)}},
		{CommandHeartbeat, &HeartbeatRequest{Node: "a b"}},
		{CommandHeartbeat, &HeartbeatRequest{Node: "a", BrokerGroup: "b/c"}},
		{CommandHeartbeat, &HeartbeatRequest{Node: "a", Boot: long}},
		{CommandHeartbeat, &HeartbeatRequest{Node: "a", Labels: slices.Repeat([]string{"a=b"}, heartbeatTextsMax+1)}},
		{CommandHeartbeat, &HeartbeatRequest{Node: "a", Addresses: []string{long}}},
		{CommandListObjects, &ListObjectsRequest{Prefix: long}},
		{CommandListObjects, &ListObjectsRequest{After: strings.Repeat(long, 2)}},
		{CommandListAudit, &ListAuditRequest{Who: long}},
		{CommandApplyObjects, &ApplyObjectsRequest{Writes: []*ObjectWrite{{}}}},
		{CommandApplyObjects, object(&Object{Kind: "topic"})},
		{CommandApplyObjects, object(&Object{Name: "a"})},
		{CommandApplyObjects, object(&Object{Kind: "topic", Name: long})},
		{CommandApplyObjects, object(&Object{Kind: "topic", Name: "a", Spec: make([]byte, SpecBytesMax+1)})},
		{CommandApplyObjects, &ApplyObjectsRequest{Reason: strings.Repeat("x", ReasonBytesMax+1)}},
		{CommandApplyObjects, &ApplyObjectsRequest{Writes: slices.Repeat([]*ObjectWrite{{Object: &Object{Kind: "a", Name: "b"}}}, ObjectWritesMax+1)}},
		{CommandCreateCredential, &CreateCredentialRequest{OwnerKind: "local", Owner: "a"}},
		{CommandCreateCredential, &CreateCredentialRequest{OwnerKind: "app", Owner: "a/b"}},
		{CommandCreateCredential, &CreateCredentialRequest{OwnerKind: "app", Owner: "a", ExpiresNs: -1}},
		{CommandNewGeneration, &NewGenerationRequest{Reason: strings.Repeat("x", ReasonBytesMax+1)}},
	} {
		if err := c.CallMessage(context.Background(), row.command, row.r, &PingResponse{}); CodeOf(err) != CodeInvalid {
			text := row.r.(interface{ String() string }).String()
			t.Errorf("%v of %.100s: %v", row.command, text, err)
		}
	}
	r := &WatchRoutesRequest{WaitMs: 1 << 31}
	if err := checkWatchRoutes(r); err != nil || r.WaitMs != WatchWaitMsMax {
		t.Errorf("%d ms, %v", r.WaitMs, err)
	}
}

// TestWhoAmI shows what a peer of a node without authentication is told.
func TestWhoAmI(t *testing.T) {
	h := NewHandler(Services{}, HandlerOptions{Broker: "n1", Roles: []string{RoleBroker}})
	c, _, _ := session(t, h, &HelloRequest{ClientId: "c", App: "pay"})
	r := new(WhoAmIResponse)
	if err := c.CallMessage(context.Background(), CommandWhoAmI, &WhoAmIRequest{}, r); err != nil {
		t.Fatal(err)
	}
	if r.Identity.Kind != "local" || r.Identity.Name != "" || r.Node != "n1" || r.Addr == "" || !slices.Equal(r.Roles, []string{RoleBroker}) {
		t.Fatalf("got %v", r)
	}
}
