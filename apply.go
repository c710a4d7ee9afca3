package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/jmqio/jmq/client/admin"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

// applyBytesMax bounds a file: a change as a whole has at most 4 MiB of specs.
const applyBytesMax = 8 << 20

// applyWithin bounds the change itself, once it was agreed to.
const applyWithin = 10 * time.Second

func applyCommand() *cobra.Command {
	var c connection
	var change changing
	var sure confirmation
	var file string
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "Make the metadata what a file says", Args: cobra.NoArgs,
		Long: `Make the objects of a file what the file says: all of them in one change, or none. Each is said whole: a field that is not in the file
is at its default afterwards. Objects that are not in the file stay as they are.

The file is YAML, or JSON, of one document an object, or lists of them:

  kind: consumer
  namespace: default        # may be left out
  name: orders/payment
  spec:
    concurrency: 4
    limit: {messagesPerSecond: 500}

Unknown fields are errors that name the line. What would change is shown, field by field, and asked for on a terminal (--yes where there is
none). A file with revisions, as jmq get -o yaml prints them, is refused when somebody changed an object since.`,
		Example: `  jmq apply -f orders.yaml --dry-run
  jmq get consumer orders/payment -o yaml | sed 's/500/800/' | jmq apply -f - --yes --reason "more load"`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usagef("name the file: -f FILE, or -f - for the standard input")
			}
			docs, err := readDocuments(cmd.InOrStdin(), file)
			if err != nil {
				return err
			}
			return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
				return applyDocuments(ctx, cmd, a, docs, &change, &sure)
			})
		},
	}
	c.flags(cmd.Flags())
	cmd.Flags().StringVarP(&file, "file", "f", "", "the file; - is the standard input")
	sure.flag(cmd)
	change.flags(cmd)
	return cmd
}

// document is an object of a file.
type document struct {
	file     string
	line     int
	key      admin.Key
	revision uint64 // that it must have; 0: whatever it has
	spec     json.RawMessage
	node     *yaml.Node // of the spec
}

// at puts the place before an error: that of the field that it names, if it names one.
func (d *document) at(err error) error {
	line := d.line
	if m := fieldInError.FindStringSubmatch(err.Error()); m != nil && d.node != nil {
		line = d.node.Line
		if n := findField(d.node, m[1]); n != nil {
			line = n.Line
		}
	}
	return fmt.Errorf("%s line %d: %w", d.file, line, err)
}

var fieldInError = regexp.MustCompile(`field "([^"]+)"`)

// findField follows a path such as limit.bytesPerSecond or owners[2] as far as it is there, and returns the key or the element.
func findField(n *yaml.Node, path string) *yaml.Node {
	var found *yaml.Node
	for path != "" && n != nil {
		for n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		if n.Kind == yaml.SequenceNode {
			number, rest, _ := strings.Cut(strings.TrimPrefix(path, "["), "]")
			i, err := strconv.Atoi(number)
			if err != nil || i < 0 || i >= len(n.Content) {
				return found
			}
			found, n, path = n.Content[i], n.Content[i], strings.TrimPrefix(rest, ".")
			continue
		}
		if n.Kind != yaml.MappingNode {
			return found
		}
		next := (*yaml.Node)(nil)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i].Value
			rest, ok := strings.CutPrefix(path, key)
			if ok && key != "" && (rest == "" || rest[0] == '.' || rest[0] == '[') {
				found, next, path = n.Content[i], n.Content[i+1], strings.TrimPrefix(rest, ".")
				break
			}
		}
		if next == nil {
			return found
		}
		n = next
	}
	return found
}

