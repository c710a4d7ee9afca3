package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/client/admin"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

func topicCommand() *cobra.Command {
	topic := &cobra.Command{Use: "topic", Short: "Make, change, look at and delete topics"}
	topic.AddCommand(
		topicCreateCommand(), topicAlterCommand(), topicDescribeCommand(), topicDeleteCommand(),
		topicPauseCommand(true), topicPauseCommand(false), topicListCommand(), topicGrantCommand(true), topicGrantCommand(false),
	)
	return topic
}

// topicInfo is the stable form of a topic.
type topicInfo struct {
	Name        string       `json:"name"`
	Partitions  uint32       `json:"partitions"`
	CreatedAt   time.Time    `json:"createdAt"`
	ID          uint64       `json:"id"`
	Incarnation uint32       `json:"incarnation"`
	Settings    settingsInfo `json:"settings"`
}

// settingsInfo is the stable form of what can be changed of a topic. 0 is the broker's default, -1 no limit.
type settingsInfo struct {
	RetentionMs       int64 `json:"retentionMs"`
	RetentionBytes    int64 `json:"retentionBytes"`
	DiscardUnconsumed bool  `json:"discardUnconsumed"`
	PauseProduce      bool  `json:"pauseProduce"`
	PauseConsume      bool  `json:"pauseConsume"`
}

func settingsOf(s *wire.TopicSettings) settingsInfo {
	return settingsInfo{s.GetRetentionMs(), s.GetRetentionBytes(), s.GetDiscardUnconsumed(), s.GetPauseProduce(), s.GetPauseConsume()}
}

func topicOf(t *wire.Topic) topicInfo {
	return topicInfo{t.GetName(), t.GetPartitions(), time.Unix(0, t.GetCreatedNs()), t.GetId(), t.GetIncarnation(), settingsOf(t.GetSettings())}
}

const textDefault, textForever, textUnlimited = "default", "forever", "unlimited"

func (s settingsInfo) age() string {
	switch {
	case s.RetentionMs == 0:
		return textDefault
	case s.RetentionMs < 0:
		return textForever
	case s.RetentionMs > math.MaxInt64/int64(time.Millisecond):
		return fmt.Sprintf("%d ms", s.RetentionMs)
	}
	return formatDuration(time.Duration(s.RetentionMs) * time.Millisecond)
}

func (s settingsInfo) size() string {
	switch {
	case s.RetentionBytes == 0:
		return textDefault
	case s.RetentionBytes < 0:
		return textUnlimited
	}
	return formatSize(s.RetentionBytes)
}

func (s settingsInfo) paused() string {
	switch {
	case s.PauseProduce && s.PauseConsume:
		return "both"
	case s.PauseProduce:
		return "produce"
	case s.PauseConsume:
		return "consume"
	}
	return "no"
}

func listTopics(topics ...*wire.Topic) listing {
	slices.SortFunc(topics, func(a, b *wire.Topic) int { return strings.Compare(a.GetName(), b.GetName()) })
	l := listing{
		header: []string{"name", "partitions", "created at", "retention", "size limit", "paused"},
		empty:  "no topics; make one with: jmq topic create NAME",
	}
	data := []topicInfo{}
	for _, t := range topics {
		i := topicOf(t)
		data = append(data, i)
		l.rows = append(l.rows, []any{i.Name, i.Partitions, i.CreatedAt.Format(time.RFC3339), i.Settings.age(), i.Settings.size(), i.Settings.paused()})
	}
	l.data = data
	return l
}

// settingsFlags are those of create and alter.
type settingsFlags struct {
	age, bytes string
	discard    bool
}

func (s *settingsFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&s.age, "retention", textDefault, "messages older than that may go: 12h, 7d; "+textForever+"; "+textDefault+" (the broker's)")
	f.StringVar(&s.bytes, "retention-bytes", textDefault, "what all partitions may hold together: 500MiB, 10GiB; "+textUnlimited+"; "+textDefault+" (the broker's)")
	f.BoolVar(&s.discard, "discard-unconsumed", false, "a message goes by age and size even if a group has not consumed it")
}

