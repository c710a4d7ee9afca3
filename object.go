package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/client/admin"
	"github.com/jmqio/jmq/server/meta"
)

// kindCommands is what the commands of a kind of objects are made of: the table below has one a kind.
type kindCommands struct {
	kind   meta.Kind
	short  string
	long   string
	header []string // after the name
	row    func(s meta.Spec) []any
	fields []field
	// without: verbs that it has not, or of its own.
	without []string
	// related finds what describe shows beside the object; nil: nothing.
	related func(ctx context.Context, a *admin.Admin, k admin.Key) ([]*admin.Object, error)
}

// field is a field of a spec as a flag of create and alter.
type field struct {
	flag string
	path string // in the spec, as limit.messagesPerSecond
	kind fieldKind
	help string
	// initially is what create takes where the flag is not given.
	initially string
}

type fieldKind uint8

const (
	fieldText fieldKind = iota
	fieldNumber
	fieldSize // bytes
	fieldList // the flag again, or commas
	fieldYes
)

var limitFields = []field{
	{"limit-messages", "limit.messagesPerSecond", fieldNumber, "most messages a second, of sending and of consuming each, at one broker; 0: no limit", ""},
	{"limit-bytes", "limit.bytesPerSecond", fieldSize, "the same in bytes: 10MiB", ""},
}

var (
	limitConnections = field{"limit-connections", "limit.connections", fieldNumber, "most connections to one node; 0: no limit", ""}
	fieldDescription = field{"description", "description", fieldText, "what it is for", ""}
	fieldLabels      = field{"label", "labels", fieldList, "label as name=value; again for several", ""}
)

// topicFields are those of a topic that only a registry knows.
var topicFields = slices.Concat([]field{
	{"broker-groups", "brokerGroups", fieldList, "broker groups that hold it: b1,b2,b3 (default: up to three are chosen)", ""},
	{"owner", "owner", fieldText, "app whose owners may grant rights on it", ""},
	{"durability", "durability", fieldText, "normal, or replicated: a send is ok only when two machines have it", ""},
	{"order-key-away", "orderKeyAway", fieldText, "order keys whose broker group is away: wait for it, or move to another one", ""},
	fieldDescription, fieldLabels,
}, limitFields)

