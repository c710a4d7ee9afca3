//go:build !unix

package wire

import "net"

// rawConn is not there: each connection has a small buffer and a writer of its own.
type rawConn struct{}

func newRawConn(net.Conn, func() []byte, func()) *rawConn { return nil }

func (r *rawConn) Read() (int, error)        { panic("no raw connections here") }
func (r *rawConn) Write([]byte) (int, error) { panic("no raw connections here") }