// readDocuments reads a file whole, or says what is wrong with it, and where.
func readDocuments(stdin io.Reader, file string) ([]*document, error) {
	in, name := stdin, "standard input"
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("apply: %w", err)
		}
		defer f.Close()
		in, name = f, file
	}
	b, err := io.ReadAll(io.LimitReader(in, applyBytesMax+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(b) > applyBytesMax {
		return nil, usagef("%s has more than %s: make several files of it", name, formatSize(applyBytesMax))
	}
	if text := bytes.TrimSpace(b); len(text) > 0 && (text[0] == '{' || text[0] == '[') {
		b = bytes.ReplaceAll(b, []byte{'\t'}, []byte{' '}) // JSON may be indented by tabs, and has none in its texts
	}
	var docs []*document
	d := yaml.NewDecoder(bytes.NewReader(b))
	for {
		var root yaml.Node
		err := d.Decode(&root)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, usagef("%s: %s", name, strings.TrimPrefix(err.Error(), "yaml: "))
		}
		list := root.Content
		if len(list) == 1 && list[0].Kind == yaml.SequenceNode {
			list = list[0].Content
		}
		for _, n := range list {
			if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
				continue // nothing between two marks
			}
			doc, err := readDocument(name, n)
			if err != nil {
				return nil, usageError(err)
			}
			docs = append(docs, doc)
		}
	}
	if len(docs) == 0 {
		return nil, usagef("%s has no object", name)
	}
	lines := map[admin.Key]int{}
	for _, d := range docs {
		if line, twice := lines[d.key]; twice {
			return nil, usagef("%s line %d: %s is in line %d already", name, d.line, d.key, line)
		}
		lines[d.key] = d.line
	}
	return docs, nil
}

var documentFields = []string{"kind", "namespace", "name", "revision", "spec"}

func readDocument(file string, n *yaml.Node) (*document, error) {
	d := &document{file: file, line: n.Line}
	bad := func(n *yaml.Node, format string, args ...any) error {
		return fmt.Errorf("%s line %d: %s", file, n.Line, fmt.Sprintf(format, args...))
	}
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		return nil, bad(n, "is no object: write kind, name and spec")
	}
	seen := map[string]bool{}
	var kind, namespace, name string
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if seen[key.Value] {
			return nil, bad(key, "%.60q is there twice", key.Value)
		}
		seen[key.Value] = true
		text := map[string]*string{"kind": &kind, "namespace": &namespace, "name": &name}[key.Value]
		switch {
		case text != nil:
			if value.Kind != yaml.ScalarNode || value.Tag != "!!str" {
				return nil, bad(value, "%s must be text: quote it", key.Value)
			}
			*text = value.Value
		case key.Value == "revision":
			if err := value.Decode(&d.revision); err != nil || d.revision == 0 {
				return nil, bad(value, "revision must be a number from 1; or leave it out")
			}
		case key.Value == "spec":
			d.node = value
		default:
			return nil, bad(key, "unknown field %.60q; known are %s", key.Value, strings.Join(documentFields, ", "))
		}
	}
	if kind == "" || name == "" {
		return nil, bad(n, "an object has a kind and a name")
	}
	k, err := kindOf(kind)
	if err != nil {
		return nil, bad(n, "%v", err)
	}
	if d.key, err = keyOf(k, namespace, name); err != nil {
		return nil, bad(n, "%v", err)
	}
	spec := any(map[string]any{})
	if d.node != nil && d.node.Tag != "!!null" {
		if err := d.node.Decode(&spec); err != nil { // also of keys that are there twice, and of too many aliases
			return nil, bad(d.node, "%s", yamlText(err))
		}
	}
	if d.spec, err = json.Marshal(spec); err != nil {
		return nil, bad(d.node, "cannot be written as JSON: %v", err)
	}
	if _, err := meta.DecodeSpec(k, d.spec); err != nil {
		return nil, d.at(plainError(err))
	}
	return d, nil
}

// plainError is an error without the name of its code, for places where that is plain.
func plainError(err error) error {
	if e, ok := errors.AsType[*wire.CodeError](err); ok && e.Code == wire.CodeInvalid {
		return errors.New(e.Message)
	}
	return err
}

