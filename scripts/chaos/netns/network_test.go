package netns

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/jmqio/jmq/scripts/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network makes one, or skips the test; it fails instead where JMQ_TEST_REQUIRE asks for it.
func network(t *testing.T, names ...string) *Network {
	t.Helper()
	n, err := New(names...)
	if errors.Is(err, ErrMissing) {
		testenv.Missing(t, "chaos", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

// echo listens at a host and sends back what comes.
func echo(t *testing.T, n *Network, host string) string {
	t.Helper()
	var l net.Listener
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := n.Enter(host)
		if err == nil {
			l, err = net.Listen("tcp4", n.Address(host)+":0")
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			serving.Go(func() { _, _ = io.Copy(c, c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
	return l.Addr().String()
}

// ask sends a byte, and waits for it.
func ask(c net.Conn, within time.Duration) error {
	_ = c.SetDeadline(time.Now().Add(within))
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

// Packets pass until they are cut, either way, and pass again when it is healed; a reset breaks the connection at once; a delay is one.
func TestNetwork(t *testing.T) {
	n := network(t, "a", "b")
	address := echo(t, n, "b")
	dial := func() net.Conn {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		c, err := n.Dial(ctx, "a", address)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := dial()
	defer c.Close()
	if err := ask(c, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	for _, way := range [][2]string{{"a", "b"}, {"b", "a"}} {
		n.Set(way[0], way[1], Rule{Cut: true})
		if err := ask(c, 300*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("cut from %s to %s: %v", way[0], way[1], err)
		}
		n.Heal()
		// What was under way comes now.
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatalf("healed: %v", err)
		}
	}
	n.SetBoth("a", "b", Rule{Delay: 50 * time.Millisecond})
	begun := time.Now()
	if err := ask(c, 5*time.Second); err != nil || time.Since(begun) < 100*time.Millisecond {
		t.Errorf("delayed: %v after %v", err, time.Since(begun))
	}
	n.SetBoth("a", "b", Rule{Loss: 0.2, Double: 0.3, Jitter: time.Millisecond})
	for range 4 {
		if err := ask(c, 30*time.Second); err != nil {
			t.Errorf("with loss: %v", err)
		}
	}
	n.SetBoth("a", "b", Rule{Reset: true})
	if err := ask(c, 5*time.Second); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("reset: %v", err)
	}
	if _, err := n.Dial(t.Context(), "a", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial with a reset: %v", err)
	}
	n.Heal()
	c2 := dial()
	defer c2.Close()
	if err := ask(c2, 5*time.Second); err != nil {
		t.Error(err)
	}
	if _, err := n.Dial(t.Context(), "nobody", address); err == nil {
		t.Error("dialed from nowhere")
	}
}
