// Package ports gives tests, and programs under scripts, ports that stay theirs while nobody listens on them: a server that is stopped finds its own
// free when it starts again.
//
// A port that the kernel chose (":0") is anybody's as soon as its listener is closed: it gives it to the next connection, or to the next server that
// asks as we did. These lie below those that it chooses from. Processes share them in blocks; who listens on a block's first port has the block.
package ports

import (
	"errors"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
)

const (
	first = 10_000
	last  = 20_000
	block = 100
)

var pool struct {
	sync.Mutex
	claims []net.Listener // the first port of each block, to the end of the process
	free   []string       // addresses, the one that was given back last at the end
}

// Take returns an address on this machine at which nobody listens, which is the caller's until release.
func Take() (address string, release func(), err error) {
	pool.Lock()
	defer pool.Unlock()
	for {
		for i, a := range pool.free {
			l, err := net.Listen("tcp", a)
			if err != nil { // by who knows nothing of this: perhaps later
				continue
			}
			l.Close()
			pool.free = slices.Delete(pool.free, i, i+1)
			return a, sync.OnceFunc(func() {
				pool.Lock()
				defer pool.Unlock()
				pool.free = append(pool.free, a)
			}), nil
		}
		if err := claim(); err != nil {
			return "", nil, err
		}
	}
}

// claim takes one more block. pool is held.
func claim() error {
	const blocks = (last - first) / block
	for i := range blocks {
		base := first + (os.Getpid()+i)%blocks*block
		l, err := net.Listen("tcp", at(base))
		if err != nil {
			continue
		}
		pool.claims = append(pool.claims, l)
		for p := base + 1; p < base+block; p++ {
			pool.free = append(pool.free, at(p))
		}
		return nil
	}
	return errors.New("ports: all blocks of ports are taken")
}

func at(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
