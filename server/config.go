package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/meta/sqlstore"
)

// Config is everything that can be set, as one tree: the names of the roles are the top keys. The yaml tag is a key's
// name in the file, in the environment (JMQ_BROKER_JOURNAL_SEGMENTBYTESMAX) and as a flag
// (--broker.journal.segmentBytesMax); the help tag says what it means. Start from DefaultConfig: a zero is a value.
type Config struct {
	Node     NodeConfig     `yaml:"node"`
	Registry RegistryConfig `yaml:"registry"`
	Broker   BrokerConfig   `yaml:"broker"`
	Log      LogConfig      `yaml:"log"`

	// What no file can set; each may stay zero.

	// Roles that this process runs. Empty: the broker.
	Roles []Role `yaml:"-"`
	// Metadata is used by the role registry in place of the database that is configured. It is not closed.
	Metadata meta.Store       `yaml:"-"`
	Logger   *slog.Logger     `yaml:"-"` // nil: nothing is logged
	FS       vfs.FS           `yaml:"-"` // nil: the disk
	Now      func() time.Time `yaml:"-"` // nil: time.Now; dates that are stored
	Version  string           `yaml:"-"` // of the binary, for jmq_build_info
	// Progress is told while the journal is recovered: bytes read, bytes to read. nil: nobody.
	Progress func(done, total int64) `yaml:"-"`
	// Machine names what lives as long as the system's memory does: what a broker did not sync may be gone when it is another one. "": the
	// system's boot id.
	Machine string `yaml:"-"`
	// Every is how long a node waits between two looks, heartbeats or signs of life that are d apart otherwise: tests of long quiet times have
	// fewer. nil: d.
	Every func(d time.Duration) time.Duration `yaml:"-"`
	// Listen wraps how the ports of this node are opened. nil: as it is.
	Listen func(listen func(address string) (net.Listener, error)) func(address string) (net.Listener, error) `yaml:"-"`
	// Dial wraps how this node connects to other nodes. nil: as it is.
	Dial func(dial func(ctx context.Context, address string) (net.Conn, error)) func(ctx context.Context, address string) (net.Conn, error) `yaml:"-"`
}

// NodeConfig is what all roles of a process share: its name, its ports, and who may connect.
type NodeConfig struct {
	Name        string         `yaml:"name" help:"name of this node, told to clients and in metrics; one of its own in a cluster"`
	Advertise   []string       `yaml:"advertise" help:"addresses at which clients and other nodes reach this one, each host:port; empty: node.wire.listen, unless that is every address of the machine"`
	DataCenter  string         `yaml:"dataCenter" help:"data center that this node stands in"`
	Labels      []string       `yaml:"labels" help:"what placement may go by, each name=value"`
	Wire        ListenConfig   `yaml:"wire"`
	Admin       AdminConfig    `yaml:"admin"`
	TLS         TLSConfig      `yaml:"tls"`
	Auth        AuthConfig     `yaml:"auth"`
	Registry    RegistryClient `yaml:"registry"`
	Listener    ListenerConfig `yaml:"listener"`
	StopTimeout time.Duration  `yaml:"stopTimeout" help:"how long a stop waits for requests under way before it closes their connections"`
}

// TLSConfig is the certificate of this node's ports. The files are read again when they change, and at SIGHUP.
type TLSConfig struct {
	CertFile            string `yaml:"certFile" help:"certificate of the wire port, PEM; empty: no TLS"`
	KeyFile             string `yaml:"keyFile" help:"its key"`
	ClientCAFile        string `yaml:"clientCAFile" help:"authorities of client certificates: one that is shown says who the client is (mTLS), others need a credential"`
	ClientCertsRequired bool   `yaml:"clientCertsRequired" help:"refuse clients without a certificate"`
}

// AuthConfig says whether clients must say who they are.
type AuthConfig struct {
	Required                      bool `yaml:"required" help:"answer only clients that proved who they are, by credential or certificate"`
	InsecureWithoutAuthentication bool `yaml:"insecureWithoutAuthentication" help:"let anyone who reaches a port that is not loopback do everything"`
}

