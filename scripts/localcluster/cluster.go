// Package localcluster runs a whole cluster on this machine's loopback: registry nodes over one MariaDB, and broker groups of a
// master and slaves, with authentication. Everything is in one folder:
//
//	cluster.json            ports and names, chosen once and kept
//	admin.credential        of the user admin, mode 0600
//	node.credential         by which the nodes know each other
//	contexts.yaml           for the commands: JMQ_CONTEXTS=FOLDER/contexts.yaml
//	db/                     MariaDB: data, log, pid
//	r1/ r2/ .. b1/ b1-s1/   a node each: jmq.yaml, data, log, pid. Broker b1 is the first master of broker group b1, b1-s1 a slave
//
// Processes go on when the program that started them ends, unless Attached; their pids say which are ours.
package localcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
	"go.yaml.in/yaml/v3"

	"github.com/jmqio/jmq/scripts/testenv"
)

const (
	loopback    = "127.0.0.1"
	database    = "jmq_cluster"
	readyWithin = 30 * time.Second
	stopWithin  = 20 * time.Second
)

// Options of a cluster. What a folder has already stays as it is.
type Options struct {
	Dir        string
	Binary     string // jmq
	Registries int    // nodes; 0: 3
	Brokers    int    // broker groups; 0: 3
	Slaves     int    // of each broker group
	// Segment is the size of the brokers' journal segments; 0: 64 MiB.
	Segment int64
	// Attached: all of it ends with this process, and the database can be killed and started by Database.
	Attached bool
	// SQLite: one registry node, with its metadata in a file of its own, and no database.
	SQLite bool
	// Broker is more of the brokers' configuration, below "broker".
	Broker map[string]any
	// Env is more of the nodes' environment.
	Env []string
	// Data is the folder of a broker's messages; nil: data in that of the node.
	Data func(node string) string

	// A cluster whose nodes stand elsewhere than on this machine's loopback has the next three. Host is the address of a node. Enter is called on the
	// thread that then starts a process, a node or (with "") a command; the thread ends with it. Dial connects to the node's own loopback.
	Host  func(node string) string
	Enter func(node string) error
	Dial  func(ctx context.Context, node, address string) (net.Conn, error)
}

func (o Options) withDefaults() Options {
	switch {
	case o.SQLite:
		o.Registries = 1
	case o.Registries == 0:
		o.Registries = 3
	}
	if o.Brokers == 0 {
		o.Brokers = 3
	}
	if o.Segment == 0 {
		o.Segment = 64 << 20
	}
	return o
}

// Cluster is for use by one goroutine.
type Cluster struct {
	Nodes []*Node // registries, then brokers, the first masters before the slaves

	o        Options
	state    state
	Database *testenv.Server // nil: it ran already
}

// state is the file cluster.json.
type state struct {
	DatabasePort int         `json:"databasePort"`
	Nodes        []nodeState `json:"nodes"`
}

type nodeState struct {
	Name  string `json:"name"`
	Role  string `json:"role"`
	Group string `json:"brokerGroup,omitempty"` // of a broker
	Slave bool   `json:"slave,omitempty"`       // never named master by itself
	Wire  string `json:"wire"`
	Admin string `json:"admin"`
}

// Node is a process of the cluster, or would be.
type Node struct {
	nodeState
	o     *Options
	dir   string
	ended chan struct{} // closed when a process that we started has ended; nil: it is not ours to wait for
}

// Open reads what the folder has, or begins it.
func Open(o Options) (*Cluster, error) {
	o = o.withDefaults()
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, err
	}
	if o.Binary, err = filepath.Abs(o.Binary); err != nil {
		return nil, err
	}
	c := &Cluster{o: o}
	b, err := os.ReadFile(c.path("cluster.json"))
	switch {
	case err == nil:
		if err := json.Unmarshal(b, &c.state); err != nil {
			return nil, fmt.Errorf("%s: %w", c.path("cluster.json"), err)
		}
	case errors.Is(err, fs.ErrNotExist):
		if err := c.begin(); err != nil {
			return nil, err
		}
	default:
		return nil, err
	}
	for _, n := range c.state.Nodes {
		c.Nodes = append(c.Nodes, &Node{nodeState: n, o: &c.o, dir: c.path(n.Name)})
	}
	return c, nil
}

func (c *Cluster) path(name string) string { return filepath.Join(c.o.Dir, name) }

