package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/client/admin"
	"github.com/jmqio/jmq/wire"
)

// secretBytesMax bounds what is read as a secret.
const secretBytesMax = 1 << 10

func loginCommand() *cobra.Command {
	var c connection
	var id, secretFile string
	cmd := &cobra.Command{
		Use: "login", Short: "Say who you are, from now on", Args: cobra.NoArgs,
		Long: `Check a credential against the cluster and keep it for the context: in a file that only you may read, which the context names. The
secret is asked for without being shown, or read from --secret-file (- is the standard input); it is never an argument.

Without a context one is made, called default, for --address.`,
		Example: `  jmq login --context prod --id 01k...
  jmq login --address 127.0.0.1:50088 --secret-file admin.credential`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := readContexts()
			if err != nil {
				return err
			}
			if _, err := contextsName(); err != nil {
				return err
			}
			name := cmp.Or(c.context, os.Getenv(envContext), f.Current, "default")
			if c.address != "" && c.context == "" {
				name = "default"
			}
			known := f.find(name)
			if known == nil && c.address == "" {
				return &codedError{exitNotFound, fmt.Errorf("no context %q; %s", name, f.known())}
			}
			if known != nil {
				c.context = name
			}
			p, err := c.where()
			if err != nil {
				return err
			}
			who, err := askCredential(cmd, id, secretFile)
			if err != nil {
				return err
			}
			p.credentialFile, p.proven = "", true
			me, err := p.whoAmI(cmd, c.timeout, client.WithCredentials(who.ID, who.Secret))
			if err != nil {
				return err
			}
			if me.Kind == wire.PrincipalLocal.String() {
				return fmt.Errorf("%s asks nobody who he is, so the secret was not checked; nothing was kept", p.address)
			}
			p.credentialFile = filepath.Join(filepath.Dir(f.name), "credentials", name)
			if known != nil && known.CredentialFile != "" && secretFile == "" {
				p.credentialFile = known.CredentialFile
			}
			if err := writeCredential(p.credentialFile, who.ID, who.Secret); err != nil {
				return err
			}
			f.put(p.contextInfo(name))
			f.Current = name
			if err := f.write(); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s at %s; context %s, credential in %s\n", describeIdentity(me), p.address, name, p.credentialFile)
			return err
		},
	}
	c.flags(cmd.Flags())
	cmd.Flags().StringVar(&id, "id", "", "id of the credential; asked for where it is not given")
	cmd.Flags().StringVar(&secretFile, "secret-file", "", "file with the secret alone, or with id and secret as jmq credential create writes it; - is the standard input")
	return cmd
}

// askCredential has the credential from a file, or from a person.
func askCredential(cmd *cobra.Command, id, file string) (wire.Credentials, error) {
	who := wire.Credentials{ID: id}
	if file != "" {
		b, err := readSecretFile(cmd, file)
		if err != nil {
			return who, err
		}
		text := strings.TrimSpace(string(b))
		if key, _, ok := strings.Cut(text, ":"); ok && (key == "id" || key == "secret" || strings.HasPrefix(key, "#")) {
			if file == "-" {
				return who, usagef("the standard input is the secret alone; give --id")
			}
			of, err := client.ReadCredentials(file)
			if err != nil {
				return who, err
			}
			if id != "" && id != of.ID {
				return who, usagef("--id %s, but %s is of credential %s", id, file, of.ID)
			}
			return of, nil
		}
		if text == "" || strings.ContainsAny(text, "\r\n") {
			return who, usagef("%s is not one line with the secret", file)
		}
		if id == "" {
			return who, usagef("%s has a secret alone: give --id too", file)
		}
		who.Secret = wire.Secret(text)
		return who, nil
	}
	in, ok := cmd.InOrStdin().(*os.File)
	if !ok || !isTerminal(in) {
		return who, usagef("there is no terminal to ask for the secret on: give --secret-file")
	}
	if who.ID == "" {
		fmt.Fprint(cmd.ErrOrStderr(), "credential id: ")
		line, err := bufio.NewReader(in).ReadString('\n')
		if who.ID = strings.TrimSpace(line); who.ID == "" {
			return who, errors.Join(errors.New("no id was given"), err)
		}
	}
	fmt.Fprint(cmd.ErrOrStderr(), "secret: ")
	secret, err := term.ReadPassword(int(in.Fd()))
	fmt.Fprintln(cmd.ErrOrStderr())
	if err != nil {
		return who, fmt.Errorf("read the secret: %w", err)
	}
	if who.Secret = wire.Secret(strings.TrimSpace(string(secret))); who.Secret == "" {
		return who, errors.New("no secret was given")
	}
	return who, nil
}

