package server

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/wire"
)

const (
	peerConnectWithin = 2 * time.Second // to one address, with its hello
	peerKeepAlive     = time.Second     // a peer that is silent for three times as long is gone
	peerSDK           = "jmq-broker"
)

// dialer connects this node to others of the cluster: with the certificate or the credential by which it is known to the registry.
type dialer struct {
	name, boot  string
	dial        func(ctx context.Context, address string) (net.Conn, error)
	credentials func() (wire.Credentials, error) // nil: none
}

func (s *Server) newDialer() (*dialer, error) {
	n := &s.config.Node
	d := &dialer{name: n.Name, boot: s.boot}
	var err error
	if d.dial, err = dialRegistry(&n.Registry); err != nil {
		return nil, &StartError{What: "certificates for other brokers", Err: err, Next: "see node.registry.caFile, certFile and keyFile"}
	}
	if d.dial == nil {
		d.dial = dialTCP
	}
	if s.config.Dial != nil {
		d.dial = s.config.Dial(d.dial)
	}
	if n.Registry.CredentialFile != "" {
		d.credentials = func() (wire.Credentials, error) { return client.ReadCredentials(n.Registry.CredentialFile) }
	}
	return d, nil
}

// connect returns a connection that is served by a goroutine of running until it ends.
func (d *dialer) connect(ctx context.Context, address string, running *sync.WaitGroup) (*wire.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, peerConnectWithin)
	defer cancel()
	nc, err := d.dial(ctx, address)
	if err != nil {
		return nil, err
	}
	conn := wire.NewConn(nc, wire.ConnOptions{})
	running.Go(func() { _ = conn.Serve() }) // its error is that of the calls
	if err := d.greet(ctx, conn); err != nil {
		conn.Close(nil)
		return nil, err
	}
	conn.KeepAlive(peerKeepAlive)
	return conn, nil
}

// greet says hello and who we are.
func (d *dialer) greet(ctx context.Context, conn *wire.Conn) error {
	var who wire.Credentials
	if d.credentials != nil {
		var err error
		if who, err = d.credentials(); err != nil {
			return err
		}
	}
	hello, err := conn.Hello(ctx, &wire.HelloRequest{ClientId: d.name + "/" + d.boot, Sdk: peerSDK, Credential: who.ID})
	if err != nil || d.credentials == nil {
		return err
	}
	if !hello.Authenticate {
		return wire.Errorf(wire.CodeUnauthenticated, "%v does not prove that it knows our credential: it must ask for it (node.auth.required)", conn.RemoteAddr())
	}
	_, err = conn.Authenticate(ctx, who)
	return err
}

// peer is another broker of the broker group: one connection, made when it is first needed, and again by the next call after it was lost.
// The goroutine of a connection ends with it; Close waits for it.
type peer struct {
	replica.Remote
	d         *dialer
	addresses []string
	turn      chan struct{}  // has room for one: who connects
	running   sync.WaitGroup // goroutines of connections; while one is added turn is held, and closed is not set
	mu        struct {
		sync.Mutex
		conn   *wire.Conn // nil: none was made
		closed bool
	}
}

var _ replica.Peer = (*peer)(nil)

// peer returns one at these addresses. It does not connect.
func (d *dialer) peer(addresses []string) *peer {
	p := &peer{d: d, addresses: slices.Clone(addresses), turn: make(chan struct{}, 1)}
	p.Remote = replica.Remote{Do: p.do, Start: p.Call}
	return p
}

// live returns the connection while it is good, or nil.
func (p *peer) live() *wire.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.conn != nil && p.mu.conn.Err() == nil && !p.mu.closed {
		return p.mu.conn
	}
	return nil
}

// connected returns a connection, made if there is none.
func (p *peer) connected(ctx context.Context) (*wire.Conn, error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c := p.live(); c != nil {
		return c, nil
	}
	p.mu.Lock()
	closed := p.mu.closed
	p.mu.Unlock()
	if closed {
		return nil, wire.Errorf(wire.CodeClosed, "the connection was given up")
	}
	err := error(wire.Errorf(wire.CodeDisconnected, "no address of the broker is known"))
	for _, a := range p.addresses {
		var c *wire.Conn
		if c, err = p.d.connect(ctx, a, &p.running); err == nil {
			p.mu.Lock()
			p.mu.conn = c
			p.mu.Unlock()
			return c, nil
		}
	}
	return nil, err
}

func (p *peer) do(ctx context.Context, command wire.Command, header, payload []byte) (wire.Frame, error) {
	c := p.live()
	if c == nil {
		var err error
		if c, err = p.connected(ctx); err != nil {
			return wire.Frame{}, err
		}
	}
	return c.Call(ctx, command, header, payload)
}

// Call sends a request over the connection that is there; without one done gets CodeDisconnected at once.
func (p *peer) Call(_ context.Context, command wire.Command, header []byte, done func(wire.Frame, error)) {
	c := p.live()
	if c == nil {
		done(wire.Frame{}, wire.Errorf(wire.CodeDisconnected, "not connected"))
		return
	}
	if _, err := c.Start(command, header, nil, done); err != nil {
		done(wire.Frame{}, err)
		return
	}
	c.Flush()
}

// Close ends the connection and waits for its goroutine. Who connects at the moment is waited for.
func (p *peer) Close() error {
	p.turn <- struct{}{}
	p.mu.Lock()
	c := p.mu.conn
	p.mu.closed = true
	p.mu.Unlock()
	<-p.turn
	if c != nil {
		c.Close(nil)
	}
	p.running.Wait()
	return nil
}
