package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

const (
	envContext  = "JMQ_CONTEXT"
	envContexts = "JMQ_CONTEXTS" // the file, for those who want several
)

// contextInfo is a cluster as this person reaches it. It is an entry of the file, and what ls and show print.
type contextInfo struct {
	Name           string   `yaml:"name" json:"name"`
	Addresses      []string `yaml:"addresses" json:"addresses"`
	CredentialFile string   `yaml:"credentialFile,omitempty" json:"credentialFile,omitempty"`
	TLSCA          string   `yaml:"tlsCA,omitempty" json:"tlsCA,omitempty"`
	TLSCert        string   `yaml:"tlsCert,omitempty" json:"tlsCert,omitempty"`
	TLSKey         string   `yaml:"tlsKey,omitempty" json:"tlsKey,omitempty"`
}

// contextsFile is the file of contexts.
type contextsFile struct {
	Current  string        `yaml:"current,omitempty"`
	Contexts []contextInfo `yaml:"contexts"`

	name string
}

// configFolder is where this person's files are.
func configFolder() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("%w; or name the file of contexts by $%s", err, envContexts)
	}
	return filepath.Join(dir, "jmq"), nil
}

func contextsName() (string, error) {
	if name := os.Getenv(envContexts); name != "" {
		return name, nil
	}
	dir, err := configFolder()
	return filepath.Join(dir, "contexts.yaml"), err
}

// readContexts reads the file; without one there are no contexts.
var yamlInternals = []struct {
	what *regexp.Regexp
	text string
}{
	{regexp.MustCompile(`^(yaml: )?(unmarshal errors:)?[;\s]*`), ""},
	{regexp.MustCompile(`field (\S+) not found in type \S+`), `unknown field "$1"`},
	{regexp.MustCompile(`cannot unmarshal !!\S+ .(.*?). into \S+`), `$1 is not of the kind that belongs there`},
}

// yamlText is an error of the YAML package without its types.
func yamlText(err error) string {
	text := oneLine(err)
	for _, r := range yamlInternals {
		text = r.what.ReplaceAllString(text, r.text)
	}
	return text
}

func readContexts() (*contextsFile, error) {
	name, err := contextsName()
	if err != nil {
		return &contextsFile{}, nil // nowhere to look
	}
	f := &contextsFile{name: name}
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return nil, fmt.Errorf("contexts: %w", err)
	}
	if err := checkPrivate("the file of contexts", name); err != nil {
		return nil, err
	}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(f); err != nil && len(bytes.TrimSpace(b)) > 0 {
		return nil, usagef("the file of contexts %s: %s; correct it, or remove it and add the contexts again", name, yamlText(err))
	}
	return f, nil
}

func (f *contextsFile) write() error {
	if f.name == "" {
		_, err := contextsName()
		return err
	}
	var b bytes.Buffer
	b.WriteString("# Clusters that jmq knows; see jmq context --help\n")
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(f); err != nil {
		return err
	}
	if err := writePrivate(f.name, b.Bytes()); err != nil {
		return fmt.Errorf("write the file of contexts: %w", err)
	}
	return nil
}

func (f *contextsFile) find(name string) *contextInfo {
	for i := range f.Contexts {
		if f.Contexts[i].Name == name {
			return &f.Contexts[i]
		}
	}
	return nil
}

// must is find with an error for people.
func (f *contextsFile) must(name string) (*contextInfo, error) {
	if c := f.find(name); c != nil {
		return c, nil
	}
	return nil, &codedError{exitNotFound, fmt.Errorf("no context %q; %s", name, f.known())}
}

func (f *contextsFile) names() []string {
	var names []string
	for _, c := range f.Contexts {
		names = append(names, c.Name)
	}
	return names
}

func (f *contextsFile) known() string {
	if len(f.Contexts) == 0 {
		return "there is none yet: jmq context add NAME --address HOST:PORT"
	}
	return "there are: " + strings.Join(f.names(), ", ")
}

// put adds a context or takes the place of one, and uses it if no other is in use.
func (f *contextsFile) put(c contextInfo) {
	if old := f.find(c.Name); old != nil {
		*old = c
	} else {
		f.Contexts = append(f.Contexts, c)
	}
	if f.Current == "" {
		f.Current = c.Name
	}
}

func (f *contextsFile) list(contexts ...contextInfo) listing {
	l := listing{header: []string{"name", "in use", "addresses", "credential file", "tls"}, empty: f.known()}
	type entry struct {
		contextInfo
		InUse bool `json:"inUse"`
	}
	data := []entry{}
	for _, c := range contexts {
		use, encrypted := "", "no"
		if c.Name == f.Current {
			use = "*"
		}
		switch {
		case c.TLSCert != "":
			encrypted = c.TLSCA + ", " + c.TLSCert
		case c.TLSCA != "":
			encrypted = c.TLSCA
		}
		l.rows = append(l.rows, []any{c.Name, use, strings.Join(c.Addresses, ","), c.CredentialFile, encrypted})
		data = append(data, entry{c, c.Name == f.Current})
	}
	l.data = data
	return l
}