var kindTable = []kindCommands{
	{
		kind: meta.KindApp, short: "Applications: who sends and consumes, their owners and limits",
		long: `An app is what sends and consumes: it proves who it is by a credential (jmq credential create --app NAME), and may use the topics that it
was granted (jmq topic grant). Its owners, who are users, may change it and make its credentials.`,
		header: []string{"owners", "members", "limit", "state", "description"},
		row: func(s meta.Spec) []any {
			a := s.(*meta.App)
			return []any{names(a.Owners), names(a.Members), limitText(a.Limit), disabledText(a.Disabled), a.Description}
		},
		fields: slices.Concat([]field{
			fieldDescription,
			{"owner", "owners", fieldList, "user who owns it; again for several", ""},
			{"member", "members", fieldList, "user who belongs to it; again for several", ""},
			{"disabled", "disabled", fieldYes, "its credentials count for nothing", ""},
			fieldLabels, limitConnections,
		}, limitFields),
		related: relatedToApp,
	},
	{
		kind: meta.KindUser, short: "Users: people, and what each may do",
		long: `Users are people who operate. Roles: user (own apps only), viewer (sees everything but the audit), auditor (sees everything), operator (changes
topics, apps, subscriptions, groups, broker groups), admin (everything).`,
		header: []string{"role", "state", "email", "display name"},
		row: func(s meta.Spec) []any {
			u := s.(*meta.User)
			return []any{u.Role, disabledText(u.Disabled), u.Email, u.DisplayName}
		},
		fields: []field{
			{"role", "role", fieldText, "user, viewer, auditor, operator or admin", string(meta.RoleUser)},
			{"display-name", "displayName", fieldText, "name for people", ""},
			{"email", "email", fieldText, "address of mail", ""},
			{"disabled", "disabled", fieldYes, "may do nothing", ""},
		},
		related: relatedToUser,
	},
	{
		kind: meta.KindBrokerGroup, short: "Broker groups: their masters and slaves, which take part, and how they are",
		long: `A broker group is one master and its slaves, and is made by its first broker. Its state says whether topics on it take messages: active, read-only,
draining. Its mode says who names another master: fixed, only an operator (jmq broker-group promote, transfer); auto, the registry too, when the master dies and
a slave has everything.`,
		header: []string{"mode", "state", "data center", "labels", "description"},
		row: func(s meta.Spec) []any {
			g := s.(*meta.BrokerGroup)
			return []any{orText(g.Mode, meta.BrokerGroupFixed), orText(g.State, meta.BrokerGroupActive), g.DataCenter, names(g.Labels), g.Description}
		},
		fields: []field{
			fieldDescription,
			{"mode", "mode", fieldText, "fixed: only an operator names another master; auto: a complete slave is promoted when the master dies", ""},
			{"state", "state", fieldText, "active, read-only or draining", ""},
			{"data-center", "dataCenter", fieldText, "data center that it stands in", ""},
			fieldLabels,
		},
	},
	{
		kind: meta.KindNamespace, short: "Namespaces: tenants with names, quotas and limits of their own",
		header: []string{"topics max", "apps max", "limit", "description"},
		row: func(s meta.Spec) []any {
			n := s.(*meta.Namespace)
			return []any{maxText(n.TopicsMax), maxText(n.AppsMax), limitText(n.Limit), n.Description}
		},
		fields: slices.Concat([]field{
			fieldDescription,
			{"topics-max", "topicsMax", fieldNumber, "most topics; 0: no limit", ""},
			{"apps-max", "appsMax", fieldNumber, "most apps; 0: no limit", ""},
			limitConnections,
		}, limitFields),
	},
	{
		kind: meta.KindDataCenter, short: "Data centers: which addresses lie in which",
		header: []string{"networks", "description"},
		row: func(s meta.Spec) []any {
			d := s.(*meta.DataCenter)
			return []any{names(d.Networks), d.Description}
		},
		fields: []field{
			fieldDescription,
			{"network", "networks", fieldList, "network as 10.1.0.0/16; again for several", ""},
		},
	},
}

// columnsOf are the columns of kinds that have no commands of their own, for get.
var columnsOf = map[meta.Kind]kindCommands{
	meta.KindTopic: {
		header: []string{"partitions", "broker groups", "owner", "limit", "description"},
		row: func(s meta.Spec) []any {
			t := s.(*meta.Topic)
			return []any{t.Partitions, names(t.BrokerGroups), t.Owner, limitText(t.Limit), t.Description}
		},
	},
	meta.KindProducer: {
		header: []string{"paused", "limit", "description"},
		row: func(s meta.Spec) []any {
			p := s.(*meta.Producer)
			return []any{yesText(p.Paused), limitText(p.Limit), p.Description}
		},
	},
	meta.KindConsumer: {
		header: []string{"paused", "concurrency", "limit", "description"},
		row: func(s meta.Spec) []any {
			c := s.(*meta.Consumer)
			return []any{yesText(c.Paused), maxText(c.Concurrency), limitText(c.Limit), c.Description}
		},
	},
	meta.KindRequest: {
		header: []string{"topic", "app", "right", "state", "by"},
		row: func(s meta.Spec) []any {
			r := s.(*meta.Request)
			return []any{r.Topic, r.App, r.Right, orText(r.State, "open"), r.RequestedBy}
		},
	},
	meta.KindCredential: {
		header: []string{"owner", "state", "issued", "expires"},
		row: func(s meta.Spec) []any {
			c := s.(*meta.Credential)
			return []any{ownerText(c), credentialState(c), momentText(c.IssuedAt, "-"), momentText(c.Expires, "never")}
		},
	},
	meta.KindReplication: {
		header: []string{"term", "master", "in sync", "transfer"},
		row: func(s meta.Spec) []any {
			r := s.(*meta.Replication)
			var set []string
			for _, m := range r.Set {
				set = append(set, m.Broker)
			}
			return []any{r.Term, r.Master.Broker, orText(names(set), "-"), orText(r.Transfer, "-")}
		},
	},
	meta.KindBroker: {
		header: []string{"broker group", "addresses", "version", "away"},
		row: func(s meta.Spec) []any {
			b := s.(*meta.Broker)
			return []any{b.BrokerGroup, names(b.Addresses), b.Version, yesText(b.Away)}
		},
	},
}