// applyDocuments has it done: what is there is read first, and only that is changed.
func applyDocuments(ctx context.Context, cmd *cobra.Command, a *admin.Admin, docs []*document, change *changing, sure *confirmation) error {
	known, err := readKnown(ctx, a, docs)
	if err != nil {
		return err
	}
	writes := make([]admin.Write, len(docs))
	for i, d := range docs {
		w := admin.Write{Key: d.key, Spec: d.spec, Expect: admin.Absent}
		if o := known[d.key]; o != nil {
			w.Expect = admin.Revision(o.Revision)
			if d.revision != 0 && d.revision != o.Revision {
				return d.at(fmt.Errorf("conflict: %s has revision %d by now, the file is of %d: get it again, or take the revision out of the file", d.key, o.Revision, d.revision))
			}
		} else if d.revision != 0 {
			return d.at(fmt.Errorf("conflict: %s is not there any more, the file is of revision %d", d.key, d.revision))
		}
		writes[i] = w
	}
	would, err := a.Apply(ctx, admin.Change{Writes: writes, Reason: change.reason, DryRun: true})
	if err != nil {
		return located(docs, err)
	}
	warn(cmd, would.Warnings)
	var needed []admin.Write
	for i, x := range would.Changes {
		if x.Change != "unchanged" {
			needed = append(needed, writes[i])
		}
	}
	if change.dryRun || len(needed) == 0 {
		return printChanges(cmd.OutOrStdout(), change.output, would.Changes, change.dryRun)
	}
	if !sure.yes {
		if isTerminal(cmd.InOrStdin()) {
			if err := printChanges(cmd.ErrOrStderr(), "table", would.Changes, true); err != nil {
				return err
			}
		}
		if err := sure.ask(cmd, fmt.Sprintf("change %d of %d objects", len(needed), len(writes))); err != nil {
			return err
		}
		// A person takes longer than a connection's timeout.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(cmd.Context(), applyWithin)
		defer cancel()
	}
	done, err := a.Apply(ctx, admin.Change{Writes: needed, Reason: change.reason})
	if err != nil {
		return located(docs, err)
	}
	settle(ctx, cmd, a, done.Version)
	for _, x := range would.Changes {
		if x.Change == "unchanged" {
			done.Changes = append(done.Changes, x)
		}
	}
	return printChanges(cmd.OutOrStdout(), change.output, done.Changes, false)
}

// located puts the place in the file before an answer that names an object.
func located(docs []*document, err error) error {
	if wire.CodeOf(err) == wire.CodeConflict {
		err = fmt.Errorf("%w; nothing was changed: look what it is now, and apply again", err)
	}
	if len(docs) == 1 {
		return docs[0].at(err)
	}
	// The longest key: orders is in orders/payment too.
	var of *document
	for _, d := range docs {
		if strings.Contains(err.Error(), d.key.String()) && (of == nil || len(d.key.Name) > len(of.key.Name)) {
			of = d
		}
	}
	if of == nil {
		return err
	}
	return of.at(err)
}

// readKnown reads what is there of the documents' objects. Many of a kind are read as a whole: that is fewer questions.
func readKnown(ctx context.Context, a *admin.Admin, docs []*document) (map[admin.Key]*admin.Object, error) {
	const few = 8
	known := map[admin.Key]*admin.Object{}
	byKind := map[admin.Key][]admin.Key{}
	for _, d := range docs {
		of := admin.Key{Kind: d.key.Kind, Namespace: d.key.Namespace}
		byKind[of] = append(byKind[of], d.key)
	}
	for of, keys := range byKind {
		if len(keys) <= few {
			for _, k := range keys {
				o, err := a.Get(ctx, k)
				if err != nil && exitCode(err) != exitNotFound {
					return nil, err
				}
				known[k] = o
			}
			continue
		}
		all, err := a.List(ctx, admin.Query{Kind: of.Kind, Namespace: of.Namespace})
		if err != nil {
			return nil, err
		}
		for _, o := range all {
			if slices.Contains(keys, o.Key) {
				known[o.Key] = o
			}
		}
	}
	return known, nil
}
