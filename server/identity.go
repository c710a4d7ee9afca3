package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// identity says who peers are, by the metadata that is known here. Without any nobody is known.
type identity struct{ s *Server }

var _ wire.Authenticator = identity{}

// snapshot is the newest metadata, also while it is not in force here in all parts yet: what was revoked is revoked at once.
func (i identity) snapshot() *meta.Snapshot {
	if md := i.s.metadata.Load(); md != nil {
		return md.known.Load()
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

// Certificate is of an app, user or node (wire.CertificatePrincipal) that must be there. Which nodes there are, the authority says that
// signs their certificates.
func (i identity) Certificate(leaf *x509.Certificate) (wire.Principal, error) {
	p, err := wire.CertificatePrincipal(leaf)
	if err == nil {
		err = i.Alive(p)
	}
	if err != nil {
		return wire.Principal{}, err
	}
	return p, nil
}

// UserRole is what a user is told of himself.
func (i identity) UserRole(name string) string {
	if s := i.snapshot(); s != nil {
		if u := s.User(name); u != nil {
			return string(u.Role)
		}
	}
	return ""
}

// maySee says whether who shows a certificate may see what the admin port has.
func (i identity) maySee(leaf *x509.Certificate) error {
	p, err := i.Certificate(leaf)
	if err != nil {
		return err
	}
	return i.snapshot().MayOperate(meta.Subject{Principal: p}, meta.ReadStore, "", "")
}

func (i identity) Alive(p wire.Principal) error {
	s := i.snapshot()
	if s == nil {
		return wire.Errorf(wire.CodeUnauthenticated, "no metadata is known here yet")
	}
	return s.Alive(p, i.s.config.Now().UnixNano())
}

func (i identity) Sure() bool { return i.s.knowsNewest() }

func (i identity) Namespace(name string) (uint32, bool) {
	if s := i.snapshot(); s != nil {
		if n := s.Namespace(name); n != nil {
			return n.ID, true
		}
	}
	return 0, false
}

// dialRegistry returns how to connect to a registry node; nil: by TCP as it is. Its own certificate is read for each connection, so that a
// new one counts.
func dialRegistry(n *RegistryClient) (func(ctx context.Context, address string) (net.Conn, error), error) {
	if n.CAFile == "" {
		return nil, nil
	}
	c, err := wire.ClientTLS(n.CAFile, n.CertFile, n.KeyFile)
	if err != nil {
		return nil, err
	}
	d := &tls.Dialer{Config: c}
	return func(ctx context.Context, address string) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }, nil
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}