// RegistryClient is how a node without the registry role reaches one.
type RegistryClient struct {
	Addresses      []string `yaml:"addresses" help:"registry nodes; empty: this process runs the role, or the broker stands alone"`
	CredentialFile string   `yaml:"credentialFile" help:"file with id and secret by which this node says who it is, only readable by its owner; read again for each connection"`
	CAFile         string   `yaml:"caFile" help:"authorities of the registry's certificate, PEM; empty: no TLS"`
	CertFile       string   `yaml:"certFile" help:"certificate that this node shows instead of a credential, PEM"`
	KeyFile        string   `yaml:"keyFile" help:"its key"`
}

// RegistryConfig is the registry role's part: where the metadata lies.
type RegistryConfig struct {
	File     string `yaml:"file" help:"SQLite file of the metadata, for a single registry node; empty: metadata.db in broker.data"`
	DSN      string `yaml:"dsn" help:"MySQL data source name, user:password@tcp(host:port)/database, with file:/PATH or env:NAME for the password; several registry nodes share one database"`
	Insecure bool   `yaml:"insecureDatabase" help:"allow a database on another machine without verified TLS or without a password"`
}

// BrokerConfig is the broker's part.
type BrokerConfig struct {
	BrokerGroup string          `yaml:"brokerGroup" help:"broker group that this broker belongs to"`
	Slave       bool            `yaml:"slave" help:"never become the first master of the broker group by itself; whoever is master, all other brokers of the group are its slaves"`
	Data        string          `yaml:"data" help:"folder of the journal, the index and the checkpoints"`
	Journal     JournalConfig   `yaml:"journal"`
	Store       StoreConfig     `yaml:"store"`
	Index       IndexConfig     `yaml:"index"`
	Retention   RetentionConfig `yaml:"retention"`
	Disk        DiskConfig      `yaml:"disk"`
	Dispatch    DispatchConfig  `yaml:"dispatch"`

	Replication ReplicationConfig `yaml:"replication"`
}

// ReplicationConfig says how a master keeps its slaves.
type ReplicationConfig struct {
	KeepAlive    time.Duration `yaml:"keepAlive" help:"a master that has nothing to send to a slave says so this often"`
	LeaveAfter   time.Duration `yaml:"leaveAfter" help:"a slave that has not acknowledged bytes for so long is waited for no longer: it is out of sync"`
	LeaveBytes   int64         `yaml:"leaveBytes" help:"nor is one that is so many bytes behind"`
	JoinAfter    time.Duration `yaml:"joinAfter" help:"a slave that has kept up for so long is in sync; longer while it comes and goes"`
	CompareEvery time.Duration `yaml:"compareEvery" help:"how often a slave compares its journal with the master's by checksums; 0: not at all"`
}

// ListenConfig is one listening socket.
type ListenConfig struct {
	Listen string `yaml:"listen" help:"address and port; beyond loopback only with authentication; port 0 takes a free one"`
}

// AdminConfig is the socket of the admin port.
type AdminConfig struct {
	Listen string `yaml:"listen" help:"address and port; beyond loopback only with node.admin.tls and client certificates; port 0 takes a free one"`
	TLS    bool   `yaml:"tls" help:"serve it by HTTPS with the certificate of node.tls; with node.tls.clientCAFile, callers from other machines must show one of a node, or of a user with a role that may see everything"`
}

// Authenticates says whether clients of the wire port must prove who they are.
func (n *NodeConfig) Authenticates() bool { return n.Auth.Required || n.TLS.ClientCAFile != "" }

// adminAuthenticates says the same of callers of the admin port that are not on this machine.
func (n *NodeConfig) adminAuthenticates() bool { return n.Admin.TLS && n.TLS.ClientCAFile != "" }

// JournalConfig sizes the journal.
type JournalConfig struct {
	SegmentBytesMax      int64  `yaml:"segmentBytesMax" help:"size of a segment file"`
	CommitBytesMax       int    `yaml:"commitBytesMax" help:"most bytes gathered for one write and sync"`
	QueueBytesMax        int    `yaml:"queueBytesMax" help:"bytes that wait for the disk before senders are told busy"`
	Folder               string `yaml:"folder" help:"folder of the journal, such as one on a disk of its own; empty: journal in broker.data"`
	VerifyBytesPerSecond int64  `yaml:"verifyBytesPerSecond" help:"how fast what was written is read again in the background to find damage; 0: not at all"`
}

