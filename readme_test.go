package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jmqio/jmq/server/servertest"
)

// The README's program is one that people copy: it is built and run as it stands, but for the address.
func TestReadmeProgram(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(readme, -1)
	if len(found) != 1 {
		t.Fatalf("%d programs in README.md", len(found))
	}
	server := servertest.Start(t)
	server.CreateTopic("orders", 8)
	program := strings.ReplaceAll(string(found[0][1]), addressDefault, server.Address())
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "run", file).CombinedOutput()
	if err != nil || !regexp.MustCompile(`^stored as [0-9A-Z]{26}\norder-17: \{"amountCents":1177\}\n$`).Match(out) {
		t.Errorf("%v: %s", err, out)
	}
}

// Every command and file that the README names is there.
func TestReadmeNames(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	root := rootCommand(nil, nil, nil)
	for _, m := range regexp.MustCompile("`jmq ([a-z-]+)(?: ([a-z][a-z-]*))?").FindAllStringSubmatch(string(readme), -1) {
		path := []string{m[1]}
		if c, _, err := root.Find(path); err == nil && c.HasSubCommands() && m[2] != "" {
			path = append(path, m[2])
		}
		if c, rest, err := root.Find(path); err != nil || c == root || len(rest) > 0 {
			t.Errorf("README.md names jmq %s, which is not there", strings.Join(path, " "))
		}
	}
	for _, m := range regexp.MustCompile(`\]\(([A-Za-z][^)#]*)\)`).FindAllStringSubmatch(string(readme), -1) {
		if _, err := os.Stat(m[1]); err != nil {
			t.Errorf("README.md links to %v", err)
		}
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?:`|    )make ([a-z]+)").FindAllStringSubmatch(string(readme), -1) {
		if !strings.Contains(string(makefile), "\n"+m[1]+":") {
			t.Errorf("README.md names make %s, which is not there", m[1])
		}
	}
}
