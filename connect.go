package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jmqio/jmq/client"
)

const (
	addressDefault = "127.0.0.1:50088"
	envAddress     = "JMQ_ADDRESS"
)

// connection is the flags that every client command has.
type connection struct {
	address string
	timeout time.Duration
}

func (c *connection) flags(f *pflag.FlagSet) {
	f.StringVarP(&c.address, "address", "a", "", "the broker's address (default: $"+envAddress+", else "+addressDefault+")")
	f.DurationVar(&c.timeout, "connect-timeout", 5*time.Second, "how long connecting to the broker, and its answer, may take")
}

// where is the address to connect to.
func (c *connection) where() string {
	if c.address != "" {
		return c.address
	}
	if address := os.Getenv(envAddress); address != "" {
		return address
	}
	return addressDefault
}

// dial connects to the broker, or says which one cannot be reached and what to do. The caller closes the client.
func (c *connection) dial(cmd *cobra.Command, options ...client.Option) (*client.Client, error) {
	ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
	defer cancel()
	cl, err := client.Dial(ctx, c.where(), options...)
	if err != nil {
		if _, tried := errors.AsType[*client.Error](err); !tried {
			return nil, usageError(err)
		}
		return nil, fmt.Errorf("%w; is a broker running there? jmq dev starts one", err)
	}
	return cl, nil
}

// closeTimeout is how long a command waits, at its end, for what its client has under way.
const closeTimeout = 3 * time.Second

func closeClient(cl *client.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = cl.Close(ctx) // everything that the command promised has been answered before
}

// call connects and calls f within the connection's timeout.
func (c *connection) call(cmd *cobra.Command, f func(context.Context, *client.Client) error, options ...client.Option) error {
	cl, err := c.dial(cmd, append(options, client.WithConns(1))...)
	if err != nil {
		return err
	}
	defer closeClient(cl)
	ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
	defer cancel()
	return f(ctx, cl)
}