func columns(k meta.Kind) kindCommands {
	for _, c := range kindTable {
		if c.kind == k {
			return c
		}
	}
	return columnsOf[k]
}

func names(list []string) string { return strings.Join(list, ", ") }

func orText(s, empty string) string {
	if s == "" {
		return empty
	}
	return s
}

func yesText(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func disabledText(disabled bool) string {
	if disabled {
		return "disabled"
	}
	return "active"
}

func maxText(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func limitText(l meta.Limit) string {
	var parts []string
	if l.MessagesPerSecond > 0 {
		parts = append(parts, fmt.Sprintf("%d messages/s", l.MessagesPerSecond))
	}
	if l.BytesPerSecond > 0 {
		parts = append(parts, formatSize(l.BytesPerSecond)+"/s")
	}
	if l.Connections > 0 {
		parts = append(parts, counted(l.Connections, "connection"))
	}
	return orText(strings.Join(parts, ", "), "-")
}

// objectInfo is the stable form of an object, and that of files for jmq apply.
type objectInfo struct {
	Kind      string          `json:"kind"`
	Namespace string          `json:"namespace,omitempty"`
	Name      string          `json:"name"`
	Revision  uint64          `json:"revision,omitempty"`
	Spec      json.RawMessage `json:"spec"`
}

func objectOf(o *admin.Object) objectInfo {
	return objectInfo{o.Kind, o.Namespace, o.Name, o.Revision, o.Spec}
}

// specOf reads a spec as far as this version knows it: a newer cluster's may have more.
func specOf(o *admin.Object) (meta.Spec, error) {
	s := meta.NewSpec(meta.Kind(o.Kind))
	if s == nil {
		return nil, fmt.Errorf("%s is of a kind that this version does not know", o.Key)
	}
	if err := json.Unmarshal(o.Spec, s); err != nil {
		return nil, fmt.Errorf("the spec of %s: %w", o.Key, err)
	}
	return s, nil
}

// nameOf is how a table names an object.
func nameOf(k admin.Key) string {
	if k.Namespace == "" || k.Namespace == admin.NamespaceDefault {
		return k.Name
	}
	return k.Namespace + ":" + k.Name
}

// listObjects are objects of one kind.
func listObjects(k meta.Kind, objects []*admin.Object) (listing, error) {
	c := columns(k)
	l := listing{header: append([]string{"name"}, c.header...), empty: "there is no " + string(k)}
	data := []objectInfo{}
	for _, o := range objects {
		s, err := specOf(o)
		if err != nil {
			return l, err
		}
		l.rows = append(l.rows, append([]any{nameOf(o.Key)}, c.row(s)...))
		data = append(data, objectOf(o))
	}
	l.data = data
	return l, nil
}

func printObjects(w io.Writer, output string, k meta.Kind, objects ...*admin.Object) error {
	l, err := listObjects(k, objects)
	if err != nil {
		return err
	}
	return printListing(w, output, l)
}

// operate connects and calls f with the calls about the metadata, within the connection's timeout.
func (c *connection) operate(cmd *cobra.Command, f func(context.Context, *admin.Admin) error) error {
	return c.call(cmd, func(ctx context.Context, cl *client.Client) error {
		err := f(ctx, admin.New(cl))
		if errors.Is(err, client.ErrDisconnected) {
			err = fmt.Errorf("%w; no registry node answers: messages go on, nothing can be changed", err)
		}
		return err
	}, client.WithApp(appOfThisUser()))
}

// changing is the flags of every command that changes objects.
type changing struct {
	reason, output string
	dryRun         bool
}

func (c *changing) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "only say what would change")
	cmd.Flags().StringVar(&c.reason, "reason", "", "why, for those who read the audit later")
	outputFlag(cmd, &c.output)
}

