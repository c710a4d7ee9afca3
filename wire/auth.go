package wire

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/xdg-go/scram"
	"google.golang.org/protobuf/proto"
)

// MechanismSCRAM is the one mechanism of Authenticate: SCRAM-SHA-256 (RFC 5802, RFC 7677) without channel binding.
const MechanismSCRAM = "SCRAM-SHA-256"

const (
	// SecretBytes is how many random bytes a secret that the registry makes holds. It is written in base64 (RFC 4648, URL form,
	// no padding).
	SecretBytes = 32

	saltBytes = 16
	// iterations of a new verifier: no more than the RFC asks for. They make guessing slow, and nobody guesses 256 random bits.
	iterations = 4096
	// iterationsMax is what a client carries out for a server, which has not shown yet that it is the true one.
	iterationsMax = 100_000
)

// Verifier is what a server keeps of a secret for SCRAM-SHA-256.
type Verifier struct {
	Salt       []byte
	Iterations int
	StoredKey  []byte
	ServerKey  []byte
}

// NewVerifier derives what a server keeps of a secret, with a random salt.
func NewVerifier(s Secret) (Verifier, error) {
	if s == "" {
		return Verifier{}, Errorf(CodeInvalid, "the secret is empty")
	}
	client, err := scram.SHA256.NewClientUnprepped("", string(s), "")
	if err != nil {
		return Verifier{}, fmt.Errorf("derive a verifier: %w", err)
	}
	salt := make([]byte, saltBytes)
	rand.Read(salt) // never fails
	kept, err := client.GetStoredCredentialsWithError(scram.KeyFactors{Salt: string(salt), Iters: iterations})
	if err != nil {
		return Verifier{}, fmt.Errorf("derive a verifier: %w", err)
	}
	return Verifier{Salt: salt, Iterations: iterations, StoredKey: kept.StoredKey, ServerKey: kept.ServerKey}, nil
}

// Authenticator says who a peer is. It may be called by many sessions at once and must not block.
type Authenticator interface {
	// Verifier returns what is kept of a credential's secret, and whom it is of. ok is false when it is not known, expired,
	// revoked, or its owner is disabled: the peer then gets the same answers, after the same work, as with a wrong secret.
	Verifier(credential string) (v Verifier, p Principal, ok bool)
	// Certificate says whom a client certificate, already verified against the configured authorities, belongs to:
	// CertificatePrincipal, if there is such a one.
	Certificate(leaf *x509.Certificate) (Principal, error)
	// Alive is nil while a principal that was authenticated is still good; else CodeUnauthenticated.
	Alive(p Principal) error
	// Namespace returns the number of a namespace.
	Namespace(name string) (uint32, bool)
	// Sure is false while others may know more: then whoever is not known, or not good, is answered CodeMetadataAway, and comes again.
	Sure() bool
}

// CertificatePrincipal returns whom the URI in a certificate's subject alternative names is: jmq://app/NAMESPACE/NAME,
// jmq://user/NAME or jmq://node/NAME. There must be exactly one URI with the scheme jmq. Whether such an app, user or node is known
// is not looked at.
func CertificatePrincipal(leaf *x509.Certificate) (Principal, error) {
	var p Principal
	found := 0
	for _, u := range leaf.URIs {
		if u.Scheme != "jmq" {
			continue
		}
		found++
		parts := strings.Split(u.Host+u.EscapedPath(), "/")
		switch {
		case len(parts) == 3 && parts[0] == "app":
			p.Kind, p.Namespace, p.Name = PrincipalApp, parts[1], parts[2]
		case len(parts) == 2 && parts[0] == "user":
			p.Kind, p.Name = PrincipalUser, parts[1]
		case len(parts) == 2 && parts[0] == "node":
			p.Kind, p.Name = PrincipalNode, parts[1]
		default:
			return Principal{}, Errorf(CodeUnauthenticated, "the certificate's URI %q is none of jmq://app/NAMESPACE/NAME, jmq://user/NAME, jmq://node/NAME", u)
		}
		if u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" || CheckApp(p.Name) != nil || p.Kind == PrincipalApp && CheckApp(p.Namespace) != nil {
			return Principal{}, Errorf(CodeUnauthenticated, "the certificate's URI %q has a name that is none", u)
		}
	}
	if found != 1 {
		return Principal{}, Errorf(CodeUnauthenticated, "the certificate has %d URIs with the scheme jmq, not 1", found)
	}
	p.ExpiresNs = leaf.NotAfter.UnixNano()
	return p, nil
}

