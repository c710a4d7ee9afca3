package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/client/admin"
	"github.com/jmqio/jmq/server/meta"
)

// replicaInfo is the stable form of what a broker says of its copy.
type replicaInfo struct {
	Role        string      `json:"role"` // master, slave, waiting, copying
	Why         string      `json:"why,omitempty"`
	NoRoom      string      `json:"noRoom,omitempty"`
	Epoch       string      `json:"epoch"` // term.start
	Begin       uint64      `json:"begin"` // positions
	End         uint64      `json:"end"`
	Synced      uint64      `json:"synced"`
	Committed   uint64      `json:"committed"`
	SeenTerm    uint32      `json:"seenTerm"`
	Refused     bool        `json:"refused,omitempty"`
	Serving     bool        `json:"serving,omitempty"` // a slave that serves reads
	Fresh       bool        `json:"fresh,omitempty"`   // its store is new
	SyncDelayMs int64       `json:"syncDelayMs,omitempty"`
	Store       string      `json:"store"`
	Boot        string      `json:"boot"`
	Slaves      []slaveInfo `json:"slaves,omitempty"` // of a master
}

type slaveInfo struct {
	Broker      string `json:"broker"`
	InSync      bool   `json:"inSync"`
	State       string `json:"state"`
	Acked       uint64 `json:"acked"`
	BehindBytes uint64 `json:"behindBytes"`
	BehindMs    int64  `json:"behindMs"`
	AckUs       int64  `json:"ackUs"`
	JoinMs      int64  `json:"joinMs,omitempty"` // it is in step, and joins after so long
}

func replicaOf(r *admin.Replica) *replicaInfo {
	if r == nil {
		return nil
	}
	i := &replicaInfo{
		Role: r.Role, Why: r.Why, NoRoom: r.NoRoom, Epoch: r.Epoch.String(), Begin: r.Begin, End: r.End, Synced: r.Synced, Committed: r.Committed, SeenTerm: r.SeenTerm, Refused: r.Refused,
		Serving: r.Serving, Fresh: r.Fresh, SyncDelayMs: r.SyncDelay.Milliseconds(), Store: r.Store, Boot: r.Boot,
	}
	for _, s := range r.Slaves {
		i.Slaves = append(i.Slaves, slaveInfo{s.Broker, s.InSync, s.State, s.Acked, s.Behind, s.Lag.Milliseconds(), s.Ack.Microseconds(), s.Join.Milliseconds()})
	}
	return i
}

// silentMax is how long a broker may be silent before its copy is only what it was: as long as the registry waits before it promotes another.
const silentMax = 3 * time.Second

// copyText is a broker's copy in a table.
func copyText(n admin.Node) string {
	switch r := n.Replica; {
	case r == nil || r.Role == "":
		return "-"
	case n.Away || n.Silent >= silentMax:
		return "was " + r.Role
	case r.Refused:
		return r.Role + ", refused"
	case r.Serving:
		return r.Role + ", serving"
	default:
		return r.Role
	}
}

// because is why a copy is as it is.
func because(r *admin.Replica) string {
	if r.NoRoom == "" || r.Why == "" {
		return r.NoRoom + r.Why
	}
	return r.NoRoom + "; " + r.Why
}

// brokerGroupInfo is the stable form of how a broker group is.
type brokerGroupInfo struct {
	Name      string     `json:"name"`
	Mode      string     `json:"mode"`
	State     string     `json:"state"`
	Condition string     `json:"condition"` // ok, degraded, full, silent, no-master, waiting, refused; with why, and since when
	Term      uint32     `json:"term"`
	Master    string     `json:"master,omitempty"`
	Forced    bool       `json:"forced,omitempty"`
	InSync    []string   `json:"inSync"`
	Transfer  string     `json:"transfer,omitempty"`
	Brokers   []nodeInfo `json:"brokers"` // the master first
}

func brokerGroupOf(g admin.BrokerGroup) brokerGroupInfo {
	i := brokerGroupInfo{
		Name: g.Name, Mode: g.Mode, State: g.State, Condition: g.Condition, Term: g.Row.Term, Master: g.Row.Master, Forced: g.Row.Forced, InSync: inSync(g),
		Transfer: g.Row.Transfer, Brokers: []nodeInfo{},
	}
	for _, n := range g.Brokers {
		i.Brokers = append(i.Brokers, nodeOf(n))
	}
	return i
}

