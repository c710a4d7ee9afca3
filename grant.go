package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/client/admin"
	"github.com/jmqio/jmq/server/meta"
)

// topicGrantCommand gives an app the right to use a topic, or takes it away.
func topicGrantCommand(grant bool) *cobra.Command {
	var c connection
	var change changing
	var sure confirmation
	var app, group, namespace string
	var produce, consume bool
	cmd := &cobra.Command{
		Use: "grant TOPIC --app APP", Short: "Let an app produce to a topic, or consume it", Args: cobra.ExactArgs(1),
		Long: `Let an app produce to a topic, consume it, or both. It consumes as a group of its own name, and of names below it (payment.audit): --group
names one that shall have settings of its own.

What is granted is an object, which also has the settings of the app's clients: producer TOPIC/APP, consumer TOPIC/GROUP (see jmq get).`,
		Example: `  jmq topic grant orders --app shop --produce
  jmq topic grant orders --app payment --consume`,
	}
	if !grant {
		cmd.Use, cmd.Short = "revoke TOPIC --app APP", "Take the right to use a topic away"
		cmd.Long = `Take the right to use a topic away from an app, with the settings that it had there. It is in force within seconds: what the app waits for
is answered, what it sends is refused.`
		cmd.Example = "  jmq topic revoke orders --app shop --produce"
	}
	cmd.ValidArgsFunction = c.completer(topicNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case app == "":
			return usagef("say which app: --app")
		case !produce && !consume:
			return usagef("say what: --produce, --consume, or both")
		case group != "" && !consume:
			return usagef("--group is of --consume")
		}
		var keys []admin.Key
		add := func(kind meta.Kind, who string) error {
			k, err := keyOf(kind, namespace, args[0]+"/"+who)
			keys = append(keys, k)
			return err
		}
		if produce {
			if err := add(meta.KindProducer, app); err != nil {
				return err
			}
		}
		if consume {
			if group = orText(group, app); meta.AppOf(group) != app {
				return usagef("--group %s is not of app %s: a group is the app itself, or %s.SOMETHING", group, app, app)
			}
			if err := add(meta.KindConsumer, group); err != nil {
				return err
			}
		}
		var texts []string
		for _, k := range keys {
			texts = append(texts, k.String())
		}
		if !grant && !change.dryRun {
			if err := sure.ask(cmd, "delete "+strings.Join(texts, " and ")); err != nil {
				return err
			}
		}
		return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
			var writes []admin.Write
			var same []admin.Changed
			for _, k := range keys {
				o, err := a.Get(ctx, k)
				switch {
				case err != nil && exitCode(err) != exitNotFound, err != nil && !grant:
					return err
				case err != nil:
					writes = append(writes, admin.Write{Key: k, Spec: []byte("{}"), Expect: admin.Absent})
				case grant: // with the settings that it has
					same = append(same, admin.Changed{Change: "unchanged", Before: o, After: o})
				default:
					writes = append(writes, admin.Write{Key: k, Expect: admin.Revision(o.Revision)})
				}
			}
			r := &admin.Result{}
			if len(writes) > 0 {
				var err error
				if r, err = change.apply(ctx, cmd, a, writes...); err != nil {
					return err
				}
			}
			return printChanges(cmd.OutOrStdout(), change.output, append(r.Changes, same...), change.dryRun)
		})
	}
	c.flags(cmd.Flags())
	cmd.Flags().StringVar(&app, "app", "", "the app")
	cmd.Flags().BoolVar(&produce, "produce", false, "to produce")
	cmd.Flags().BoolVar(&consume, "consume", false, "to consume")
	cmd.Flags().StringVar(&group, "group", "", "consume as this group (default: that of the app's name)")
	cmd.Flags().StringVar(&namespace, "namespace", "", "namespace of topic and app (default: "+admin.NamespaceDefault+")")
	_ = cmd.RegisterFlagCompletionFunc("app", c.flagCompleter(objectNames(meta.KindApp))) // the flag was just made
	if !grant {
		sure.flag(cmd)
	}
	change.flags(cmd)
	return cmd
}

// sameTopic says whether a topic that is there is as spec wants it: making it again is no error then.
func sameTopic(ctx context.Context, a *admin.Admin, key admin.Key, spec map[string]any) (*admin.Object, bool) {
	o, err := a.Get(ctx, key)
	if err != nil {
		return nil, false
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return nil, false
	}
	r, err := a.Apply(ctx, admin.Change{Writes: []admin.Write{{Key: key, Spec: b, Expect: admin.Revision(o.Revision)}}, DryRun: true})
	return o, err == nil && r.Changes[0].Change == "unchanged"
}

// createTopicAtRegistry makes a topic with what only a registry knows.
func createTopicAtRegistry(ctx context.Context, cmd *cobra.Command, a *admin.Admin, output, name string, spec map[string]any) error {
	key, err := keyOf(meta.KindTopic, "", name)
	if err != nil {
		return err
	}
	change := changing{output: output}
	r, err := change.create(ctx, cmd, a, key, spec)
	if errors.Is(err, client.ErrExists) {
		if o, same := sameTopic(ctx, a, key, spec); same {
			return printObjects(cmd.OutOrStdout(), output, meta.KindTopic, o)
		}
	}
	if err != nil {
		return fmt.Errorf("create topic %s: %w", name, err)
	}
	return change.print(cmd, meta.KindTopic, r)
}
