package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

	sh.warned("topic orders is on 1 broker group:", "", "topic create orders --partitions 4 --owner shop --limit-messages 100 --retention 7d")
	if out := sh.ok("", "get topic orders -o json"); !strings.Contains(out, `"retentionAge": "168h"`) || !strings.Contains(out, `"messagesPerSecond": 100`) {
		t.Errorf("topic: %s", out)
	}
	sh.ok("", "topic create orders --partitions 4 --owner shop --limit-messages 100 --retention 7d") // the same again is fine
	sh.fails(exitError, "exists", "", "topic create orders --partitions 4 --owner shop --limit-messages 200")
	sh.warned("topic orders is on 1 broker group:", "", "topic alter orders --limit-messages 0 --partitions 6")
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
	if out := sh.warned("topic orders is on 1 broker group:", "", "apply --dry-run -f "+file); !strings.HasPrefix(out, dry) || !strings.HasSuffix(out, "consumer orders/pay: would be created\n  + concurrency: 4\n  + limit.messagesPerSecond: 500\n") {
		t.Errorf("dry run: %s", out)
	}
	if out := sh.ok("", "app ls -o name"); out != "" {
		t.Errorf("a dry run made %q", out)
	}
	sh.warned("topic orders is on 1 broker group:", "", "apply --yes -f "+file)
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

// startAuthenticated is startCluster where everybody must prove who he is, with the first credentials of jmq registry init, by which
// the shell's context is the admin's.
func startAuthenticated(t *testing.T) (sh shell, address, dir string) {
	t.Setenv(envContexts, filepath.Join(t.TempDir(), "config", "contexts.yaml"))
	dir = t.TempDir()
	file := filepath.Join(dir, "metadata.db")
	sh = shell{t, ""}
	init := "registry init --registry.file " + file + " --dir " + dir
	if out := sh.ok("", init+" -o csv"); strings.Count(out, ",new\n") != 2 {
		t.Fatalf("init: %s", out)
	}
	s := servertest.Start(t, func(c *jmqserver.Config) {
		c.Roles, c.Registry.File, c.Node.Auth.Required = jmqserver.Roles, file, true
	})
	return sh, s.Address(), dir
}

