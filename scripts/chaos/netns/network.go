// Package netns makes a network for processes of this machine: each host is a network namespace of its own, whose only way out is a TUN device
// that this process reads and writes. So the process is the cable between them, and can cut it, one way or both, lose, delay and double packets,
// and break connections by a reset.
//
// Nothing has a name and nothing is left: namespaces and devices end with the last process that is in them and with this one, whatever ended it.
package netns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrMissing: this machine, or this user, cannot have such a network.
var ErrMissing = errors.New("netns: no network namespaces with TUN devices here")

const (
	device = "jmq0"
	mtu    = 60_000 // whole segments of TCP pass as few packets
	// delayedMax bounds the packets that are on their way at once; more are lost, as in a router.
	delayedMax = 8192
)

// Rule is what happens to packets from one host to another. The zero value lets them pass.
type Rule struct {
	Cut    bool
	Reset  bool          // Cut, and connections are told at once
	Loss   float64       // share of the packets that is lost
	Double float64       // share that comes twice
	Delay  time.Duration // of each packet
	Jitter time.Duration // up to so much more, so that packets overtake each other
}

// Network is a set of hosts. Safe for concurrent use.
type Network struct {
	hosts    []*host
	byName   map[string]*host
	byAddr   map[netip.Addr]*host
	rules    atomic.Pointer[map[[2]*host]Rule] // replaced as a whole, under changing
	changing sync.Mutex
	delayed  atomic.Int64
	closed   atomic.Bool
	pumps    sync.WaitGroup // a goroutine a host, and the timers of packets on their way
}

type host struct {
	name string
	addr netip.Addr
	ns   *os.File
	tun  *os.File
}

// New makes a network of hosts, all of which reach each other.
func New(names ...string) (*Network, error) {
	if len(names) > 200 {
		return nil, fmt.Errorf("netns: %d hosts", len(names))
	}
	n := &Network{byName: map[string]*host{}, byAddr: map[netip.Addr]*host{}}
	n.rules.Store(&map[[2]*host]Rule{})
	for i, name := range names {
		h, err := newHost(name, netip.AddrFrom4([4]byte{10, 77, 0, byte(i + 1)}))
		if err != nil {
			n.Close()
			return nil, fmt.Errorf("netns: host %s: %w", name, err)
		}
		n.hosts = append(n.hosts, h)
		n.byName[name], n.byAddr[h.addr] = h, h
	}
	for _, h := range n.hosts {
		n.pumps.Go(func() { n.pump(h) })
	}
	return n, nil
}

// onThread calls f on a thread of its own, which ends with it: what f changes of it stays without effect on others.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

func newHost(name string, addr netip.Addr) (*host, error) {
	h := &host{name: name, addr: addr}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("%w: unshare: %w", ErrMissing, err)
		}
		var err error
		if h.ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("%w: /dev/net/tun: %w", ErrMissing, err)
		}
		err = configure(fd, addr)
		h.tun = os.NewFile(uintptr(fd), "/dev/net/tun "+name) // not before it is a device: else reads are never woken
		return err
	})
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// request is struct ifreq.
type request struct {
	name  [unix.IFNAMSIZ]byte
	value [24]byte
}

// configure makes fd a device of the thread's namespace, with an address, and brings it and the loopback up.
func configure(fd int, addr netip.Addr) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	call := func(fd int, number uintptr, name string, value []byte) error {
		var r request
		copy(r.name[:], name)
		copy(r.value[:], value)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), number, uintptr(unsafe.Pointer(&r))); errno != 0 {
			return fmt.Errorf("configure %s, request %#x: %w", name, number, errno)
		}
		return nil
	}
	word := func(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
	flags := func(v uint16) []byte { return binary.NativeEndian.AppendUint16(nil, v) }
	address := func(a [4]byte) []byte { // struct sockaddr_in
		return append(append(binary.NativeEndian.AppendUint16(nil, unix.AF_INET), 0, 0), a[:]...)
	}
	if err := call(fd, unix.TUNSETIFF, device, flags(unix.IFF_TUN|unix.IFF_NO_PI)); err != nil {
		return fmt.Errorf("%w: %w", ErrMissing, err)
	}
	return errors.Join(
		call(socket, unix.SIOCSIFADDR, device, address(addr.As4())),
		call(socket, unix.SIOCSIFNETMASK, device, address([4]byte{255, 255, 255, 0})),
		call(socket, unix.SIOCSIFMTU, device, word(mtu)),
		call(socket, unix.SIOCSIFFLAGS, device, flags(unix.IFF_UP|unix.IFF_RUNNING)),
		call(socket, unix.SIOCSIFFLAGS, "lo", flags(unix.IFF_UP|unix.IFF_RUNNING)),
	)
}

func (h *host) close() {
	for _, f := range []*os.File{h.tun, h.ns} {
		if f != nil {
			f.Close()
		}
	}
}

// Close ends the network. Processes that are in it have no way out any more.
func (n *Network) Close() {
	n.closed.Store(true)
	for _, h := range n.hosts {
		h.tun.Close()
	}
	n.pumps.Wait()
	for _, h := range n.hosts {
		h.close()
	}
}

// Address of a host, without a port; "": there is none of that name.
func (n *Network) Address(name string) string {
	if h := n.byName[name]; h != nil {
		return h.addr.String()
	}
	return ""
}

