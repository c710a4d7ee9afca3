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

	"github.com/jmqio/jmq/wire"
)

func groupCommand() *cobra.Command {
	group := &cobra.Command{Use: "group", Short: "Consumer groups: how far behind they are, and where they stand"}
	group.AddCommand(
		groupListCommand(), groupDescribeCommand(), groupLagCommand(), groupSeekCommand(), groupResetCommand(), groupAlterCommand(), groupRemoveCommand(),
	)
	return group
}

// checkNames judges the arguments of a command: a topic, then a group.
func checkNames(args []string) error {
	if len(args) > 0 {
		if err := wire.CheckTopic(args[0]); err != nil {
			return usageError(err)
		}
	}
	if len(args) > 1 {
		if err := wire.CheckGroup(args[1]); err != nil {
			return usageError(err)
		}
	}
	return nil
}

// groupInfo is the stable form of a group on a topic.
type groupInfo struct {
	Group      string     `json:"group"`
	Topic      string     `json:"topic"`
	Partitions uint32     `json:"partitions"`
	Lag        uint64     `json:"lag"`
	Leased     uint64     `json:"leased"`
	Members    uint32     `json:"members"`
	Waiting    uint32     `json:"waiting"`
	Parallel   bool       `json:"parallel"`
	Window     uint32     `json:"window,omitempty"`
	ActiveAt   *time.Time `json:"activeAt,omitempty"`
	Abandoned  bool       `json:"abandoned"`
	LastReset  *resetInfo `json:"lastReset,omitempty"`
}

type resetInfo struct {
	At     *time.Time `json:"at,omitempty"`
	Who    string     `json:"who"`
	Reason string     `json:"reason,omitempty"`
}

func groupOf(g *wire.GroupSummary) groupInfo {
	i := groupInfo{
		Group: g.Group, Topic: g.Topic, Partitions: g.Partitions, Lag: g.Lag, Leased: g.Leased, Members: g.Members, Waiting: g.Waiting,
		Parallel: g.GetPolicy().GetParallel(), Window: g.GetPolicy().GetWindow(), ActiveAt: momentOf(g.ActiveNs), Abandoned: g.Abandoned,
	}
	if r := g.LastReset; r != nil {
		i.LastReset = &resetInfo{momentOf(r.TimeNs), r.Who, r.Reason}
	}
	return i
}

func modeOf(p *wire.GroupPolicy) string {
	if !p.GetParallel() {
		return "in order"
	}
	if p.GetWindow() == 0 {
		return "parallel"
	}
	return fmt.Sprintf("parallel %d", p.GetWindow())
}

// mergeGroups puts together what the broker groups of a topic say of a group.
func mergeGroups(parts []*wire.GroupSummary) []*wire.GroupSummary {
	type key struct{ topic, group string }
	merged, groups := map[key]*wire.GroupSummary{}, []*wire.GroupSummary{}
	for _, p := range parts {
		g := merged[key{p.Topic, p.Group}]
		if g == nil {
			merged[key{p.Topic, p.Group}] = p
			groups = append(groups, p)
			continue
		}
		g.Partitions += p.Partitions
		g.Lag += p.Lag
		g.Leased += p.Leased
		g.Waiting += p.Waiting
		g.Members = max(g.Members, p.Members) // each asks everywhere
		g.ActiveNs = max(g.ActiveNs, p.ActiveNs)
		g.Abandoned = g.Abandoned && p.Abandoned
		if p.LastReset.GetTimeNs() > g.LastReset.GetTimeNs() {
			g.LastReset = p.LastReset
		}
	}
	return groups
}

func listGroups(groups []*wire.GroupSummary, now time.Time) listing {
	groups = mergeGroups(groups)
	slices.SortFunc(groups, func(a, b *wire.GroupSummary) int {
		return strings.Compare(a.Group+"\x00"+a.Topic, b.Group+"\x00"+b.Topic)
	})
	l := listing{
		header: []string{"group", "topic", "lag", "leased", "members", "waiting", "mode", "active"},
		empty:  "no group consumes yet",
	}
	data := []groupInfo{}
	for _, g := range groups {
		data = append(data, groupOf(g))
		active := ago(g.ActiveNs, now)
		if g.Abandoned {
			active += ", abandoned"
		}
		l.rows = append(l.rows, []any{g.Group, g.Topic, g.Lag, g.Leased, g.Members, g.Waiting, modeOf(g.Policy), active})
	}
	l.data = data
	return l
}