// The first credentials are made once, in files for their owner alone; one whose file is lost, or that is good no more, is made anew.
func TestRegistryInit(t *testing.T) {
	sh, address, dir := startAuthenticated(t)
	again := func(want string) {
		t.Helper()
		if out := sh.ok("", "registry init --registry.file "+filepath.Join(dir, "metadata.db")+" --dir "+dir+" -o csv"); !strings.HasSuffix(out, want) {
			t.Errorf("again: %s; want it to end with %q", out, want)
		}
	}
	again("node.credential,as it was\n")
	for _, name := range []string{"admin.credential", "node.credential"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	sh.ok("", "login --address "+address+" --secret-file "+filepath.Join(dir, "admin.credential"))
	node, err := os.ReadFile(filepath.Join(dir, "node.credential"))
	if err != nil {
		t.Fatal(err)
	}
	sh.ok("", "credential revoke --yes "+strings.Fields(string(node))[1])
	again("node.credential,new\n")
	if err := os.Remove(filepath.Join(dir, "node.credential")); err != nil {
		t.Fatal(err)
	}
	again("node.credential,new\n")
	// Who lost the admin's credentials comes in again, however often, in place of the older of two that are good; a folder is made.
	for range 3 {
		if err := os.Remove(filepath.Join(dir, "admin.credential")); err != nil {
			t.Fatal(err)
		}
		again("node.credential,as it was\n")
	}
	sh.ok("", "registry init --data "+filepath.Join(dir, "new", "data")+" --dir "+filepath.Join(dir, "new"))
	if info, err := os.Stat(filepath.Join(dir, "new", "data")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v %v", info, err)
	}
	sh.fails(exitError, "metadata database", "", "registry init --dir "+dir+" --registry.file /no/such/folder/x.db")
	sh.fails(exitUsage, "registry.dsn", "", "registry init --registry.dsn nonsense")
}

// Who logs in is who he says from then on; a wrong secret, or a file that others can read, is refused; a secret is shown once and never
// logged, listed or kept by the cluster.
func TestLogin(t *testing.T) {
	sh, address, dir := startAuthenticated(t)
	sh.fails(exitDenied, "say who you are: jmq login", "", "whoami --address "+address)
	sh.fails(exitNotFound, "there is none yet: jmq context add", "", "login")
	sh.fails(exitUsage, "no terminal to ask for the secret", "", "login --address "+address)
	sh.fails(exitUsage, "give --id too", "secret", "login --secret-file - --address "+address)
	sh.fails(exitError, "no such file", "", "login --secret-file /no/such/file --address "+address)
	sh.fails(exitUsage, "not one line", "a\nb", "login --id x --secret-file - --address "+address)

	adminFile := filepath.Join(dir, "admin.credential")
	text, err := os.ReadFile(adminFile)
	if err != nil {
		t.Fatal(err)
	}
	id, secret := strings.Fields(string(text))[1], strings.Fields(string(text))[3]
	for _, wrong := range []string{"wrong", secret + "x", "x' OR '1'='1"} {
		sh.fails(exitDenied, "does not take credential", wrong, "login --secret-file - --id "+id+" --address "+address)
	}
	sh.fails(exitDenied, "does not take credential", secret, "login --secret-file - --id nobody --address "+address)
	if out := sh.ok("", "context ls"); !strings.Contains(out, "there is none yet") {
		t.Errorf("a login that failed made a context: %s", out)
	}
	if out := sh.ok(secret+"\n", "login --secret-file - --id "+id+" --address "+address); !strings.HasPrefix(out, "user admin, admin at "+address+"; context default, credential in ") || strings.Contains(out, secret) {
		t.Errorf("login: %s", out)
	}
	var me identityInfo
	if out := sh.ok("", "whoami -o json"); json.Unmarshal([]byte(out), &me) != nil || me.Kind != "user" || me.Name != "admin" || me.Role != "admin" || me.Credential != id {
		t.Errorf("whoami: %s", out)
	}
	for _, name := range []string{os.Getenv(envContexts), filepath.Join(filepath.Dir(os.Getenv(envContexts)), "credentials", "default")} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}

	// An app of its own, which may do what it was granted and nothing else.
	sh.ok("", "app create shop")
	sh.ok("", "topic create orders")
	sh.ok("", "topic grant orders --app shop --produce")
	appFile := filepath.Join(dir, "shop.credential")
	out := sh.ok("", "credential create --app shop --expires 30d --out "+appFile)
	shopText, err := os.ReadFile(appFile)
	if err != nil || strings.Contains(out, strings.Fields(string(shopText))[3]) {
		t.Fatalf("create: %s %v", out, err)
	}
	sh.fails(exitUsage, "it is there", "", "credential create --app shop --out "+appFile)
	sh.ok("", "produce orders x --address "+address+" --credential-file "+appFile)
	sh.fails(exitDenied, "forbidden", "", "consume orders -g shop --timeout 1s --address "+address+" --credential-file "+appFile)
	sh.fails(exitDenied, "forbidden", "", "app create other --address "+address+" --credential-file "+appFile)
	sh.fails(exitDenied, "forbidden", "", "audit ls --address "+address+" --credential-file "+appFile)
	if err := os.Chmod(appFile, 0o644); err != nil {
		t.Fatal(err)
	}
	sh.fails(exitError, "open to others (mode 0644): chmod 600", "", "whoami --address "+address+" --credential-file "+appFile)

	// Rotated: a second one, and the first ends. Shown once where no file is named.
	shopID := strings.Fields(string(shopText))[1]
	code, out, errs := sh.run("", "credential rotate "+shopID+" --keep 1h -o json")
	var made credentialInfo
	if code != exitOK || errs != "" || json.Unmarshal([]byte(out), &made) != nil || made.Secret == "" || made.ID == shopID {
		t.Fatalf("rotate: %d %s %s", code, out, errs)
	}
	sh.fails(exitUsage, "at most 2 are allowed", "", "credential create --app shop")
	list := sh.ok("", "credential ls --app shop -o json")
	all := list + sh.ok("", "audit ls -o json") + sh.ok("", "get credential -o yaml") + sh.ok("", "credential ls")
	for _, hidden := range []string{made.Secret, strings.Fields(string(shopText))[3], secret, "storedKey", "serverKey", "salt"} {
		if strings.Contains(all, hidden) {
			t.Errorf("%q is shown", hidden)
		}
	}
	if !strings.Contains(list, shopID) || !strings.Contains(list, made.ID) || strings.Count(list, `"expires"`) != 1 {
		t.Errorf("list: %s", list)
	}
	sh.fails(exitUsage, "--yes", "", "credential revoke "+made.ID)
	if out := sh.ok("", "credential revoke --yes -o csv "+made.ID); !strings.Contains(out, ",revoked,") {
		t.Errorf("revoke: %s", out)
	}
	madeFile := writeFile(t, "made.credential", "id: "+made.ID+"\nsecret: "+made.Secret+"\n")
	for deadline := time.Now().Add(5 * time.Second); ; { // a node may know a moment later
		code, _, errs := sh.run("", "whoami --address "+address+" --credential-file "+madeFile)
		if code == exitDenied && strings.Contains(errs, "does not take credential") {
			break
		}
		if code != exitOK || time.Now().After(deadline) {
			t.Fatalf("a revoked credential: exit %d, %s", code, errs)
		}
	}
	sh.fails(exitError, "is revoked", "", "credential rotate "+made.ID)
	sh.fails(exitUsage, "say whose", "", "credential create")
	sh.fails(exitUsage, "that is over", "", "credential create --app shop --expires 2020-01-01T00:00:00Z")
}

