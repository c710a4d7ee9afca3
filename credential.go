package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/client/admin"
	"github.com/jmqio/jmq/server/meta"
)

func credentialCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "credential", Short: "Credentials: by which apps, users and nodes prove who they are",
		Long: `A credential is an id and a secret. The secret is shown once, when it is made, and kept nowhere: the cluster has only what proves it.
An owner has at most two that are good at one time: one in use, one to change over to.`,
	}
	c.AddCommand(credentialCreateCommand(), credentialListCommand(), credentialRevokeCommand(), credentialRotateCommand())
	return c
}

func ownerText(c *meta.Credential) string {
	if c.Namespace != "" && c.Namespace != admin.NamespaceDefault {
		return c.OwnerKind + " " + c.Namespace + ":" + c.Owner
	}
	return c.OwnerKind + " " + c.Owner
}

func credentialState(c *meta.Credential) string {
	switch {
	case c.Revoked:
		return "revoked"
	case !c.Expires.IsZero() && !time.Now().Before(c.Expires):
		return "expired"
	}
	return "good"
}

// credentialInfo is the stable form of a new credential.
type credentialInfo struct {
	ID      string     `json:"id"`
	Secret  string     `json:"secret,omitempty"`
	File    string     `json:"file,omitempty"` // that has id and secret
	Owner   string     `json:"owner"`
	Expires *time.Time `json:"expires,omitempty"`
}

// secretOut is where a new secret goes.
type secretOut struct {
	file   string
	output string
}

func (s *secretOut) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.file, "out", "", "write id and secret to this file, which only you may read, and print no secret")
	outputFlag(cmd, &s.output)
}

// check refuses a file that is there before there is a secret to lose.
func (s *secretOut) check() error {
	if s.file == "" {
		return nil
	}
	_, err := os.Lstat(s.file)
	switch {
	case err == nil:
		return usagef("--out %s: it is there; name another file, or remove it", s.file)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--out: %w", err)
	}
	return nil
}

func (s *secretOut) print(cmd *cobra.Command, owner string, c admin.Credential) error {
	info := credentialInfo{ID: c.ID, Owner: owner, Expires: timeOrNil(c.Expires)}
	l := listing{header: []string{"id", "owner", "expires", "secret (shown once)"}}
	last := string(c.Secret)
	if s.file != "" {
		if err := writeCredential(s.file, c.ID, c.Secret); err != nil {
			return fmt.Errorf("credential %s was made, and its secret is lost: %w; revoke it: jmq credential revoke %s", c.ID, err, c.ID)
		}
		info.File, last, l.header[3] = s.file, s.file, "file"
	} else {
		info.Secret = string(c.Secret)
	}
	l.rows, l.data = [][]any{{c.ID, owner, momentText(c.Expires, "never"), last}}, info
	return printListing(cmd.OutOrStdout(), s.output, l)
}

// ownerFlags say whose credential it is.
type ownerFlags struct{ app, user, node, namespace string }

func (o *ownerFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.app, "app", "", "of this app")
	cmd.Flags().StringVar(&o.user, "user", "", "of this user")
	cmd.Flags().StringVar(&o.node, "node", "", "of this node of the cluster")
	cmd.Flags().StringVar(&o.namespace, "namespace", "", "namespace of the app (default: "+admin.NamespaceDefault+")")
	cmd.MarkFlagsMutuallyExclusive("app", "user", "node")
}

// owner is whom the flags name; Kind is empty when it is nobody.
func (o *ownerFlags) owner() (admin.Owner, error) {
	switch {
	case o.app != "":
		return admin.Owner{Kind: meta.OwnerApp, Name: o.app, Namespace: orText(o.namespace, admin.NamespaceDefault)}, nil
	case o.namespace != "":
		return admin.Owner{}, usagef("--namespace is of --app")
	case o.user != "":
		return admin.Owner{Kind: meta.OwnerUser, Name: o.user}, nil
	case o.node != "":
		return admin.Owner{Kind: meta.OwnerNode, Name: o.node}, nil
	}
	return admin.Owner{}, nil
}

func textOfOwner(o admin.Owner) string {
	return ownerText(&meta.Credential{OwnerKind: o.Kind, Owner: o.Name, Namespace: o.Namespace})
}

func credentialCreateCommand() *cobra.Command {
	var c connection
	var of ownerFlags
	var out secretOut
	var expires, reason string
	cmd := &cobra.Command{
		Use: "create", Short: "Make a credential; its secret is shown once", Args: cobra.NoArgs,
		Example: `  jmq credential create --app payment --expires 365d --out payment.credential
  jmq credential create --user olga`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			owner, err := of.owner()
			if err != nil {
				return err
			}
			if owner.Kind == "" {
				return usagef("say whose it is: --app, --user or --node")
			}
			ends, err := parseExpiry("--expires", expires)
			if err != nil {
				return err
			}
			if err := out.check(); err != nil {
				return err
			}
			return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
				made, err := a.CreateCredential(ctx, owner, ends, reason)
				if err != nil {
					return err
				}
				err = out.print(cmd, textOfOwner(owner), made)
				settle(ctx, cmd, a, 0)
				return err
			})
		},
	}
	c.flags(cmd.Flags())
	of.flags(cmd)
	cmd.Flags().StringVar(&expires, "expires", "", "when it ends: 90d, or a time (default: never)")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for those who read the audit later")
	out.flags(cmd)
	return cmd
}

