package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/servertest/mutate"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// golden compares got with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test . -rewrite, then read the diff):\ngot:\n%s\nwant:\n%s", file, got, want)
	}
}

// The keys with their defaults are a promise to users: a change shows in review.
func TestConfigKeysGolden(t *testing.T) {
	var b strings.Builder
	for _, k := range configKeys() {
		fmt.Fprintf(&b, "%s = %s (%s) %s\n", k.name, k.defaultText(), k.env(), (&configFlag{key: k}).Type())
		if k.help == "" {
			t.Errorf("%s has no help", k.name)
		}
	}
	golden(t, "config.golden", b.String())
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range configKeys() {
		if line := k.name + " = " + k.defaultText() + "\n"; !strings.Contains(string(readme), line) {
			t.Errorf("README.md does not have %q", line)
		}
	}
	c := server.DefaultConfig()
	if err := c.Validate(); err != nil {
		t.Errorf("the defaults are not valid: %v", err)
	}
}

// loadTest reads a configuration from a file's content, variables and flags.
func loadTest(t *testing.T, content string, environ []string, args ...string) (server.Config, error) {
	t.Helper()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	configFlags(flags)
	file := filepath.Join(t.TempDir(), "jmq.yaml")
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := flags.Parse(append([]string{"--config", file}, args...)); err != nil {
		return server.Config{}, err
	}
	return loadConfig(flags, environ)
}

// A flag wins over the environment, that over the file, that over the default; an empty variable counts as unset.
func TestConfigPrecedence(t *testing.T) {
	file := "node:\n  name: file\nbroker:\n  data: /file\n  journal:\n    segmentBytesMax: 1048576\n    commitBytesMax: 131072\n  dispatch:\n    ackTimeout: 7s\nlog:\n"
	env := []string{"JMQ_NODE_NAME=env", "JMQ_BROKER_JOURNAL_SEGMENTBYTESMAX=2097152", "JMQ_BROKER_DATA=", "JMQ_TEST_ANYTHING=1", "PATH=/bin", "JMQ_ADDRESS=x"}
	c, err := loadTest(t, file, env, "--node.name", "flag")
	if err != nil {
		t.Fatal(err)
	}
	want := server.DefaultConfig()
	want.Node.Name = "flag"
	want.Broker.Data = "/file"
	want.Broker.Journal.SegmentBytesMax = 2097152
	want.Broker.Journal.CommitBytesMax = 131072
	want.Broker.Dispatch.AckTimeout = 7 * time.Second
	if fmt.Sprint(c) != fmt.Sprint(want) {
		t.Errorf("got %+v\nwant %+v", c, want)
	}
}

