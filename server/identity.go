package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// identity says who peers are, by the metadata that is known here. Without any nobody is known.
type identity struct{ s *Server }

var _ wire.Authenticator = identity{}

func (i identity) snapshot() *meta.Snapshot {
	if md := i.s.metadata.Load(); md != nil {
		return md.feed().Snapshot()
	}
	return nil
}

func (i identity) Verifier(credential string) (wire.Verifier, wire.Principal, bool) {
	s := i.snapshot()
	if s == nil {
		return wire.Verifier{}, wire.Principal{}, false
	}
	p, c, ok := s.PrincipalOf(credential, i.s.config.Now().UnixNano())
	if !ok {
		return wire.Verifier{}, wire.Principal{}, false
	}
	return wire.Verifier{Salt: c.Salt, Iterations: c.Iterations, StoredKey: c.StoredKey, ServerKey: c.ServerKey}, p, true
}

// Certificate reads whom a certificate is of from its URIs: jmq://app/NAMESPACE/NAME, jmq://user/NAME or jmq://node/NAME, one of them.
func (i identity) Certificate(leaf *x509.Certificate) (wire.Principal, error) {
	var found []wire.Principal
	for _, u := range leaf.URIs {
		if u.Scheme != "jmq" {
			continue
		}
		p := wire.Principal{ExpiresNs: leaf.NotAfter.UnixNano()}
		parts := strings.Split(strings.TrimPrefix(u.Path, "/"), "/")
		switch {
		case u.Host == "app" && len(parts) == 2:
			p.Kind, p.Namespace, p.Name = wire.PrincipalApp, parts[0], parts[1]
		case u.Host == "user" && len(parts) == 1:
			p.Kind, p.Name = wire.PrincipalUser, parts[0]
		case u.Host == "node" && len(parts) == 1:
			p.Kind, p.Name = wire.PrincipalNode, parts[0]
		default:
			return wire.Principal{}, wire.Errorf(wire.CodeUnauthenticated, "the certificate's URI %s names no app, user or node", u)
		}
		found = append(found, p)
	}
	if len(found) != 1 {
		return wire.Principal{}, wire.Errorf(wire.CodeUnauthenticated, "the certificate has %d URIs jmq://, one is needed", len(found))
	}
	return found[0], i.Alive(found[0])
}

func (i identity) Alive(p wire.Principal) error {
	s := i.snapshot()
	if s == nil {
		return wire.Errorf(wire.CodeUnauthenticated, "no metadata is known here yet")
	}
	return s.Alive(p, i.s.config.Now().UnixNano())
}

func (i identity) Namespace(name string) (uint32, bool) {
	if s := i.snapshot(); s != nil {
		if n := s.Namespace(name); n != nil {
			return n.ID, true
		}
	}
	return 0, false
}

// dialRegistry returns how to connect to a registry node; nil: by TCP as it is. The files are read for each connection, so that new ones count.
func dialRegistry(n *RegistryClient) (func(ctx context.Context, address string) (net.Conn, error), error) {
	if n.CAFile == "" {
		return nil, nil
	}
	if _, err := registryTLS(n); err != nil {
		return nil, err
	}
	return func(ctx context.Context, address string) (net.Conn, error) {
		c, err := registryTLS(n)
		if err != nil {
			return nil, err
		}
		return (&tls.Dialer{Config: c}).DialContext(ctx, "tcp", address)
	}, nil
}

func registryTLS(n *RegistryClient) (*tls.Config, error) {
	pem, err := os.ReadFile(n.CAFile)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		return nil, errors.New(n.CAFile + " holds no certificate")
	}
	if n.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(n.CertFile, n.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", n.CertFile, n.KeyFile, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