// StoreConfig bounds the store and says when it writes checkpoints.
type StoreConfig struct {
	BytesMax        int64         `yaml:"bytesMax" help:"most bytes that journal, index and checkpoints take together, at least 16 segments; the percentages of broker.disk hold of it too; 0: what the disks have"`
	CheckpointBytes int64         `yaml:"checkpointBytes" help:"journal bytes after which a checkpoint is written"`
	CheckpointEvery time.Duration `yaml:"checkpointEvery" help:"time after which a checkpoint is written if anything changed"`
}

// IndexConfig bounds the index.
type IndexConfig struct {
	FilesOpenMax int    `yaml:"filesOpenMax" help:"most index files open at once"`
	Folder       string `yaml:"folder" help:"folder of the index, such as one on a disk of its own; empty: index in broker.data"`
}

// RetentionConfig says what goes of topics that say nothing of their own. What a group has not consumed stays.
type RetentionConfig struct {
	Age            time.Duration `yaml:"age" help:"messages older than that go once every group has consumed them, unless their topic says otherwise; 0: none by age"`
	Bytes          int64         `yaml:"bytes" help:"what a topic may keep of messages that every group has consumed, unless it says otherwise; 0: any size"`
	AbandonedAfter time.Duration `yaml:"abandonedAfter" help:"a group that did nothing for so long keeps no messages from going; 0: it always does"`
	Every          time.Duration `yaml:"every" help:"how often to look at disks and messages; more often while a disk is nearly full"`
}

// DiskConfig says what is done as the disks of journal and index fill.
type DiskConfig struct {
	WarnPercent        int `yaml:"warnPercent" help:"share of a disk in use from which on people are warned"`
	EarlyDeletePercent int `yaml:"earlyDeletePercent" help:"share from which on what every group has consumed goes, the oldest first"`
	RefusePercent      int `yaml:"refusePercent" help:"share from which on sends are refused; consuming goes on"`
}

// ListenerConfig bounds what clients may take.
type ListenerConfig struct {
	ConnectionsMax int           `yaml:"connectionsMax" help:"most client connections at once"`
	BufferBytesMax int64         `yaml:"bufferBytesMax" help:"memory of all connections together for large frames half read and answers not yet taken"`
	HelloTimeout   time.Duration `yaml:"helloTimeout" help:"how long a new connection may take to say hello"`
	KeepAlive      time.Duration `yaml:"keepAlive" help:"a client pings this often when it is idle; after three times as long its connection is dropped"`
}

// DispatchConfig says how long consumers may take.
type DispatchConfig struct {
	AckTimeout      time.Duration `yaml:"ackTimeout" help:"how long a consumer may hold messages before others get them"`
	DisconnectGrace time.Duration `yaml:"disconnectGrace" help:"how long the messages of a consumer wait for it after its connection is gone"`
}

// LogConfig says what is logged; it goes to the standard error.
type LogConfig struct {
	Level  string `yaml:"level" help:"debug, info, warn or error"`
	Format string `yaml:"format" help:"text or json"`
}

// DefaultConfig is what holds where nothing is set.
func DefaultConfig() Config {
	return Config{
		Node: NodeConfig{
			Name:        "broker",
			Wire:        ListenConfig{Listen: "127.0.0.1:50088"},
			Admin:       AdminConfig{Listen: "127.0.0.1:50089"},
			Listener:    ListenerConfig{ConnectionsMax: 10_000, BufferBytesMax: 512 << 20, HelloTimeout: 5 * time.Second, KeepAlive: 10 * time.Second},
			StopTimeout: 10 * time.Second,
		},
		Broker: BrokerConfig{
			BrokerGroup: "default",
			Data:        "./jmq-data",
			Journal:     JournalConfig{SegmentBytesMax: 256 << 20, CommitBytesMax: 4 << 20, QueueBytesMax: 32 << 20, VerifyBytesPerSecond: 16 << 20},
			Store:       StoreConfig{CheckpointBytes: 256 << 20, CheckpointEvery: 10 * time.Second},
			Index:       IndexConfig{FilesOpenMax: 2000},
			Retention:   RetentionConfig{Age: 7 * 24 * time.Hour, AbandonedAfter: 30 * 24 * time.Hour, Every: 10 * time.Second},
			Disk:        DiskConfig{WarnPercent: 75, EarlyDeletePercent: 80, RefusePercent: 90},
			Dispatch:    DispatchConfig{AckTimeout: 5 * time.Minute, DisconnectGrace: 10 * time.Second},
			Replication: ReplicationConfig{
				KeepAlive: 100 * time.Millisecond, LeaveAfter: 800 * time.Millisecond, LeaveBytes: 64 << 20, JoinAfter: 5 * time.Second, CompareEvery: 10 * time.Minute,
			},
		},
		Log: LogConfig{Level: "info", Format: "text"},
	}
}

