package localcluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"
)

// A pid counts only while its process is the one that was started: numbers are given again, and others' processes are not ours to end.
func TestPID(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	for content, want := range map[string]int{
		"": 0, "x": 0, "1": 0, "-1": 0, "999999999": 0, strconv.Itoa(other.Process.Pid) + "\n": other.Process.Pid,
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := pidOf(file, "sleep"); got != want {
			t.Errorf("pid file %q: %d, want %d", content, got, want)
		}
		if got := pidOf(file, "/our/folder/jmq.yaml"); got != 0 {
			t.Errorf("pid file %q of another program: %d", content, got)
		}
	}
	if pidOf(filepath.Join(t.TempDir(), "none"), "sleep") != 0 {
		t.Error("no file")
	}
}

// Names and ports are chosen once: a cluster that is opened again is the same, whatever it is asked for.
func TestOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	c, err := Open(Options{Dir: dir, Binary: "jmq", Registries: 2, Brokers: 1, Slaves: 1})
	if err != nil {
		t.Fatal(err)
	}
	again, err := Open(Options{Dir: dir, Binary: "jmq", Brokers: 5})
	if err != nil || !reflect.DeepEqual(again.state, c.state) || len(again.Of("registry")) != 2 || len(again.Addresses("")) != 4 || len(again.Groups()) != 1 {
		t.Errorf("again: %+v, %v; was %+v", again, err, c)
	}
	seen := map[string]bool{}
	for _, n := range c.Nodes {
		for _, a := range []string{n.Wire, n.Admin} {
			if seen[a] {
				t.Errorf("%s is there twice", a)
			}
			seen[a] = true
		}
		if n.PID() != 0 || n.Health(t.Context()) != "down" {
			t.Errorf("%s runs", n.Name)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "cluster.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: dir}); err == nil {
		t.Error("a broken file was taken")
	}
}
