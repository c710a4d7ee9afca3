package client_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/jmqio/jmq/server"
	"go.uber.org/goleak"
)

// TestMain holds all tests and examples to leave no goroutine.
func TestMain(m *testing.M) {
	code := m.Run()
	if dev.stop != nil {
		dev.stop()
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// dev is the broker of the examples, which stands for `jmq dev`; started by the first that needs it.
var dev struct {
	once    sync.Once
	address string
	stop    func()
}

// devBroker returns its address.
func devBroker() string {
	dev.once.Do(func() {
		dir, err := os.MkdirTemp("", "jmq-example-")
		if err != nil {
			panic(err)
		}
		c := server.DefaultConfig()
		c.Broker.Data = dir
		c.Node.Wire.Listen, c.Node.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
		c.Broker.Journal.SegmentBytesMax = 1 << 20
		s, err := server.New(c)
		if err != nil {
			panic(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		select {
		case <-s.Ready():
		case err := <-ended:
			panic(err)
		}
		dev.address = s.WireAddress()
		dev.stop = func() {
			cancel()
			if err := <-ended; err != nil {
				panic(err)
			}
			os.RemoveAll(dir) // of a test
		}
	})
	return dev.address
}
