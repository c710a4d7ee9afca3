package wire

import (
	"context"
	"crypto/x509"
)

// Verifier is what a server keeps of a secret for SCRAM-SHA-256 (RFC 5802, RFC 7677).
type Verifier struct {
	Salt       []byte
	Iterations int
	StoredKey  []byte
	ServerKey  []byte
}

// Authenticator says who a peer is. It may be called by many sessions at once and must not block.
type Authenticator interface {
	// Verifier returns what is kept of a credential's secret, and whom it is of. ok is false when it is not known, expired,
	// revoked, or its owner is disabled: the peer then gets the same answers, after the same work, as with a wrong secret.
	Verifier(credential string) (v Verifier, p Principal, ok bool)
	// Certificate says whom a client certificate, already verified against the configured authorities, belongs to.
	Certificate(leaf *x509.Certificate) (Principal, error)
	// Alive is nil while a principal that was authenticated is still good; else CodeUnauthenticated.
	Alive(p Principal) error
	// Namespace returns the number of a namespace.
	Namespace(name string) (uint32, bool)
}

// Credentials is how a client proves who it is.
type Credentials struct {
	ID     string
	Secret Secret
}

// Secret is text that is never printed.
type Secret string

func (Secret) String() string               { return "***" }
func (Secret) GoString() string             { return "***" }
func (Secret) MarshalText() ([]byte, error) { return []byte("***"), nil }

// SecretBytes is how many random bytes a secret that the registry makes holds. It is written in base64 (RFC 4648, URL form, no padding).
const SecretBytes = 32

// NewVerifier derives what a server keeps of a secret, with a random salt.
func NewVerifier(s Secret) (Verifier, error) { return Verifier{}, errNotBuilt }

// Authenticate proves to the peer of c who the client is, and that the peer knows its verifier. It comes right after the hello.
func (c *Conn) Authenticate(ctx context.Context, who Credentials) (*Identity, error) {
	return nil, errNotBuilt
}

var errNotBuilt = Errorf(CodeInternal, "not built yet")
