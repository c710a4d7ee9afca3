package server

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/wire"
)

// smallDisk is the disk with other figures.
type smallDisk struct {
	vfs.FS
	percent *atomic.Uint64 // in use
}

func (d smallDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	p := d.percent.Load()
	if p > 100 {
		return vfs.DiskUsage{}, errors.New("cannot be read")
	}
	return vfs.DiskUsage{TotalBytes: 100 << 30, UsedBytes: p << 30, AvailBytes: (100 - p) << 30}, nil
}

func (d smallDisk) Unwrap() vfs.FS { return d.FS }

// keeping starts a server that looks at its disk often, and a client with a topic on it.
func keeping(t *testing.T, change func(*Config)) (*Server, *client.Producer) {
	t.Helper()
	c := testConfig(t)
	c.Broker.Retention.Every = 20 * time.Millisecond
	change(&c)
	s, _ := run(t, c)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := s.Admin().CreateTopic(ctx, &wire.CreateTopicRequest{Topic: "orders", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	cl, err := client.Dial(ctx, s.WireAddress(), client.WithApp("app"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Close(context.Background()) })
	p, err := cl.Producer("orders", client.Timeout(300*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	if err := send(p); err != nil {
		t.Fatal(err)
	}
	return s, p
}

func send(p *client.Producer) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := p.Send(ctx, &client.Message{Body: []byte("x")})
	return err
}

// refused waits until sends are, and holds their error to the reason: it names no file of the machine.
func refused(t *testing.T, s *Server, p *client.Producer, why string) {
	t.Helper()
	var err error
	until(t, "sends are refused", func() bool {
		err = send(p)
		return err != nil && !errors.Is(err, client.ErrUnknown) // an attempt may have been under way at the end of its time
	})
	if !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), s.dir) {
		t.Errorf("a send: %v, want %q", err, why)
	}
}

// until repeats until what it says is true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond) // sockets and the disk are real
	}
}

func readiness(t *testing.T, s *Server) (int, RoleState) {
	t.Helper()
	status, body := get(t, s, "/readyz")
	var r Readiness
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		t.Fatal(err)
	}
	return status, r.Roles["broker"]
}

// A disk that fills refuses sends with its reason, to producers, on the readiness page, in metrics and in the answer about the store;
// they are taken again by themselves. A disk that cannot be read is not full.
func TestFullDisk(t *testing.T) {
	d := smallDisk{vfs.Default, new(atomic.Uint64)}
	s, p := keeping(t, func(c *Config) { c.FS = d })
	d.percent.Store(95)
	refused(t, s, p, "the disk of the journal is 95 % full")
	if status, role := readiness(t, s); status != 200 || role.State != "serving" || role.Refusing != "the disk of the journal is 95 % full" {
		t.Errorf("/readyz: %d %+v", status, role)
	}
	_, metrics := get(t, s, "/metrics")
	for _, want := range []string{`jmq_store_state{state="refusing"} 1`, `jmq_store_state{state="ok"} 0`, `jmq_disk_free_bytes{folder="journal"} 5.36870912e+09`, `jmq_disk_used_ratio{folder="index"} 0.95`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics has no %q", want)
		}
	}
	u, err := s.Admin().StoreUsage(t.Context(), &wire.StoreUsageRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if u.State != "refusing" || !strings.HasPrefix(u.Why, "Sends are refused: the disk of the journal is 95 % full. ") || len(u.Disks) != 2 || u.Disks[1].Free != 5<<30 || u.JournalBytes == 0 {
		t.Errorf("the store's usage: %v", u)
	}
	d.percent.Store(10)
	until(t, "sends are taken again", func() bool { return send(p) == nil })
	d.percent.Store(101)
	until(t, "the disk cannot be read", func() bool {
		_, metrics := get(t, s, "/metrics")
		return !strings.Contains(metrics, "jmq_disk_total_bytes")
	})
	if err := send(p); err != nil {
		t.Errorf("a send to a disk that cannot be read: %v", err)
	}
}

// A data folder that vanishes under a running broker is noticed: it is not ready, and sends are refused. When it is back, it is well.
func TestFolderVanishes(t *testing.T) {
	s, p := keeping(t, func(*Config) {})
	if err := os.Rename(s.dir, s.dir+".away"); err != nil {
		t.Fatal(err)
	}
	until(t, "it is not ready", func() bool {
		status, role := readiness(t, s)
		return status == 503 && role.State == "failed" && strings.Contains(role.Error, "is gone")
	})
	refused(t, s, p, "is gone")
	if _, metrics := get(t, s, "/metrics"); !strings.Contains(metrics, "jmq_store_folder_gone 1") {
		t.Error("/metrics does not say that a folder is gone")
	}
	if err := os.Rename(s.dir+".away", s.dir); err != nil {
		t.Fatal(err)
	}
	until(t, "it is ready again", func() bool { status, _ := readiness(t, s); return status == 200 })
	for _, part := range []string{"journal", "index", "STORE"} {
		path := filepath.Join(s.dir, part)
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		until(t, part+" is gone", func() bool { status, _ := readiness(t, s); return status == 503 })
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
		until(t, part+" is back", func() bool { status, _ := readiness(t, s); return status == 200 })
	}
	if err := send(p); err != nil {
		t.Errorf("a send after the folder is back: %v", err)
	}
}