// No file, an empty one and one of comments are all the defaults.
func TestConfigEmptyFile(t *testing.T) {
	for _, content := range []string{"", "# nothing\n", "broker:\nlog:\n", "broker:\n  journal:\n"} {
		c, err := loadTest(t, content, nil)
		if err != nil || fmt.Sprint(c) != fmt.Sprint(server.DefaultConfig()) {
			t.Errorf("%q: %+v, %v", content, c, err)
		}
	}
	t.Chdir(t.TempDir())
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	configFlags(flags)
	if _, err := loadConfig(flags, nil); err != nil {
		t.Errorf("without a file: %v", err)
	}
	// jmq.yaml is read where it lies, without being asked for.
	if err := os.WriteFile("jmq.yaml", []byte("node:\n  name: here\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if c, err := loadConfig(flags, nil); err != nil || c.Node.Name != "here" {
		t.Errorf("jmq.yaml in the working folder: name %q, %v", c.Node.Name, err)
	}
}

// Every kind of wrong file is one line an error, each naming file, line and key.
func TestConfigBadFile(t *testing.T) {
	for _, c := range []struct{ name, content, want string }{
		{"unknown key", "node:\n  nme: x\n", "jmq.yaml line 2: unknown key node.nme; did you mean node.name?"},
		{"unknown section", "brokr:\n  name: x\n", "jmq.yaml line 1: unknown key brokr; did you mean broker?"},
		{"unknown key without value", "brokr:\n", "jmq.yaml line 1: unknown key brokr; did you mean broker?"},
		{"nothing near", "zookeeper: 1\n", "jmq.yaml line 1: unknown key zookeeper; see jmq config ls"},
		{"other case", "node:\n  Name: x\n", "jmq.yaml line 2: unknown key node.Name; did you mean node.name?"},
		{"dotted", "node.name: x\n", "jmq.yaml line 1: unknown key node.name; write one level a line"},
		{"twice", "node:\n  name: a\n  name: b\n", "node.name is there twice"},
		{"no value", "node:\n  name:\n", "jmq.yaml line 2: node.name: has no value"},
		{"value for section", "broker: x\n", "jmq.yaml line 1: broker is a section and takes keys, not a value"},
		{"section for value", "node:\n  name:\n    x: y\n", "node.name: takes one value, not a list or a section"},
		{"list for value", "node:\n  name: [a]\n", "node.name: takes one value, not a list or a section"},
		{"fraction", "broker:\n  journal:\n    segmentBytesMax: 1.5\n", `jmq.yaml line 3: broker.journal.segmentBytesMax: "1.5" must be a whole number`},
		{"quoted number", "broker:\n  journal:\n    segmentBytesMax: '1048576'\n", `"1048576" must be a whole number`},
		{"text for number", "broker:\n  journal:\n    segmentBytesMax: big\n", `"big" must be a whole number`},
		{"too big a number", "broker:\n  journal:\n    segmentBytesMax: 99999999999999999999\n", "must be a whole number"},
		{"number for text", "node:\n  name: 5\n", `node.name: "5" must be text; quote it`},
		{"bool for text", "node:\n  name: true\n", `node.name: "true" must be text; quote it`},
		{"number for duration", "broker:\n  dispatch:\n    ackTimeout: 5\n", "jmq.yaml line 3: broker.dispatch.ackTimeout: 5 must be a duration with its unit"},
		{"text for duration", "broker:\n  dispatch:\n    ackTimeout: soon\n", `"soon" must be a duration with its unit`},
		{"out of range", "broker:\n  journal:\n    segmentBytesMax: 5\n", "jmq.yaml line 3: broker.journal.segmentBytesMax: 5 must be between 65536 and"},
		{"too often", "broker:\n  replication:\n    compareEvery: 1ns\n", "jmq.yaml line 3: broker.replication.compareEvery: 1ns must be 0, or between 1s and"},
		{"not loopback", "node:\n  wire:\n    listen: 0.0.0.0:50088\n", `node.wire.listen: "0.0.0.0:50088" must be loopback`},
		{"no port", "node:\n  wire:\n    listen: 127.0.0.1\n", "must be host:port"},
		{"bad port", "node:\n  wire:\n    listen: 127.0.0.1:70000\n", "port from 0 to 65535"},
		{"same ports", "node:\n  admin:\n    listen: 127.0.0.1:50088\n", "must not be the address of node.wire.listen"},
		{"level", "log:\n  level: loud\n", `jmq.yaml line 2: log.level: "loud" must be one of [debug info warn error]`},
		{"not yaml", "broker: [\n", "jmq.yaml: line "},
		{"a list", "- broker\n", "jmq.yaml line 1: must be a tree of keys"},
		{"text", "hello\n", "jmq.yaml line 1: must be a tree of keys"},
		{"two documents", "log:\n---\nlog:\n", "jmq.yaml: has more than one document"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := loadTest(t, c.content, nil)
			if err == nil || exitCode(err) != exitUsage || len(splitErrors(err)) != 1 || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v (exit %d), want one line with %q", err, exitCode(err), c.want)
			}
		})
	}
	// Several errors are all told, each on its line.
	_, err := loadTest(t, "brokr: 1\nlog:\n  level: 5\n  form: x\n", []string{"JMQ_NONSENSE=1"})
	if n := len(splitErrors(unwrapOnce(err))); n != 4 {
		t.Errorf("%d errors, want 4: %v", n, err)
	}
}

func unwrapOnce(err error) error {
	if c, ok := err.(*codedError); ok {
		return c.err
	}
	return err
}

// Each key is refused with a wrong value from the environment and as a flag, and the place is named.
func TestConfigEachKeyWrong(t *testing.T) {
	wrong := map[string]string{
		"node.name": "a b", "broker.brokerGroup": "a/b", "node.wire.listen": "nowhere", "node.admin.listen": ":1", "log.level": "x", "log.format": "xml",
		"node.dataCenter": "a b",
	}
	for _, k := range configKeys() {
		if k.name == "broker.data" || strings.HasSuffix(k.name, ".folder") || strings.HasSuffix(strings.ToLower(k.name), "file") {
			continue // any text may be a folder or a file; it is refused when it cannot be one
		}
		value, ok := wrong[k.name]
		if !ok {
			value = "wrong"
		}
		_, err := loadTest(t, "", []string{k.env() + "=" + value})
		if err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), k.env()+": "+k.name+": ") {
			t.Errorf("%s=%s: %v (exit %d), want a usage error naming the variable and the key", k.env(), value, err, exitCode(err))
		}
		_, err = loadTest(t, "", nil, "--"+k.name+"="+value)
		if err == nil || !strings.Contains(err.Error(), "--"+k.name) {
			t.Errorf("--%s=%s: %v, want an error naming the flag", k.name, value, err)
		}
	}
}