// storeSegmentsMin is how many segments broker.store.bytesMax has room for at least. The journal grows by whole segments, with one
// made ahead and some kept to be used again: with less room one segment would be most of what lies between two marks.
const storeSegmentsMin = 16

// KeyError says that one key has a value that it may not have.
type KeyError struct {
	Key    string // as in broker.journal.segmentBytesMax
	Value  any
	Reason string // "must be ..."
}

func (e *KeyError) Error() string {
	return fmt.Sprintf("%s: %v %s", e.Key, valueText(e.Value), e.Reason)
}

func valueText(v any) string {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprint(v)
}

// isEveryAddress says whether address is of no interface in particular, so that nobody elsewhere can connect to it as it stands.
func isEveryAddress(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

// Validate returns every wrong value, as *KeyErrors joined, or nil.
func (c *Config) Validate() error {
	var errs []error
	bad := func(key string, value any, reason string) {
		errs = append(errs, &KeyError{Key: key, Value: value, Reason: reason})
	}
	name := func(key, v string) {
		if !validName(v) {
			bad(key, v, "must be 1 to 255 letters, digits, '_', '-' or '.'")
		}
	}
	n, b := &c.Node, &c.Broker
	name("node.name", n.Name)
	name("broker.brokerGroup", b.BrokerGroup)
	if b.Data == "" {
		bad("broker.data", b.Data, "must name a folder")
	}
	folder := func(key, v string) {
		if v != "" && (v == b.Data || key == "broker.index.folder" && v == b.Journal.Folder) {
			bad(key, v, "must be a folder of its own")
		}
	}
	folder("broker.journal.folder", b.Journal.Folder)
	folder("broker.index.folder", b.Index.Folder)
	listen := func(key, v string) {
		if reason := checkListen(v); reason != "" {
			bad(key, v, reason)
		}
	}
	listen("node.wire.listen", n.Wire.Listen)
	listen("node.admin.listen", n.Admin.Listen)
	insecure := n.Auth.InsecureWithoutAuthentication
	if open := !n.Authenticates() && !insecure; checkListen(n.Wire.Listen) == "" && open && !isLoopback(n.Wire.Listen) {
		bad("node.wire.listen", n.Wire.Listen, "must be loopback (127.0.0.1, ::1 or localhost), or node.auth.required must be true")
	}
	if checkListen(n.Admin.Listen) == "" && !isLoopback(n.Admin.Listen) && !n.adminAuthenticates() && !insecure {
		bad("node.admin.listen", n.Admin.Listen, "must be loopback (127.0.0.1, ::1 or localhost), or node.admin.tls true and node.tls.clientCAFile set, so that callers say who they are")
	}
	if n.Authenticates() && insecure {
		bad("node.auth.insecureWithoutAuthentication", true, "contradicts node.auth.required or node.tls.clientCAFile")
	}
	if n.Authenticates() && !slices.Contains(c.Roles, RoleRegistry) && len(n.Registry.Addresses) == 0 && len(c.Roles) > 0 {
		bad("node.auth.required", n.Auth.Required, "needs a registry, which knows who there is: run the role registry too, or name its nodes with node.registry.addresses")
	}
	addresses := func(key string, list []string) {
		for _, a := range list {
			if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" || port == "0" || isEveryAddress(a) {
				bad(key, a, "must be host:port")
			}
		}
	}
	addresses("node.advertise", n.Advertise)
	if toldToOthers := slices.Contains(c.Roles, RoleRegistry) || len(n.Registry.Addresses) > 0; toldToOthers && len(n.Advertise) == 0 && isEveryAddress(n.Wire.Listen) {
		bad("node.advertise", "", "must say at which addresses, each host:port, clients and other nodes reach this one, since node.wire.listen stands for every address of this machine")
	}
	addresses("node.registry.addresses", n.Registry.Addresses)
	if n.DataCenter != "" {
		name("node.dataCenter", n.DataCenter)
	}
	for _, l := range n.Labels {
		if k, v, ok := strings.Cut(l, "="); !ok || !validName(k) || !validName(v) {
			bad("node.labels", l, "must be name=value, both of letters, digits, '_', '-' or '.'")
		}
	}
	pair := func(aKey, a, bKey, b string) {
		if a != "" && b == "" {
			bad(bKey, b, "must name a file too, since "+aKey+" does")
		}
	}
	pair("node.tls.certFile", n.TLS.CertFile, "node.tls.keyFile", n.TLS.KeyFile)
	pair("node.tls.keyFile", n.TLS.KeyFile, "node.tls.certFile", n.TLS.CertFile)
	pair("node.tls.clientCAFile", n.TLS.ClientCAFile, "node.tls.certFile", n.TLS.CertFile)
	if n.Admin.TLS {
		pair("node.admin.tls", "x", "node.tls.certFile", n.TLS.CertFile)
	}
	if n.TLS.ClientCertsRequired {
		pair("node.tls.clientCertsRequired", "x", "node.tls.clientCAFile", n.TLS.ClientCAFile)
	}
	pair("node.registry.certFile", n.Registry.CertFile, "node.registry.keyFile", n.Registry.KeyFile)
	pair("node.registry.keyFile", n.Registry.KeyFile, "node.registry.certFile", n.Registry.CertFile)
	pair("node.registry.certFile", n.Registry.CertFile, "node.registry.caFile", n.Registry.CAFile)
	if n.Registry.CertFile != "" && n.Registry.CredentialFile != "" {
		bad("node.registry.credentialFile", n.Registry.CredentialFile, "must be empty when node.registry.certFile is not: a node shows one of both")
	}
	if c.Registry.DSN != "" {
		if err := (sqlstore.Location{DSN: c.Registry.DSN, Insecure: c.Registry.Insecure}).Validate(); err != nil {
			bad("registry.dsn", "(not shown)", err.Error())
		}
	}
	if c.Registry.File != "" && c.Registry.DSN != "" {
		bad("registry.dsn", "(not shown)", "must be empty when registry.file is not: metadata lies in one database")
	}
	if n.Wire.Listen == n.Admin.Listen && checkListen(n.Wire.Listen) == "" && !portZero(n.Wire.Listen) {
		bad("node.admin.listen", n.Admin.Listen, "must not be the address of node.wire.listen")
	}
	between(bad, "broker.journal.segmentBytesMax", b.Journal.SegmentBytesMax, 64<<10, 16<<30)
	if size := b.Journal.SegmentBytesMax; size%4096 != 0 && size > 64<<10 {
		bad("broker.journal.segmentBytesMax", b.Journal.SegmentBytesMax, "must be a multiple of 4096")
	}
	between(bad, "broker.journal.commitBytesMax", b.Journal.CommitBytesMax, 64<<10, 1<<30)
	between(bad, "broker.journal.queueBytesMax", b.Journal.QueueBytesMax, 8<<20, 1<<30)
	between(bad, "broker.journal.verifyBytesPerSecond", b.Journal.VerifyBytesPerSecond, 0, 1<<40)
	if most := b.Store.BytesMax; most != 0 && (most < storeSegmentsMin*b.Journal.SegmentBytesMax || most > 1<<60) {
		bad("broker.store.bytesMax", most, fmt.Sprintf("must be 0 or at least %d, which is %d times broker.journal.segmentBytesMax", storeSegmentsMin*b.Journal.SegmentBytesMax, storeSegmentsMin))
	}
	between(bad, "broker.store.checkpointBytes", b.Store.CheckpointBytes, 64<<10, 1<<40)
	between(bad, "broker.store.checkpointEvery", b.Store.CheckpointEvery, 100*time.Millisecond, time.Hour)
	between(bad, "broker.index.filesOpenMax", b.Index.FilesOpenMax, 1, 1_000_000)
	between(bad, "broker.retention.age", b.Retention.Age, 0, 100*365*24*time.Hour)
	between(bad, "broker.retention.bytes", b.Retention.Bytes, 0, 1<<60)
	between(bad, "broker.retention.abandonedAfter", b.Retention.AbandonedAfter, 0, 100*365*24*time.Hour)
	between(bad, "broker.retention.every", b.Retention.Every, 10*time.Millisecond, time.Hour)
	between(bad, "broker.disk.warnPercent", b.Disk.WarnPercent, 5, 100)
	between(bad, "broker.disk.earlyDeletePercent", b.Disk.EarlyDeletePercent, max(5, min(b.Disk.WarnPercent, 100)), 100)
	between(bad, "broker.disk.refusePercent", b.Disk.RefusePercent, max(5, min(b.Disk.EarlyDeletePercent, 100)), 100)
	between(bad, "node.listener.connectionsMax", n.Listener.ConnectionsMax, 1, 10_000_000)
	between(bad, "node.listener.bufferBytesMax", n.Listener.BufferBytesMax, 64<<20, 1<<40)
	between(bad, "node.listener.helloTimeout", n.Listener.HelloTimeout, 100*time.Millisecond, time.Minute)
	between(bad, "node.listener.keepAlive", n.Listener.KeepAlive, 100*time.Millisecond, 10*time.Minute)
	between(bad, "broker.dispatch.ackTimeout", b.Dispatch.AckTimeout, time.Second, 24*time.Hour)
	between(bad, "broker.dispatch.disconnectGrace", b.Dispatch.DisconnectGrace, 0, time.Hour)
	between(bad, "broker.replication.keepAlive", b.Replication.KeepAlive, 10*time.Millisecond, time.Second)
	between(bad, "broker.replication.leaveAfter", b.Replication.LeaveAfter, max(20*time.Millisecond, min(2*b.Replication.KeepAlive, 2*time.Second)), time.Minute)
	between(bad, "broker.replication.leaveBytes", b.Replication.LeaveBytes, 1<<20, 1<<40)
	between(bad, "broker.replication.joinAfter", b.Replication.JoinAfter, 10*time.Millisecond, time.Hour)
	if e := b.Replication.CompareEvery; e != 0 && (e < time.Second || e > 30*24*time.Hour) {
		bad("broker.replication.compareEvery", e, "must be 0, or between 1s and 720h0m0s")
	}
	if b.Slave && len(n.Registry.Addresses) == 0 && !slices.Contains(c.Roles, RoleRegistry) && len(c.Roles) > 0 {
		bad("broker.slave", b.Slave, "needs a registry, which says who is master: name its nodes with node.registry.addresses")
	}
	between(bad, "node.stopTimeout", n.StopTimeout, 0, time.Hour)
	oneOf := func(key, v string, of ...string) {
		if !slices.Contains(of, v) {
			bad(key, v, fmt.Sprintf("must be one of %v", of))
		}
	}
	oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	oneOf("log.format", c.Log.Format, "text", "json")
	return errors.Join(errs...)
}