// parseExpiry reads how long from now, or a moment; zero: never.
func parseExpiry(flag, text string) (time.Time, error) {
	if text == "" || text == "never" {
		return time.Time{}, nil
	}
	now := time.Now()
	if d, err := parseDuration(text); err == nil {
		if d <= 0 {
			return time.Time{}, usagef("%s %s: give a time to come", flag, text)
		}
		return now.Add(d), nil
	}
	t, err := parseMoment(text, now)
	if err != nil {
		return t, usagef("%s: %w", flag, err)
	}
	if !t.After(now) {
		return t, usagef("%s %s: that is over", flag, text)
	}
	return t, nil
}

func credentialListCommand() *cobra.Command {
	var c connection
	var of ownerFlags
	var output string
	cmd := &cobra.Command{
		Use: "ls", Short: "List credentials, without secrets", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			owner, err := of.owner()
			if err != nil {
				return err
			}
			return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
				found, err := related(ctx, a, "", func(_ *admin.Object, s meta.Spec) bool {
					c, ok := s.(*meta.Credential)
					return ok && (owner.Kind == "" || owner.Kind == c.OwnerKind && owner.Name == c.Owner && owner.Namespace == c.Namespace)
				}, meta.KindCredential)
				if err != nil {
					return err
				}
				return printObjects(cmd.OutOrStdout(), output, meta.KindCredential, found...)
			})
		},
	}
	c.flags(cmd.Flags())
	of.flags(cmd)
	outputFlag(cmd, &output)
	return cmd
}

func credentialRevokeCommand() *cobra.Command {
	var c connection
	var change changing
	var sure confirmation
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "Make a credential good for nothing, at once", Args: cobra.ExactArgs(1),
		Long:              "Make a credential good for nothing. Connections that were made with it are closed within 5 s, and what they wait for is answered.",
		ValidArgsFunction: c.completer(objectNames(meta.KindCredential)),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := keyOf(meta.KindCredential, "", args[0])
			if err != nil {
				return err
			}
			if !change.dryRun {
				if err := sure.ask(cmd, "revoke credential "+args[0]); err != nil {
					return err
				}
			}
			return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
				r, err := change.edit(ctx, cmd, a, key, func(spec map[string]any) error { spec["revoked"] = true; return nil })
				if err != nil {
					return err
				}
				return change.print(cmd, meta.KindCredential, r)
			})
		},
	}
	c.flags(cmd.Flags())
	sure.flag(cmd)
	change.flags(cmd)
	return cmd
}

func credentialRotateCommand() *cobra.Command {
	var c connection
	var out secretOut
	var keep, expires, reason string
	cmd := &cobra.Command{
		Use: "rotate ID", Short: "Make a new credential of the same owner; the old one ends soon", Args: cobra.ExactArgs(1),
		Long: `Make a new credential of the same owner, and let the old one end after --keep: until then both are good, so that clients can change over
one after the other.`,
		Example:           "  jmq credential rotate 01k... --keep 24h --out payment.credential",
		ValidArgsFunction: c.completer(objectNames(meta.KindCredential)),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := keyOf(meta.KindCredential, "", args[0])
			if err != nil {
				return err
			}
			overlap, err := parseDuration(keep)
			if err != nil || overlap < time.Second {
				return usagef("--keep %s: give 1s or more, as 24h; or revoke the old one: jmq credential revoke", keep)
			}
			ends, err := parseExpiry("--expires", expires)
			if err != nil {
				return err
			}
			if err := out.check(); err != nil {
				return err
			}
			return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
				o, err := a.Get(ctx, key)
				if err != nil {
					return err
				}
				s, err := specOf(o)
				if err != nil {
					return err
				}
				old := s.(*meta.Credential)
				if state := credentialState(old); state != "good" {
					return fmt.Errorf("credential %s is %s: make a new one with jmq credential create", args[0], state)
				}
				made, err := a.CreateCredential(ctx, admin.Owner{Kind: old.OwnerKind, Name: old.Owner, Namespace: old.Namespace}, ends, reason)
				if err != nil {
					return err
				}
				until := time.Now().Add(overlap).UTC().Truncate(time.Second)
				if !old.Expires.IsZero() && old.Expires.Before(until) {
					until = old.Expires
				}
				if err := out.print(cmd, ownerText(old), made); err != nil {
					return err
				}
				_, err = a.Edit(ctx, key, strings.TrimSpace(reason+" (rotated)"), func(spec map[string]any) error { spec["expires"] = until.Format(time.RFC3339); return nil })
				if err != nil {
					return fmt.Errorf("the new credential was made, and the old one is good still: %w", err)
				}
				settle(ctx, cmd, a, 0)
				if out.output == "table" {
					_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s ends %s\n", args[0], momentText(until, ""))
				}
				return err
			})
		},
	}
	c.flags(cmd.Flags())
	cmd.Flags().StringVar(&keep, "keep", "24h", "how long the old one is good still")
	cmd.Flags().StringVar(&expires, "expires", "", "when the new one ends: 90d, or a time (default: never)")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for those who read the audit later")
	out.flags(cmd)
	return cmd
}
