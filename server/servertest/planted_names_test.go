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

// plantedPlaces are the names that the code asks for, and in which files, ascending.
func plantedPlaces(t *testing.T) map[string][]string {
	t.Helper()
	places := map[string][]string{}
	look := func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || filepath.Base(filepath.Dir(name)) == "planted" {
			return err
		}
		text, err := os.ReadFile(name)
		file := filepath.ToSlash(strings.TrimPrefix(name, filepath.Join("..", "..")+string(filepath.Separator)))
		for _, found := range plantedCall.FindAllSubmatch(text, -1) {
			if of := places[string(found[1])]; !slices.Contains(of, file) {
				places[string(found[1])] = append(of, file)
			}
		}
		return err
	}
	for _, dir := range []string{"server", "client"} {
		if err := filepath.WalkDir(filepath.Join("..", "..", dir), look); err != nil {
			t.Fatal(err)
		}
	}
	return places
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
	names := plantedPlaces(t)
	if len(names) < 8 {
		t.Fatalf("the code has %v only", names)
	}
	for name := range names {
		if bytes.Contains(program, []byte(name)) != plantedBuild {
			t.Errorf("%q is in the program: %v, want %v", name, !plantedBuild, plantedBuild)
		}
	}
}
