package client

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

const (
	scheme      = "jmq://"
	defaultPort = "50088"
	defaultAddr = "127.0.0.1:" + defaultPort
)

// parseAddresses reads "jmq://host:port,host:port" or "host:port,host"; the port is 50088 where it is left out, and all
// of it 127.0.0.1:50088 when s is empty. All that is wrong is told at once.
func parseAddresses(s string) ([]string, error) {
	rest := strings.TrimPrefix(s, scheme)
	if i := strings.Index(rest, "://"); i >= 0 {
		return nil, fmt.Errorf("address %q: scheme %q is not jmq", s, rest[:i])
	}
	rest = strings.TrimSuffix(rest, "/")
	if rest == "" {
		if s != "" {
			return nil, fmt.Errorf("address %q names no host", s)
		}
		return []string{defaultAddr}, nil
	}
	var addrs []string
	var errs []error
	for _, part := range strings.Split(rest, ",") {
		addr, err := parseAddress(part)
		if err != nil {
			errs = append(errs, fmt.Errorf("address %q: %w", s, err))
			continue
		}
		addrs = append(addrs, addr)
	}
	return addrs, errors.Join(errs...)
}

func parseAddress(s string) (string, error) {
	if strings.ContainsAny(s, "/?#@ \t\r\n") {
		return "", fmt.Errorf("%q is not host:port", s)
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		// Without a port: a name, or an IPv6 address in brackets or bare.
		host, port = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"), defaultPort
		if strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return "", fmt.Errorf("%q is not host:port", s)
		}
	}
	if strings.ContainsAny(host, "[]") {
		return "", fmt.Errorf("%q is not host:port", s)
	}
	if host == "" {
		return "", fmt.Errorf("%q has no host", s)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", fmt.Errorf("%q has no port of 1 to 65535", s)
	}
	return net.JoinHostPort(host, port), nil
}
