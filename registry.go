package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/client/admin"
	"github.com/jmqio/jmq/server/meta"
)

// nodeInfo is the stable form of a node of the cluster.
type nodeInfo struct {
	Name            string   `json:"name"`
	Roles           []string `json:"roles"`
	BrokerGroup     string   `json:"brokerGroup,omitempty"`
	Addresses       []string `json:"addresses"`
	DataCenter      string   `json:"dataCenter,omitempty"`
	Labels          []string `json:"labels,omitempty"`
	Version         string   `json:"version"`
	State           string   `json:"state"` // as it says; away: it says nothing
	SilentMs        int64    `json:"silentMs"`
	MetadataVersion uint64   `json:"metadataVersion"`
	Generation      uint64   `json:"generation"`
	Connections     int      `json:"connections"`
	BytesIn         uint64   `json:"bytesIn"`
	BytesOut        uint64   `json:"bytesOut"`

	Replica *replicaInfo `json:"replica,omitempty"` // of a broker that says what it has
}

func nodeOf(n admin.Node) nodeInfo {
	i := nodeInfo{
		Name: n.Name, Roles: n.Roles, BrokerGroup: n.BrokerGroup, Addresses: n.Addresses, DataCenter: n.DataCenter, Labels: n.Labels,
		Version: n.Version, State: n.State, SilentMs: n.Silent.Milliseconds(), MetadataVersion: n.MetadataVersion, Generation: n.Generation,
		Connections: n.Connections, BytesIn: n.BytesIn, BytesOut: n.BytesOut, Replica: replicaOf(n.Replica),
	}
	if n.Away {
		i.State = "away"
	}
	return i
}

func listNodes(nodes []admin.Node) listing {
	slices.SortFunc(nodes, func(a, b admin.Node) int { return strings.Compare(a.Name, b.Name) })
	l := listing{
		header: []string{"name", "roles", "broker group", "state", "copy", "silent", "addresses", "version", "metadata", "connections"},
		empty:  "no node gives signs of life",
	}
	data := []nodeInfo{}
	for _, n := range nodes {
		i := nodeOf(n)
		data = append(data, i)
		l.rows = append(l.rows, []any{
			i.Name, strings.Join(i.Roles, ", "), orText(i.BrokerGroup, "-"), i.State, copyText(n), n.Silent.Round(100 * time.Millisecond), names(i.Addresses), i.Version,
			fmt.Sprintf("%d.%d", i.Generation, i.MetadataVersion), i.Connections,
		})
	}
	l.data = data
	return l
}

// brokerNodes are those that run the broker role, and brokers that are known but give no sign of life.
func brokerNodes(ctx context.Context, a *admin.Admin) ([]admin.Node, error) {
	all, err := a.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	nodes := slices.DeleteFunc(all.Nodes, func(n admin.Node) bool { return n.BrokerGroup == "" })
	objects, err := a.List(ctx, admin.Query{Kind: string(meta.KindBroker)})
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		s, err := specOf(o)
		if err != nil {
			return nil, err
		}
		b := s.(*meta.Broker)
		i := slices.IndexFunc(nodes, func(n admin.Node) bool { return n.Name == o.Name })
		if i < 0 {
			nodes = append(nodes, admin.Node{
				Name: o.Name, Roles: []string{"broker"}, BrokerGroup: b.BrokerGroup, Addresses: b.Addresses, DataCenter: b.DataCenter, Labels: b.Labels,
				Version: b.Version, Away: true,
			})
			continue
		}
		nodes[i].Away = nodes[i].Away || b.Away
	}
	return nodes, nil
}

func brokerCommand() *cobra.Command {
	c := &cobra.Command{Use: "broker", Short: "Brokers: which live, where they are, and what they know"}
	rm := kindCommands{kind: meta.KindBroker}.remove()
	rm.Short = "Forget brokers that will not come back"
	rm.Long = "Forget brokers that will not come back. One that lives registers itself again."
	c.AddCommand(brokerListCommand(), brokerDescribeCommand(), rm)
	return c
}

func brokerListCommand() *cobra.Command {
	var c connection
	var output string
	cmd := &cobra.Command{
		Use: "ls", Short: "List brokers", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
				nodes, err := brokerNodes(ctx, a)
				if err != nil {
					return err
				}
				return printListing(cmd.OutOrStdout(), output, listNodes(nodes))
			})
		},
	}
	c.flags(cmd.Flags())
	outputFlag(cmd, &output)
	return cmd
}