// settings holds what was said on the command line, and nothing else; nil when that is nothing.
func (s *settingsFlags) settings(f *pflag.FlagSet) (*wire.TopicSettings, error) {
	out, said := &wire.TopicSettings{}, false
	if f.Changed("retention") {
		said = true
		switch s.age {
		case textDefault:
			out.RetentionMs = proto.Int64(0)
		case textForever:
			out.RetentionMs = proto.Int64(-1)
		default:
			d, err := parseDuration(s.age)
			if err != nil {
				return nil, usagef("--retention: %w; or %s, or %s", err, textForever, textDefault)
			}
			if d < time.Millisecond {
				return nil, usagef("--retention is %v; give 1ms or more, or %s", d, textForever)
			}
			out.RetentionMs = proto.Int64(d.Milliseconds())
		}
	}
	if f.Changed("retention-bytes") {
		said = true
		switch s.bytes {
		case textDefault:
			out.RetentionBytes = proto.Int64(0)
		case textUnlimited:
			out.RetentionBytes = proto.Int64(-1)
		default:
			n, err := parseSize(s.bytes)
			if err != nil {
				return nil, usagef("--retention-bytes: %w; or %s, or %s", err, textUnlimited, textDefault)
			}
			if n == 0 {
				return nil, usagef("--retention-bytes is 0; give a size, or %s", textUnlimited)
			}
			out.RetentionBytes = proto.Int64(n)
		}
	}
	if f.Changed("discard-unconsumed") {
		said = true
		out.DiscardUnconsumed = proto.Bool(s.discard)
	}
	if !said {
		return nil, nil
	}
	return out, nil
}

// putSettings puts what was said into the spec of a topic.
func putSettings(spec map[string]any, s *wire.TopicSettings) {
	if s == nil {
		return
	}
	if s.RetentionMs != nil {
		setPath(spec, "retentionAge", nil)
		if ms := s.GetRetentionMs(); ms < 0 {
			spec["retentionAge"] = "never"
		} else if ms > 0 {
			spec["retentionAge"] = strconv.FormatInt(ms, 10) + "ms"
		}
	}
	if s.RetentionBytes != nil {
		spec["retentionBytes"] = s.GetRetentionBytes()
	}
	if s.DiscardUnconsumed != nil {
		spec["discardUnconsumed"] = s.GetDiscardUnconsumed()
	}
}

func topicCreateCommand() *cobra.Command {
	var c connection
	var s settingsFlags
	var fields *fieldFlags
	var partitions int
	var output string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Make a topic", Args: cobra.ExactArgs(1),
		Long: `Make a topic. The same topic again is no error; the same name with another number of partitions is.

The number of partitions is the most consumers of one group that can work at the same time, where the group is not parallel. More can be
added later (jmq topic alter); they cannot be taken away.`,
		Example: `  jmq topic create orders
  jmq topic create orders -p 16 --retention 7d --retention-bytes 50GiB
  jmq topic create orders --broker-groups b1,b2,b3 --owner shop --limit-messages 5000`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := wire.CheckTopic(args[0]); err != nil {
				return usageError(err)
			}
			if partitions < 1 || partitions > math.MaxUint16+1 {
				return usagef("--partitions is %d; give 1 or more", partitions)
			}
			settings, err := s.settings(cmd.Flags())
			if err != nil {
				return err
			}
			if fields.said(cmd.Flags()) {
				spec := map[string]any{"partitions": partitions}
				putSettings(spec, settings)
				if err := fields.put(cmd.Flags(), spec, true); err != nil {
					return err
				}
				return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
					return createTopicAtRegistry(ctx, cmd, a, output, args[0], spec)
				})
			}
			c.settles = true
			return c.administer(cmd, "create topic "+args[0], func(ctx context.Context, a wire.Admin) error {
				r, err := a.CreateTopic(ctx, &wire.CreateTopicRequest{Topic: args[0], Partitions: uint32(partitions), Settings: settings})
				if err != nil {
					return err
				}
				return printListing(cmd.OutOrStdout(), output, listTopics(r.GetTopic()))
			})
		},
	}
	c.flags(cmd.Flags())
	fields = newFieldFlags(cmd.Flags(), topicFields, true)
	cmd.Flags().IntVarP(&partitions, "partitions", "p", 8, "number of partitions, on each of its broker groups")
	s.flags(cmd.Flags())
	outputFlag(cmd, &output)
	return cmd
}

