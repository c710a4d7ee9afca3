package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	jmqserver "github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/servertest"
)

// startCluster is one process with all roles, and contexts of its own.
func startCluster(t *testing.T, options ...servertest.Option) (shell, *servertest.Server) {
	t.Setenv(envContexts, filepath.Join(t.TempDir(), "contexts.yaml"))
	s := servertest.Start(t, append([]servertest.Option{func(c *jmqserver.Config) { c.Roles = jmqserver.Roles }}, options...)...)
	return shell{t, s.Address()}, s
}

// warned is ok of a line that succeeds with a warning.
func (s shell) warned(says, stdin, line string) string {
	s.t.Helper()
	code, out, errs := s.run(stdin, line)
	if code != exitOK || !strings.HasPrefix(errs, "jmq: warning: "+says) || strings.Count(errs, "\n") != 1 {
		s.t.Fatalf("jmq %s: exit %d, stderr %s; want a warning with %q", line, code, errs, says)
	}
	return out
}

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// An operator's day: apps, rights, users, limits, namespaces; what is done is listed, described, and in the audit.
func TestOperate(t *testing.T) {
	sh, _ := startCluster(t)
	sh.ok("", "app create shop --description", "sells things")
	sh.ok("", "user create olga --role operator --email olga@example.org")
	if out := sh.ok("", "app alter shop --owner olga --limit-messages 50 --limit-bytes 1MiB -o csv"); !strings.HasSuffix(out, "\nshop,olga,,\"50 messages/s, 1.0 MiB/s\",active,sells things\n") {
		t.Errorf("alter: %q", out)
	}
	if out := sh.ok("", "app alter shop --limit-messages 0 --limit-bytes 0 --dry-run"); out != "app shop: would be changed\n  - limit.bytesPerSecond: 1048576\n  - limit.messagesPerSecond: 50\n" {
		t.Errorf("dry run: %q", out)
	}
	if out := sh.ok("", "app describe shop"); !strings.Contains(out, "  limit:\n    messagesPerSecond: 50\n") {
		t.Errorf("a dry run changed it: %q", out)
	}
	sh.fails(exitUsage, "say what to change: --description, --owner", "", "app alter shop")
	sh.fails(exitError, "exists", "", "app create shop")
	sh.fails(exitNotFound, "app nobody is not there", "", "app describe nobody")
	sh.fails(exitNotFound, "app nobody is not there", "", "app alter nobody --description x")

	sh.warned("topic orders is on 1 broker groups", "", "topic create orders --partitions 4 --owner shop --limit-messages 100 --retention 7d")
	if out := sh.ok("", "get topic orders -o json"); !strings.Contains(out, `"retentionAge": "168h"`) || !strings.Contains(out, `"messagesPerSecond": 100`) {
		t.Errorf("topic: %s", out)
	}
	sh.warned("topic orders is on 1 broker groups", "", "topic alter orders --limit-messages 0 --partitions 6")
	if out := sh.ok("", "topic ls -o csv"); !strings.Contains(out, "\norders,6,") {
		t.Errorf("topics: %s", out)
	}
	if out := sh.ok("", "topic grant orders --app shop --produce --consume"); out != "producer orders/shop: created\nconsumer orders/shop: created\n" {
		t.Errorf("grant: %q", out)
	}
	if out := sh.ok("", "topic grant orders --app shop --consume --group shop.audit"); out != "consumer orders/shop.audit: created\n" {
		t.Errorf("grant: %q", out)
	}
	if out := sh.ok("", "topic grant orders --app shop --produce"); out != "producer orders/shop: unchanged\n" {
		t.Errorf("grant again: %q", out)
	}
	sh.fails(exitUsage, "not of app shop", "", "topic grant orders --app shop --consume --group other.audit")
	sh.fails(exitUsage, "say what", "", "topic grant orders --app shop")
	if out := sh.ok("", "app describe shop -o json"); strings.Count(out, `"kind": "consumer"`) != 2 || strings.Count(out, `"kind": "producer"`) != 1 {
		t.Errorf("describe: %s", out)
	}
	sh.fails(exitUsage, "--yes", "", "topic revoke orders --app shop --produce")
	if out := sh.ok("", "topic revoke orders --app shop --produce --yes"); out != "producer orders/shop: deleted\n" {
		t.Errorf("revoke: %q", out)
	}
	sh.fails(exitNotFound, "producer orders/shop is not there", "", "topic revoke orders --app shop --produce --yes")
	sh.fails(exitError, "in-use", "", "app rm shop --yes")

	sh.ok("", "namespace create team-b --topics-max 5")
	sh.ok("", "app create shop --namespace team-b")
	if out := sh.ok("", "app ls -o name"); out != "shop\nteam-b:shop\n" {
		t.Errorf("apps: %q", out)
	}
	if out := sh.ok("", "app ls --namespace team-b -o name"); out != "team-b:shop\n" {
		t.Errorf("apps of a namespace: %q", out)
	}
	sh.ok("", "data-center create east --network 10.1.0.0/16")
	sh.ok("", "broker-group alter default --data-center east --state active")
	if out := sh.ok("", "broker ls -o csv"); !strings.Contains(out, "\nbroker,\"registry, broker\",default,serving,") {
		t.Errorf("brokers: %q", out)
	}
	sh.fails(exitNotFound, "see jmq broker ls", "", "broker describe nobody")
	if out := sh.ok("", "registry status"); !strings.Contains(out, "database    ok\nmetadata    generation 1, version ") {
		t.Errorf("status: %q", out)
	}

	sh.ok("", "app alter shop --description other --reason", "a new name")
	var entries []auditInfo
	if out := sh.ok("", "audit ls --kind app --name shop --namespace default --since 1h -n 1 -o json"); json.Unmarshal([]byte(out), &entries) != nil || len(entries) != 1 ||
		entries[0].Reason != "a new name" || entries[0].Who != "local" || !strings.Contains(string(entries[0].Before), "sells things") || !strings.Contains(string(entries[0].After), "other") {
		t.Errorf("audit: %s", out)
	}
	sh.fails(exitUsage, "unknown kind", "", "audit ls --kind nothing")
	sh.fails(exitUsage, "--yes", "", "registry new-generation")
	if out := sh.ok("", "registry new-generation --yes -o csv --reason restored"); !strings.HasPrefix(out, "generation,version\n2,") {
		t.Errorf("new generation: %q", out)
	}
}

