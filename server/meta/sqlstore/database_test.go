package sqlstore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLocation holds DSNs to what may be sent where: "" is good.
func TestLocation(t *testing.T) {
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		l    Location
		says string
	}{
		{Location{}, "either a file"},
		{Location{File: "a", DSN: "b"}, "either a file"},
		{Location{File: "a"}, ""},
		{Location{DSN: "nonsense"}, "cannot be read"},
		{Location{DSN: "jmq@tcp(127.0.0.1:3306)/"}, "names no database"},
		{Location{DSN: "jmq@tcp(127.0.0.1:3306)/jmq"}, ""},
		{Location{DSN: "jmq@tcp(localhost:3306)/jmq"}, ""},
		{Location{DSN: "jmq@tcp([::1]:3306)/jmq"}, ""},
		{Location{DSN: "jmq@unix(/run/mysqld.sock)/jmq"}, ""},
		{Location{DSN: "jmq:env:PW@tcp(db.example:3306)/jmq"}, "tls=true"},
		{Location{DSN: "jmq:env:PW@tcp(db.example:3306)/jmq?tls=skip-verify"}, "tls=true"},
		{Location{DSN: "jmq:env:PW@tcp(db.example:3306)/jmq?tls=preferred"}, "tls=true"},
		{Location{DSN: "jmq@tcp(db.example:3306)/jmq?tls=true"}, "password"},
		{Location{DSN: "jmq:env:PW@tcp(db.example:3306)/jmq?tls=true"}, ""},
		{Location{DSN: "jmq@tcp(10.0.0.7:3306)/jmq", Insecure: true}, ""},
		{Location{DSN: "jmq:env:PW@tcp(db.example:3306)/jmq?tls=true&ca=" + ca}, "no certificate"},
		{Location{DSN: "jmq:env:PW@tcp(db.example:3306)/jmq?tls=true&ca=" + dir + "/none"}, "no such file"},
		{Location{DSN: "jmq:env:PW@tcp(db.example:3306)/jmq?ca=" + ca}, "ca without tls=true"},
	} {
		err := c.l.Validate()
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%+v: got %v, want %q", c.l, err, c.says)
		}
	}
}

// TestSecret keeps passwords out of what is shown, and takes them from where they are.
func TestSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("from a:file@\nsecond line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("JMQ_TEST_PASSWORD", "from/the environment")
	for dsn, want := range map[string]string{
		"jmq:env:JMQ_TEST_PASSWORD@tcp(h:1)/d": "from/the environment",
		"jmq:file:" + file + "@tcp(h:1)/d":     "from a:file@",
		"jmq:in clear@tcp(h:1)/d":              "in clear",
	} {
		l := Locate(dsn)
		c, err := l.parse()
		if err != nil {
			t.Fatal(err)
		}
		got, err := secret(c.Passwd)
		if err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", dsn, got, err, want)
		}
		if l.HasPassword() != (want == "in clear") || l.String() != "jmq@tcp(h:1)/d" {
			t.Errorf("%s: got %v, %s", dsn, l.HasPassword(), l)
		}
	}
	for _, dsn := range []string{"jmq:env:JMQ_TEST_NONE@tcp(h:1)/d", "jmq:file:" + file + ".none@tcp(h:1)/d"} {
		c, err := Locate(dsn).parse()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := secret(c.Passwd); err == nil {
			t.Errorf("%s: want an error", dsn)
		}
	}
	for text, isFile := range map[string]bool{"registry.db": true, "/var/lib/jmq/registry.db": true, "dir(1)/x.db": false, "u@tcp(h)/d": false, "u@unix(/s)/d": false, "/d": true} {
		if got := Locate(text).File != ""; got != isFile {
			t.Errorf("Locate(%q): a file is %v, want %v", text, got, isFile)
		}
	}
}
