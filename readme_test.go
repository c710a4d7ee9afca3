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

// Every test and file that docs/reliability.md names as what keeps a bug from coming back is there, and so is what it links to.
func TestReliabilityNames(t *testing.T) {
	const doc = "docs/reliability.md"
	b, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	tests := 0
	for _, m := range regexp.MustCompile("((?:(?:Test|Fuzz)[A-Za-z0-9]+(?:, | and )?)+) in `([^`]+)`").FindAllStringSubmatch(text, -1) {
		var code strings.Builder
		files, _ := filepath.Glob(filepath.Join(m[2], "*_test.go")) // the pattern is good
		for _, name := range files {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(b)
		}
		for _, name := range regexp.MustCompile("(?:Test|Fuzz)[A-Za-z0-9]+").FindAllString(m[1], -1) {
			tests++
			if !strings.Contains(code.String(), "\nfunc "+name+"(") {
				t.Errorf("%s names %s in %s, which is not there", doc, name, m[2])
			}
		}
	}
	if tests < 50 {
		t.Errorf("%s names %d tests only", doc, tests)
	}
	for _, m := range regexp.MustCompile("`((?:server|client|scripts|wire)(?:/[^` ]*)?)`").FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(m[1]); err != nil {
			t.Errorf("%s names %v", doc, err)
		}
	}
	for _, m := range regexp.MustCompile(`\]\(([A-Za-z.][^)#]*)`).FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join(filepath.Dir(doc), m[1])); err != nil {
			t.Errorf("%s links to %v", doc, err)
		}
	}
}