// apply makes a change, and says what is to be known about it.
func (c *changing) apply(ctx context.Context, cmd *cobra.Command, a *admin.Admin, writes ...admin.Write) (*admin.Result, error) {
	r, err := a.Apply(ctx, admin.Change{Writes: writes, Reason: c.reason, DryRun: c.dryRun})
	if err == nil {
		warn(cmd, r.Warnings)
		if !c.dryRun {
			settle(ctx, cmd, a, r.Version)
		}
	}
	return r, err
}

// settleWithin is how long a command waits until what it changed is in force everywhere.
const settleWithin = 2 * time.Second

// settle lets the next command of a script find what this one changed, whichever node it asks. It was changed in any case.
func settle(ctx context.Context, cmd *cobra.Command, a *admin.Admin, version uint64) {
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	if err := a.InForce(ctx, version); errors.Is(err, context.DeadlineExceeded) && cmd.Context().Err() == nil {
		warn(cmd, []string{"it is changed, but not in force everywhere: " + oneLine(err)})
	}
}

func warn(cmd *cobra.Command, warnings []string) {
	for _, w := range warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "jmq: warning:", w)
	}
}

// print says what became of the objects of one kind.
func (c *changing) print(cmd *cobra.Command, k meta.Kind, r *admin.Result) error {
	if c.dryRun {
		return printChanges(cmd.OutOrStdout(), c.output, r.Changes, true)
	}
	var objects []*admin.Object
	for _, x := range r.Changes {
		if x.After == nil {
			return printChanges(cmd.OutOrStdout(), c.output, r.Changes, false)
		}
		objects = append(objects, x.After)
	}
	return printObjects(cmd.OutOrStdout(), c.output, k, objects...)
}

func namespaceFlag(cmd *cobra.Command, k meta.Kind, namespace *string) {
	if k.Namespaced() {
		cmd.Flags().StringVar(namespace, "namespace", "", "namespace that it is in (default: "+admin.NamespaceDefault+")")
	}
}

// keyOf is the key of a name on the command line, or what is wrong with it.
func keyOf(k meta.Kind, namespace, name string) (admin.Key, error) {
	if k.Namespaced() {
		namespace = orText(namespace, admin.NamespaceDefault)
	}
	if err := (meta.Key{Kind: k, Namespace: namespace, Name: name}).Check(); err != nil {
		return admin.Key{}, usageError(err)
	}
	return admin.Key{Kind: string(k), Namespace: namespace, Name: name}, nil
}

// fieldFlags are the flags of fields.
type fieldFlags struct {
	fields []field
	values map[string]any
}

func newFieldFlags(f *pflag.FlagSet, fields []field, create bool) *fieldFlags {
	v := &fieldFlags{fields, map[string]any{}}
	for _, x := range fields {
		initially, help := "", x.help
		if create {
			initially = x.initially
		}
		switch x.kind {
		case fieldNumber:
			v.values[x.flag] = f.Int64(x.flag, 0, help)
		case fieldList:
			v.values[x.flag] = f.StringSlice(x.flag, nil, help)
		case fieldYes:
			v.values[x.flag] = f.Bool(x.flag, false, help)
		default:
			v.values[x.flag] = f.String(x.flag, initially, help)
		}
	}
	return v
}

func (v *fieldFlags) said(f *pflag.FlagSet) bool {
	return slices.ContainsFunc(v.fields, func(x field) bool { return f.Changed(x.flag) })
}

// put writes what was said into a spec; what was set to nothing goes. create: also what holds where nothing was said.
func (v *fieldFlags) put(f *pflag.FlagSet, spec map[string]any, create bool) error {
	for _, x := range v.fields {
		if !f.Changed(x.flag) && (!create || x.initially == "") {
			continue
		}
		var value any
		switch p := v.values[x.flag].(type) {
		case *int64:
			if *p != 0 {
				value = *p
			}
		case *bool:
			if *p {
				value = true
			}
		case *[]string:
			if len(*p) > 0 {
				value = *p
			}
		case *string:
			if x.kind == fieldSize && *p != "" {
				n, err := parseSize(*p)
				if err != nil {
					return usagef("--%s: %w", x.flag, err)
				}
				if n != 0 {
					value = n
				}
			} else if *p != "" {
				value = *p
			}
		}
		setPath(spec, x.path, value)
	}
	return nil
}