func groupListCommand() *cobra.Command {
	var c connection
	var output string
	cmd := &cobra.Command{
		Use: "ls [TOPIC]", Short: "List the groups of a topic, or of all", Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: c.completer(topicNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkNames(args); err != nil {
				return err
			}
			r := &wire.ListGroupsRequest{}
			if len(args) > 0 {
				r.Topic = args[0]
			}
			return c.administer(cmd, "list groups", func(ctx context.Context, a wire.Admin) error {
				answer, err := a.ListGroups(ctx, r)
				if err != nil {
					return err
				}
				return printListing(cmd.OutOrStdout(), output, listGroups(answer.GetGroups(), time.Now()))
			})
		},
	}
	c.flags(cmd.Flags())
	outputFlag(cmd, &output)
	return cmd
}

// noGroup says which groups there are.
func noGroup(ctx context.Context, a wire.Admin, topic, group string) error {
	r, err := a.ListGroups(ctx, &wire.ListGroupsRequest{Topic: topic})
	if err != nil {
		return err
	}
	var names []string
	for _, g := range r.GetGroups() {
		names = append(names, g.Group)
	}
	known := "none consumes it yet"
	if len(names) > 0 {
		slices.Sort(names)
		known = "there are: " + strings.Join(slices.Compact(names), ", ")
	}
	return &codedError{exitNotFound, fmt.Errorf("group %q is not on topic %q; %s", group, topic, known)}
}

// toldGroup turns the broker's "no such group" into one that names those that are there.
func toldGroup(ctx context.Context, a wire.Admin, topic, group string, err error) error {
	if wire.CodeOf(err) == wire.CodeGroupNotFound && err != nil {
		return noGroup(ctx, a, topic, group)
	}
	return err
}

// groupDescription is the stable form of all that is known of a group on a topic.
type groupDescription struct {
	groupInfo
	By []lagInfo `json:"byPartition"`
}

func groupDescribeCommand() *cobra.Command {
	var c connection
	var output string
	cmd := &cobra.Command{
		Use: "describe TOPIC GROUP", Short: "Say how a group consumes a topic, and what it does now", Args: cobra.ExactArgs(2),
		ValidArgsFunction: c.completer(topicNames, groupNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkNames(args); err != nil {
				return err
			}
			return c.administer(cmd, "describe group "+args[1], func(ctx context.Context, a wire.Admin) error {
				groups, err := a.ListGroups(ctx, &wire.ListGroupsRequest{Topic: args[0], Group: args[1]})
				if err != nil {
					return toldGroup(ctx, a, args[0], args[1], err)
				}
				if len(groups.GetGroups()) == 0 {
					return noGroup(ctx, a, args[0], args[1])
				}
				lags, err := a.GroupLag(ctx, &wire.GroupLagRequest{Topic: args[0], Group: args[1]})
				if err != nil {
					return err
				}
				return printGroup(cmd.OutOrStdout(), output, mergeGroups(groups.GetGroups())[0], lags.GetPartitions(), time.Now())
			})
		},
	}
	c.flags(cmd.Flags())
	outputFlag(cmd, &output)
	return cmd
}

func printGroup(w io.Writer, output string, g *wire.GroupSummary, lags []*wire.GroupPartition, now time.Time) error {
	l := listLags(g.Topic, g.Group, lags, now)
	d := groupDescription{groupOf(g), l.data.([]lagInfo)}
	l.data = d
	if output == "table" {
		var b strings.Builder
		fmt.Fprintf(&b, "group       %s on %s, %s\n", g.Group, g.Topic, modeOf(g.Policy))
		fmt.Fprintf(&b, "lag         %s; %d leased to %s, %s\n", counted(g.Lag, "message"), g.Leased, counted(g.Members, "member"), waiting(g.Waiting))
		fmt.Fprintf(&b, "active      %s", ago(g.ActiveNs, now))
		if g.Abandoned {
			b.WriteString("; abandoned: it holds no message any more")
		}
		b.WriteString("\n")
		if r := d.LastReset; r != nil {
			fmt.Fprintf(&b, "last reset  %s by %s", ago(g.LastReset.TimeNs, now), r.Who)
			if r.Reason != "" {
				fmt.Fprintf(&b, ": %s", r.Reason)
			}
			b.WriteString("\n")
		}
		b.WriteString("\n")
		if _, err := io.WriteString(w, b.String()); err != nil {
			return err
		}
	}
	return printListing(w, output, l)
}