func readSecretFile(cmd *cobra.Command, name string) ([]byte, error) {
	in := cmd.InOrStdin()
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("--secret-file: %w", err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, secretBytesMax+1))
	if err == nil && len(b) > secretBytesMax {
		err = fmt.Errorf("more than %d bytes", secretBytesMax)
	}
	if err != nil {
		return nil, fmt.Errorf("--secret-file %s: %w", name, err)
	}
	return b, nil
}

// whoAmI connects for this question alone.
func (p place) whoAmI(cmd *cobra.Command, within time.Duration, options ...client.Option) (admin.Identity, error) {
	cl, err := p.dial(cmd, within, append(options, client.WithConns(1))...)
	if err != nil {
		return admin.Identity{}, err
	}
	defer closeClient(cl)
	ctx, cancel := context.WithTimeout(cmd.Context(), within)
	defer cancel()
	return admin.New(cl).WhoAmI(ctx)
}

// identityInfo is the stable form of who one is.
type identityInfo struct {
	Kind       string     `json:"kind"`
	Name       string     `json:"name,omitempty"`
	Namespace  string     `json:"namespace,omitempty"`
	Role       string     `json:"role,omitempty"`
	Credential string     `json:"credential,omitempty"`
	Expires    *time.Time `json:"expires,omitempty"`
	Address    string     `json:"address"`
	Node       string     `json:"node"`
	NodeRoles  []string   `json:"nodeRoles"`
}

// describeIdentity says it in a few words.
func describeIdentity(i admin.Identity) string {
	text := i.Kind
	if i.Kind == wire.PrincipalLocal.String() {
		return "local: nobody is asked who he is, and everybody may do everything"
	}
	if i.Namespace != "" && i.Namespace != admin.NamespaceDefault {
		text += " " + i.Namespace + ":" + i.Name
	} else {
		text += " " + i.Name
	}
	if i.Role != "" {
		text += ", " + i.Role
	}
	return text
}

func whoamiCommand() *cobra.Command {
	var c connection
	var output string
	cmd := &cobra.Command{
		Use: "whoami", Short: "Say as whom the cluster knows you", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := c.where()
			if err != nil {
				return err
			}
			me, err := p.whoAmI(cmd, c.timeout)
			if err != nil {
				return err
			}
			info := identityInfo{
				Kind: me.Kind, Name: me.Name, Namespace: me.Namespace, Role: me.Role, Credential: me.Credential, Expires: timeOrNil(me.Expires),
				Address: me.Addr, Node: me.Node, NodeRoles: me.NodeRoles,
			}
			by := me.Credential
			if by == "" && me.Kind != wire.PrincipalLocal.String() {
				by = "certificate"
			}
			return printListing(cmd.OutOrStdout(), output, listing{
				header: []string{"you are", "by", "expires", "from", "at node", "its roles"},
				rows:   [][]any{{describeIdentity(me), cmp.Or(by, "-"), momentText(me.Expires, "never"), me.Addr, me.Node, strings.Join(me.NodeRoles, ", ")}},
				data:   info,
			})
		},
	}
	c.flags(cmd.Flags())
	outputFlag(cmd, &output)
	return cmd
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// momentText is a moment for tables.
func momentText(t time.Time, zero string) string {
	if t.IsZero() {
		return zero
	}
	return t.Local().Format(time.RFC3339)
}