// setPath sets a field under its sections; nil takes it away.
func setPath(spec map[string]any, path string, value any) {
	section, rest, deeper := strings.Cut(path, ".")
	if !deeper {
		if value == nil {
			delete(spec, path)
		} else {
			spec[path] = value
		}
		return
	}
	sub, ok := spec[section].(map[string]any)
	if !ok {
		if value == nil {
			return
		}
		sub = map[string]any{}
	}
	setPath(sub, rest, value)
	if spec[section] = sub; len(sub) == 0 {
		delete(spec, section)
	}
}

// edit changes an object as change says. With a dry run nothing is changed.
func (c *changing) edit(ctx context.Context, cmd *cobra.Command, a *admin.Admin, k admin.Key, change func(spec map[string]any) error) (*admin.Result, error) {
	if !c.dryRun {
		r, err := a.Edit(ctx, k, c.reason, change)
		if err == nil {
			warn(cmd, r.Warnings)
			settle(ctx, cmd, a, r.Version)
		}
		return r, err
	}
	o, err := a.Get(ctx, k)
	if err != nil {
		return nil, err
	}
	spec := map[string]any{}
	if err := json.Unmarshal(o.Spec, &spec); err != nil {
		return nil, fmt.Errorf("the spec of %s: %w", k, err)
	}
	if err := change(spec); err != nil {
		return nil, err
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	return c.apply(ctx, cmd, a, admin.Write{Key: k, Spec: b, Expect: admin.Revision(o.Revision)})
}

// command makes the commands of a kind.
func (k kindCommands) command() *cobra.Command {
	c := &cobra.Command{Use: string(k.kind), Short: k.short, Long: k.long}
	for verb, make := range map[string]func() *cobra.Command{
		"ls": k.list, "describe": k.describe, "create": k.create, "alter": k.alter, "rm": k.remove,
	} {
		if !slices.Contains(k.without, verb) {
			c.AddCommand(make())
		}
	}
	return c
}

func (k kindCommands) list() *cobra.Command {
	var c connection
	var namespace, output string
	cmd := &cobra.Command{
		Use: "ls", Short: "List them", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
				objects, err := a.List(ctx, admin.Query{Kind: string(k.kind), Namespace: namespace})
				if err != nil {
					return err
				}
				return printObjects(cmd.OutOrStdout(), output, k.kind, objects...)
			})
		},
	}
	c.flags(cmd.Flags())
	if k.kind.Namespaced() {
		cmd.Flags().StringVar(&namespace, "namespace", "", "only of this namespace (default: all)")
	}
	outputFlag(cmd, &output)
	return cmd
}

func (k kindCommands) describe() *cobra.Command {
	var c connection
	var namespace, output string
	cmd := &cobra.Command{
		Use: "describe NAME", Short: "Say all that is known of one", Args: cobra.ExactArgs(1),
		ValidArgsFunction: c.completer(objectNames(k.kind)),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := keyOf(k.kind, namespace, args[0])
			if err != nil {
				return err
			}
			return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
				o, err := a.Get(ctx, key)
				if err != nil {
					return err
				}
				var related []*admin.Object
				if k.related != nil {
					if related, err = k.related(ctx, a, key); err != nil {
						return err
					}
				}
				return printObject(cmd.OutOrStdout(), output, o, related)
			})
		},
	}
	c.flags(cmd.Flags())
	namespaceFlag(cmd, k.kind, &namespace)
	outputFlag(cmd, &output)
	return cmd
}

// printObject prints all of an object, and what belongs to it.
func printObject(w io.Writer, output string, o *admin.Object, related []*admin.Object) error {
	type description struct {
		objectInfo
		Related []objectInfo `json:"related,omitempty"`
	}
	d := description{objectInfo: objectOf(o)}
	for _, r := range related {
		d.Related = append(d.Related, objectOf(r))
	}
	switch output {
	case "json", "yaml":
		return printListing(w, output, listing{data: d})
	case "table":
	default:
		return printObjects(w, output, meta.Kind(o.Kind), o)
	}
	if err := printYAML(w, d.objectInfo); err != nil {
		return err
	}
	for len(related) > 0 {
		kind := related[0].Kind
		end := slices.IndexFunc(related, func(r *admin.Object) bool { return r.Kind != kind })
		if end < 0 {
			end = len(related)
		}
		fmt.Fprintln(w)
		l, err := listObjects(meta.Kind(kind), related[:end])
		if err != nil {
			return err
		}
		l.header[0] = kind
		if err := printListing(w, output, l); err != nil {
			return err
		}
		related = related[end:]
	}
	return nil
}