// waiting is how many fetches wait.
func waiting(n uint32) string {
	if n == 1 {
		return "1 fetch waits"
	}
	return fmt.Sprintf("%d fetches wait", n)
}

// lagInfo is the stable form of where a group stands in a partition.
type lagInfo struct {
	Group       string     `json:"group"`
	Topic       string     `json:"topic"`
	BrokerGroup string     `json:"brokerGroup,omitempty"`
	Partition   uint32     `json:"partition"`
	Lag         uint64     `json:"lag"`
	AckOffset   uint64     `json:"ackOffset"`
	Consumed    uint64     `json:"consumedAbove"`
	First       uint64     `json:"first"`
	End         uint64     `json:"end"`
	Leased      uint64     `json:"leased"`
	Leases      uint32     `json:"leases"`
	Member      string     `json:"member,omitempty"`
	Expired     uint64     `json:"expired"`
	AttemptsMax uint32     `json:"attemptsMax"`
	OldestAt    *time.Time `json:"oldestAt,omitempty"`
	Generation  uint32     `json:"generation"`
}

// listLags leaves out since when messages wait unless one group is named: the broker looks at the disk for that.
func listLags(topic, group string, lags []*wire.GroupPartition, now time.Time) listing {
	slices.SortStableFunc(lags, func(a, b *wire.GroupPartition) int { return strings.Compare(a.Group, b.Group) })
	l := listing{
		header: []string{"group", "broker group", "partition", "lag", "ack offset", "first", "end", "leased", "expired", "member", "waits since"},
		empty:  fmt.Sprintf("no group consumes %s yet", topic),
	}
	data := []lagInfo{}
	for _, p := range lags {
		data = append(data, lagInfo{
			p.Group, topic, p.BrokerGroup, p.Partition, p.Lag, p.AckOffset, p.Consumed, p.First, p.End, p.Leased, p.Leases, p.Member, p.Expired, p.AttemptsMax,
			momentOf(p.OldestNs), p.Generation,
		})
		l.rows = append(l.rows, []any{p.Group, p.BrokerGroup, p.Partition, p.Lag, p.AckOffset, p.First, p.End, p.Leased, p.Expired, p.Member, ago(p.OldestNs, now)})
	}
	l.data = data
	l.dropIfOne(1)
	if group == "" {
		l.dropLast()
	}
	return l
}

func groupLagCommand() *cobra.Command {
	var c connection
	var output string
	var watch bool
	var every time.Duration
	cmd := &cobra.Command{
		Use: "lag TOPIC [GROUP]", Short: "Say how far behind groups are, by partition", Args: cobra.RangeArgs(1, 2),
		Long: `Say how far behind the groups of a topic are, by partition: lag is the number of messages that the group has not consumed, expired that
of those whose lease ran out before they were acknowledged, and, of a GROUP that is named, waits since when the first of them was stored.

With --watch it is said again and again, with what changed a second, until Ctrl-C; a broker that is away is waited for.`,
		ValidArgsFunction: c.completer(topicNames, groupNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkNames(args); err != nil {
				return err
			}
			if every < 100*time.Millisecond {
				return usagef("--every is %v; give 100ms or more", every)
			}
			group := ""
			if len(args) == 2 {
				group = args[1]
			}
			if watch {
				return watchLag(cmd, &c, args[0], group, output, every)
			}
			return c.administer(cmd, "lag of "+args[0], func(ctx context.Context, a wire.Admin) error {
				lags, err := groupLags(ctx, a, args[0], group)
				if err != nil {
					return err
				}
				return printListing(cmd.OutOrStdout(), output, listLags(args[0], group, lags, time.Now()))
			})
		},
	}
	c.flags(cmd.Flags())
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "say it again and again, until Ctrl-C")
	cmd.Flags().DurationVar(&every, "every", 2*time.Second, "how often, with --watch")
	outputFlag(cmd, &output)
	return cmd
}