// inSync are the slaves in sync as the master says, or, while it says nothing, as the registry heard last.
func inSync(g admin.BrokerGroup) []string {
	for _, n := range g.Brokers {
		if n.Name == g.Row.Master && !n.Away && n.Replica != nil && n.Replica.Role == "master" {
			set := []string{}
			for _, s := range n.Replica.Slaves {
				if s.InSync {
					set = append(set, s.Broker)
				}
			}
			return set
		}
	}
	return append([]string{}, g.Row.InSync...)
}

func listBrokerGroups(groups []admin.BrokerGroup) listing {
	l := listing{
		header: []string{"name", "mode", "state", "term", "master", "in sync", "brokers", "condition"},
		empty:  "there is no broker group: the first broker makes one",
	}
	data := []brokerGroupInfo{}
	for _, g := range groups {
		i := brokerGroupOf(g)
		data = append(data, i)
		master := orText(i.Master, "-")
		if i.Transfer != "" {
			master += " -> " + i.Transfer
		}
		l.rows = append(l.rows, []any{i.Name, i.Mode, i.State, i.Term, master, orText(names(i.InSync), "-"), len(i.Brokers), i.Condition})
	}
	l.data = data
	return l
}

// listCopies are the brokers of one broker group.
func listCopies(g admin.BrokerGroup) listing {
	l := listing{
		header: []string{"broker", "copy", "state", "in sync", "epoch", "committed", "end", "behind", "ack", "silent", "why"},
		empty:  "broker group " + g.Name + " has no broker",
	}
	slaves := map[string]admin.SlaveState{}
	for _, n := range g.Brokers {
		if n.Name == g.Row.Master && !n.Away && n.Replica != nil {
			for _, s := range n.Replica.Slaves {
				slaves[s.Broker] = s
			}
		}
	}
	for _, n := range g.Brokers {
		i := nodeOf(n)
		row := []any{n.Name, copyText(n), orText(i.State, "-"), "-", "-", "-", "-", "-", "-", n.Silent.Round(100 * time.Millisecond), ""}
		if r := n.Replica; r != nil {
			row[4], row[5], row[6], row[10] = r.Epoch, r.Committed, r.End, because(r)
		}
		if s, ok := slaves[n.Name]; ok {
			row[3], row[7], row[8] = yesText(s.InSync), fmt.Sprintf("%s, %v", formatSize(int64(s.Behind)), s.Lag.Round(time.Millisecond)), s.Ack
			switch {
			case s.InSync:
			case n.Replica != nil && n.Replica.NoRoom != "" && !n.Away: // it backs off, and its master takes it as away meanwhile
				row[3] = "no room"
			case s.Join > 0:
				row[3] = "joins in " + (s.Join + time.Second - 1).Truncate(time.Second).String()
			case s.State != "":
				row[3] = s.State
			}
			if s.State == "refused" {
				row[7] = "-"
			}
		}
		l.rows = append(l.rows, row)
	}
	return l
}

// printBrokerGroups prints how broker groups are; of one that was named its brokers too.
func printBrokerGroups(w io.Writer, output string, groups []admin.BrokerGroup, named bool) error {
	if err := printListing(w, output, listBrokerGroups(groups)); err != nil || output != "table" || !named || len(groups) != 1 {
		return err
	}
	fmt.Fprintln(w)
	return printListing(w, output, listCopies(groups[0]))
}

func brokerGroupCommands() []*cobra.Command {
	return []*cobra.Command{brokerGroupStatusCommand(), brokerGroupPromoteCommand(), brokerGroupTransferCommand(), brokerGroupDrainCommand(), brokerGroupActivateCommand()}
}

func brokerGroupStatusCommand() *cobra.Command {
	var c connection
	var output string
	var watch bool
	var every time.Duration
	cmd := &cobra.Command{
		Use: "status [NAME]", Short: "Say who is master, which slaves are in sync, and what is wrong", Args: cobra.MaximumNArgs(1),
		Long: `Say who is master, which slaves are in sync, and what is wrong: all broker groups, one a line, or one with its brokers.

Conditions: ok; degraded, it goes on with fewer copies than it has brokers; full, its
master takes no messages, for its disk is full; silent, its master was not heard for a while; no-master, its master is away or failed: nothing is sent to it, and a
slave gives what is there; waiting, its master lives and does not serve yet; refused, a broker would have to give up what it knows to be committed, and an
operator must look.

With --watch it is said again and again, until Ctrl-C; a registry that is away is waited for.`,
		Example:           "  jmq broker-group status\n  jmq broker-group status b1 --watch",
		ValidArgsFunction: c.completer(objectNames(meta.KindBrokerGroup)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := brokerGroupArg(args)
			if err != nil {
				return err
			}
			if every < 100*time.Millisecond {
				return usagef("--every is %v; give 100ms or more", every)
			}
			if watch {
				return watchBrokerGroups(cmd, &c, name, output, every)
			}
			return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
				groups, err := a.BrokerGroups(ctx, name)
				if err != nil {
					return err
				}
				return printBrokerGroups(cmd.OutOrStdout(), output, groups, name != "")
			})
		},
	}
	c.flags(cmd.Flags())
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "say it again and again, until Ctrl-C")
	cmd.Flags().DurationVar(&every, "every", 2*time.Second, "how often, with --watch")
	outputFlag(cmd, &output)
	return cmd
}