func (k kindCommands) create() *cobra.Command {
	var c connection
	var change changing
	var namespace string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Make one", Args: cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
	}
	fields := newFieldFlags(cmd.Flags(), k.fields, true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		key, err := keyOf(k.kind, namespace, args[0])
		if err != nil {
			return err
		}
		spec := map[string]any{}
		if err := fields.put(cmd.Flags(), spec, true); err != nil {
			return err
		}
		return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
			r, err := change.create(ctx, cmd, a, key, spec)
			if err != nil {
				return err
			}
			return change.print(cmd, k.kind, r)
		})
	}
	c.flags(cmd.Flags())
	namespaceFlag(cmd, k.kind, &namespace)
	change.flags(cmd)
	return cmd
}

func (c *changing) create(ctx context.Context, cmd *cobra.Command, a *admin.Admin, k admin.Key, spec map[string]any) (*admin.Result, error) {
	b, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	return c.apply(ctx, cmd, a, admin.Write{Key: k, Spec: b, Expect: admin.Absent})
}

func (k kindCommands) alter() *cobra.Command {
	var c connection
	var change changing
	var namespace string
	cmd := &cobra.Command{
		Use: "alter NAME", Short: "Change one; what is not named stays as it is", Args: cobra.ExactArgs(1),
		ValidArgsFunction: c.completer(objectNames(k.kind)),
	}
	fields := newFieldFlags(cmd.Flags(), k.fields, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		key, err := keyOf(k.kind, namespace, args[0])
		if err != nil {
			return err
		}
		if !fields.said(cmd.Flags()) {
			var flags []string
			for _, x := range k.fields {
				flags = append(flags, "--"+x.flag)
			}
			return usagef("say what to change: %s", strings.Join(flags, ", "))
		}
		return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
			r, err := change.edit(ctx, cmd, a, key, func(spec map[string]any) error { return fields.put(cmd.Flags(), spec, false) })
			if err != nil {
				return err
			}
			return change.print(cmd, k.kind, r)
		})
	}
	c.flags(cmd.Flags())
	namespaceFlag(cmd, k.kind, &namespace)
	change.flags(cmd)
	return cmd
}

func (k kindCommands) remove() *cobra.Command {
	cmd := removal(func(args []string) (meta.Kind, []string, error) { return k.kind, args, nil }, k.kind.Namespaced(), objectNames(k.kind))
	cmd.Use, cmd.Aliases, cmd.Short, cmd.Args = "rm NAME...", []string{"delete"}, "Delete some", cobra.MinimumNArgs(1)
	return cmd
}

// removal deletes the objects that args name.
func removal(named func(args []string) (meta.Kind, []string, error), namespaced bool, completions ...nameSource) *cobra.Command {
	var c connection
	var change changing
	var sure confirmation
	var namespace string
	cmd := &cobra.Command{
		ValidArgsFunction: c.completer(completions...),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, list, err := named(args)
			if err != nil {
				return err
			}
			var keys []admin.Key
			for _, name := range list {
				key, err := keyOf(kind, namespace, name)
				if err != nil {
					return err
				}
				if !slices.Contains(keys, key) {
					keys = append(keys, key)
				}
			}
			if !change.dryRun {
				if err := sure.ask(cmd, fmt.Sprintf("delete %s %s", kind, strings.Join(list, ", "))); err != nil {
					return err
				}
			}
			return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
				var writes []admin.Write
				for _, key := range keys {
					o, err := a.Get(ctx, key)
					if err != nil {
						return err
					}
					writes = append(writes, admin.Write{Key: key, Expect: admin.Revision(o.Revision)})
				}
				r, err := change.apply(ctx, cmd, a, writes...)
				if err != nil {
					return err
				}
				return printChanges(cmd.OutOrStdout(), change.output, r.Changes, change.dryRun)
			})
		},
	}
	c.flags(cmd.Flags())
	if namespaced {
		cmd.Flags().StringVar(&namespace, "namespace", "", "namespace that they are in (default: "+admin.NamespaceDefault+")")
	}
	sure.flag(cmd)
	change.flags(cmd)
	return cmd
}