// groupLags names the groups that are there when the one asked for is not.
func groupLags(ctx context.Context, a wire.Admin, topic, group string) ([]*wire.GroupPartition, error) {
	r, err := a.GroupLag(ctx, &wire.GroupLagRequest{Topic: topic, Group: group})
	if err == nil && group != "" && len(r.GetPartitions()) == 0 {
		err = wire.Errorf(wire.CodeGroupNotFound, "%s", group)
	}
	if err != nil {
		return nil, toldGroup(ctx, a, topic, group, err)
	}
	return r.GetPartitions(), nil
}

// watchLag says the sum a group, and on a terminal the partitions too, until ctx ends.
func watchLag(cmd *cobra.Command, c *connection, topic, group, output string, every time.Duration) error {
	cl, err := c.dial(cmd)
	if err != nil {
		return err
	}
	defer closeClient(cl)
	ctx, w := cmd.Context(), cmd.OutOrStdout()
	away := false
	last, lastAt := map[string]lagSum{}, time.Time{}
	for {
		asking, cancel := context.WithTimeout(ctx, c.timeout)
		lags, err := groupLags(asking, cl.Operator(""), topic, group)
		cancel()
		now := time.Now()
		switch {
		case ctx.Err() != nil:
			return nil // Ctrl-C is the usual end
		case err == nil:
			away = false
			sums := sumLags(lags)
			l := listSums(topic, group, sums, last, now.Sub(lastAt), now)
			if lastAt.IsZero() {
				l = listSums(topic, group, sums, nil, 0, now)
			}
			last, lastAt = sums, now
			if output == "table" && isTerminal(w) {
				fmt.Fprintf(w, "\x1b[H\x1b[2J%s, %s, every %v; Ctrl-C ends\n\n", topic, now.Format(time.TimeOnly), every)
			}
			if err := printListing(w, output, l); err != nil {
				return err
			}
		case exitCode(err) == exitNotFound || exitCode(err) == exitUsage:
			return fmt.Errorf("lag of %s: %w", topic, err)
		case !away:
			away = true
			fmt.Fprintln(cmd.ErrOrStderr(), "jmq: waiting for the broker:", oneLine(err))
		}
		if !sleep(ctx, every) {
			return nil
		}
	}
}

// lagSum is where a group stands in all partitions together.
type lagSum struct {
	Group     string     `json:"group"`
	Topic     string     `json:"topic"`
	At        time.Time  `json:"at"`
	Lag       uint64     `json:"lag"`
	Leased    uint64     `json:"leased"`
	Expired   uint64     `json:"expired"`
	End       uint64     `json:"end"`   // of all partitions together
	Ended     uint64     `json:"ended"` // end - lag
	OldestAt  *time.Time `json:"oldestAt,omitempty"`
	InPerSec  float64    `json:"inPerSecond"`
	OutPerSec float64    `json:"outPerSecond"`
}

func sumLags(lags []*wire.GroupPartition) map[string]lagSum {
	sums := map[string]lagSum{}
	for _, p := range lags {
		s := sums[p.Group]
		s.Lag += p.Lag
		s.Leased += p.Leased
		s.Expired += p.Expired
		s.End += p.End
		if p.OldestNs != 0 && (s.OldestAt == nil || p.OldestNs < s.OldestAt.UnixNano()) {
			s.OldestAt = momentOf(p.OldestNs)
		}
		sums[p.Group] = s
	}
	for g, s := range sums {
		s.Ended = s.End - s.Lag
		sums[g] = s
	}
	return sums
}

