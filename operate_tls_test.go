package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	jmqserver "github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/servertest"
)

// writeCertificates makes an authority, a server on loopback, and the user admin, as files of a folder.
func writeCertificates(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var ca *x509.Certificate
	var caKey *ecdsa.PrivateKey
	make := func(name string, c *x509.Certificate) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(err)
		if ca == nil {
			ca, caKey = c, key
		}
		c.SerialNumber, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, c, ca, &key.PublicKey, caKey)
		must(err)
		must(os.WriteFile(filepath.Join(dir, name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
		der, err = x509.MarshalECPrivateKey(key)
		must(err)
		must(os.WriteFile(filepath.Join(dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600))
	}
	make("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	make("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	make("admin", &x509.Certificate{URIs: []*url.URL{{Scheme: "jmq", Host: "user", Path: "/admin"}}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return dir
}

// Commands speak TLS: by a certificate of one's own, or by a credential over it, by flags or a context; and never without where it is wanted.
func TestOperateTLS(t *testing.T) {
	t.Setenv(envContexts, filepath.Join(t.TempDir(), "contexts.yaml"))
	dir := writeCertificates(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	sh := shell{t, ""}
	sh.ok("", "registry init --registry.file "+in("metadata.db")+" --dir "+dir)
	s := servertest.Start(t, func(c *jmqserver.Config) {
		c.Roles, c.Registry.File, c.Node.Auth.Required = jmqserver.Roles, in("metadata.db"), true
		c.Node.TLS = jmqserver.TLSConfig{CertFile: in("server.pem"), KeyFile: in("server.key"), ClientCAFile: in("ca.pem")}
	})
	at := " --address " + s.Address()
	byCertificate := " --tls-ca " + in("ca.pem") + " --tls-cert " + in("admin.pem") + " --tls-key " + in("admin.key")
	if out := sh.ok("", "whoami -o csv"+at+byCertificate); !strings.Contains(out, "\n\"user admin, admin\",certificate,2") {
		t.Errorf("by certificate: %s", out)
	}
	sh.ok("", "app create shop"+at+byCertificate)
	sh.fails(exitError, "does it speak TLS? give --tls-ca", "", "whoami"+at)
	sh.ok("", "app ls"+at+" --tls-ca "+in("ca.pem")+" --credential-file "+in("admin.credential"))
	sh.fails(exitDenied, "say who you are", "", "app ls"+at+" --tls-ca "+in("ca.pem"))
	sh.fails(exitError, "certificate", "", "app ls --connect-timeout 2s --tls-ca system"+at)
	sh.fails(exitError, "127.0.0.1", "", "app ls --connect-timeout 2s"+at)
	sh.fails(exitUsage, "no certificate in PEM", "", "app ls"+at+" --tls-ca "+in("ca.key"))
	sh.fails(exitUsage, "no such file", "", "app ls"+at+" --tls-ca /no/such/file")
	sh.fails(exitUsage, "needs --tls-ca", "", "app ls"+at+" --tls-cert "+in("admin.pem")+" --tls-key "+in("admin.key"))

	sh.ok("", "context add prod"+at+byCertificate)
	sh.ok("", "app ls")
	sh.ok("", "context add by-secret --use"+at+" --tls-ca "+in("ca.pem"))
	sh.ok("", "login --secret-file "+in("admin.credential"))
	if out := sh.ok("", "whoami -o csv"); strings.Contains(out, "certificate") {
		t.Errorf("by secret: %s", out)
	}
}

// On several broker groups a listing says which; what is about one takes --broker-group.
func TestOperateBrokerGroups(t *testing.T) {
	sh, first := startCluster(t)
	servertest.Start(t, func(c *jmqserver.Config) {
		c.Node.Name, c.Broker.BrokerGroup, c.Node.Registry.Addresses = "second", "other", []string{first.Address()}
	})
	sh.warned("topic orders is on 2 broker groups", "", "topic create orders -p 2 --broker-groups default,other")
	// The command ended when both brokers had it.
	if out := sh.ok("", "topic describe orders -o csv"); strings.Count(out, "\n") != 5 || !strings.HasPrefix(out, "broker group,partition,first,") || !strings.Contains(out, "\nother,1,0,0,") {
		t.Errorf("describe: %s", out)
	}
	sh.ok("a\nb\nc\nd\n", "produce orders")
	if out := sh.ok("", "consume orders -g pay --from-beginning -n 4"); len(out) != 8 {
		t.Errorf("consume: %q", out)
	}
	if out := sh.ok("", "group ls orders -o csv"); strings.Count(out, "\n") != 2 || !strings.Contains(out, "\npay,orders,0,") {
		t.Errorf("groups: %s", out)
	}
	if out := sh.ok("", "group lag orders pay -o csv"); !strings.HasPrefix(out, "group,broker group,partition,") || strings.Count(out, "\npay,other,") != 2 {
		t.Errorf("lag: %s", out)
	}
	if out := sh.ok("", "group seek orders pay --to start --yes --broker-group other -o csv"); strings.Count(out, "\n") != 3 {
		t.Errorf("seek: %s", out)
	}
	sh.fails(exitNotFound, "nowhere", "", "msg get orders 0 0 --broker-group nowhere")
	sh.fails(exitNotFound, "nowhere", "", "store usage --broker-group nowhere")
	if out := sh.ok("", "store usage --broker-group other"); !strings.Contains(out, "state      ok") {
		t.Errorf("usage: %s", out)
	}
	if out := sh.ok("", "broker ls -o name"); out != "broker\nsecond\n" {
		t.Errorf("brokers: %q", out)
	}
	if out := sh.ok("", "broker describe second -o json"); !strings.Contains(out, `"brokerGroup": "other"`) || !strings.Contains(out, `"state": "serving"`) {
		t.Errorf("broker: %s", out)
	}
	sh.fails(exitError, "in-use", "", "delete broker-group other --yes")
}
