package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server/meta"
)

const (
	addressDefault = "127.0.0.1:50088"
	envAddress     = "JMQ_ADDRESS"
)

// connection is the flags that every client command has.
type connection struct {
	place
	context string
	timeout time.Duration

	brokerGroup string // of commands that are about one; see brokerGroupFlag
	settles     bool   // administer waits until what was changed is in force everywhere, where there is a registry
}

// place is where to connect to, and as whom. Each field may be empty.
type place struct {
	address, credentialFile string
	tlsCA, tlsCert, tlsKey  string

	proven bool // the options of the client say who it is
}

// tlsSystem stands for the authorities that the system knows.
const tlsSystem = "system"

func (p *place) flags(f *pflag.FlagSet) {
	f.StringVarP(&p.address, "address", "a", "", "address of the cluster's nodes, several with commas (default: $"+envAddress+", else the context's, else "+addressDefault+")")
	f.StringVar(&p.credentialFile, "credential-file", "", "file with id and secret that say who you are (jmq login writes one)")
	f.StringVar(&p.tlsCA, "tls-ca", "", "encrypt, and check the server by the authorities of this PEM file, or of the "+tlsSystem)
	f.StringVar(&p.tlsCert, "tls-cert", "", "certificate that says who you are, PEM")
	f.StringVar(&p.tlsKey, "tls-key", "", "its key")
}

func (c *connection) flags(f *pflag.FlagSet) {
	c.place.flags(f)
	f.StringVar(&c.context, "context", "", "context to connect by (default: $"+envContext+", else the one in use; none with --address); see jmq context")
	f.DurationVar(&c.timeout, "connect-timeout", 5*time.Second, "how long connecting to the broker, and its answer, may take")
}

// brokerGroupFlag is for commands that are about one broker group of a topic, or about one broker.
func (c *connection) brokerGroupFlag(cmd *cobra.Command, help string) {
	cmd.Flags().StringVar(&c.brokerGroup, "broker-group", "", help)
	_ = cmd.RegisterFlagCompletionFunc("broker-group", c.flagCompleter(objectNames(meta.KindBrokerGroup))) // the flag was just made
}

// where says where to connect to: what the flags say, over the context that is named, or in use where no address is given.
func (c *connection) where() (place, error) {
	p := c.place
	name := c.context
	if name == "" && p.address == "" {
		if name = os.Getenv(envContext); name == "" {
			p.address = os.Getenv(envAddress)
		}
	}
	var of contextInfo
	if name != "" || p.address == "" {
		file, err := readContexts()
		if err != nil {
			return p, err
		}
		if name == "" {
			name = file.Current
		}
		if name != "" {
			found := file.find(name)
			if found == nil {
				return p, &codedError{exitNotFound, fmt.Errorf("no context %q; %s", name, file.known())}
			}
			of = *found
		}
	}
	p.address = cmp.Or(p.address, strings.Join(of.Addresses, ","), addressDefault)
	p.credentialFile = cmp.Or(p.credentialFile, of.CredentialFile)
	p.tlsCA = cmp.Or(p.tlsCA, of.TLSCA)
	if p.tlsCert == "" && p.tlsKey == "" {
		p.tlsCert, p.tlsKey = of.TLSCert, of.TLSKey
	}
	return p, nil
}

// options are those of the client that connects there.
func (p place) options() ([]client.Option, error) {
	var options []client.Option
	if p.credentialFile != "" {
		if err := checkPrivate("credential file", p.credentialFile); err != nil {
			return nil, err
		}
		options = append(options, client.WithCredentialsFile(p.credentialFile))
	}
	switch {
	case (p.tlsCert == "") != (p.tlsKey == ""):
		return nil, usagef("--tls-cert and --tls-key belong together: give both")
	case p.tlsCert != "" && p.tlsCA == "":
		return nil, usagef("--tls-cert needs --tls-ca: a file, or %s", tlsSystem)
	case p.tlsCA == tlsSystem:
		options = append(options, client.WithTLSFiles("", p.tlsCert, p.tlsKey))
	case p.tlsCA != "":
		options = append(options, client.WithTLSFiles(p.tlsCA, p.tlsCert, p.tlsKey))
	}
	return options, nil
}

// dial connects to the broker, or says which one cannot be reached and what to do. The caller closes the client.
func (c *connection) dial(cmd *cobra.Command, options ...client.Option) (*client.Client, error) {
	p, err := c.where()
	if err != nil {
		return nil, err
	}
	return p.dial(cmd, c.timeout, options...)
}

func (p place) dial(cmd *cobra.Command, within time.Duration, options ...client.Option) (*client.Client, error) {
	ctx, cancel := context.WithTimeout(cmd.Context(), within)
	defer cancel()
	own, err := p.options()
	if err != nil {
		return nil, err
	}
	own = append(own, client.WithDialTimeout(max(time.Millisecond, within/3))) // one that is paused takes a connection, and leaves time for the next address
	cl, err := client.Dial(ctx, p.address, slices.Concat(own, options)...)
	switch _, tried := errors.AsType[*client.Error](err); {
	case err == nil:
		return cl, nil
	case !tried:
		return nil, usageError(err)
	case errors.Is(err, client.ErrUnauthenticated) && (p.credentialFile != "" || p.proven):
		return nil, err // its text says which credential was not taken
	case errors.Is(err, client.ErrUnauthenticated):
		return nil, fmt.Errorf("%w; say who you are: jmq login, or --credential-file", err)
	}
	if p.tlsCA == "" && errors.Is(err, client.ErrUnknown) { // it ended the connection without a word
		return nil, fmt.Errorf("%w; does it speak TLS? give --tls-ca", err)
	}
	return nil, fmt.Errorf("%w; is a broker running there? jmq dev starts one", err)
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