func listSums(topic, group string, sums, last map[string]lagSum, took time.Duration, now time.Time) listing {
	l := listing{
		header: []string{"group", "at", "lag", "in/s", "out/s", "leased", "expired", "waits since"},
		empty:  fmt.Sprintf("no group consumes %s yet", topic),
	}
	data := []lagSum{}
	names := make([]string, 0, len(sums))
	for g := range sums {
		names = append(names, g)
	}
	slices.Sort(names)
	for _, g := range names {
		s := sums[g]
		s.Group, s.Topic, s.At = g, topic, now
		in, out := "-", "-"
		if before, ok := last[g]; ok && took > 0 {
			// A reset moves it back: a rate below zero says so.
			s.InPerSec, s.OutPerSec = float64(int64(s.End-before.End))/took.Seconds(), float64(int64(s.Ended-before.Ended))/took.Seconds()
			in, out = fmt.Sprintf("%.0f", s.InPerSec), fmt.Sprintf("%.0f", s.OutPerSec)
		}
		oldest := int64(0)
		if s.OldestAt != nil {
			oldest = s.OldestAt.UnixNano()
		}
		data = append(data, s)
		l.rows = append(l.rows, []any{g, now.Format(time.TimeOnly), s.Lag, in, out, s.Leased, s.Expired, ago(oldest, now)})
	}
	l.data = data
	l.dropIfOne(1)
	if group == "" {
		l.dropLast()
	}
	return l
}

// parseSeek reads where to: start, end, a time, an index, or so many messages on or back.
func parseSeek(to string, now time.Time, r *wire.SeekGroupRequest) error {
	switch {
	case to == "start":
		r.To = uint32(wire.SeekStart)
	case to == "end":
		r.To = uint32(wire.SeekEnd)
	case strings.HasPrefix(to, "+") || strings.HasPrefix(to, "-"):
		n, err := strconv.ParseInt(to, 10, 64)
		if err != nil {
			return usagef("--to %s: give a whole number of messages behind the sign, such as +100 or -100", to)
		}
		r.To, r.Shift = uint32(wire.SeekShift), n
	case to != "" && strings.Trim(to, "0123456789") == "":
		n, err := strconv.ParseUint(to, 10, 64)
		if err != nil {
			return usagef("--to %s: an index is below 2^64", to)
		}
		r.To, r.Index = uint32(wire.SeekIndex), n
	default:
		t, err := parseMoment(to, now)
		if err != nil {
			return usagef("--to %q is not start, end, an index (1234), a shift (+100, -100) or a time: %w", to, errMoment)
		}
		r.To, r.TimeNs = uint32(wire.SeekTime), t.UnixNano()
	}
	return nil
}

// seekInfo is the stable form of a group's move in a partition.
type seekInfo struct {
	Group       string `json:"group"`
	Topic       string `json:"topic"`
	BrokerGroup string `json:"brokerGroup,omitempty"`
	Partition   uint32 `json:"partition"`
	From        uint64 `json:"from"`
	To          uint64 `json:"to"`
	Again       uint64 `json:"again"`   // messages consumed before that come again, at most
	Skipped     uint64 `json:"skipped"` // messages not consumed that never come, at most
	LagFrom     uint64 `json:"lagFrom"`
	LagTo       uint64 `json:"lagTo"`
	First       uint64 `json:"first"`
	End         uint64 `json:"end"`
	Generation  uint32 `json:"generation"`
	Cut         bool   `json:"cut"`
	DryRun      bool   `json:"dryRun"`
}

func listSeek(topic, group string, dryRun bool, moved []*wire.SeekPartition) listing {
	l := listing{header: []string{"broker group", "partition", "from", "to", "again", "skipped", "lag before", "lag after", "first", "end", "note"}, empty: "no partition"}
	data := []seekInfo{}
	for _, p := range moved {
		i := seekInfo{group, topic, p.BrokerGroup, p.Partition, p.From, p.To, 0, 0, p.LagFrom, p.LagTo, p.First, p.End, p.Generation, p.Cut, dryRun}
		if p.LagTo > p.LagFrom {
			i.Again = p.LagTo - p.LagFrom
		} else {
			i.Skipped = p.LagFrom - p.LagTo
		}
		data = append(data, i)
		var notes []string
		if p.Cut {
			notes = append(notes, "cut to what is kept")
		}
		if dryRun {
			notes = append(notes, "dry run")
		}
		l.rows = append(l.rows, []any{p.BrokerGroup, p.Partition, p.From, p.To, i.Again, i.Skipped, p.LagFrom, p.LagTo, p.First, p.End, strings.Join(notes, ", ")})
	}
	l.data = data
	l.dropIfOne(0)
	return l
}