// between takes both ends as allowed.
func between[T cmp.Ordered](bad func(string, any, string), key string, v, from, to T) {
	if v < from || v > to {
		bad(key, v, fmt.Sprintf("must be between %v and %v", from, to))
	}
}

func validName(s string) bool {
	if s == "" || len(s) > 255 || s == "." || s == ".." {
		return false
	}
	for _, r := range s {
		ok := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.'
		if !ok {
			return false
		}
	}
	return true
}

// checkListen says what is wrong with an address to listen on, or "".
func checkListen(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "must be host:port"
	}
	if _, err := net.LookupPort("tcp", port); err != nil || port == "" {
		return "must end with a port from 0 to 65535"
	}
	if host == "localhost" {
		return ""
	}
	if net.ParseIP(host) == nil {
		return "must begin with an IP address or localhost"
	}
	return ""
}

// isLoopback judges an address that checkListen has passed.
func isLoopback(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

func portZero(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return err == nil && port == "0"
}

// dataDir is the data folder's absolute path without symbolic links where they can be resolved: the lock is held by the
// name of the folder, and two spellings of one folder must be one lock.
func (c *Config) dataDir() (string, error) {
	abs, err := filepath.Abs(c.Broker.Data)
	if err != nil {
		return "", err
	}
	if c.FS != vfs.Default {
		return abs, nil
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real, nil
	}
	// The folder is not there yet; its parent may be.
	if parent, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		return filepath.Join(parent, filepath.Base(abs)), nil
	}
	return abs, nil
}
