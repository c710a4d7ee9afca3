package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/jmqio/jmq/scripts/localcluster"
)

// runCluster is scripts/cluster: up, down or status.
func runCluster(ctx context.Context, what string, o localcluster.Options) error {
	if _, err := os.Stat(o.Dir + "/cluster.json"); err != nil && what != "up" {
		return fmt.Errorf("no cluster in %s: scripts/cluster up makes one", o.Dir)
	}
	c, err := localcluster.Open(o)
	if err != nil {
		return err
	}
	switch what {
	case "up":
		if err := c.Up(ctx); err != nil {
			return fmt.Errorf("%w\nwhat was started goes on: scripts/cluster down ends it", err)
		}
		status(ctx, c)
		fmt.Printf(`
Authentication is on; you are the user admin:

  export JMQ_CONTEXTS=%s
  ./jmq registry status
  ./jmq broker-group status
  ./jmq topic create orders --broker-groups %s
  ./jmq produce orders 'hello'

The admin ports have /metrics, /healthz and /readyz. scripts/cluster down ends it; the data stays.
`, c.ContextsFile(), strings.Join(c.Groups(), ","))
		return nil
	case "down":
		if err := c.Down(); err != nil {
			return err
		}
		fmt.Println("the cluster is down; its data is still in", o.Dir)
		return nil
	case "status":
		status(ctx, c)
		return nil
	}
	return fmt.Errorf("unknown command %q: give up, down or status", what)
}

func status(ctx context.Context, c *localcluster.Cluster) {
	fmt.Printf("%-9s %-10s %s\n", "database", "", c.DatabaseState())
	for _, n := range c.Nodes {
		fmt.Printf("%-9s %-10s wire %s  admin %s  pid %d  %s\n", n.Name, n.Role, n.Wire, n.Admin, n.PID(), n.Health(ctx))
	}
}
