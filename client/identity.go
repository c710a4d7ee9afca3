package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/jmqio/jmq/wire"
)

// WithCredentials says who the client is, and proves it on each connection (SCRAM-SHA-256): the secret itself is never sent.
func WithCredentials(id string, secret wire.Secret) Option {
	return func(o *options) error {
		o.credentials = func() (wire.Credentials, error) { return wire.Credentials{ID: id, Secret: secret}, nil }
		if id == "" || secret == "" {
			return errors.New("WithCredentials: id or secret is empty")
		}
		return nil
	}
}

// WithCredentialsFile takes the credentials from a file (ReadCredentials). It is read again for each connection: a credential that
// was exchanged there is used from the next one on. A file that others may read is warned of.
func WithCredentialsFile(path string) Option {
	return func(o *options) error {
		o.credentials = func() (wire.Credentials, error) { return ReadCredentials(path) }
		if i, err := os.Stat(path); err == nil && i.Mode().Perm()&0o077 != 0 {
			o.warnings = append(o.warnings, fmt.Sprintf("the credentials file %s may be read by others: chmod 600", path))
		}
		_, err := ReadCredentials(path)
		return err
	}
}

const credentialsBytesMax = 4 << 10

// ReadCredentials reads a file of two lines, "id: ..." and "secret: ..."; empty lines and those that begin with # count for
// nothing.
func ReadCredentials(path string) (wire.Credentials, error) {
	var c wire.Credentials
	f, err := os.Open(path)
	if err != nil {
		return c, fmt.Errorf("credentials: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, credentialsBytesMax+1))
	if err == nil && len(b) > credentialsBytesMax {
		err = fmt.Errorf("more than %d bytes", credentialsBytesMax)
	}
	if err == nil {
		c, err = parseCredentials(b)
	}
	if err != nil {
		return wire.Credentials{}, fmt.Errorf("credentials file %s: %w", path, err)
	}
	return c, nil
}

// parseCredentials never says what it read: it may be a secret in the wrong place.
func parseCredentials(text []byte) (c wire.Credentials, err error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(line, ":")
		value = strings.Trim(strings.TrimSpace(value), `"'`)
		switch {
		case !ok || value == "":
			return c, fmt.Errorf("line %d is not key: value", n)
		case key == "id" && c.ID == "":
			c.ID = value
		case key == "secret" && c.Secret == "":
			c.Secret = wire.Secret(value)
		default:
			return c, fmt.Errorf("line %d: a key that is neither id nor secret, or is there twice", n)
		}
	}
	if err := lines.Err(); err != nil {
		return c, err
	}
	if c.ID == "" || c.Secret == "" {
		return c, errors.New("it has no id, or no secret: write both as key: value")
	}
	return c, nil
}

// WithTLS encrypts connections. The server's name is that of the address, unless c has one; c is not changed. A certificate of the
// client in it is an identity where the server takes it.
func WithTLS(c *tls.Config) Option {
	return func(o *options) error {
		if c == nil {
			return errors.New("WithTLS: nil")
		}
		o.tls = c.Clone()
		return nil
	}
}

// WithTLSFiles is WithTLS with certificates in PEM files: of the authorities that the servers' certificates are checked with (empty:
// the system's), and of the client with its key (both empty: none). Those of the client are read again for each connection.
func WithTLSFiles(ca, cert, key string) Option {
	return func(o *options) error {
		c, err := wire.ClientTLS(ca, cert, key)
		if err != nil {
			return fmt.Errorf("WithTLSFiles: %w", err)
		}
		o.tls = c
		return nil
	}
}

// encrypt makes the connection to addr a TLS one.
func (o *options) encrypt(ctx context.Context, nc net.Conn, addr string) (net.Conn, error) {
	c := o.tls
	if c.ServerName == "" && !c.InsecureSkipVerify {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			host = addr
		}
		c = c.Clone()
		c.ServerName = host
	}
	t := tls.Client(nc, c)
	if err := t.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, fmt.Errorf("TLS with %s: %w", addr, err)
	}
	return t, nil
}

// authenticate proves to l who the client is, where it is asked for.
func (o *options) authenticate(ctx context.Context, l *link, who wire.Credentials, hello *wire.HelloResponse) error {
	switch {
	case !hello.Authenticate:
		return nil
	case who.ID == "":
		return wire.Errorf(wire.CodeUnauthenticated, "%s asks who the client is: dial with WithCredentials", l.addr)
	}
	_, err := l.Authenticate(ctx, who)
	if wire.CodeOf(err) == wire.CodeUnauthenticated {
		return wire.Errorf(wire.CodeUnauthenticated, "%s does not take credential %q", l.addr, who.ID)
	}
	return err
}