func brokerDescribeCommand() *cobra.Command {
	var c connection
	var output string
	cmd := &cobra.Command{
		Use: "describe NAME", Short: "Say all that is known of a broker", Args: cobra.ExactArgs(1),
		ValidArgsFunction: c.completer(objectNames(meta.KindBroker)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
				nodes, err := brokerNodes(ctx, a)
				if err != nil {
					return err
				}
				i := slices.IndexFunc(nodes, func(n admin.Node) bool { return n.Name == args[0] })
				if i < 0 {
					return &codedError{exitNotFound, fmt.Errorf("broker %.80q is not known; see jmq broker ls", args[0])}
				}
				if output == "table" {
					return printYAML(cmd.OutOrStdout(), nodeOf(nodes[i]))
				}
				l := listNodes(nodes[i : i+1])
				l.data = nodeOf(nodes[i])
				return printListing(cmd.OutOrStdout(), output, l)
			})
		},
	}
	c.flags(cmd.Flags())
	outputFlag(cmd, &output)
	return cmd
}

func registryCommand() *cobra.Command {
	c := &cobra.Command{Use: "registry", Short: "The registry: its nodes, its database, its first credentials"}
	c.AddCommand(registryStatusCommand(), registryGenerationCommand(), registryInitCommand())
	return c
}

func registryStatusCommand() *cobra.Command {
	var c connection
	var output string
	cmd := &cobra.Command{
		Use: "status", Short: "Say which nodes live, and how the metadata's database is", Args: cobra.NoArgs,
		Long: `Say which nodes live, whether the metadata's database can be used, and what metadata is in force where: its version is in force at a node that shows
the same. With a database that is not ok nothing can be changed; messages go on.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
				all, err := a.Nodes(ctx)
				if err != nil {
					return err
				}
				for begun := time.Now(); all.Ahead() != nil && time.Since(begun) < settleWithin/2; { // by a change just now?
					select {
					case <-time.After(100 * time.Millisecond):
					case <-ctx.Done():
					}
					if all, err = a.Nodes(ctx); err != nil {
						return err
					}
				}
				if n := all.Ahead(); n != nil && all.Database == "ok" {
					all.Database = fmt.Sprintf("older than what node %s knows, %d.%d: it does not take this metadata; if the database was restored from a copy, say so: jmq registry new-generation",
						n.Name, n.Generation, n.MetadataVersion)
				}
				l := listNodes(all.Nodes)
				type status struct {
					Generation uint64     `json:"generation"`
					Version    uint64     `json:"version"`
					Database   string     `json:"database"`
					Nodes      []nodeInfo `json:"nodes"`
				}
				l.data = status{all.Generation, all.Version, all.Database, l.data.([]nodeInfo)}
				if output == "table" {
					fmt.Fprintf(cmd.OutOrStdout(), "database    %s\nmetadata    generation %d, version %d\n\n", all.Database, all.Generation, all.Version)
				}
				return printListing(cmd.OutOrStdout(), output, l)
			})
		},
	}
	c.flags(cmd.Flags())
	outputFlag(cmd, &output)
	return cmd
}

func registryGenerationCommand() *cobra.Command {
	var c connection
	var sure confirmation
	var reason, output string
	cmd := &cobra.Command{
		Use: "new-generation", Short: "Take the database as it is, after it was restored from a copy", Args: cobra.NoArgs,
		Long: `Say that the metadata's database was restored from a copy, or begun anew. Nodes refuse metadata that is older than what they have seen; from
then on they take what the database has. What was changed after the copy was made is gone: topics that are unknown then are kept by brokers, and not served.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := sure.ask(cmd, "let every node take the metadata that the database has now, though it may be older"); err != nil {
				return err
			}
			return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
				generation, version, err := a.NewGeneration(ctx, reason)
				if err != nil {
					return err
				}
				type made struct {
					Generation uint64 `json:"generation"`
					Version    uint64 `json:"version"`
				}
				return printListing(cmd.OutOrStdout(), output, listing{
					header: []string{"generation", "version"}, rows: [][]any{{generation, version}}, data: made{generation, version},
				})
			})
		},
	}
	c.flags(cmd.Flags())
	sure.flag(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for those who read the audit later")
	outputFlag(cmd, &output)
	return cmd
}