func contextNames(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	f, err := readContexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return f.names(), cobra.ShellCompDirectiveNoFileComp
}

var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func contextCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "context", Short: "Clusters that you work with, and which one is in use",
		Long: `A context is a cluster as you reach it: addresses, the file of your credential, certificates. Client commands connect by the one in use,
unless --context, --address or the environment ($` + envContext + `, $` + envAddress + `) say otherwise.

They are kept in jmq/contexts.yaml in your configuration folder (~/.config, or $` + envContexts + `), which only you may read. Secrets are not in it:
jmq login writes them to files of their own.`,
	}
	c.AddCommand(contextListCommand(), contextAddCommand(), contextUseCommand(), contextShowCommand(), contextRemoveCommand())
	return c
}

func contextListCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "ls", Short: "List contexts", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := readContexts()
			if err != nil {
				return err
			}
			return printListing(cmd.OutOrStdout(), output, f.list(f.Contexts...))
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

func contextShowCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "show [NAME]", Short: "Say what a context has: the one in use, or NAME", Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: contextNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := readContexts()
			if err != nil {
				return err
			}
			name := f.Current
			if len(args) > 0 {
				name = args[0]
			}
			if name == "" {
				return &codedError{exitNotFound, fmt.Errorf("no context is in use; %s", f.known())}
			}
			c, err := f.must(name)
			if err != nil {
				return err
			}
			return printListing(cmd.OutOrStdout(), output, f.list(*c))
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

func contextAddCommand() *cobra.Command {
	var p place
	var use, replace bool
	cmd := &cobra.Command{
		Use: "add NAME", Short: "Add a context", Args: cobra.ExactArgs(1),
		Long: "Add a context. The first one is in use from then on; another one with --use, or by jmq context use.",
		Example: `  jmq context add prod --address jmq-1.example:50088,jmq-2.example:50088 --tls-ca system --use
  jmq login`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !contextName.MatchString(args[0]) {
				return usagef("context name %.80q: give up to 64 letters, digits, '.', '_' or '-'", args[0])
			}
			if p.address == "" {
				return usagef("say where the cluster is: --address HOST:PORT,HOST:PORT")
			}
			for a := range strings.SplitSeq(p.address, ",") {
				if _, port, err := net.SplitHostPort(strings.TrimSpace(a)); err != nil || port == "" {
					return usagef("--address: %q is not HOST:PORT", a)
				}
			}
			if _, err := p.options(); err != nil {
				return err
			}
			f, err := readContexts()
			if err != nil {
				return err
			}
			if f.find(args[0]) != nil && !replace {
				return usagef("context %s is there; --replace takes its place", args[0])
			}
			f.put(p.contextInfo(args[0]))
			if use {
				f.Current = args[0]
			}
			if err := f.write(); err != nil {
				return err
			}
			inUse := ""
			if f.Current == args[0] {
				inUse = ", in use"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "context %s: %s%s\n", args[0], p.address, inUse)
			return err
		},
	}
	p.flags(cmd.Flags())
	cmd.Flags().BoolVar(&use, "use", false, "use it from now on")
	cmd.Flags().BoolVar(&replace, "replace", false, "in place of the one that has the name")
	return cmd
}

// contextInfo is p as an entry of the file, with file names that hold in any folder.
func (p place) contextInfo(name string) contextInfo {
	path := func(name string) string {
		if name == "" || name == tlsSystem {
			return name
		}
		return absolute(name)
	}
	return contextInfo{
		Name: name, Addresses: strings.Split(p.address, ","), CredentialFile: path(p.credentialFile),
		TLSCA: path(p.tlsCA), TLSCert: path(p.tlsCert), TLSKey: path(p.tlsKey),
	}
}

func contextUseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Use a context from now on", Args: cobra.ExactArgs(1), ValidArgsFunction: contextNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := readContexts()
			if err != nil {
				return err
			}
			c, err := f.must(args[0])
			if err != nil {
				return err
			}
			f.Current = c.Name
			if err := f.write(); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "context %s: %s, in use\n", c.Name, strings.Join(c.Addresses, ","))
			return err
		},
	}
}

func contextRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME", Short: "Forget a context", Args: cobra.ExactArgs(1), ValidArgsFunction: contextNames,
		Long: "Forget a context. The file of its credential stays.",
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := readContexts()
			if err != nil {
				return err
			}
			if _, err := f.must(args[0]); err != nil {
				return err
			}
			f.Contexts = slices.DeleteFunc(f.Contexts, func(c contextInfo) bool { return c.Name == args[0] })
			if f.Current == args[0] {
				f.Current = ""
			}
			if err := f.write(); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "context %s is forgotten\n", args[0])
			return err
		},
	}
}
