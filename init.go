package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/meta/sqlstore"
	"github.com/jmqio/jmq/wire"
)

const (
	firstAdmin = "admin"
	firstNode  = "node"
	initWithin = 20 * time.Second
)

// initInfo is the stable form of what registry init did for an owner.
type initInfo struct {
	Owner string `json:"owner"`
	ID    string `json:"id"`
	File  string `json:"file"`
	Made  bool   `json:"made"` // false: it was there, and is good
}

func registryInitCommand() *cobra.Command {
	var dir, output string
	cmd := &cobra.Command{
		Use: "init", Short: "Make the first user and the credential of nodes, at the database itself", Args: cobra.NoArgs,
		Long: `Make the user admin, who may do everything, and a credential for the nodes of the cluster, and write both credentials to files that only you may
read: DIR/admin.credential and DIR/node.credential. It works on the database of the configuration (registry.dsn or registry.file), whether registry
nodes run or not: whoever may write that database rules the cluster.

Again it changes nothing, but for a file that is lost or whose credential is not good any more: that one is made anew. If the admin has two that are
good then, the older one is revoked.`,
		Example: `  jmq registry init --registry.dsn 'jmq:file:/etc/jmq/dbpass@tcp(db:3306)/jmq?tls=true' --dir /etc/jmq
  jmq login --address jmq-1:50088 --secret-file /etc/jmq/admin.credential`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd.Flags(), os.Environ())
			if err != nil {
				return err
			}
			at := sqlstore.Location{File: c.Registry.File, DSN: c.Registry.DSN, Insecure: c.Registry.Insecure}
			if at.File == "" && at.DSN == "" {
				at.File = filepath.Join(c.Broker.Data, metadataFile)
				if err := os.MkdirAll(c.Broker.Data, 0o700); err != nil {
					return server.FolderError(absolute(c.Broker.Data), err)
				}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), initWithin)
			defer cancel()
			store, err := sqlstore.Open(ctx, sqlstore.Options{Location: at, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
			if err != nil {
				return fmt.Errorf("metadata database %s: %w", at, err)
			}
			done, err := initRegistry(ctx, store, dir, time.Now())
			if err = errors.Join(err, store.Close()); err != nil {
				return fmt.Errorf("registry init: %w", err)
			}
			l := listing{header: []string{"owner", "id", "file", "is"}, data: done}
			for _, i := range done {
				is := "as it was"
				if i.Made {
					is = "new"
				}
				l.rows = append(l.rows, []any{i.Owner, i.ID, i.File, is})
			}
			return printListing(cmd.OutOrStdout(), output, l)
		},
	}
	serverFlags(cmd.Flags())
	cmd.Flags().StringVar(&dir, "dir", ".", "folder for the files")
	outputFlag(cmd, &output)
	return cmd
}

// metadataFile is where the server keeps its database if nothing is configured.
const metadataFile = "metadata.db"

// initRegistry sees to it that the admin and the nodes have credentials that are good, in files of dir.
func initRegistry(ctx context.Context, store meta.Store, dir string, now time.Time) ([]initInfo, error) {
	by := meta.Actor{Name: "registry init"}
	key := meta.Key{Kind: meta.KindUser, Name: firstAdmin}
	if store.View().Get(key) == nil {
		_, err := store.Update(ctx, meta.Change{By: by, Writes: []meta.Write{{Key: key, Spec: &meta.User{Role: meta.RoleAdmin}, Expect: meta.Expect{Create: true}}}})
		if err != nil && wire.CodeOf(err) != wire.CodeExists && wire.CodeOf(err) != wire.CodeConflict {
			return nil, err
		}
	}
	var done []initInfo
	for _, owner := range []meta.Credential{{OwnerKind: meta.OwnerUser, Owner: firstAdmin}, {OwnerKind: meta.OwnerNode, Owner: firstNode}} {
		file := filepath.Join(dir, map[string]string{meta.OwnerUser: "admin.credential", meta.OwnerNode: "node.credential"}[owner.OwnerKind])
		info := initInfo{Owner: ownerText(&owner), File: file}
		who, err := client.ReadCredentials(file)
		switch {
		case err == nil:
			p, _, good := store.View().PrincipalOf(who.ID, now.UnixNano())
			if good && p.Kind.String() == owner.OwnerKind && p.Name == owner.Owner {
				info.ID = who.ID
				done = append(done, info)
				continue
			}
		case !errors.Is(err, fs.ErrNotExist):
			return done, err // not ours to overwrite
		}
		if info.ID, err = newCredential(ctx, store, by, owner, file, now); err != nil {
			return done, fmt.Errorf("credential of %s: %w", info.Owner, err)
		}
		info.Made = true
		done = append(done, info)
	}
	return done, nil
}

// newCredential writes the file before the database: what is lost in between is a file that is good for nothing.
func newCredential(ctx context.Context, store meta.Store, by meta.Actor, c meta.Credential, file string, now time.Time) (string, error) {
	random := make([]byte, wire.SecretBytes)
	rand.Read(random) // never fails
	secret := wire.Secret(base64.RawURLEncoding.EncodeToString(random))
	v, err := wire.NewVerifier(secret)
	if err != nil {
		return "", err
	}
	c.Salt, c.Iterations, c.StoredKey, c.ServerKey, c.IssuedAt = v.Salt, v.Iterations, v.StoredKey, v.ServerKey, now.UTC().Truncate(time.Second)
	key := meta.Key{Kind: meta.KindCredential, Name: strings.ToLower(ulid.MustNew(ulid.Timestamp(now), rand.Reader).String())}
	if err := writeCredential(file, key.Name, secret); err != nil {
		return "", err
	}
	writes := []meta.Write{{Key: key, Spec: &c, Expect: meta.Expect{Create: true}}}
	if c.OwnerKind == meta.OwnerUser {
		writes = append(writes, makeRoom(store.View(), &c)...)
	}
	_, err = store.Update(ctx, meta.Change{By: by, Writes: writes})
	return key.Name, err
}

// makeRoom revokes the oldest credential of an owner who has as many as can be: who lost them all comes in no other way.
func makeRoom(s *meta.Snapshot, of *meta.Credential) []meta.Write {
	var oldest *meta.Object
	good := 0
	for _, o := range s.List(meta.KindCredential) {
		c := o.Spec.(*meta.Credential)
		if c.OwnerKind != of.OwnerKind || c.Owner != of.Owner || credentialState(c) != "good" {
			continue
		}
		if good++; oldest == nil || c.IssuedAt.Before(oldest.Spec.(*meta.Credential).IssuedAt) {
			oldest = o
		}
	}
	if good < meta.CredentialsMax {
		return nil
	}
	revoked := *oldest.Spec.(*meta.Credential)
	revoked.Revoked = true
	return []meta.Write{{Key: oldest.Key, Spec: &revoked, Expect: meta.Expect{Revision: oldest.Revision}}}
}
