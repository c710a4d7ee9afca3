package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/wire"
)

func topicCommand() *cobra.Command {
	topic := &cobra.Command{Use: "topic", Short: "Make and list topics"}
	topic.AddCommand(topicCreateCommand(), topicListCommand())
	return topic
}

// topicInfo is the stable form of a topic.
type topicInfo struct {
	Name       string    `json:"name"`
	Partitions int       `json:"partitions"`
	CreatedAt  time.Time `json:"createdAt"`
}

func listTopics(topics []client.Topic) listing {
	l := listing{header: []string{"name", "partitions", "created at"}, empty: "no topics; make one with: jmq topic create NAME"}
	data := []topicInfo{}
	for _, t := range topics {
		data = append(data, topicInfo{t.Name, t.Partitions, t.Created})
		l.rows = append(l.rows, []any{t.Name, t.Partitions, t.Created.Format(time.RFC3339)})
	}
	l.data = data
	return l
}

func topicCreateCommand() *cobra.Command {
	var c connection
	var partitions int
	var output string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Make a topic", Args: cobra.ExactArgs(1),
		Long: `Make a topic. The same topic again is no error; the same name with another number of partitions is.

The number of partitions is the most consumers of one group that can work at the same time. It cannot be changed later.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := wire.CheckTopic(args[0]); err != nil {
				return usageError(err)
			}
			return c.call(cmd, func(ctx context.Context, cl *client.Client) error {
				if err := cl.CreateTopic(ctx, args[0], partitions); err != nil {
					return err
				}
				topics, err := cl.ListTopics(ctx)
				if err != nil {
					return err
				}
				topics = slices.DeleteFunc(topics, func(t client.Topic) bool { return t.Name != args[0] })
				return printListing(cmd.OutOrStdout(), output, listTopics(topics))
			})
		},
	}
	c.flags(cmd.Flags())
	cmd.Flags().IntVarP(&partitions, "partitions", "p", 8, "number of partitions")
	outputFlag(cmd, &output)
	return cmd
}

func topicListCommand() *cobra.Command {
	var c connection
	var output string
	cmd := &cobra.Command{
		Use: "ls", Short: "List topics", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.call(cmd, func(ctx context.Context, cl *client.Client) error {
				topics, err := cl.ListTopics(ctx)
				if err != nil {
					return err
				}
				slices.SortFunc(topics, func(a, b client.Topic) int { return strings.Compare(a.Name, b.Name) })
				return printListing(cmd.OutOrStdout(), output, listTopics(topics))
			})
		},
	}
	c.flags(cmd.Flags())
	outputFlag(cmd, &output)
	return cmd
}

func groupCommand() *cobra.Command {
	group := &cobra.Command{Use: "group", Short: "Consumer groups"}
	group.AddCommand(groupLagCommand())
	return group
}

// lagInfo is the stable form of where a group stands in a partition.
type lagInfo struct {
	Group     string `json:"group"`
	Topic     string `json:"topic"`
	Partition uint16 `json:"partition"`
	Lag       uint64 `json:"lag"`
	AckOffset uint64 `json:"ackOffset"`
	Consumed  uint64 `json:"consumedAbove"`
	First     uint64 `json:"first"`
	End       uint64 `json:"end"`
	Leased    uint64 `json:"leased"`
	Member    string `json:"member,omitempty"`
}

func groupLagCommand() *cobra.Command {
	var c connection
	var output string
	cmd := &cobra.Command{
		Use: "lag TOPIC [GROUP]", Short: "Say how far behind groups are, by partition", Args: cobra.RangeArgs(1, 2),
		Long: `Say how far behind the groups of a topic are, by partition: lag is the number of messages that the group has not consumed.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			group := ""
			if len(args) == 2 {
				group = args[1]
				if err := wire.CheckGroup(group); err != nil {
					return usageError(err)
				}
			}
			return c.call(cmd, func(ctx context.Context, cl *client.Client) error {
				lags, err := groupLags(ctx, cl, args[0], group)
				if err != nil {
					return err
				}
				return printListing(cmd.OutOrStdout(), output, listLags(args[0], lags))
			})
		},
	}
	c.flags(cmd.Flags())
	outputFlag(cmd, &output)
	return cmd
}

// groupLags asks for all groups first, so that a group that is not there is told at once, with those that are.
func groupLags(ctx context.Context, cl *client.Client, topic, group string) ([]client.PartitionLag, error) {
	lags, err := cl.GroupLag(ctx, topic, "")
	if errors.Is(err, client.ErrTooLarge) && group != "" { // more groups and partitions than one answer holds
		return cl.GroupLag(ctx, topic, group)
	}
	if err != nil || group == "" {
		return lags, err
	}
	var names []string
	for _, l := range lags {
		if !slices.Contains(names, l.Group) {
			names = append(names, l.Group)
		}
	}
	lags = slices.DeleteFunc(lags, func(l client.PartitionLag) bool { return l.Group != group })
	if len(lags) == 0 {
		known := "none consumes it yet"
		if len(names) > 0 {
			slices.Sort(names)
			known = "there are: " + strings.Join(names, ", ")
		}
		return nil, &codedError{exitNotFound, fmt.Errorf("group %q is not on topic %q; %s", group, topic, known)}
	}
	return lags, nil
}

func listLags(topic string, lags []client.PartitionLag) listing {
	slices.SortStableFunc(lags, func(a, b client.PartitionLag) int { return strings.Compare(a.Group, b.Group) })
	l := listing{
		header: []string{"group", "partition", "lag", "ack offset", "first", "end", "leased", "member"},
		empty:  fmt.Sprintf("no group consumes %s yet", topic),
	}
	data := []lagInfo{}
	for _, p := range lags {
		data = append(data, lagInfo{p.Group, topic, p.Partition, p.Lag, p.AckOffset, p.Consumed, p.First, p.End, p.Leased, p.Member})
		l.rows = append(l.rows, []any{p.Group, p.Partition, p.Lag, p.AckOffset, p.First, p.End, p.Leased, p.Member})
	}
	l.data = data
	return l
}