// brokerGroupArg is the name of a broker group on the command line, "": none.
func brokerGroupArg(args []string) (string, error) {
	if len(args) == 0 {
		return "", nil
	}
	_, err := keyOf(meta.KindBrokerGroup, "", args[0])
	return args[0], err
}

// joinsIn counts down: that is no news.
var joinsIn = regexp.MustCompile(`joins in [0-9hms]+`)

// watchBrokerGroups says it until ctx ends: on a terminal in place, elsewhere whenever something is another than before.
func watchBrokerGroups(cmd *cobra.Command, c *connection, name, output string, every time.Duration) error {
	cl, err := c.dial(cmd, client.WithApp(appOfThisUser()))
	if err != nil {
		return err
	}
	defer closeClient(cl)
	ctx, w, a := cmd.Context(), cmd.OutOrStdout(), admin.New(cl)
	away, last := false, ""
	for {
		asking, cancel := context.WithTimeout(ctx, c.timeout)
		groups, err := a.BrokerGroups(asking, name)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil // Ctrl-C is the usual end
		case err == nil:
			away = false
			if output == "table" && isTerminal(w) {
				fmt.Fprintf(w, "\x1b[H\x1b[2J%s, every %v; Ctrl-C ends\n\n", time.Now().Format(time.TimeOnly), every)
			} else if now := joinsIn.ReplaceAllString(fmt.Sprint(listBrokerGroups(groups).rows), ""); now == last {
				break
			} else {
				last = now
			}
			if err := printBrokerGroups(w, output, groups, name != ""); err != nil {
				return err
			}
		case exitCode(err) == exitNotFound || exitCode(err) == exitUsage || exitCode(err) == exitDenied:
			return err
		case !away:
			away = true
			fmt.Fprintln(cmd.ErrOrStderr(), "jmq: waiting for the registry:", oneLine(err))
		}
		if !sleep(ctx, every) {
			return nil
		}
	}
}

// operation is what the commands that do something to a broker group share.
type operation struct {
	c        connection
	changing changing
	o        admin.Operation
}

// operationWithin is how long the registry may take: a transfer waits until the other broker is master, a promotion for everybody's promise.
const operationWithin = time.Minute

func (x *operation) flags(cmd *cobra.Command) {
	x.c.flags(cmd.Flags())
	x.changing.flags(cmd)
	cmd.Args = cobra.ExactArgs(1)
	cmd.ValidArgsFunction = x.c.completer(objectNames(meta.KindBrokerGroup))
}

func (x *operation) brokerFlag(cmd *cobra.Command, help string) {
	cmd.Flags().StringVar(&x.o.Broker, "to", "", help)
	_ = cmd.RegisterFlagCompletionFunc("to", x.c.flagCompleter(objectNames(meta.KindBroker))) // the flag was just made
}

// run connects and does it.
func (x *operation) run(cmd *cobra.Command, args []string, f func(ctx context.Context, a *admin.Admin) error) error {
	name, err := brokerGroupArg(args)
	if err != nil {
		return err
	}
	for _, b := range append([]string{x.o.Broker}, x.o.Off...) {
		if b != "" {
			if _, err := keyOf(meta.KindBroker, "", b); err != nil {
				return err
			}
		}
	}
	x.o.BrokerGroup, x.o.DryRun, x.o.Reason = name, x.changing.dryRun, x.changing.reason
	cl, err := x.c.dial(cmd, client.WithApp(appOfThisUser()), client.WithConns(1))
	if err != nil {
		return err
	}
	defer closeClient(cl)
	ctx, cancel := context.WithTimeout(cmd.Context(), operationWithin)
	defer cancel()
	err = f(ctx, admin.New(cl))
	if errors.Is(err, client.ErrUnknown) {
		var meanwhile string
		switch x.o.Action {
		case admin.Transfer:
			meanwhile = " A master that hands over waits for its answer, and nobody serves the broker group meanwhile, since two would:"
		case admin.Promote:
			meanwhile = " The broker group may be without a master meanwhile:"
		}
		return fmt.Errorf("%s of broker group %s: the registry did not answer, so it may have been done or not.%s bring a registry node back, and look: jmq broker-group status %[2]s", x.o.Action, name, meanwhile)
	}
	if errors.Is(err, client.ErrDisconnected) {
		err = fmt.Errorf("%w; no registry node answers: messages go on, nothing can be changed", err)
	}
	return err
}

