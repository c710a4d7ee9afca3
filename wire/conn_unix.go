//go:build unix

package wire

import (
	"io"
	"net"
	"syscall"
)

// rawConn reads and writes a socket without waiting for room or a buffer: reading takes memory only when the socket has
// bytes, and writing gives up when it has no room.
type rawConn struct {
	rc syscall.RawConn

	// Of the one reader.
	room  func() []byte // where to read to; nil: there is no memory, and Read returns errNoRoom
	idle  func()        // nothing to read now: give memory back
	read  func(fd uintptr) bool
	readN int
	readE error

	// Of the one writer.
	out    []byte
	write  func(fd uintptr) bool
	wrote  int
	writeE error
}

// newRawConn returns nil when nc is not a plain socket.
func newRawConn(nc net.Conn, room func() []byte, idle func()) *rawConn {
	switch nc.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return nil
	}
	rc, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil
	}
	r := &rawConn{rc: rc, room: room, idle: idle}
	r.read, r.write = r.readSome, r.writeSome
	return r
}

func (r *rawConn) readSome(fd uintptr) bool {
	for {
		room := r.room()
		if room == nil {
			r.readE = errNoRoom
			return true
		}
		n, err := readSocket(fd, room)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			r.idle()
			return false
		case err != nil:
			r.readE = err
		case n == 0:
			r.readE = io.EOF
		default:
			r.readN = n
		}
		return true
	}
}

// Read waits for bytes and reads them to where room says.
func (r *rawConn) Read() (int, error) {
	r.readN, r.readE = 0, nil
	if err := r.rc.Read(r.read); err != nil {
		return 0, err
	}
	return r.readN, r.readE
}

func (r *rawConn) writeSome(fd uintptr) bool {
	for {
		n, err := writeSocket(fd, r.out[r.wrote:])
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
		case err != nil:
			r.writeE = err
		default:
			if r.wrote += n; r.wrote < len(r.out) && n > 0 {
				continue
			}
		}
		return true
	}
}

// Write writes what the socket takes at once, and returns how much that was.
func (r *rawConn) Write(b []byte) (int, error) {
	r.out, r.wrote, r.writeE = b, 0, nil
	err := r.rc.Write(r.write)
	r.out = nil
	if err == nil {
		err = r.writeE
	}
	return r.wrote, err
}