type seekOptions struct {
	connection
	confirmation
	to         string
	partitions []uint
	dryRun     bool
	reason     string
	output     string
}

func (o *seekOptions) flags(cmd *cobra.Command) {
	o.connection.flags(cmd.Flags())
	o.brokerGroupFlag(cmd, "only at this broker group of the topic")
	cmd.Flags().UintSliceVar(&o.partitions, "partition", nil, "only these partitions, by comma")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "only say what would be")
	o.confirmation.flag(cmd)
	auditFlag(cmd, &o.reason)
	outputFlag(cmd, &o.output)
	cmd.ValidArgsFunction = o.completer(topicNames, groupNames)
}

func groupSeekCommand() *cobra.Command {
	var o seekOptions
	cmd := &cobra.Command{
		Use: "seek TOPIC GROUP --to WHERE", Short: "Move where a group stands on a topic", Args: cobra.ExactArgs(2),
		Long: `Move where a group stands on a topic. --to is one of

  start       the first message kept
  end         behind the last: what is not consumed is skipped
  1234        this index
  +100, -100  so many messages on, or back, from where it stands; +0 stays, and ends the leases
  TIME        the first message stored at or after it: 2026-02-25T09:30:00Z, '2026-02-25 09:30' (this machine's zone),
              or how long ago: 15m, 2h30m, 3d

What is beyond the ends is cut to them. Leases end, consumers go on from the new place by themselves, and the journal keeps who did it and
why. Look first with --dry-run: it says for each partition how many messages come again or are skipped.`,
		Example: `  jmq group seek orders payment --to 2h --dry-run
  jmq group seek orders payment --to start --partition 0,3 --yes --reason 'wrong totals, see ticket 77'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.to == "" {
				return usagef("say where to: --to start, end, TIME, INDEX, +N or -N; usage: %s", cmd.UseLine())
			}
			return runSeek(cmd, &o, args)
		},
	}
	cmd.Flags().StringVar(&o.to, "to", "", "where to, see above (required)")
	o.flags(cmd)
	// The flag was just made, so this cannot fail.
	_ = cmd.RegisterFlagCompletionFunc("to", cobra.FixedCompletions([]string{"start", "end"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func groupResetCommand() *cobra.Command {
	o := seekOptions{to: "start"}
	cmd := &cobra.Command{
		Use: "reset TOPIC GROUP", Short: "Let a group consume a topic again from its first message", Args: cobra.ExactArgs(2),
		Long: `Let a group consume again from the first message kept: the same as jmq group seek --to start.`,
		RunE: func(cmd *cobra.Command, args []string) error { return runSeek(cmd, &o, args) },
	}
	o.flags(cmd)
	return cmd
}

func runSeek(cmd *cobra.Command, o *seekOptions, args []string) error {
	if err := checkNames(args); err != nil {
		return err
	}
	topic, group := args[0], args[1]
	r := &wire.SeekGroupRequest{Topic: topic, Group: group, Reason: o.reason}
	if err := parseSeek(o.to, time.Now(), r); err != nil {
		return err
	}
	for _, p := range o.partitions {
		if p > math.MaxUint16 {
			return usagef("--partition %d: a partition is below 65536", p)
		}
		r.Partitions = append(r.Partitions, uint32(p))
	}
	where := o.to
	if r.TimeNs != 0 {
		where = time.Unix(0, r.TimeNs).Format(time.RFC3339)
	}
	seek := func(dryRun bool, w io.Writer, output string) error {
		return o.administer(cmd, "seek group "+group, func(ctx context.Context, a wire.Admin) error {
			r.DryRun = dryRun
			answer, err := a.SeekGroup(ctx, r)
			if err != nil {
				return toldGroup(ctx, a, topic, group, err)
			}
			return printListing(w, output, listSeek(topic, group, dryRun, answer.GetPartitions()))
		})
	}
	if o.dryRun {
		return seek(true, cmd.OutOrStdout(), o.output)
	}
	if !o.yes && isTerminal(cmd.InOrStdin()) { // what it means, before the question
		if err := seek(true, cmd.ErrOrStderr(), "table"); err != nil {
			return err
		}
	}
	if err := o.ask(cmd, fmt.Sprintf("move group %s on %s to %s", group, topic, where)); err != nil {
		return err
	}
	return seek(false, cmd.OutOrStdout(), o.output)
}

func groupAlterCommand() *cobra.Command {
	var c connection
	var parallel bool
	var window uint32
	var reason, output string
	cmd := &cobra.Command{
		Use: "alter TOPIC GROUP", Short: "Change how a topic is given to a group: in order, or in parallel", Args: cobra.ExactArgs(2),
		Long: `Change how a topic is given to a group. In order (the default), one consumer at a time has messages of a partition. With --parallel up to
--window messages of a partition are with consumers at the same time, at most half of them with one, and order is not kept.`,
		Example: `  jmq group alter orders payment --parallel --window 500
  jmq group alter orders payment --parallel=false`,
		ValidArgsFunction: c.completer(topicNames, groupNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkNames(args); err != nil {
				return err
			}
			f := cmd.Flags()
			if !f.Changed("parallel") && !f.Changed("window") {
				return usagef("say what to change: --parallel, --window; usage: %s", cmd.UseLine())
			}
			if f.Changed("window") && !f.Changed("parallel") {
				parallel = true
			}
			if f.Changed("window") && !parallel {
				return usagef("--window is for --parallel")
			}
			what := "alter group " + args[1]
			return c.administer(cmd, what, func(ctx context.Context, a wire.Admin) error {
				r := &wire.AlterGroupRequest{Topic: args[0], Group: args[1], Policy: &wire.GroupPolicy{Parallel: parallel, Window: window}, Reason: reason}
				if _, err := a.AlterGroup(ctx, r); err != nil {
					return toldGroup(ctx, a, args[0], args[1], err)
				}
				groups, err := a.ListGroups(ctx, &wire.ListGroupsRequest{Topic: args[0], Group: args[1]})
				if err != nil {
					return err
				}
				return printListing(cmd.OutOrStdout(), output, listGroups(groups.GetGroups(), time.Now()))
			})
		},
	}
	c.flags(cmd.Flags())
	cmd.Flags().BoolVar(&parallel, "parallel", false, "several consumers at a time in one partition, without order")
	cmd.Flags().Uint32Var(&window, "window", 0, "messages of a partition that are with consumers at most (0: 2000)")
	auditFlag(cmd, &reason)
	outputFlag(cmd, &output)
	return cmd
}

func groupRemoveCommand() *cobra.Command {
	var c connection
	var sure confirmation
	var force bool
	var reason, output string
	cmd := &cobra.Command{
		Use: "rm TOPIC GROUP", Short: "Forget a group on a topic", Args: cobra.ExactArgs(2),
		Long: `Forget a group on a topic, as if it had never been there: where it stands, and what it holds back from retention. It is refused while
consumers of the group are there, unless --force; one that goes on makes the group anew.`,
		ValidArgsFunction: c.completer(topicNames, groupNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkNames(args); err != nil {
				return err
			}
			what := fmt.Sprintf("remove group %s from %s", args[1], args[0])
			if err := sure.ask(cmd, what); err != nil {
				return err
			}
			return c.administer(cmd, what, func(ctx context.Context, a wire.Admin) error {
				_, err := a.RemoveGroup(ctx, &wire.RemoveGroupRequest{Topic: args[0], Group: args[1], Force: force, Reason: reason})
				if err != nil {
					return toldGroup(ctx, a, args[0], args[1], err)
				}
				type removed struct {
					Group string `json:"group"`
					Topic string `json:"topic"`
				}
				return printListing(cmd.OutOrStdout(), output, listing{
					header: []string{"group", "topic", "is"}, rows: [][]any{{args[1], args[0], "removed"}}, data: removed{args[1], args[0]},
				})
			})
		},
	}
	c.flags(cmd.Flags())
	sure.flag(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "although consumers of it are there")
	auditFlag(cmd, &reason)
	outputFlag(cmd, &output)
	return cmd
}
