package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

func testConfig(t *testing.T) Config {
	c := DefaultConfig()
	c.Broker.Data = t.TempDir()
	c.Node.Wire.Listen, c.Node.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c.Broker.Journal.SegmentBytesMax = 1 << 20
	c.Node.StopTimeout = time.Second
	c.Version = "v-test"
	return c
}

// run starts a server; stop ends it and returns what Run did.
func run(t *testing.T, c Config) (s *Server, stop func() error) {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stopped := false
	stop = func() error {
		stopped = true
		cancel()
		return receive(t, ended)
	}
	t.Cleanup(func() {
		if !stopped {
			if err := stop(); err != nil {
				t.Errorf("stop: %v", err)
			}
		}
	})
	select {
	case <-s.Ready():
	case err := <-ended:
		stopped = true
		cancel()
		t.Fatalf("ended at its start: %v", err)
	case <-time.After(patience):
		t.Fatal("not ready")
	}
	return s, stop
}

func receive(t *testing.T, errs <-chan error) error {
	t.Helper()
	select {
	case err := <-errs:
		return err
	case <-time.After(patience):
		t.Fatal("nothing came")
		return nil
	}
}

// fails runs a server that cannot start and returns why.
func fails(t *testing.T, c Config) error {
	t.Helper()
	s, err := New(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = s.Run(ctx)
	if err == nil {
		t.Fatal("it started")
	}
	return err
}

func get(t *testing.T, s *Server, path string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + s.AdminAddress() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// dial says hello to a server.
func dial(t *testing.T, s *Server) *wire.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", s.WireAddress())
	if err != nil {
		t.Fatal(err)
	}
	c := wire.NewConn(nc, wire.ConnOptions{})
	served := make(chan error, 1)
	go func() { served <- c.Serve() }()
	t.Cleanup(func() {
		c.Close(errors.New("test is over"))
		receive(t, served)
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	hello, err := c.Hello(ctx, &wire.HelloRequest{ClientId: "test", App: "app"})
	if err != nil {
		t.Fatal(err)
	}
	if hello.Broker != "broker" || hello.BrokerGroup != "default" || hello.Epoch == 0 {
		t.Errorf("hello says %v", hello)
	}
	return c
}

// A message goes in over the wire, is committed, comes out, and its ack moves the group: with all ports as users see
// them. It also holds after a restart on the same folder.
func TestServeAndRestart(t *testing.T) {
	c := testConfig(t)
	s, stop := run(t, c)
	conn := dial(t, s)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	call := func(command wire.Command, request, response proto.Message) {
		t.Helper()
		if err := conn.CallMessage(ctx, command, request, response); err != nil {
			t.Fatalf("command %d: %v", command, err)
		}
	}
	call(wire.CommandCreateTopic, &wire.CreateTopicRequest{Topic: "orders", Partitions: 2}, &wire.CreateTopicResponse{})
	call(wire.CommandSubscribe, &wire.SubscribeRequest{Topic: "orders", Group: "pay", Start: wire.StartBeginning}, &wire.SubscribeResponse{})

	status, body := get(t, s, "/readyz")
	var ready Readiness
	if err := json.Unmarshal([]byte(body), &ready); err != nil || status != 200 || !ready.Ready || ready.Roles["broker"].State != "serving" {
		t.Errorf("/readyz: %d %s", status, body)
	}
	status, metrics := get(t, s, "/metrics")
	for _, want := range []string{
		`jmq_build_info{broker_group="default",node="broker",version="v-test"} 1`,
		`jmq_messages_in_total{topic="orders"} 0`, `jmq_group_lag_messages{group="pay",topic="orders"} 0`, `jmq_group_lag_seconds{group="pay",topic="orders"} 0`,
		`jmq_topic_oldest_seconds{topic="orders"} 0`, `jmq_topic_paused{topic="orders",what="produce"} 0`, `jmq_store_state{state="refusing"} 0`, `jmq_store_folder_gone 0`,
		`jmq_retention_suspended_seconds 0`, `jmq_groups_abandoned 0`, `jmq_disk_used_ratio{folder="journal"} 0.`, `jmq_lease_expiries_total 0`,
		`jmq_connections{kind="client"} 1`, "jmq_fsync_duration_seconds_count ", "jmq_produce_duration_seconds_bucket{le=", "jmq_store_bytes ", "jmq_buffer_bytes 0",
		`jmq_buffer_refused_total{what="answer"} 0`, `jmq_buffer_refused_total{what="frame"} 0`, "go_goroutines ",
	} {
		if status != 200 || !strings.Contains(metrics, want) {
			t.Errorf("/metrics (%d) has no %q", status, want)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := conn.Err(); wire.CodeOf(err) != wire.CodeStopping {
		t.Errorf("the client was told %v, want that the broker stops", err)
	}

	s, _ = run(t, c)
	conn = dial(t, s)
	topics := &wire.ListTopicsResponse{}
	call(wire.CommandListTopics, &wire.ListTopicsRequest{}, topics)
	if len(topics.Topics) != 1 || topics.Topics[0].Name != "orders" || topics.Topics[0].Partitions != 2 {
		t.Errorf("after the restart there are %v", topics.Topics)
	}
	lag := &wire.GroupLagResponse{}
	call(wire.CommandGroupLag, &wire.GroupLagRequest{Topic: "orders"}, lag)
	if len(lag.Partitions) != 2 || lag.Partitions[0].Group != "pay" {
		t.Errorf("after the restart groups are %v", lag.Partitions)
	}
}

// The admin port answers what operators ask, keeps pprof to this machine, and refuses other methods.
func TestAdminPort(t *testing.T) {
	s, _ := run(t, testConfig(t))
	for path, want := range map[string]int{
		"/healthz": 200, "/readyz": 200, "/metrics": 200, "/debug/pprof/": 200, "/debug/pprof/goroutine?debug=1": 200, "/": 404, "/nothing": 404,
	} {
		if status, body := get(t, s, path); status != want {
			t.Errorf("%s: %d, want %d: %.100s", path, status, want, body)
		}
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Post("http://"+s.AdminAddress()+"/healthz", "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST /healthz: %d", r.StatusCode)
	}
	for host, want := range map[string]int{"": 200, "localhost": 200, "[::1]:50089": 200, "127.0.0.1:1": 200, "evil.example:50089": 403, "127.0.0.1.evil.example": 403} {
		for _, path := range []string{"/metrics", "/readyz", "/debug/pprof/heap"} {
			request, err := http.NewRequest("GET", "http://"+s.AdminAddress()+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Host = host
			r, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			r.Body.Close()
			if r.StatusCode != want {
				t.Errorf("%s of host %q: %d, want %d", path, host, r.StatusCode, want)
			}
		}
	}
	for remote, want := range map[string]int{"127.0.0.1:1": 200, "[::1]:1": 200, "10.0.0.1:1": 403, "nonsense": 403} {
		w := &recorder{header: http.Header{}}
		fromLoopback(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) }).ServeHTTP(w, &http.Request{RemoteAddr: remote})
		if w.code != want {
			t.Errorf("pprof for %s: %d, want %d", remote, w.code, want)
		}
	}
}

type recorder struct {
	header http.Header
	code   int
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) Write(b []byte) (int, error) { return len(b), nil }
func (r *recorder) WriteHeader(code int)        { r.code = code }

// readiness says what a role does, how far a recovery is, and why a broker that has failed is not ready.
func TestReadiness(t *testing.T) {
	var h health
	var failure error
	refusing := ""
	ask := func(Role) (string, error) { return refusing, failure }
	broker := func() RoleState { return h.readiness([]Role{RoleBroker}, ask).Roles["broker"] }
	h.set(stateRecovering)
	h.progress(5, 10)
	if got := broker(); got != (RoleState{State: "recovering", DoneBytes: 5, TotalBytes: 10}) {
		t.Errorf("recovering: %+v", got)
	}
	if before := h.set(stateServing); before != stateRecovering {
		t.Errorf("before serving it was %q", before)
	}
	if got := broker(); got != (RoleState{State: "serving"}) {
		t.Errorf("serving: %+v", got)
	}
	refusing = "the disk is full"
	if got := h.readiness([]Role{RoleBroker}, ask); !got.Ready || got.Roles["broker"] != (RoleState{State: "serving", Refusing: "the disk is full"}) {
		t.Errorf("refusing sends: %+v", got)
	}
	failure, refusing = errors.New("disk is gone"), ""
	if got := h.readiness([]Role{RoleBroker}, ask); got.Ready || got.Roles["broker"] != (RoleState{State: "failed", Error: "disk is gone"}) {
		t.Errorf("failed: %+v", got)
	}
	h.set(stateStopping)
	if got := h.readiness([]Role{RoleBroker}, ask); got.Ready {
		t.Errorf("stopping: %+v", got)
	}
}

// Each thing that keeps a server from starting is one line with the next step; the first server does not notice.
func TestCannotStart(t *testing.T) {
	one := testConfig(t)
	first, _ := run(t, one)
	check := func(name string, err error, is error, says ...string) {
		t.Helper()
		start, ok := errors.AsType[*StartError](err)
		if !ok || is != nil && !errors.Is(err, is) || start.Next == "" || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want a StartError that is %v, in one line", name, err, is)
			return
		}
		for _, s := range says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %v, want it to say %q", name, err, s)
			}
		}
	}
	same := one
	check("the same folder", fails(t, same), local.ErrInUse, one.Broker.Data, "in use", "--data")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(one.Broker.Data, link); err != nil {
		t.Fatal(err)
	}
	same.Broker.Data = link
	check("the same folder by another name", fails(t, same), local.ErrInUse)
	same.Broker.Data = one.Broker.Data
	same.Node.Wire.Listen = first.WireAddress()
	check("the same folder and port", fails(t, same), local.ErrInUse, "by process")

	other := testConfig(t)
	other.Node.Wire.Listen = first.WireAddress()
	check("wire port in use", fails(t, other), nil, first.WireAddress(), "the port is in use", "--node.wire.listen")
	other = testConfig(t)
	other.Node.Admin.Listen = first.AdminAddress()
	check("admin port in use", fails(t, other), nil, first.AdminAddress(), "the port is in use", "--node.admin.listen")

	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	other = testConfig(t)
	other.Broker.Data = file
	check("a file in place of the folder", fails(t, other), nil, file, "not a directory", "--data")
	other.Broker.Data = filepath.Join(file, "data")
	check("a file in place of its parent", fails(t, other), syscall.ENOTDIR, file, "--data")
	// /proc takes no folder from anybody, root neither.
	other.Broker.Data = "/proc/jmq-data"
	check("where nothing can be made", fails(t, other), nil, "/proc/jmq-data", "--data")

	newer := testConfig(t)
	if err := os.WriteFile(filepath.Join(newer.Broker.Data, "STORE"), []byte("jmq store\nversion 99\nid 00\nsum 00\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	check("a newer version", fails(t, newer), local.ErrVersion, newer.Broker.Data, "version 99", "newer jmq")
	foreign := testConfig(t)
	if err := os.WriteFile(filepath.Join(foreign.Broker.Data, "STORE"), []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	check("a foreign folder", fails(t, foreign), nil, "STORE")

	for _, name := range []string{"STORE", "LOCK", "checkpoint-00000000000000000000.ckpt", "journal/00000000000000000000.journal"} {
		odd := testConfig(t)
		path := filepath.Join(odd.Broker.Data, name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		err := fails(t, odd)
		check("a folder in place of "+name, err, nil, name)
		if errors.Is(err, local.ErrInUse) || strings.Contains(err.Error(), "must be a folder") {
			t.Errorf("a folder in place of %s: %v", name, err)
		}
	}
	for _, name := range []string{"journal", "index"} {
		odd := testConfig(t)
		if err := os.WriteFile(filepath.Join(odd.Broker.Data, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		check("a file in place of "+name, fails(t, odd), syscall.ENOTDIR, filepath.Join(odd.Broker.Data, name))
	}

	if status, _ := get(t, first, "/readyz"); status != 200 {
		t.Errorf("the first server noticed: /readyz %d", status)
	}
	dial(t, first)
}

// TestPortOfOutgoingConnection shows that a port which an outgoing connection holds is waited for, until the start is called
// off, and that a server's is not.
func TestPortOfOutgoingConnection(t *testing.T) {
	peer, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	out, err := net.Dial("tcp", peer.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := peer.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	address := out.LocalAddr().String()
	if !nobodyListens(address) || nobodyListens(peer.Addr().String()) {
		t.Fatal("a server is taken for an outgoing connection, or the other way round")
	}
	log := &portLog{waited: make(chan struct{})}
	c := testConfig(t)
	c.Node.Wire.Listen = address
	c.Logger = slog.New(slog.NewTextHandler(log, nil))
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	select {
	case <-log.waited:
	case err := <-ended:
		t.Fatalf("ended with %v, want it to wait for the port", err)
	}
	cancel()
	if err := receive(t, ended); err == nil || !strings.Contains(err.Error(), "the port is in use") {
		t.Fatalf("ended with %v when it was told to while it waited", err)
	}
}

// portLog is a log that says when the line about waiting for a port came.
type portLog struct {
	once   sync.Once
	waited chan struct{}
}

func (b *portLog) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "waiting for it") {
		b.once.Do(func() { close(b.waited) })
	}
	return len(p), nil
}

// A folder without write permission is told as such. Root may write anywhere, so a read-only file system stands in.
func TestReadOnlyFolder(t *testing.T) {
	for _, cause := range []error{syscall.EACCES, syscall.EROFS} {
		c := testConfig(t)
		c.FS = readOnlyFS{vfs.Default, cause}
		err := fails(t, c)
		if start, ok := errors.AsType[*StartError](err); !ok || !errors.Is(err, cause) || !strings.Contains(start.Next, "may write") {
			t.Errorf("%v: %v", cause, err)
		}
	}
}

// readOnlyFS refuses everything that changes something.
type readOnlyFS struct {
	vfs.FS
	cause error
}

func (f readOnlyFS) refuse(op, name string) error {
	return &os.PathError{Op: op, Path: name, Err: f.cause}
}
func (f readOnlyFS) Create(name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, f.refuse("open", name)
}
func (f readOnlyFS) OpenReadWrite(name string, _ vfs.DiskWriteCategory, _ ...vfs.OpenOption) (vfs.File, error) {
	return nil, f.refuse("open", name)
}
func (f readOnlyFS) Lock(name string) (io.Closer, error) { return nil, f.refuse("open", name) }
func (f readOnlyFS) Rename(from, to string) error        { return f.refuse("rename", from) }
func (f readOnlyFS) Remove(name string) error            { return f.refuse("remove", name) }
func (f readOnlyFS) Unwrap() vfs.FS                      { return f.FS }

// A configuration that is not valid is refused by New, with every wrong key.
func TestNewRefusesConfig(t *testing.T) {
	c := DefaultConfig()
	c.Broker.Journal.SegmentBytesMax = 5
	c.Node.Wire.Listen = "0.0.0.0:1"
	c.Log.Level = "loud"
	_, err := New(c)
	for _, key := range []string{"broker.journal.segmentBytesMax", "node.wire.listen", "log.level"} {
		if err == nil || !strings.Contains(err.Error(), key+": ") {
			t.Errorf("%v does not name %s", err, key)
		}
	}
	if _, ok := errors.AsType[*KeyError](err); !ok {
		t.Errorf("%v is no KeyError", err)
	}
}

// A stop closes what it opened: the same number of file descriptors as before, over many starts.
func TestNoDescriptorLeak(t *testing.T) {
	open := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("no /proc here")
		}
		return len(names)
	}
	c := testConfig(t)
	_, stop := run(t, c)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	before := open()
	for range 10 {
		s, stop := run(t, c)
		get(t, s, "/metrics")
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if err := fails(t, func() Config { d := c; d.Broker.Data = "/proc/jmq-data"; return d }()); err == nil {
			t.Fatal("started in /proc")
		}
	}
	if after := open(); after > before {
		t.Errorf("%d file descriptors are open, there were %d before ten starts and stops", after, before)
	}
}