// outcomeInfo is the stable form of what was done, or would be.
type outcomeInfo struct {
	Done   bool              `json:"done"`
	Lost   []string          `json:"lost,omitempty"`
	Left   []string          `json:"left,omitempty"`
	Groups []brokerGroupInfo `json:"groups"`
}

func (x *operation) print(cmd *cobra.Command, r *admin.Outcome) error {
	l := listBrokerGroups(r.Groups)
	l.data = outcomeInfo{r.Done, r.Lost, r.Left, l.data.([]brokerGroupInfo)}
	if err := printListing(cmd.OutOrStdout(), x.changing.output, l); err != nil {
		return err
	}
	if len(r.Groups) != 1 || !r.Done || x.o.DryRun || x.o.Action != admin.Promote && x.o.Action != admin.Transfer {
		return nil
	}
	master := r.Groups[0].Row.Master
	if r.Took == 0 {
		return fmt.Errorf("broker %s was named master, and is not heard to serve yet: jmq broker-group status %s says why", master, r.Groups[0].Name)
	}
	x.say(cmd, "done", []string{fmt.Sprintf("broker %s serves as master, as was heard %v after the command began; the pause is a part of that", master, r.Took.Round(time.Millisecond))})
	return nil
}

// say prints lines for people, where the output is for people.
func (x *operation) say(cmd *cobra.Command, what string, lines []string) {
	if x.changing.output != "table" {
		return
	}
	for _, l := range lines {
		fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", what, l)
	}
}

func brokerGroupPromoteCommand() *cobra.Command {
	var x operation
	var sure confirmation
	cmd := &cobra.Command{
		Use: "promote NAME", Short: "Name another master, when the one that is will not come back",
		Long: `Name another master, when the one that is will not come back in time. Every other broker of the broker group promises first to do nothing for the old
master any more, or you say that it is off (--off): if it still runs, and takes messages, they are lost.

What only the old master has is lost with it. It is said before anything is done, and needs --force. While the master lives, jmq broker-group transfer loses
nothing. After a new generation of the metadata this names a master without the brokers that are said to be off.`,
		Example: "  jmq broker-group promote b1 --dry-run\n  jmq broker-group promote b1 --to b1-2 --off b1-1 --force",
	}
	x.flags(cmd)
	x.brokerFlag(cmd, "broker that becomes master (default: the one that has most)")
	sure.flag(cmd)
	cmd.Flags().StringSliceVar(&x.o.Off, "off", nil, "broker that is known to be off, and will not run again before it sees who is master; again for several")
	_ = cmd.RegisterFlagCompletionFunc("off", x.c.flagCompleter(objectNames(meta.KindBroker))) // the flag was just made
	cmd.Flags().BoolVar(&x.o.Force, "force", false, "do it though messages may be lost")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		x.o.Action = admin.Promote
		return x.run(cmd, args, func(ctx context.Context, a *admin.Admin) error {
			dry := x.o
			dry.DryRun = true
			would, err := a.Operate(ctx, dry)
			if err != nil {
				return err
			}
			x.say(cmd, "may be lost", would.Lost)
			if x.o.DryRun {
				if len(would.Lost) == 0 {
					x.say(cmd, "nothing is lost", []string{"no other broker has more, and all answer"})
				}
				return x.print(cmd, would)
			}
			if len(would.Lost) > 0 && !x.o.Force {
				return errors.New("nothing was changed: messages may be lost, as said above; wait for the master, or accept it with --force")
			}
			if err := sure.ask(cmd, fmt.Sprintf("name %s master of broker group %s, and have no other broker act as it", orText(x.o.Broker, "the broker that has most"), x.o.BrokerGroup)); err != nil {
				return err
			}
			r, err := a.Operate(ctx, x.o)
			if err != nil {
				return err
			}
			if !r.Done {
				x.say(cmd, "may be lost", r.Lost)
				return errors.New("no other master was named, for more became known meanwhile that may be lost: the broker group goes on with the master it had, which was named anew; jmq broker-group transfer loses nothing while that lives, or accept the loss with --force")
			}
			return x.print(cmd, r)
		})
	}
	return cmd
}

