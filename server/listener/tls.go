package listener

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// CertificateOptions are the options of Certificates. Files are PEM.
type CertificateOptions struct {
	CertFile, KeyFile string // of the node: its certificate, with what is between it and the authority, and its key
	// ClientCAFile has the authorities of client certificates. Empty: clients show none.
	ClientCAFile string
	// RequireClientCertificate refuses clients without one. Otherwise those may prove in another way who they are.
	RequireClientCertificate bool
	// Logger gets it, once, when the files change and are good or bad. Default: nothing is logged.
	Logger *slog.Logger
}

func (o CertificateOptions) withDefaults() CertificateOptions {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

const (
	reloadEvery = 10 * time.Second
	pemBytesMax = 1 << 20 // of a file
	expiresSoon = 30 * 24 * time.Hour
)

// Certificates keeps a node's certificate, key and client authorities as their files have them: they are looked at every 10 s,
// and at Reload. What cannot be used leaves those before in force; a certificate and a key that are replaced one after the
// other are such a case for a moment.
//
// It has one goroutine, which Close ends.
type Certificates struct {
	o       CertificateOptions
	now     atomic.Pointer[loaded] // never nil
	reloads atomic.Uint64
	errors  atomic.Uint64
	stop    context.CancelFunc
	done    chan struct{}

	mu struct {
		sync.Mutex          // also orders reading the files
		seen       pemFiles // as read last, good or bad
		err        error    // why they could not be used; nil: they are
	}
}

type loaded struct {
	config  *tls.Config
	expires time.Time
}

// OpenCertificates reads the files, which must be good.
func OpenCertificates(o CertificateOptions) (*Certificates, error) {
	c := &Certificates{o: o.withDefaults(), done: make(chan struct{})}
	if o.RequireClientCertificate && o.ClientCAFile == "" {
		return nil, errors.New("client certificates are required, and no file has their authorities")
	}
	if err := c.Reload(); err != nil {
		return nil, err
	}
	var ctx context.Context
	ctx, c.stop = context.WithCancel(context.Background())
	go c.watch(ctx)
	return c, nil
}

// Close ends the looking at files. The configuration goes on being good.
func (c *Certificates) Close() {
	c.stop()
	<-c.done
}

func (c *Certificates) watch(ctx context.Context) {
	defer close(c.done)
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = c.Reload() // it is logged and counted
		case <-ctx.Done():
			return
		}
	}
}

// Config is the configuration for a new connection.
func (c *Certificates) Config() *tls.Config { return c.now.Load().config }

// CertificateMetrics are counts since the start.
type CertificateMetrics struct {
	Expires time.Time // of the certificate in force
	Reloads uint64    // of files that had changed, the first time among them
	Errors  uint64    // of files that had changed and cannot be used
}

// Metrics returns the counts until now.
func (c *Certificates) Metrics() CertificateMetrics {
	return CertificateMetrics{c.now.Load().expires, c.reloads.Load(), c.errors.Load()}
}

// Reload looks at the files now. An error means that they cannot be used, and that what was in force before is still.
func (c *Certificates) Reload() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	files := readFiles(c.o)
	if files.equal(c.mu.seen) {
		return c.mu.err
	}
	c.mu.seen = files
	n, err := files.load(c.o)
	if err != nil {
		c.errors.Add(1)
		if c.now.Load() != nil {
			c.o.Logger.Error("the changed TLS files cannot be used, and those before stay in force", "err", err)
			err = fmt.Errorf("%w; those before stay in force", err)
		}
		c.mu.err = err
		return err
	}
	c.mu.err = nil
	before := c.now.Swap(n)
	c.reloads.Add(1)
	if before != nil {
		c.o.Logger.Info("the changed TLS files are in force", "expires", n.expires, "expiredBefore", before.expires)
	}
	if left := time.Until(n.expires); left < expiresSoon {
		c.o.Logger.Warn("the TLS certificate ends soon", "file", c.o.CertFile, "expires", n.expires)
	}
	return nil
}

// pemFiles are the contents of the files, or why they cannot be read.
type pemFiles struct {
	cert, key, clientCA []byte
	err                 string
}

func readFiles(o CertificateOptions) (f pemFiles) {
	read := func(name string) []byte {
		if name == "" || f.err != "" {
			return nil
		}
		b, err := readBounded(name)
		if err != nil {
			f.err = err.Error()
		}
		return b
	}
	f.cert, f.key, f.clientCA = read(o.CertFile), read(o.KeyFile), read(o.ClientCAFile)
	return f
}

func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, pemBytesMax+1))
	if err == nil && len(b) > pemBytesMax {
		err = fmt.Errorf("%s has more than %d bytes", name, pemBytesMax)
	}
	return b, err
}

func (f pemFiles) equal(g pemFiles) bool {
	return f.err == g.err && bytes.Equal(f.cert, g.cert) && bytes.Equal(f.key, g.key) && bytes.Equal(f.clientCA, g.clientCA)
}

// load makes a configuration of the contents.
func (f pemFiles) load(o CertificateOptions) (*loaded, error) {
	if f.err != "" {
		return nil, fmt.Errorf("TLS files: %s", f.err)
	}
	pair, err := tls.X509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("TLS certificate %s and key %s: %w", o.CertFile, o.KeyFile, err)
	}
	n := &loaded{expires: pair.Leaf.NotAfter, config: &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		// A resumed session would bring the authorities of the time when it was begun.
		SessionTicketsDisabled: true,
	}}
	if o.ClientCAFile != "" {
		n.config.ClientCAs = x509.NewCertPool()
		if !n.config.ClientCAs.AppendCertsFromPEM(f.clientCA) {
			return nil, fmt.Errorf("TLS file %s has no certificate in PEM", o.ClientCAFile)
		}
		n.config.ClientAuth = tls.VerifyClientCertIfGiven
		if o.RequireClientCertificate {
			n.config.ClientAuth = tls.RequireAndVerifyClientCert
		}
	}
	return n, nil
}