// Contexts are kept in a file for their owner alone; what is wrong with it is said.
func TestContexts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "jmq", "contexts.yaml")
	t.Setenv(envContexts, file)
	s := servertest.Start(t)
	sh := shell{t, ""}
	if out := sh.ok("", "context ls"); out != "there is none yet: jmq context add NAME --address HOST:PORT\n" {
		t.Errorf("none: %q", out)
	}
	sh.fails(exitNotFound, "no context is in use", "", "context show")
	sh.fails(exitUsage, "say where", "", "context add dev")
	sh.fails(exitUsage, "context name", "", "context add --address h:1", "../x")
	sh.fails(exitUsage, "belong together", "", "context add dev --address h:1 --tls-cert x")
	if out := sh.ok("", "context add dev --address "+s.Address()); out != "context dev: "+s.Address()+", in use\n" {
		t.Errorf("add: %q", out)
	}
	sh.ok("", "context add far --address 127.0.0.1:1,127.0.0.1:2 --tls-ca system")
	sh.fails(exitUsage, "--replace", "", "context add far --address 127.0.0.1:1")
	if out := sh.ok("", "context ls -o csv"); out != "name,in use,addresses,credential file,tls\ndev,*,"+s.Address()+",,no\nfar,,\"127.0.0.1:1,127.0.0.1:2\",,system\n" {
		t.Errorf("ls: %q", out)
	}
	sh.ok("", "topic create orders")
	sh.fails(exitError, "is a broker running there?", "", "topic ls --context far --connect-timeout 2s")
	sh.fails(exitNotFound, "there are: dev, far", "", "topic ls --context nowhere")
	sh.ok("", "context use far")
	sh.fails(exitError, "is a broker running there?", "", "topic ls --connect-timeout 2s")
	sh.ok("", "topic ls --address "+s.Address()) // an address is alone: nobody's credential and certificate
	sh.ok("", "topic ls --context dev")
	t.Setenv(envContext, "dev")
	sh.ok("", "topic ls")
	if out := sh.ok("", "context show far -o json"); !strings.Contains(out, `"tlsCA": "system"`) || !strings.Contains(out, `"inUse": true`) {
		t.Errorf("show: %s", out)
	}
	sh.fails(exitError, "the secret was not checked", "x", "login --secret-file - --id a --address "+s.Address())
	sh.ok("", "context rm far")
	sh.fails(exitNotFound, "there are: dev", "", "context use far")

	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	sh.fails(exitError, "open to others (mode 0640): chmod 600", "", "topic ls")
	sh.fails(exitError, "open to others", "", "context add x --address h:1")
	if err := os.WriteFile(file, []byte("current: dev\ncontext: []\n"), 0o600); err != nil || os.Chmod(file, 0o600) != nil {
		t.Fatal(err)
	}
	sh.fails(exitUsage, `line 2: unknown field "context"`, "", "topic ls")
	if err := os.WriteFile(file, []byte("contexts: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	sh.fails(exitUsage, "line 1", "", "context ls")
	sh.fails(exitUsage, `"h" is not HOST:PORT`, "", "context add x --address g:1,h")
}

// A node that keeps its topics itself has no metadata: what asks for it says so.
func TestOperateWithoutRegistry(t *testing.T) {
	sh := shell{t, servertest.Start(t).Address()}
	for _, line := range []string{"app ls", "get topic", "registry status", "topic create orders --broker-groups default", "topic grant orders --app shop --produce"} {
		sh.fails(exitError, "role-elsewhere", "", line)
	}
	sh.ok("", "topic create orders")
}
