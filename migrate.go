package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"time"

	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/meta/sqlstore"
)

func migrateCommand() *cobra.Command {
	migrate := &cobra.Command{Use: "migrate", Short: "Move what a role keeps into another engine"}
	migrate.AddCommand(migrateMetadataCommand())
	return migrate
}

func migrateMetadataCommand() *cobra.Command {
	var from, to, output string
	var force, insecure, quiet bool
	cmd := &cobra.Command{
		Use: "metadata --from FILE|DSN --to FILE|DSN", Short: "Copy the registry's metadata to another database", Args: cobra.NoArgs,
		Long: `Copy the registry's metadata from one database to another: from a file of SQLite to MySQL or MariaDB, or any other way round. All registry nodes
must be stopped; brokers and clients go on meanwhile with what they know. Afterwards start the registry nodes on the new database.

A DSN is user:env:NAME@tcp(host:port)/database?tls=true, where NAME is an environment variable with the password; or user:file:/PATH@..., a file
with it. A password in clear is refused, since all users of this machine can read command lines.

The copy keeps objects, revisions and audit, and begins a new generation: brokers that have seen it refuse the old database. It is compared with its source, each row,
before it counts. After Ctrl-C start it again: the target is no metadata until it is whole, and the source is only read.`,
		Example: `  jmq migrate metadata --from /var/lib/jmq/registry.db --to 'jmq:env:JMQ_DB@tcp(db.example:3306)/jmq?tls=true'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if from == "" || to == "" {
				return usagef("give both databases: --from FILE|DSN --to FILE|DSN")
			}
			o := sqlstore.CopyOptions{From: sqlstore.Locate(from), To: sqlstore.Locate(to), Force: force, By: meta.Actor{Name: "local " + userName()}}
			o.From.Insecure, o.To.Insecure = insecure, insecure
			for flag, l := range map[string]sqlstore.Location{"from": o.From, "to": o.To} {
				if l.HasPassword() {
					return usagef("--%s has a password in clear, which all users of this machine can read: give env:NAME or file:/PATH in its place", flag)
				}
			}
			return migrateMetadata(cmd, o, output, quiet)
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "the database that has the metadata: a file (SQLite) or a DSN (MySQL)")
	f.StringVar(&to, "to", "", "the database that gets it")
	f.BoolVar(&force, "force", false, "replace what the target has, and take a source that registry nodes still write to")
	f.BoolVar(&insecure, "insecure", false, "allow a database on another machine without TLS or without a password")
	f.BoolVarP(&quiet, "quiet", "q", false, "no progress")
	outputFlag(cmd, &output)
	return cmd
}

func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "unknown"
}

// migratedInfo is the stable form of what was copied.
type migratedInfo struct {
	From       string         `json:"from"`
	To         string         `json:"to"`
	Generation uint64         `json:"generation"`
	Version    uint64         `json:"version"`
	Objects    map[string]int `json:"objects"` // by kind
	Deleted    int            `json:"deleted"` // deletions that are still told
	Audit      int            `json:"audit"`
	Seconds    float64        `json:"seconds"`
}

func migrateMetadata(cmd *cobra.Command, o sqlstore.CopyOptions, output string, quiet bool) error {
	start := time.Now()
	bar := newProgress(cmd.ErrOrStderr(), "migrate", false, quiet)
	o.Progress = bar.set
	copied, err := sqlstore.Copy(cmd.Context(), o)
	bar.close()
	if err != nil {
		if errors.Is(cmd.Context().Err(), context.Canceled) {
			return &codedError{exitInterrupted, fmt.Errorf("stopped before the end; the source is as it was; the target %s is no metadata until you start it again: it begins anew", o.To)}
		}
		return err
	}
	info := migratedInfo{From: o.From.String(), To: o.To.String(), Generation: uint64(copied.Generation), Version: uint64(copied.Version), Objects: map[string]int{},
		Deleted: copied.Deleted, Audit: copied.Audit, Seconds: time.Since(start).Seconds()}
	l := listing{header: []string{"what", "there"}, data: &info}
	for _, k := range meta.Kinds {
		if n := copied.Kinds[k]; n > 0 {
			info.Objects[string(k)] = n
			l.rows = append(l.rows, []any{string(k), n})
		}
	}
	l.rows = append(l.rows, []any{"deletions", copied.Deleted}, []any{"audit entries", copied.Audit},
		[]any{"generation", info.Generation}, []any{"version", info.Version})
	return printListing(cmd.OutOrStdout(), output, l)
}