// nodesOf are the nodes of a cluster, without addresses.
func nodesOf(o Options) []nodeState {
	var nodes []nodeState
	for i := range o.Registries {
		nodes = append(nodes, nodeState{Name: "r" + strconv.Itoa(i+1), Role: "registry"})
	}
	for n := range 1 + o.Slaves {
		for i := range o.Brokers {
			group := "b" + strconv.Itoa(i+1)
			b := nodeState{Name: group, Role: "broker", Group: group}
			if n > 0 {
				b.Name, b.Slave = group+"-s"+strconv.Itoa(n), true
			}
			nodes = append(nodes, b)
		}
	}
	return nodes
}

// Names are those of the nodes that a new cluster has.
func Names(o Options) []string {
	var all []string
	for _, n := range nodesOf(o.withDefaults()) {
		all = append(all, n.Name)
	}
	return all
}

// begin chooses names and ports.
func (c *Cluster) begin() error {
	ports, err := freePorts(1 + 2*(c.o.Registries+c.o.Brokers*(1+c.o.Slaves)))
	if err != nil {
		return err
	}
	next := func(host string) string {
		p := ports[0]
		ports = ports[1:]
		return net.JoinHostPort(host, strconv.Itoa(p))
	}
	add := func(n nodeState) {
		host := loopback
		if c.o.Host != nil {
			host = c.o.Host(n.Name)
		}
		n.Wire, n.Admin = next(host), next(loopback)
		c.state.Nodes = append(c.state.Nodes, n)
	}
	c.state.DatabasePort, ports = ports[0], ports[1:]
	for _, n := range nodesOf(c.o) {
		add(n)
	}
	if err := os.MkdirAll(c.o.Dir, 0o700); err != nil {
		return err
	}
	b, err := json.MarshalIndent(c.state, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(c.path("cluster.json"), append(b, '\n'), 0o600)
}

// freePorts finds ports that nobody listens on, below those that the kernel gives to connections.
func freePorts(n int) ([]int, error) {
	var ports []int
	for p := 20000 + int(time.Now().UnixNano()/1000%8000); len(ports) < n; p++ {
		if p >= 32000 {
			return nil, errors.New("no free ports")
		}
		l, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(p)))
		if err != nil {
			continue
		}
		l.Close()
		ports = append(ports, p)
	}
	return ports, nil
}

// Addresses are the wire addresses of the nodes of a role; "": of all.
func (c *Cluster) Addresses(role string) []string {
	var all []string
	for _, n := range c.Nodes {
		if role == "" || n.Role == role {
			all = append(all, n.Wire)
		}
	}
	return all
}

// Of returns the nodes of a role.
func (c *Cluster) Of(role string) []*Node {
	var nodes []*Node
	for _, n := range c.Nodes {
		if n.Role == role {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// Groups are the names of the broker groups.
func (c *Cluster) Groups() []string {
	var all []string
	for _, n := range c.Of("broker") {
		if !n.Slave {
			all = append(all, n.Group)
		}
	}
	return all
}

// AdminFile and ContextsFile are what a person uses it by.
func (c *Cluster) AdminFile() string    { return c.path("admin.credential") }
func (c *Cluster) ContextsFile() string { return c.path("contexts.yaml") }

// Up starts what does not run, and returns when all of it serves.
func (c *Cluster) Up(ctx context.Context) error {
	if err := c.startDatabase(ctx); err != nil {
		return err
	}
	if err := c.configure(ctx); err != nil {
		return err
	}
	for _, role := range []string{"registry", "broker"} {
		for _, n := range c.Of(role) {
			if err := n.Begin(); err != nil {
				return err
			}
		}
		for _, n := range c.Of(role) {
			if err := n.await(ctx); err != nil {
				return err
			}
		}
	}
	if err := c.awaitBrokers(ctx); err != nil {
		return err
	}
	return c.Jmq(ctx, "context", "add", "cluster", "--replace", "--use", "--address", strings.Join(c.Addresses(""), ","), "--credential-file", c.AdminFile())
}

// awaitBrokers waits until every registry node knows all brokers: a broker serves when one of them does.
func (c *Cluster) awaitBrokers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	want := fmt.Sprintf("jmq_registry_brokers{state=\"living\"} %d\n", len(c.Of("broker")))
	for _, n := range c.Of("registry") {
		for !strings.Contains(n.Metrics(ctx), want) {
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s does not know all brokers: %w; see %s", n.Name, context.Cause(ctx), n.log())
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}

// get asks the node's admin port.
func (n *Node) get(ctx context.Context, path string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.Admin+path, nil)
	if err != nil {
		return nil, err
	}
	t := &http.Transport{DisableKeepAlives: true}
	if n.o.Dial != nil {
		t.DialContext = func(ctx context.Context, _, address string) (net.Conn, error) { return n.o.Dial(ctx, n.Name, address) }
	}
	return (&http.Client{Transport: t}).Do(r)
}

// Metrics is what the node's admin port says; "" when it does not.
func (n *Node) Metrics(ctx context.Context) string { return n.Ask(ctx, "/metrics") }

// Ask gets a path of the node's admin port; "" when it does not answer.
func (n *Node) Ask(ctx context.Context, path string) string {
	answer, err := n.get(ctx, path)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 4<<20))
	return string(text)
}

func (c *Cluster) startDatabase(ctx context.Context) (err error) {
	if c.o.SQLite || c.databasePID() != 0 {
		return nil
	}
	c.Database, err = testenv.StartMariaDB(ctx, testenv.Options{Dir: c.path("db"), Port: c.state.DatabasePort, Detached: !c.o.Attached})
	if err != nil {
		return fmt.Errorf("the registry nodes share a database: %w", err)
	}
	if err := c.Database.CreateDatabase(ctx, database); err != nil {
		return err
	}
	// Its password goes into a file of its own: into no configuration, and no list of processes.
	d, err := mysql.ParseDSN(c.Database.DSN(database))
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.path("db.password"), []byte(d.Passwd+"\n"), 0o600); err != nil {
		return err
	}
	d.Passwd = "file:" + c.path("db.password")
	if c.o.Host != nil { // another host's loopback is not ours
		d.Net, d.Addr = "unix", c.Database.Socket()
	}
	return os.WriteFile(c.path("db.dsn"), []byte(d.FormatDSN()), 0o600)
}