// A switch is turned on by its name alone, and either way with a value.
func TestConfigSwitch(t *testing.T) {
	for args, want := range map[string]bool{"": false, "--registry.insecureDatabase": true, "--registry.insecureDatabase=true": true, "--registry.insecureDatabase=false": false} {
		c, err := loadTest(t, "", nil, strings.Fields(args)...)
		if err != nil || c.Registry.Insecure != want {
			t.Errorf("%s: %v, %v", args, c.Registry.Insecure, err)
		}
	}
}

// A variable that means nothing is an error, also the name of a section; those of the tests are left alone.
func TestConfigUnknownEnv(t *testing.T) {
	for env, want := range map[string]string{
		"JMQ_BROKER_JORNAL=x":  "unknown variable JMQ_BROKER_JORNAL; see jmq config ls",
		"JMQ_NODE_NAM=x":       "unknown variable JMQ_NODE_NAM; did you mean JMQ_NODE_NAME?",
		"JMQ_BROKER_JOURNAL=x": "unknown variable JMQ_BROKER_JOURNAL",
		"JMQ_=x":               "unknown variable JMQ_",
		"JMQ_NODE_NAME_=":      "unknown variable JMQ_NODE_NAME_",
	} {
		_, err := loadTest(t, "", []string{env})
		if err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", env, err, want)
		}
	}
}

// A missing or unreadable file that was asked for is an error naming it; a folder in its place too.
func TestConfigMissingFile(t *testing.T) {
	for _, file := range []string{filepath.Join(t.TempDir(), "none.yaml"), t.TempDir()} {
		var out, errs bytes.Buffer
		code := execute(context.Background(), []string{"config", "check", "--config", file}, nil, &out, &errs)
		if code != exitUsage || !strings.Contains(errs.String(), file) || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("--config %s: exit %d, %q", file, code, errs.String())
		}
	}
}

// FuzzConfigFile shows that no file crashes the reader and that each error is one line.
func FuzzConfigFile(f *testing.F) {
	seeds := [][]byte{
		[]byte("node:\n  name: x\n"), []byte("a: &a [*a]\n"), []byte("broker: &b\n  journal: *b\n"),
		[]byte("node:\n  name: b1\n  registry:\n    addresses: [a:1, b:2]\nbroker:\n  store:\n    path: /tmp/x\n    bytesMax: 10GiB\n"),
	}
	keys := configKeys()
	mutate.Fuzz(f, mutate.Decoder{Seeds: seeds, Slowness: 20, Check: func(t testing.TB, content []byte) bool {
		_, errs := checkConfigFile("jmq.yaml", content, keys)
		for _, err := range errs {
			if strings.Count(oneLine(err), "\n") != 0 || !strings.HasPrefix(err.Error(), "jmq.yaml") {
				t.Errorf("%q", err)
			}
		}
		return len(errs) == 0
	}})
}

// TestConfigCheckSecrets shows that what a configuration holds is printed without the password of the database, right or wrong.
func TestConfigCheckSecrets(t *testing.T) {
	for dsn, want := range map[string]int{
		"jmq:hunter2@tcp(127.0.0.1:3306)/jmq": exitOK, "jmq:hunter2@nonsense": exitUsage, "jmq:hunter2@tcp(db:3306)/jmq": exitUsage, "jmq:hun/ter2@tcp(127.0.0.1:3306)/jmq": exitOK,
	} {
		var out, errs bytes.Buffer
		code := execute(context.Background(), []string{"config", "check", "--registry.dsn", dsn}, strings.NewReader(""), &out, &errs)
		if text := out.String() + errs.String(); code != want || strings.Contains(text, "ter2") || code == exitOK && !strings.Contains(text, "registry.dsn = jmq@tcp(127.0.0.1:3306)/jmq\n") {
			t.Errorf("%s: exit %d: %s", dsn, code, text)
		}
	}
}
