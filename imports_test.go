package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/jmqio/jmq"

// ranks is the import table of ARCHITECTURE.md. A package imports lower ranks, or its own parent. A package that is
// not here does not belong into the house yet.
var ranks = map[string]int{
	"server/planted": -1,

	"wire":           0,
	"server/journal": 0,
	"server/index":   0,
	"server/term":    0,

	"server/dedupe":   1,
	"server/offset":   1,
	"server/store":    1,
	"server/replica":  1,
	"server/listener": 1,
	"server/meta":     1,
	"client":          1,

	"server/store/local":   2,
	"server/dispatch":      2,
	"server/side":          2,
	"server/retention":     2,
	"server/meta/sqlstore": 2,
	"server/registry":      2,
	"client/admin":         2,

	"server/broker": 3,

	"server": 4,

	"server/servertest":        5,
	"server/servertest/check":  5,
	"server/servertest/script": 5,

	".": 6,
}

// testOnly are imported by tests and by programs under scripts only.
var testOnly = []string{
	"server/journal/journaltest", "server/replica/replicatest", "server/store/storetest", "server/servertest", "server/servertest/check",
	"server/servertest/mutate", "server/servertest/ports", "server/servertest/script", "server/meta/metatest", "scripts/testenv",
}

// homes are libraries that appear in one package of the product only (see DESIGN's table); the seam for files, vfs, is not counted.
var homes = map[string]string{
	"github.com/spf13/viper":         ".",
	"github.com/go-sql-driver/mysql": "server/meta/sqlstore",
	"github.com/uptrace/bun":         "server/meta/sqlstore",
	"modernc.org/sqlite":             "server/meta/sqlstore",
	"github.com/pressly/goose/v3":    "server/meta/sqlstore",
	"github.com/xdg-go/scram":        "wire",
	"github.com/redis/go-redis/v9":   "server/retry/redisstore",
}

// TestImports holds every non-test file of the module to the table above.
func TestImports(t *testing.T) {
	files := 0
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || name == "scripts/tools" || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		files++
		from := path.Dir(filepath.ToSlash(name))
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range f.Imports {
			to, _ := strconv.Unquote(spec.Path.Value)
			if why := forbidden(from, to); why != "" {
				t.Errorf("%s imports %s: %s", name, to, why)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 10 {
		t.Fatalf("looked at %d files only: run from the root of the module", files)
	}
}

// forbidden says why package from may not import to, or "".
func forbidden(from, to string) string {
	inScripts := from == "scripts" || strings.HasPrefix(from, "scripts/")
	if home, ok := homes[to]; ok && home != from && !inScripts && !isTestOnly(from) {
		return "only " + home + " is about this library"
	}
	if to == "os/exec" && !inScripts && from != "." && from != "server/planted" && !isTestOnly(from) { // planted: with its tag only
		return "the server starts no programs"
	}
	if to == module || !strings.HasPrefix(to, module+"/") {
		return ""
	}
	to = strings.TrimPrefix(to, module+"/")
	if inScripts || isTestOnly(from) {
		return ""
	}
	if isTestOnly(to) {
		return "only tests and scripts import it"
	}
	fromRank, ok := ranks[from]
	if !ok {
		return "the importing package has no rank in the table"
	}
	toRank, ok := ranks[to]
	if !ok {
		return "the imported package has no rank in the table"
	}
	if to == "server/planted" { // nothing of it is in a build without its tag
		return ""
	}
	if (from == "client" || strings.HasPrefix(from, "client/")) && strings.HasPrefix(to, "server") {
		return "client never imports server"
	}
	if strings.HasPrefix(from, "server") && to == "client" && fromRank < 4 {
		return "server imports client from rank 4 up only"
	}
	if toRank < fromRank || to == path.Dir(from) {
		return ""
	}
	return "rank " + strconv.Itoa(fromRank) + " to rank " + strconv.Itoa(toRank) + ": imports go down"
}

func isTestOnly(pkg string) bool {
	for _, p := range testOnly {
		if pkg == p {
			return true
		}
	}
	return false
}

// TestForbidden shows that the table bites.
func TestForbidden(t *testing.T) {
	for _, c := range []struct {
		from, to string
		bad      bool
	}{
		{"client", module + "/wire", false},
		{"client", module + "/server/store", true},
		{"server/broker", module + "/server/dispatch", false},
		{"server/dispatch", module + "/server/broker", true},
		{"server/store/local", module + "/server/store", false},
		{"server/journal", module + "/server/planted", false},
		{"server/planted", module + "/server/journal", true},
		{"server/store", module + "/server/store/local", true},
		{"server/broker", module + "/client", true},
		{"server", module + "/server/servertest", true},
		{"server/broker", "os/exec", true},
		{"server", "github.com/spf13/viper", true},
		{"server/registry", "modernc.org/sqlite", true},
		{"scripts/testenv", "github.com/go-sql-driver/mysql", false},
		{"scripts/demo", module + "/server/servertest/check", false},
		{"pkg/util", module + "/wire", true},
	} {
		if why := forbidden(c.from, c.to); (why != "") != c.bad {
			t.Errorf("forbidden(%s, %s) = %q, want bad=%v", c.from, c.to, why, c.bad)
		}
	}
}
