package servertest

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var plantedCall = regexp.MustCompile(`planted\.Bug\("([^"]*)"\)`)

// plantedNames are the names that the code asks for, ascending.
func plantedNames(t *testing.T) []string {
	t.Helper()
	var names []string
	look := func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || filepath.Base(filepath.Dir(name)) == "planted" {
			return err
		}
		text, err := os.ReadFile(name)
		for _, found := range plantedCall.FindAllSubmatch(text, -1) {
			names = append(names, string(found[1]))
		}
		return err
	}
	for _, dir := range []string{"..", "../../client"} {
		if err := filepath.WalkDir(dir, look); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(names)
	return slices.Compact(names) // a bug may have several places
}

// Without the tag nothing of a planted bug is in the program, not even its name; with it all of them are. The program that
// is looked at is this test, which has the whole server in it.
func TestPlantedNames(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	names := plantedNames(t)
	if len(names) < 8 {
		t.Fatalf("the code has the names %q only", names)
	}
	for _, name := range names {
		if bytes.Contains(program, []byte(name)) != plantedBuild {
			t.Errorf("%q is in the program: %v, want %v", name, !plantedBuild, plantedBuild)
		}
	}
}
