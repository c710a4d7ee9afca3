package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/jmqio/jmq/scripts/testenv"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/meta/sqlstore"
)

// TestMigrateMetadata moves the metadata from SQLite to a real MariaDB and back, and holds the result to what was there; the ways that must not
// be gone are refused.
func TestMigrateMetadata(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "registry.db")
	open := func(l sqlstore.Location) *sqlstore.Store {
		t.Helper()
		s, err := sqlstore.Open(t.Context(), sqlstore.Options{Location: l})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open(sqlstore.Location{File: file})
	for i := range 3 {
		c := meta.Change{By: meta.Actor{Name: "user tess"}}
		for j := range 400 {
			c.Writes = append(c.Writes, meta.Write{Key: meta.Key{Kind: meta.KindUser, Name: fmt.Sprintf("user-%d-%d", i, j)}, Spec: &meta.User{Role: meta.RoleUser, DisplayName: "Zoë 🦊 '; DROP TABLE jmq_object; --"}, Expect: meta.Expect{Create: true}})
		}
		if _, err := s.Update(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Update(t.Context(), meta.Change{Writes: []meta.Write{{Key: meta.Key{Kind: meta.KindUser, Name: "user-1-7"}, Expect: meta.Expect{Any: true}}}}); err != nil {
		t.Fatal(err)
	}
	before := s.View()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	clear := testenv.MariaDB(t)
	c, err := mysql.ParseDSN(clear)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("JMQ_TEST_PASSWORD", c.Passwd)
	c.Passwd = "env:JMQ_TEST_PASSWORD"
	dsn := c.FormatDSN()
	sh := shell{t, ""}
	sh.fails(exitUsage, "password in clear", "", "migrate metadata --insecure --from", file, "--to", clear)
	sh.fails(exitUsage, "give both databases", "", "migrate metadata --from", file)
	sh.fails(exitError, "no such file", "", "migrate metadata --insecure --from", file+".none", "--to", dsn)
	sh.fails(exitError, "source and target are both", "", "migrate metadata --from", file, "--to", file)
	sh.fails(exitError, "tls=true", "", "migrate metadata --from", file, "--to", "jmq:env:JMQ_TEST_PASSWORD@tcp(192.0.2.1:3306)/jmq")

	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	var errs bytes.Buffer
	if code := execute(stopped, []string{"migrate", "metadata", "--insecure", "--from", file, "--to", dsn}, nil, new(bytes.Buffer), &errs); code != exitInterrupted || !strings.Contains(errs.String(), "start it again") || strings.Contains(errs.String(), c.Passwd) {
		t.Fatalf("stopped: exit %d, %q", code, errs.String())
	}

	var info migratedInfo
	if err := json.Unmarshal([]byte(sh.ok("", "migrate metadata --insecure -o json --from", file, "--to", dsn)), &info); err != nil {
		t.Fatal(err)
	}
	if info.Objects["user"] != 1199 || info.Objects["namespace"] != 1 || info.Deleted != 1 || info.Audit != 1202 || info.Generation != 2 {
		t.Fatalf("copied: got %+v", info)
	}
	same := func(l sqlstore.Location, generation meta.Generation) {
		t.Helper()
		s := open(l)
		defer s.Close()
		after := s.View()
		if after.Generation != generation || after.Len(meta.KindUser) != before.Len(meta.KindUser) {
			t.Fatalf("copy: got generation %d with %d users, want %d with %d", after.Generation, after.Len(meta.KindUser), generation, before.Len(meta.KindUser))
		}
		for o := range before.All(meta.KindUser) {
			if got := after.Get(o.Key); got == nil || got.Revision != o.Revision || got.Created != o.Created || *got.Spec.(*meta.User) != *o.Spec.(*meta.User) {
				t.Fatalf("%s: got %+v, want %+v", o.Key, got, o)
			}
		}
		entries, _, err := s.Audit(t.Context(), meta.AuditQuery{Limit: 2})
		if err != nil || entries[0].Change != meta.ChangeNewGeneration || !strings.HasPrefix(entries[0].Reason, "copied from") {
			t.Fatalf("audit: got %+v, %v", entries, err)
		}
		if _, err := s.Update(t.Context(), meta.Change{Writes: []meta.Write{{Key: meta.Key{Kind: meta.KindNamespace, Name: "later"}, Spec: &meta.Namespace{}, Expect: meta.Expect{Any: true}}}}); err != nil {
			t.Fatalf("a change of the copy: %v", err)
		}
	}
	same(sqlstore.Location{DSN: dsn, Insecure: true}, 2)

	sh.fails(exitError, "with --force it is replaced", "", "migrate metadata --insecure --from", file, "--to", dsn)
	back := filepath.Join(dir, "back.db")
	if out := sh.ok("", "migrate metadata --insecure --from", dsn, "--to", back); !strings.Contains(out, "user") || !strings.Contains(out, "1199") {
		t.Fatalf("back: got %s", out)
	}
	same(sqlstore.Location{File: back}, 3)
	sh.ok("", "migrate metadata --insecure --force --from", back, "--to", dsn)
	same(sqlstore.Location{DSN: dsn, Insecure: true}, 4)
}