// configure writes the nodes' files, and has the first credentials made.
func (c *Cluster) configure(ctx context.Context) error {
	registry := map[string]any{"file": c.path("metadata.db")}
	if !c.o.SQLite {
		dsn, err := os.ReadFile(c.path("db.dsn"))
		if err != nil {
			return err
		}
		registry = map[string]any{"dsn": string(dsn)}
	}
	credential := c.path("node.credential")
	for _, n := range c.Nodes {
		node := map[string]any{
			"name": n.Name, "wire": map[string]any{"listen": n.Wire}, "admin": map[string]any{"listen": n.Admin}, "auth": map[string]any{"required": true},
		}
		broker := map[string]any{"data": n.DataFolder()}
		file := map[string]any{"node": node, "broker": broker}
		if n.Role == "registry" {
			file["registry"] = registry
			node["registry"] = map[string]any{"credentialFile": credential} // by which it asks brokers
		} else {
			node["registry"] = map[string]any{"addresses": c.Addresses("registry"), "credentialFile": credential}
			broker["brokerGroup"] = n.Group
			if n.Slave {
				broker["slave"] = true
			}
			broker["journal"] = map[string]any{"segmentBytesMax": c.o.Segment}
			maps.Copy(broker, c.o.Broker)
		}
		b, err := yaml.Marshal(file)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(n.dir, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(n.config(), b, 0o600); err != nil {
			return err
		}
	}
	return c.Jmq(ctx, "registry", "init", "--config", c.Of("registry")[0].config(), "--dir", c.o.Dir)
}

// Jmq runs a command of a person who uses the cluster; an error has what it said.
func (c *Cluster) Jmq(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, c.o.Binary, args...)
	cmd.Dir, cmd.Env = c.o.Dir, append(environment(), "JMQ_CONTEXTS="+c.ContextsFile())
	var out []byte
	var err error
	if c.o.Enter == nil {
		out, err = cmd.CombinedOutput()
	} else {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // and it ends with the goroutine
			if err = c.o.Enter(""); err == nil {
				out, err = cmd.CombinedOutput()
			}
		}()
		<-done
	}
	if err != nil {
		return fmt.Errorf("jmq %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// environment is ours without what would configure a jmq.
func environment() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "JMQ_") {
			env = append(env, e)
		}
	}
	return env
}