// relatedToApp are its subscriptions and credentials.
func relatedToApp(ctx context.Context, a *admin.Admin, k admin.Key) ([]*admin.Object, error) {
	return related(ctx, a, k.Namespace, func(o *admin.Object, s meta.Spec) bool {
		key := meta.Key{Kind: meta.Kind(o.Kind), Name: o.Name}
		switch s := s.(type) {
		case *meta.Producer:
			return key.SubscriberOf() == k.Name
		case *meta.Consumer:
			return meta.AppOf(key.SubscriberOf()) == k.Name
		case *meta.Credential:
			return s.OwnerKind == meta.OwnerApp && s.Owner == k.Name && orText(s.Namespace, admin.NamespaceDefault) == k.Namespace
		}
		return false
	}, meta.KindProducer, meta.KindConsumer, meta.KindCredential)
}

func relatedToUser(ctx context.Context, a *admin.Admin, k admin.Key) ([]*admin.Object, error) {
	return related(ctx, a, "", func(_ *admin.Object, s meta.Spec) bool {
		c, ok := s.(*meta.Credential)
		return ok && c.OwnerKind == meta.OwnerUser && c.Owner == k.Name
	}, meta.KindCredential)
}

func related(ctx context.Context, a *admin.Admin, namespace string, is func(*admin.Object, meta.Spec) bool, kinds ...meta.Kind) ([]*admin.Object, error) {
	var found []*admin.Object
	for _, kind := range kinds {
		q := admin.Query{Kind: string(kind)}
		if kind.Namespaced() {
			q.Namespace = namespace
		}
		objects, err := a.List(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			if s, err := specOf(o); err == nil && is(o, s) {
				found = append(found, o)
			}
		}
	}
	return found, nil
}

// kindOf is a kind by its name on the command line.
func kindOf(name string) (meta.Kind, error) {
	if k := meta.Kind(name); slices.Contains(meta.Kinds, k) {
		return k, nil
	}
	kinds := kindTexts()
	return "", usagef("unknown kind %.40q%s", name, didYouMean(name, kinds)+" the kinds are "+strings.Join(kinds, ", "))
}

func kindTexts() []string {
	var kinds []string
	for _, k := range meta.Kinds {
		kinds = append(kinds, string(k))
	}
	slices.Sort(kinds)
	return kinds
}

func kindCompletions(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return kindTexts(), cobra.ShellCompDirectiveNoFileComp
}

// kindThenNames completes KIND NAME.
func (c *connection) kindThenNames(cmd *cobra.Command, args []string, partial string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return kindCompletions(cmd, args, partial)
	}
	return c.flagCompleter(objectNames(meta.Kind(args[0])))(cmd, args, partial)
}