// Names are checked before anything is sent, and what a database would take for its own language is a name like any other, or none.
func TestOperateNames(t *testing.T) {
	sh, _ := startCluster(t)
	for _, name := range []string{"x'; DROP TABLE object; --", `a" OR "1"="1`, "a/b", "", "..", strings.Repeat("n", 256), "a\x00b"} {
		for _, line := range []string{"app create", "user create", "namespace create", "broker-group create", "data-center create", "app rm --yes", "user describe", "delete topic --yes", "get app"} {
			sh.fails(exitUsage, "", "", line, name)
		}
		if name != "" {
			sh.fails(exitUsage, "", "", "topic grant orders --produce --app", name)
		}
	}
	sh.ok("", "app create DROP_TABLE--object")
	if out := sh.ok("", "audit ls --name", "x' OR '1'='1", "-o", "name"); out != "" {
		t.Errorf("audit of a strange name: %q", out)
	}
	sh.fails(exitUsage, "did you mean topic", "", "get topics")
	sh.fails(exitUsage, "the kinds are app, broker", "", "delete nothing x")
}

// A file is applied whole or not at all; what would change is shown; what changed since it was read is a conflict.
func TestApply(t *testing.T) {
	sh, _ := startCluster(t)
	file := writeFile(t, "shop.yaml", `# two apps and a topic
kind: app
name: shop
spec: {description: sells}
---
kind: app
name: pay
---
- kind: topic
  name: orders
  spec:
    partitions: 4
    brokerGroups: [default]
    retentionAge: 7d
- kind: consumer
  name: orders/pay
  spec:
    concurrency: 4
    limit:
      messagesPerSecond: 500
`)
	dry := "app shop: would be created\n  + description: \"sells\"\napp pay: would be created\ntopic orders: would be created\n"
	if out := sh.warned("topic orders is on 1 broker groups", "", "apply --dry-run -f "+file); !strings.HasPrefix(out, dry) || !strings.HasSuffix(out, "consumer orders/pay: would be created\n  + concurrency: 4\n  + limit.messagesPerSecond: 500\n") {
		t.Errorf("dry run: %s", out)
	}
	if out := sh.ok("", "app ls -o name"); out != "" {
		t.Errorf("a dry run made %q", out)
	}
	sh.warned("topic orders is on 1 broker groups", "", "apply --yes -f "+file)
	if out := sh.ok("", "apply --yes -f "+file); out != "app shop: unchanged\napp pay: unchanged\ntopic orders: unchanged\nconsumer orders/pay: unchanged\n" {
		t.Errorf("again: %s", out)
	}
	text := sh.ok("", "get consumer orders/pay -o yaml")
	old := writeFile(t, "old.yaml", text)
	changed := strings.Replace(text, "500", "800", 1)
	if out := sh.ok(changed, "apply --yes -f -"); out != "consumer orders/pay: changed\n  - limit.messagesPerSecond: 500\n  + limit.messagesPerSecond: 800\n" {
		t.Errorf("change: %s", out)
	}
	sh.fails(exitError, "old.yaml line 1: conflict: consumer orders/pay has revision", "", "apply --yes -f "+old)
	// JSON, indented by tabs, as get prints it and as a person writes it.
	if out := sh.ok(sh.ok("", "get app -o json"), "apply --yes -f -"); out != "app pay: unchanged\napp shop: unchanged\n" {
		t.Errorf("json: %s", out)
	}
	if out := sh.ok("{\n\t\"kind\": \"app\",\n\t\"name\": \"pay\",\n\t\"spec\": {\"description\": \"pays\"}\n}", "apply --yes -f -"); !strings.HasPrefix(out, "app pay: changed\n") {
		t.Errorf("json: %s", out)
	}
	// One that is wrong, and nothing is done.
	sh.fails(exitUsage, "line 6: apply 2 objects at", "kind: app\nname: third\n---\nkind: topic\nname: other\nspec: {partitions: 100000, brokerGroups: [default]}\n", "apply --yes -f -")
	if out := sh.ok("", "app ls -o name"); out != "pay\nshop\n" {
		t.Errorf("apps: %q", out)
	}
	sh.fails(exitUsage, "--yes", "kind: app\nname: fourth\n", "apply -f -")
}