// Enter moves the calling thread, which must be locked and must not be used by others afterwards, to a host. Processes that it starts are there.
func (n *Network) Enter(name string) error {
	h := n.byName[name]
	if h == nil {
		return fmt.Errorf("netns: no host %q", name)
	}
	if err := unix.Setns(int(h.ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("netns: enter %s: %w", name, err)
	}
	return nil
}

// Dial connects from a host to an address with a literal IP.
func (n *Network) Dial(ctx context.Context, from, address string) (c net.Conn, err error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("netns: dial: %w", err)
	}
	err = onThread(func() (err error) {
		if err := n.Enter(from); err != nil {
			return err
		}
		var d net.Dialer // of one literal address the socket is made by this thread
		c, err = d.DialContext(ctx, "tcp", address)
		return err
	})
	return c, err
}

// Set has the rule hold for packets from one host to another.
func (n *Network) Set(from, to string, r Rule) {
	n.change(func(rules map[[2]*host]Rule) { rules[[2]*host{n.byName[from], n.byName[to]}] = r })
}

// SetBoth has it hold both ways.
func (n *Network) SetBoth(a, b string, r Rule) {
	n.Set(a, b, r)
	n.Set(b, a, r)
}

// Isolate has it hold between one host and all others.
func (n *Network) Isolate(name string, r Rule) {
	for _, h := range n.hosts {
		if h.name != name {
			n.SetBoth(name, h.name, r)
		}
	}
}

// SetAll has it hold between all hosts.
func (n *Network) SetAll(r Rule) {
	for _, h := range n.hosts {
		n.Isolate(h.name, r)
	}
}

// Heal lets everything pass again.
func (n *Network) Heal() { n.change(func(rules map[[2]*host]Rule) { clear(rules) }) }

func (n *Network) change(f func(map[[2]*host]Rule)) {
	n.changing.Lock()
	defer n.changing.Unlock()
	rules := map[[2]*host]Rule{}
	for k, v := range *n.rules.Load() {
		rules[k] = v
	}
	f(rules)
	n.rules.Store(&rules)
}

// pump carries what a host sends.
func (n *Network) pump(from *host) {
	buf := make([]byte, mtu+100)
	for {
		k, err := from.tun.Read(buf)
		if err != nil {
			if n.closed.Load() || errors.Is(err, os.ErrClosed) {
				return
			}
			time.Sleep(time.Millisecond) // a device that is not up yet
			continue
		}
		n.carry(from, buf[:k])
	}
}

// carry brings one packet to where it is addressed to, or not.
func (n *Network) carry(from *host, packet []byte) {
	if len(packet) < 20 || packet[0]>>4 != 4 {
		return // IPv6 speaks to neighbours only
	}
	to := n.byAddr[netip.AddrFrom4([4]byte(packet[16:20]))]
	if to == nil {
		return
	}
	r := (*n.rules.Load())[[2]*host{from, to}]
	switch {
	case r.Reset:
		if answer := reset(packet); answer != nil {
			write(from, answer)
		}
		return
	case r.Cut, r.Loss > 0 && rand.Float64() < r.Loss:
		return
	}
	times := 1
	if r.Double > 0 && rand.Float64() < r.Double {
		times = 2
	}
	for range times {
		wait := r.Delay
		if r.Jitter > 0 {
			wait += rand.N(r.Jitter)
		}
		if wait == 0 {
			write(to, packet)
			continue
		}
		if n.delayed.Add(1) > delayedMax {
			n.delayed.Add(-1)
			continue
		}
		later := slices.Clone(packet)
		n.pumps.Add(1)
		time.AfterFunc(wait, func() {
			defer n.pumps.Done()
			n.delayed.Add(-1)
			write(to, later)
		})
	}
}

// write gives a packet to a host. A queue that is full, or a network that ends, loses it, as networks do.
func write(to *host, packet []byte) { _, _ = to.tun.Write(packet) }

const (
	flagFin = 1 << iota
	flagSyn
	flagRst
	_
	flagAck
)

// reset is the packet by which the other end would break the connection that a packet of TCP belongs to; nil: none is.
func reset(packet []byte) []byte {
	header := int(packet[0]&15) * 4
	if packet[9] != unix.IPPROTO_TCP || header < 20 || len(packet) < header+20 {
		return nil
	}
	tcp := packet[header:]
	flags := tcp[13]
	if flags&flagRst != 0 {
		return nil
	}
	answer := make([]byte, 40)
	ip, t := answer[:20], answer[20:]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(answer)))
	copy(ip[12:16], packet[16:20])
	copy(ip[16:20], packet[12:16])
	binary.BigEndian.PutUint16(ip[10:], checksum(0, ip))
	copy(t[0:2], tcp[2:4])
	copy(t[2:4], tcp[0:2])
	t[12] = 5 << 4
	if flags&flagAck != 0 {
		copy(t[4:8], tcp[8:12])
		t[13] = flagRst
	} else {
		length := uint32(len(tcp) - int(tcp[12]>>4)*4)
		if flags&(flagSyn|flagFin) != 0 {
			length++
		}
		binary.BigEndian.PutUint32(t[8:], binary.BigEndian.Uint32(tcp[4:])+length)
		t[13] = flagRst | flagAck
	}
	// The pseudo header: both addresses, the protocol, the length.
	sum := add(uint32(unix.IPPROTO_TCP)+uint32(len(t)), ip[12:20])
	binary.BigEndian.PutUint16(t[16:], checksum(sum, t))
	return answer
}

func add(sum uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	return sum
}

func checksum(sum uint32, b []byte) uint16 {
	sum = add(sum, b)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