func getCommand() *cobra.Command {
	var c connection
	var namespace, output string
	cmd := &cobra.Command{
		Use: "get KIND [NAME]", Short: "Print objects of the metadata, as files for jmq apply", Args: cobra.RangeArgs(1, 2),
		Long: "Print objects of the metadata. With -o yaml or -o json it is what jmq apply -f takes: with its revision an object is only changed if\n" +
			"nobody changed it since; without it, whatever it is by then.\n\nKinds: " + strings.Join(kindTexts(), ", ") + ".",
		Example:           "  jmq get topic\n  jmq get consumer orders/payment -o yaml",
		ValidArgsFunction: c.kindThenNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, err := kindOf(args[0])
			if err != nil {
				return err
			}
			return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
				var objects []*admin.Object
				if len(args) == 2 {
					key, err := keyOf(kind, namespace, args[1])
					if err != nil {
						return err
					}
					o, err := a.Get(ctx, key)
					if err != nil {
						return err
					}
					objects = append(objects, o)
				} else if objects, err = a.List(ctx, admin.Query{Kind: string(kind), Namespace: namespace}); err != nil {
					return err
				}
				if output != "yaml" {
					return printObjects(cmd.OutOrStdout(), output, kind, objects...)
				}
				for i, o := range objects {
					if i > 0 {
						fmt.Fprintln(cmd.OutOrStdout(), "---")
					}
					if err := printYAML(cmd.OutOrStdout(), objectOf(o)); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.flags(cmd.Flags())
	cmd.Flags().StringVar(&namespace, "namespace", "", "namespace (default: all; of a NAME: "+admin.NamespaceDefault+")")
	outputFlag(cmd, &output)
	return cmd
}

func deleteCommand() *cobra.Command {
	cmd := removal(func(args []string) (meta.Kind, []string, error) {
		kind, err := kindOf(args[0])
		return kind, args[1:], err
	}, true)
	cmd.Use, cmd.Short, cmd.Args = "delete KIND NAME...", "Delete objects of the metadata", cobra.MinimumNArgs(2)
	cmd.Long = "Delete objects of the metadata: all that are named, or none. What others name is kept: delete those first.\n\nKinds: " + strings.Join(kindTexts(), ", ") + "."
	return cmd
}

// changeInfo is the stable form of what became of an object.
type changeInfo struct {
	Change    string          `json:"change"` // created, changed, deleted, unchanged
	Kind      string          `json:"kind"`
	Namespace string          `json:"namespace,omitempty"`
	Name      string          `json:"name"`
	Before    json.RawMessage `json:"before,omitempty"`
	After     json.RawMessage `json:"after,omitempty"`
}

// printChanges says what became, or would become, of objects; as a table with each field that differs.
func printChanges(w io.Writer, output string, changes []admin.Changed, dry bool) error {
	l := listing{header: []string{"object", "is"}}
	if dry {
		l.header[1] = "would be"
	}
	data := []changeInfo{}
	for _, c := range changes {
		o := c.After
		if o == nil {
			o = c.Before
		}
		if o == nil {
			continue
		}
		i := changeInfo{Change: c.Change, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
		if c.Before != nil {
			i.Before = c.Before.Spec
		}
		if c.After != nil {
			i.After = c.After.Spec
		}
		data = append(data, i)
		l.rows = append(l.rows, []any{o.Key.String(), c.Change})
	}
	l.data = data
	if output != "table" {
		return printListing(w, output, l)
	}
	for _, i := range data {
		text := i.Change
		if dry && text != "unchanged" {
			text = "would be " + text
		}
		fmt.Fprintf(w, "%s: %s\n", admin.Key{Kind: i.Kind, Namespace: i.Namespace, Name: i.Name}, text)
		if i.Change == "deleted" || i.Change == "unchanged" {
			continue
		}
		for _, line := range diffSpecs(i.Before, i.After) {
			fmt.Fprintln(w, "  "+line)
		}
	}
	return nil
}

// diffSpecs names each field that differs, with its values: "- limit.messagesPerSecond: 5".
func diffSpecs(before, after json.RawMessage) []string {
	from, to := flatten(before), flatten(after)
	all := map[string]bool{}
	for p := range from {
		all[p] = true
	}
	for p := range to {
		all[p] = true
	}
	var lines []string
	for _, p := range slices.Sorted(maps.Keys(all)) {
		a, was := from[p]
		b, is := to[p]
		if was && is && a == b {
			continue
		}
		if was {
			lines = append(lines, "- "+p+": "+a)
		}
		if is {
			lines = append(lines, "+ "+p+": "+b)
		}
	}
	return lines
}

// flatten is a spec by path; lists are values.
func flatten(spec json.RawMessage) map[string]string {
	flat := map[string]string{}
	var walk func(path string, v json.RawMessage)
	walk = func(path string, v json.RawMessage) {
		var fields map[string]json.RawMessage
		if json.Unmarshal(v, &fields) != nil || fields == nil {
			if len(v) > 0 {
				flat[path] = string(v)
			}
			return
		}
		for name, sub := range fields {
			walk(strings.TrimPrefix(path+"."+name, "."), sub)
		}
	}
	walk("", spec)
	return flat
}