// Credentials is how a client proves who it is.
type Credentials struct {
	ID     string
	Secret Secret
}

// Secret is text that is never printed, whatever the verb.
type Secret string

func (Secret) String() string               { return "***" }
func (Secret) GoString() string             { return "***" }
func (Secret) Format(s fmt.State, _ rune)   { io.WriteString(s, "***") }
func (Secret) MarshalText() ([]byte, error) { return []byte("***"), nil }

// Authenticate proves to the peer of c who the client is, and that the peer knows its verifier. It comes right after the hello, when
// the hello's answer asks for it. Errors: CodeUnauthenticated: one of the two has not shown what it should, and the connection is of
// no more use.
func (c *Conn) Authenticate(ctx context.Context, who Credentials) (*Identity, error) {
	client, err := scram.SHA256.NewClientUnprepped(who.ID, string(who.Secret), "")
	if err != nil {
		return nil, Errorf(CodeInvalid, "credential %q: %v", who.ID, err)
	}
	talk := client.NewConversation()
	r := new(AuthenticateResponse)
	for range 2 {
		if err := checkServerFirst(r.Data); err != nil {
			return nil, Errorf(CodeUnauthenticated, "%v: %v", c.RemoteAddr(), err)
		}
		say, err := talk.Step(string(r.Data))
		if err != nil {
			return nil, Errorf(CodeUnauthenticated, "%v does not speak %s: %v", c.RemoteAddr(), MechanismSCRAM, err)
		}
		r = new(AuthenticateResponse)
		if err := c.CallMessage(ctx, CommandAuthenticate, &AuthenticateRequest{Mechanism: MechanismSCRAM, Data: []byte(say)}, r); err != nil {
			return nil, err
		}
	}
	if _, err := talk.Step(string(r.Data)); err != nil || !talk.Valid() || !r.Done {
		return nil, Errorf(CodeUnauthenticated, "%v does not know credential %q: it is not the server that it says it is", c.RemoteAddr(), who.ID)
	}
	if r.Identity == nil {
		r.Identity = new(Identity)
	}
	return r.Identity, nil
}

// checkServerFirst refuses work that a server, not known yet, asks of a client: nothing else of its first message is looked at.
func checkServerFirst(b []byte) error {
	for _, field := range strings.Split(string(b), ",") {
		if text, ok := strings.CutPrefix(field, "i="); ok {
			if n, err := strconv.Atoi(text); err != nil || n > iterationsMax {
				return fmt.Errorf("it asks for %q iterations, at most %d are done", text, iterationsMax)
			}
		}
	}
	return nil
}

// handshake is an authentication under way at a server. There is one on a connection, once: who fails has to connect again.
type handshake struct {
	talk  *scram.ServerConversation
	known bool // the credential is there; else talk has a verifier that nothing fits
	who   Principal
}

// refusal is the one answer to whatever is wrong with an authentication.
func (h *Handler) refusal() *CodeError {
	err := Errorf(CodeUnauthenticated, "the authentication failed")
	if !h.o.Authenticator.Sure() {
		return Unsure(err)
	}
	return err
}

// lookUp gives the handshake what is kept of a credential. Of one that is not known it takes what a key of this process makes of the
// name: the same salt each time, as a known one has, after the same work.
func (h *Handler) lookUp(hs *handshake, credential string) (scram.StoredCredentials, error) {
	mac := func(what string) []byte {
		m := hmac.New(sha256.New, h.unknownKey[:])
		m.Write([]byte(what + credential))
		return m.Sum(nil)
	}
	v := Verifier{mac("salt ")[:saltBytes], iterations, mac("stored "), mac("server ")}
	kept, who, known := h.o.Authenticator.Verifier(credential)
	if known && len(kept.Salt) > 0 && kept.Iterations > 0 && len(kept.StoredKey) == sha256.Size && len(kept.ServerKey) == sha256.Size {
		v, hs.who, hs.known = kept, who, true
	}
	return scram.StoredCredentials{
		KeyFactors: scram.KeyFactors{Salt: string(v.Salt), Iters: v.Iterations}, StoredKey: v.StoredKey, ServerKey: v.ServerKey,
	}, nil
}