func topicAlterCommand() *cobra.Command {
	var c connection
	var s settingsFlags
	var fields *fieldFlags
	var partitions uint32
	var reason, output string
	cmd := &cobra.Command{
		Use: "alter NAME", Short: "Add partitions to a topic, change how long and how much it keeps", Args: cobra.ExactArgs(1),
		Long: `Change a topic; what is not named stays as it is.

With more partitions an order key may belong to another one from then on: messages of before and after may be consumed side by side.
A shorter retention takes effect within seconds, and what it deletes does not come back.`,
		Example: `  jmq topic alter orders --partitions 16
  jmq topic alter orders --retention 30d --retention-bytes unlimited`,
		ValidArgsFunction: c.completer(topicNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			settings, err := s.settings(cmd.Flags())
			if err != nil {
				return err
			}
			if fields.said(cmd.Flags()) {
				return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
					key, err := keyOf(meta.KindTopic, "", args[0])
					if err != nil {
						return err
					}
					change := changing{reason: reason, output: output}
					done, err := change.edit(ctx, cmd, a, key, func(spec map[string]any) error {
						if cmd.Flags().Changed("partitions") {
							spec["partitions"] = partitions
						}
						putSettings(spec, settings)
						return fields.put(cmd.Flags(), spec, false)
					})
					if err != nil {
						return err
					}
					return change.print(cmd, meta.KindTopic, done)
				})
			}
			r := &wire.AlterTopicRequest{Topic: args[0], Settings: settings, Reason: reason}
			if cmd.Flags().Changed("partitions") {
				r.Partitions = &partitions
			}
			if r.Partitions == nil && r.Settings == nil {
				return usagef("say what to change: --partitions, --retention, --retention-bytes, --discard-unconsumed, --broker-groups, --owner, --limit-messages, ...; usage: %s", cmd.UseLine())
			}
			return alterTopic(cmd, &c, r, output)
		},
	}
	c.flags(cmd.Flags())
	fields = newFieldFlags(cmd.Flags(), topicFields, false)
	cmd.Flags().Uint32VarP(&partitions, "partitions", "p", 0, "number of partitions, more than there are")
	s.flags(cmd.Flags())
	auditFlag(cmd, &reason)
	outputFlag(cmd, &output)
	return cmd
}

func alterTopic(cmd *cobra.Command, c *connection, r *wire.AlterTopicRequest, output string) error {
	if err := wire.CheckTopic(r.Topic); err != nil {
		return usageError(err)
	}
	c.settles = true
	return c.administer(cmd, "alter topic "+r.Topic, func(ctx context.Context, a wire.Admin) error {
		answer, err := a.AlterTopic(ctx, r)
		if err != nil {
			return err
		}
		return printListing(cmd.OutOrStdout(), output, listTopics(answer.GetTopic()))
	})
}

func topicPauseCommand(pause bool) *cobra.Command {
	var c connection
	var produce, consume bool
	var reason, output string
	cmd := &cobra.Command{
		Use: "resume NAME", Short: "End a pause", Args: cobra.ExactArgs(1),
		Long: "End a pause of sending, of consuming, or, with neither flag, of both.",
	}
	if pause {
		cmd.Use, cmd.Short = "pause NAME", "Refuse sends, or give no messages, until resumed"
		cmd.Long = `Pause a topic until jmq topic resume, over restarts: sends are refused (the SDK repeats them until their timeout), fetches get
nothing. With neither --produce nor --consume it is both. What is leased can still be acknowledged.`
	}
	cmd.ValidArgsFunction = c.completer(topicNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s := &wire.TopicSettings{}
		if produce || !consume {
			s.PauseProduce = &pause
		}
		if consume || !produce {
			s.PauseConsume = &pause
		}
		return alterTopic(cmd, &c, &wire.AlterTopicRequest{Topic: args[0], Settings: s, Reason: reason}, output)
	}
	c.flags(cmd.Flags())
	cmd.Flags().BoolVar(&produce, "produce", false, "sending only")
	cmd.Flags().BoolVar(&consume, "consume", false, "consuming only")
	auditFlag(cmd, &reason)
	outputFlag(cmd, &output)
	return cmd
}

func topicDeleteCommand() *cobra.Command {
	var c connection
	var sure confirmation
	var reason, output string
	cmd := &cobra.Command{
		Use: "delete NAME", Aliases: []string{"rm"}, Short: "Delete a topic with its messages and where its groups stand", Args: cobra.ExactArgs(1),
		Long: `Delete a topic, for good: its messages and where its groups stand go with it. A topic made later under the same name is another one.
The disk's space is free when the journal's segments with its messages go, which is soon unless others' messages in them are still needed.`,
		ValidArgsFunction: c.completer(topicNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := wire.CheckTopic(args[0]); err != nil {
				return usageError(err)
			}
			what := "delete topic " + args[0]
			if err := sure.ask(cmd, what+" with all its messages"); err != nil {
				return err
			}
			c.settles = true
			return c.administer(cmd, what, func(ctx context.Context, a wire.Admin) error {
				r, err := a.DeleteTopic(ctx, &wire.DeleteTopicRequest{Topic: args[0], Reason: reason})
				if err != nil {
					return err
				}
				l := listTopics(r.GetTopic()) // as it was
				l.header, l.rows = []string{"name", "is"}, [][]any{{args[0], "deleted"}}
				return printListing(cmd.OutOrStdout(), output, l)
			})
		},
	}
	c.flags(cmd.Flags())
	sure.flag(cmd)
	auditFlag(cmd, &reason)
	outputFlag(cmd, &output)
	return cmd
}

