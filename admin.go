package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/client/admin"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// administer connects and calls f with what operators may ask of the brokers, within the connection's timeout. Errors say what was
// tried, and whether it may have been done.
func (c *connection) administer(cmd *cobra.Command, what string, f func(context.Context, wire.Admin) error) error {
	return c.call(cmd, func(ctx context.Context, cl *client.Client) error {
		err := f(ctx, cl.Operator(c.brokerGroup))
		_, ours := errors.AsType[*codedError](err)
		switch {
		case err == nil && c.settles:
			settle(ctx, cmd, admin.New(cl), 0)
			return nil
		case err == nil || ours:
			return err
		case errors.Is(err, client.ErrUnknown):
			return fmt.Errorf("%s: %w: it may have been done; look before you try again", what, err)
		}
		return fmt.Errorf("%s: %w", what, err)
	}, client.WithApp(appOfThisUser()))
}

// sleep is false when ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// auditFlag is the flag of every command that the journal keeps a note of.
func auditFlag(cmd *cobra.Command, reason *string) {
	cmd.Flags().StringVar(reason, "reason", "", "why, for those who read the journal later")
}

// appOfThisUser is who the broker notes to have done it, beside the address.
func appOfThisUser() string {
	if u, err := user.Current(); err == nil && wire.CheckApp("cli-"+u.Username) == nil {
		return "cli-" + u.Username
	}
	return "cli"
}

// Completion asks the broker for names. It is quick, and where no broker answers there are none: nothing is said, since
// that would stand in the middle of what a person types.

const completeWithin = 500 * time.Millisecond

// nameSource asks for names; before are the arguments that stand already.
type nameSource func(ctx context.Context, cl *client.Client, before []string) ([]string, error)

// completer returns a completion of a command's arguments: the nth one is named by the nth of names.
func (c *connection) completer(names ...nameSource) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, partial string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= len(names) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.flagCompleter(names[len(args)])(cmd, args, partial)
	}
}

// flagCompleter returns a completion of a flag of a command whose first argument is a topic.
func (c *connection) flagCompleter(names nameSource) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		const none = cobra.ShellCompDirectiveNoFileComp
		ctx, cancel := context.WithTimeout(context.Background(), completeWithin)
		defer cancel()
		p, err := c.where()
		if err != nil {
			return nil, none
		}
		options, err := p.options()
		if err != nil {
			return nil, none
		}
		cl, err := client.Dial(ctx, p.address, append(options, client.WithConns(1))...)
		if err != nil {
			return nil, none
		}
		defer closeClient(cl)
		found, err := names(ctx, cl, args)
		if err != nil {
			return nil, none
		}
		return found, none
	}
}

func topicNames(ctx context.Context, cl *client.Client, _ []string) ([]string, error) {
	r, err := cl.Cluster().ListTopics(ctx, &wire.ListTopicsRequest{})
	var names []string
	for _, t := range r.GetTopics() {
		names = append(names, t.Name)
	}
	return names, err
}

// groupNames are those of the topic before them.
func groupNames(ctx context.Context, cl *client.Client, before []string) ([]string, error) {
	r, err := cl.Cluster().ListGroups(ctx, &wire.ListGroupsRequest{Topic: slices.Concat(before, []string{""})[0]})
	var names []string
	for _, g := range r.GetGroups() {
		if !slices.Contains(names, g.Group) {
			names = append(names, g.Group)
		}
	}
	return names, err
}

// objectNames are those of a kind's objects.
func objectNames(k meta.Kind) nameSource {
	return func(ctx context.Context, cl *client.Client, _ []string) ([]string, error) {
		objects, err := admin.New(cl).List(ctx, admin.Query{Kind: string(k)})
		var names []string
		for _, o := range objects {
			names = append(names, o.Name)
		}
		return names, err
	}
}