func brokerGroupTransferCommand() *cobra.Command {
	var x operation
	cmd := &cobra.Command{
		Use: "transfer NAME", Short: "Have the master hand over to a slave in sync: nothing is lost, and no send fails",
		Long: `Have the master hand over to a slave in sync, before its machine is stopped: it takes no more messages for a moment, in which they go to other broker
groups, waits until the slave has everything, and becomes its slave. It is waited for, half a minute at most; else the master goes on. It says after which time the
slave was heard to serve. A registry that goes away in between is waited for: until it says who was named nobody serves the broker group, since two could.`,
		Example: "  jmq broker-group transfer b1\n  jmq broker-group transfer b1 --to b1-2",
	}
	x.flags(cmd)
	x.brokerFlag(cmd, "slave that becomes master (default: the one in sync that is least behind)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		x.o.Action = admin.Transfer
		return x.run(cmd, args, func(ctx context.Context, a *admin.Admin) error {
			r, err := a.Operate(ctx, x.o)
			if err != nil {
				return err
			}
			return x.print(cmd, r)
		})
	}
	return cmd
}

var drainEvery = 2 * time.Second // that drain --wait asks; shorter in a test

func brokerGroupDrainCommand() *cobra.Command {
	var x operation
	var wait bool
	cmd := &cobra.Command{
		Use: "drain NAME", Short: "Take no more messages, and say what is left to be consumed",
		Long: `Take no more messages, and say what is left to be consumed. When nothing is left, topics can leave the broker group, and then it can be deleted.
With --wait it is asked again until then. It is undone by jmq broker-group activate.`,
		Example: "  jmq broker-group drain b1 --wait",
	}
	x.flags(cmd)
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until nothing is left, or Ctrl-C")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		x.o.Action = admin.Drain
		w := cmd.ErrOrStderr()
		last := ""
		for {
			done := false
			err := x.run(cmd, args, func(ctx context.Context, a *admin.Admin) error {
				r, err := a.Operate(ctx, x.o)
				if err != nil {
					return err
				}
				if done = r.Done || x.o.DryRun || !wait || len(r.Left) == 0; !done {
					line := fmt.Sprintf("%d left: %s", len(r.Left), r.Left[0])
					switch {
					case isTerminal(w):
						fmt.Fprint(w, "\r\x1b[K", line)
					case line != last:
						fmt.Fprintln(w, line)
					}
					last = line
					return nil
				}
				if last != "" && isTerminal(w) {
					fmt.Fprint(w, "\r\x1b[K")
				}
				if err := x.print(cmd, r); err != nil {
					return err
				}
				x.say(cmd, "left", r.Left)
				if len(r.Left) == 0 {
					return x.next(ctx, cmd, a)
				}
				return nil
			})
			if err != nil || done {
				return err
			}
			if !sleep(cmd.Context(), drainEvery) {
				return errors.New("it takes no more messages, and something is left: say it again to wait, or undo it by jmq broker-group activate " + args[0])
			}
		}
	}
	return cmd
}

// next says what is done with a broker group in which nothing is left.
func (x *operation) next(ctx context.Context, cmd *cobra.Command, a *admin.Admin) error {
	topics, err := a.List(ctx, admin.Query{Kind: string(meta.KindTopic)})
	if err != nil {
		return err
	}
	var lines []string
	for _, o := range topics {
		s, err := specOf(o)
		if err != nil {
			return err
		}
		t := s.(*meta.Topic)
		if !slices.Contains(t.BrokerGroups, x.o.BrokerGroup) {
			continue
		}
		rest := slices.DeleteFunc(slices.Clone(t.BrokerGroups), func(g string) bool { return g == x.o.BrokerGroup })
		line := "jmq topic alter " + o.Name + " --broker-groups " + strings.Join(rest, ",")
		if o.Namespace != admin.NamespaceDefault {
			line += " --namespace " + o.Namespace
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		lines = []string{"stop its brokers, jmq broker rm them, then jmq broker-group rm " + x.o.BrokerGroup}
	}
	x.say(cmd, "nothing is left; next", lines)
	return nil
}

func brokerGroupActivateCommand() *cobra.Command {
	var x operation
	cmd := &cobra.Command{Use: "activate NAME", Short: "Take messages again, after drain"}
	x.flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		x.o.Action = admin.Activate
		return x.run(cmd, args, func(ctx context.Context, a *admin.Admin) error {
			r, err := a.Operate(ctx, x.o)
			if err != nil {
				return err
			}
			return x.print(cmd, r)
		})
	}
	return cmd
}