// topicDescription is the stable form of all that is known of a topic.
type topicDescription struct {
	topicInfo
	Effective settingsInfo         `json:"effective"` // with the broker's defaults put in
	Messages  uint64               `json:"messages"`
	Bytes     uint64               `json:"bytes"`
	Groups    []string             `json:"groups"`
	By        []topicPartitionInfo `json:"byPartition"`
}

type topicPartitionInfo struct {
	BrokerGroup string     `json:"brokerGroup,omitempty"`
	Partition   uint32     `json:"partition"`
	First       uint64     `json:"first"`
	End         uint64     `json:"end"`
	Bytes       uint64     `json:"bytes"`
	OldestAt    *time.Time `json:"oldestAt,omitempty"`
	NewestAt    *time.Time `json:"newestAt,omitempty"`
}

func topicDescribeCommand() *cobra.Command {
	var c connection
	var output string
	cmd := &cobra.Command{
		Use: "describe NAME", Short: "Say what a topic holds, what it keeps, and who consumes it", Args: cobra.ExactArgs(1),
		ValidArgsFunction: c.completer(topicNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := wire.CheckTopic(args[0]); err != nil {
				return usageError(err)
			}
			return c.administer(cmd, "describe topic "+args[0], func(ctx context.Context, a wire.Admin) error {
				r, err := a.DescribeTopic(ctx, &wire.DescribeTopicRequest{Topic: args[0]})
				if err != nil {
					return err
				}
				return printTopic(cmd.OutOrStdout(), output, r, time.Now())
			})
		},
	}
	c.flags(cmd.Flags())
	outputFlag(cmd, &output)
	return cmd
}

func printTopic(w io.Writer, output string, r *wire.DescribeTopicResponse, now time.Time) error {
	d := topicDescription{topicInfo: topicOf(r.GetTopic()), Effective: settingsOf(r.GetEffective()), Groups: slices.Sorted(slices.Values(r.GetGroups())), By: []topicPartitionInfo{}}
	if d.Groups == nil {
		d.Groups = []string{}
	}
	l := listing{header: []string{"broker group", "partition", "first", "end", "messages", "bytes", "oldest", "newest"}}
	for _, p := range r.GetPartitions() {
		d.Messages += p.End - p.First
		d.Bytes += p.Bytes
		d.By = append(d.By, topicPartitionInfo{p.BrokerGroup, p.Partition, p.First, p.End, p.Bytes, momentOf(p.OldestNs), momentOf(p.NewestNs)})
		size := any(p.Bytes)
		if output == "table" {
			size = formatSize(int64(p.Bytes))
		}
		l.rows = append(l.rows, []any{p.BrokerGroup, p.Partition, p.First, p.End, p.End - p.First, size, ago(p.OldestNs, now), ago(p.NewestNs, now)})
	}
	l.data = d
	l.dropIfOne(0)
	if output == "name" {
		_, err := fmt.Fprintln(w, d.Name)
		return err
	}
	if output == "table" {
		of := func(own, effective string) string {
			if own == textDefault {
				return effective + " (the broker's default)"
			}
			return own
		}
		groups := strings.Join(d.Groups, ", ")
		if groups == "" {
			groups = "none yet"
		}
		unconsumed := "kept until every group has consumed it, or is abandoned"
		if d.Settings.DiscardUnconsumed {
			unconsumed = "goes by age and size too"
		}
		var b strings.Builder
		fmt.Fprintf(&b, "topic       %s (id %d, incarnation %d), created %s\n", d.Name, d.ID, d.Incarnation, d.CreatedAt.Format(time.RFC3339))
		fmt.Fprintf(&b, "holds       %s, %s in %s\n", counted(d.Messages, "message"), formatSize(int64(d.Bytes)), counted(len(d.By), "partition"))
		fmt.Fprintf(&b, "retention   %s, %s; what is not consumed %s\n", of(d.Settings.age(), d.Effective.age()), of(d.Settings.size(), d.Effective.size()), unconsumed)
		fmt.Fprintf(&b, "paused      %s\n", d.Settings.paused())
		fmt.Fprintf(&b, "groups      %s\n\n", groups)
		if _, err := io.WriteString(w, b.String()); err != nil {
			return err
		}
	}
	return printListing(w, output, l)
}

func topicListCommand() *cobra.Command {
	var c connection
	var output string
	cmd := &cobra.Command{
		Use: "ls", Short: "List topics", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.administer(cmd, "list topics", func(ctx context.Context, a wire.Admin) error {
				r, err := a.ListTopics(ctx, &wire.ListTopicsRequest{})
				if err != nil {
					return err
				}
				return printListing(cmd.OutOrStdout(), output, listTopics(r.GetTopics()...))
			})
		},
	}
	c.flags(cmd.Flags())
	outputFlag(cmd, &output)
	return cmd
}