// step takes one message of the client. It returns the server's, and whether the client is now known.
func (h *Handler) step(hs *handshake, header []byte) (say string, done bool, err error) {
	var r AuthenticateRequest
	if proto.Unmarshal(header, &r) != nil {
		return "", false, errHeader
	}
	if r.Mechanism != MechanismSCRAM {
		return "", false, Errorf(CodeInvalid, "the mechanism is %s", MechanismSCRAM)
	}
	if hs.talk == nil {
		server, err := scram.SHA256.NewServer(func(name string) (scram.StoredCredentials, error) { return h.lookUp(hs, name) })
		if err != nil {
			return "", false, h.refusal()
		}
		hs.talk = server.NewConversation()
	}
	say, err = hs.talk.Step(string(r.Data))
	if err != nil || hs.talk.AuthzID() != "" {
		return "", false, h.refusal()
	}
	if !hs.talk.Done() {
		return say, false, nil
	}
	if !hs.talk.Valid() || !hs.known {
		return "", false, h.refusal()
	}
	return say, true, nil
}

// authenticate takes a frame after the hello of a peer who is not known yet.
func (s *Session) authenticate(f Frame) error {
	switch f.Command {
	case CommandAuthenticate:
	case CommandPing:
		s.replyMessage(f.Request, f.Command, new(PingResponse))
		return nil
	default:
		return Errorf(CodeUnauthenticated, "%v before the authentication", f.Command)
	}
	say, done, err := s.h.step(s.handshake, f.Header)
	if err != nil {
		s.h.authFailed.Add(1)
		return err
	}
	r := &AuthenticateResponse{Data: []byte(say), Done: done}
	if done {
		who := s.handshake.who
		s.handshake = nil
		if err := s.open(who); err != nil {
			s.h.authFailed.Add(1)
			return err
		}
		s.h.authenticated.Add(1)
		r.Identity = s.h.identity(who)
	}
	s.replyMessage(f.Request, f.Command, r)
	return nil
}

// certified returns whom the client certificate of the connection is of; known is false when it showed none.
func (s *Session) certified() (who Principal, known bool, err error) {
	t, ok := s.conn.nc.(*tls.Conn)
	if !ok {
		return Principal{}, false, nil
	}
	state := t.ConnectionState()
	if len(state.VerifiedChains) == 0 {
		return Principal{}, false, nil
	}
	if who, err = s.h.o.Authenticator.Certificate(state.PeerCertificates[0]); err != nil {
		s.h.authFailed.Add(1)
		return Principal{}, false, s.h.refusal()
	}
	return who, true, nil
}

// open lets the peer in: from now on it is who.
func (s *Session) open(who Principal) error {
	p := s.greeted
	p.Principal = who
	a := s.h.o.Authenticator
	if a != nil {
		p.App = "" // what the hello said is not to be believed
		if who.Kind == PrincipalApp {
			p.App = who.Name
		}
		if who.Namespace != "" {
			var ok bool
			if p.Namespace, ok = a.Namespace(who.Namespace); !ok {
				return s.h.refusal()
			}
		}
	}
	if !s.late.Stop() {
		return Errorf(CodeHelloFirst, "the hello came too late")
	}
	if err := s.h.o.OnOpen(p); err != nil {
		return err
	}
	s.greeted = nil
	s.ctx = WithPeer(s.ctx, p)
	s.peer.Store(p)
	s.o.OnOpen()
	if a != nil {
		// After the peer is there to be seen by who rechecks: a change of the metadata is seen by one of the two.
		if err := a.Alive(who); err != nil {
			return s.h.refusal()
		}
	}
	s.conn.SetFrameBytesMax(FrameBytesMax)
	s.ready = true
	return nil
}

// identity is a principal as its peer is told of it.
func (h *Handler) identity(p Principal) *Identity {
	i := &Identity{Kind: p.Kind.String(), Name: p.Name, Namespace: p.Namespace, Credential: p.Credential, ExpiresNs: p.ExpiresNs}
	if p.Kind == PrincipalUser {
		i.Role = h.o.UserRole(p.Name)
	}
	return i
}