// What is wrong with a file is said with its line, before anything is sent.
func TestApplyBadFiles(t *testing.T) {
	nobody := shell{t, "127.0.0.1:1"}
	for _, c := range []struct{ file, says string }{
		{"", "has no object"},
		{"---\n---\n", "has no object"},
		{"kind: app\nname: a\nspec:\n  limit:\n    messagePerSecond: 3\n", `line 5: the spec of a app: field "limit.messagePerSecond" is not known; known are`},
		{"kind: app\nname: a\nspec:\n  owners:\n    - ann\n    - 7\n", `line 6: the spec of a app: field "owners[1]" must be text`},
		{"kind: consumer\nname: o/a\nspec:\n  filters:\n    - type: tag\n      rules: x\n", "line 6: "},
		{"kind: apps\nname: a\n", `line 1: unknown kind "apps"; did you mean app?`},
		{"kind: app\nname: a\nspecs: {}\n", `line 3: unknown field "specs"; known are kind, namespace, name, revision, spec`},
		{"kind: app\nname: a\nname: b\n", "line 3: "},
		{"kind: app\nname: a\nspec:\n  description: x\n  description: y\n", "line 5"},
		{"kind: app\nname: a\nspec: 7\n", "line 3"},
		{"kind: app\nname: 7\n", "line 2: name must be text: quote it"},
		{"kind: app\n", "line 1: an object has a kind and a name"},
		{"kind: app\nname: a'b\n", "line 1: "},
		{"kind: user\nname: a\nnamespace: team\n", "line 1: invalid: a user belongs to no namespace"},
		{"kind: app\nname: a\n---\nkind: app\nname: a\n", "line 4: app a is in line 1 already"},
		{"kind: app\nname: a\nrevision: -1\n", "line 3: revision"},
		{"7\n", "line 1: is no object"},
		{"kind: app\n\tname: a\n", "line 2"},
		{"kind: app\nname: a\nspec: {description: " + strings.Repeat("x", 1<<20) + "}\n", "at most 1048576"},
		{strings.Repeat("# "+strings.Repeat("x", 98)+"\n", 100_000), "has more than 8.0 MiB"},
		{"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nkind: app\nname: a\n", "unknown field"},
	} {
		nobody.fails(exitUsage, c.says, c.file, "apply --yes -f -")
	}
	nobody.fails(exitUsage, "name the file", "", "apply")
	nobody.fails(exitError, "no such file", "", "apply -f /no/such/file")
}
