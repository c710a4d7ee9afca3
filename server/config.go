package server

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Config is everything that can be set, as one tree: the names of the roles are the top keys. The yaml tag is a key's
// name in the file, in the environment (JMQ_BROKER_JOURNAL_SEGMENTBYTESMAX) and as a flag
// (--broker.journal.segmentBytesMax); the help tag says what it means. Start from DefaultConfig: a zero is a value.
type Config struct {
	Broker BrokerConfig `yaml:"broker"`
	Log    LogConfig    `yaml:"log"`

	// What no file can set; each may stay zero.

	Logger  *slog.Logger     `yaml:"-"` // nil: nothing is logged
	FS      vfs.FS           `yaml:"-"` // nil: the disk
	Now     func() time.Time `yaml:"-"` // nil: time.Now; dates that are stored
	Version string           `yaml:"-"` // of the binary, for jmq_build_info
	// Progress is told while the journal is recovered: bytes read, bytes to read. nil: nobody.
	Progress func(done, total int64) `yaml:"-"`
}

// BrokerConfig is the broker's part.
type BrokerConfig struct {
	Name        string          `yaml:"name" help:"name of this broker, told to clients and in metrics"`
	BrokerGroup string          `yaml:"brokerGroup" help:"broker group that this broker belongs to"`
	Data        string          `yaml:"data" help:"folder of the journal, the index and the checkpoints"`
	Wire        ListenConfig    `yaml:"wire"`
	Admin       ListenConfig    `yaml:"admin"`
	Journal     JournalConfig   `yaml:"journal"`
	Store       StoreConfig     `yaml:"store"`
	Index       IndexConfig     `yaml:"index"`
	Retention   RetentionConfig `yaml:"retention"`
	Disk        DiskConfig      `yaml:"disk"`
	Listener    ListenerConfig  `yaml:"listener"`
	Dispatch    DispatchConfig  `yaml:"dispatch"`
	StopTimeout time.Duration   `yaml:"stopTimeout" help:"how long a stop waits for requests under way before it closes their connections"`
}

// ListenConfig is one listening socket.
type ListenConfig struct {
	Listen string `yaml:"listen" help:"address and port; loopback only until there is authentication; port 0 takes a free one"`
}

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
		Broker: BrokerConfig{
			Name:        "broker",
			BrokerGroup: "default",
			Data:        "./jmq-data",
			Wire:        ListenConfig{Listen: "127.0.0.1:50088"},
			Admin:       ListenConfig{Listen: "127.0.0.1:50089"},
			Journal:     JournalConfig{SegmentBytesMax: 256 << 20, CommitBytesMax: 4 << 20, QueueBytesMax: 32 << 20, VerifyBytesPerSecond: 16 << 20},
			Store:       StoreConfig{CheckpointBytes: 256 << 20, CheckpointEvery: 10 * time.Second},
			Index:       IndexConfig{FilesOpenMax: 2000},
			Retention:   RetentionConfig{Age: 7 * 24 * time.Hour, AbandonedAfter: 30 * 24 * time.Hour, Every: 10 * time.Second},
			Disk:        DiskConfig{WarnPercent: 75, EarlyDeletePercent: 80, RefusePercent: 90},
			Listener:    ListenerConfig{ConnectionsMax: 10_000, BufferBytesMax: 512 << 20, HelloTimeout: 5 * time.Second, KeepAlive: 10 * time.Second},
			Dispatch:    DispatchConfig{AckTimeout: 5 * time.Minute, DisconnectGrace: 10 * time.Second},
			StopTimeout: 10 * time.Second,
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
	b := &c.Broker
	name("broker.name", b.Name)
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
	listen("broker.wire.listen", b.Wire.Listen)
	listen("broker.admin.listen", b.Admin.Listen)
	if b.Wire.Listen == b.Admin.Listen && checkListen(b.Wire.Listen) == "" && !portZero(b.Wire.Listen) {
		bad("broker.admin.listen", b.Admin.Listen, "must not be the address of broker.wire.listen")
	}
	between(bad, "broker.journal.segmentBytesMax", b.Journal.SegmentBytesMax, 64<<10, 16<<30)
	if n := b.Journal.SegmentBytesMax; n%4096 != 0 && n > 64<<10 {
		bad("broker.journal.segmentBytesMax", b.Journal.SegmentBytesMax, "must be a multiple of 4096")
	}
	between(bad, "broker.journal.commitBytesMax", b.Journal.CommitBytesMax, 64<<10, 1<<30)
	between(bad, "broker.journal.queueBytesMax", b.Journal.QueueBytesMax, 8<<20, 1<<30)
	between(bad, "broker.journal.verifyBytesPerSecond", b.Journal.VerifyBytesPerSecond, 0, 1<<40)
	if n := b.Store.BytesMax; n != 0 && (n < storeSegmentsMin*b.Journal.SegmentBytesMax || n > 1<<60) {
		bad("broker.store.bytesMax", n, fmt.Sprintf("must be 0 or at least %d, which is %d times broker.journal.segmentBytesMax", storeSegmentsMin*b.Journal.SegmentBytesMax, storeSegmentsMin))
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
	between(bad, "broker.listener.connectionsMax", b.Listener.ConnectionsMax, 1, 10_000_000)
	between(bad, "broker.listener.bufferBytesMax", b.Listener.BufferBytesMax, 64<<20, 1<<40)
	between(bad, "broker.listener.helloTimeout", b.Listener.HelloTimeout, 100*time.Millisecond, time.Minute)
	between(bad, "broker.listener.keepAlive", b.Listener.KeepAlive, 100*time.Millisecond, 10*time.Minute)
	between(bad, "broker.dispatch.ackTimeout", b.Dispatch.AckTimeout, time.Second, 24*time.Hour)
	between(bad, "broker.dispatch.disconnectGrace", b.Dispatch.DisconnectGrace, 0, time.Hour)
	between(bad, "broker.stopTimeout", b.StopTimeout, 0, time.Hour)
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
	ip := net.ParseIP(host)
	if ip == nil {
		return "must begin with an IP address or localhost"
	}
	if !ip.IsLoopback() {
		return "must be loopback (127.0.0.1, ::1 or localhost): there is no authentication yet"
	}
	return ""
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