// Down ends what runs: brokers, registries, the database.
func (c *Cluster) Down() error {
	var errs []error
	for _, role := range []string{"broker", "registry"} {
		for _, n := range c.Of(role) {
			n.signal(syscall.SIGTERM)
		}
		for _, n := range c.Of(role) {
			if !n.gone(stopWithin) {
				n.Kill()
				errs = append(errs, fmt.Errorf("%s did not stop when asked, and was killed", n.Name))
			}
		}
	}
	if c.Database != nil && c.o.Attached {
		c.Database.Stop()
		return errors.Join(errs...)
	}
	if pid := c.databasePID(); pid != 0 {
		_ = syscall.Kill(pid, syscall.SIGTERM) // it may have ended
		for deadline := time.Now().Add(stopWithin); c.databasePID() != 0; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				errs = append(errs, errors.New("the database did not stop when asked, and was killed"))
				break
			}
		}
	}
	return errors.Join(errs...)
}

func (c *Cluster) databasePID() int { return pidOf(filepath.Join(c.path("db"), "pid"), c.path("db")) }

// DatabaseState says whether the database runs.
func (c *Cluster) DatabaseState() string {
	if pid := c.databasePID(); pid != 0 {
		return fmt.Sprintf("runs at 127.0.0.1:%d, pid %d", c.state.DatabasePort, pid)
	}
	return "down"
}

func (n *Node) config() string  { return filepath.Join(n.dir, "jmq.yaml") }
func (n *Node) pidFile() string { return filepath.Join(n.dir, "pid") }
func (n *Node) log() string     { return filepath.Join(n.dir, "log") }

// Dir is its folder.
func (n *Node) Dir() string { return n.dir }

// DataFolder is that of a broker's messages.
func (n *Node) DataFolder() string {
	if n.o.Data != nil && n.Role == "broker" {
		return n.o.Data(n.Name)
	}
	return filepath.Join(n.dir, "data")
}

// PID is that of its process; 0: it does not run.
func (n *Node) PID() int { return pidOf(n.pidFile(), n.config()) }

// pidOf reads a pid, and believes it if the process has what in its command line: numbers are given again.
func pidOf(file, what string) int {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return 0
	}
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil || !strings.Contains(string(line), what) { // that of a zombie is empty
		return 0
	}
	return pid
}

// Start starts it, and returns when it serves.
func (n *Node) Start(ctx context.Context) error {
	if err := n.Begin(); err != nil {
		return err
	}
	return n.await(ctx)
}

// Begin starts it if it does not run, and does not wait until it serves.
func (n *Node) Begin() error {
	if n.PID() != 0 {
		return nil
	}
	log, err := os.OpenFile(n.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(n.o.Binary, "run", n.Role, "--config", n.config())
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = n.dir, append(environment(), n.o.Env...), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a Ctrl-C is not for it
	if n.o.Attached {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	started, ended := make(chan error), make(chan struct{})
	go func() { // ends with the process, or with ours
		// The signal at our end is bound to the thread that started it: that thread stays while the node runs.
		runtime.LockOSThread()
		defer close(ended)
		var err error
		if n.o.Enter == nil {
			defer runtime.UnlockOSThread()
		} else {
			err = n.o.Enter(n.Name)
		}
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", n.Name, err)
	}
	n.ended = ended
	return os.WriteFile(n.pidFile(), []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o600)
}

func (n *Node) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for {
		if n.Health(ctx) == "serving" {
			return nil
		}
		select {
		case <-n.ended: // nil: never
			return fmt.Errorf("%s ended at its start; see %s", n.Name, n.log())
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve: %w; see %s", n.Name, context.Cause(ctx), n.log())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Health is serving, or what it says instead, or down.
func (n *Node) Health(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	answer, err := n.get(ctx, "/readyz")
	if err != nil {
		return "down"
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusOK {
		return "serving"
	}
	text := make([]byte, 200)
	k, _ := answer.Body.Read(text)
	return strings.TrimSpace(string(text[:k]))
}

func (n *Node) signal(s syscall.Signal) {
	if pid := n.PID(); pid != 0 {
		_ = syscall.Kill(pid, s) // it may have ended
	}
}

// Pause stops its process where it is, until Resume: connections stay open, and nothing is answered.
func (n *Node) Pause()  { n.signal(syscall.SIGSTOP) }
func (n *Node) Resume() { n.signal(syscall.SIGCONT) }

// Kill is SIGKILL, and the wait for its end.
func (n *Node) Kill() {
	n.signal(syscall.SIGKILL)
	n.gone(stopWithin)
}

// gone waits until it has ended. While a process ends it has no command line any more and its files still: one of ours is waited for.
func (n *Node) gone(within time.Duration) bool {
	if n.ended != nil {
		select {
		case <-n.ended:
			return true
		case <-time.After(within):
			return false
		}
	}
	for deadline := time.Now().Add(within); n.PID() != 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}
