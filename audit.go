package main

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/client/admin"
)

func auditCommand() *cobra.Command {
	c := &cobra.Command{Use: "audit", Short: "Who changed what of the metadata, when and why"}
	c.AddCommand(auditListCommand())
	return c
}

// auditInfo is the stable form of an entry.
type auditInfo struct {
	ID        uint64          `json:"id"`
	Version   uint64          `json:"version"`
	At        time.Time       `json:"at"`
	Who       string          `json:"who"`
	Address   string          `json:"address,omitempty"`
	Change    string          `json:"change"`
	Kind      string          `json:"kind,omitempty"`
	Namespace string          `json:"namespace,omitempty"`
	Name      string          `json:"name,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	Before    json.RawMessage `json:"before,omitempty"`
	After     json.RawMessage `json:"after,omitempty"`
}

func auditListCommand() *cobra.Command {
	var c connection
	var q admin.AuditQuery
	var since, output string
	cmd := &cobra.Command{
		Use: "ls", Short: "List changes, the newest first", Args: cobra.NoArgs,
		Example: `  jmq audit ls --kind topic --name orders --since 7d
  jmq audit ls --who "user olga" -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if q.Key.Kind != "" {
				if _, err := kindOf(q.Key.Kind); err != nil {
					return err
				}
			}
			if since != "" {
				t, err := parseMoment(since, time.Now())
				if err != nil {
					return usagef("--since: %w", err)
				}
				q.Since = t
			}
			if q.Most < 1 {
				return usagef("--count is %d; give 1 or more", q.Most)
			}
			return c.operate(cmd, func(ctx context.Context, a *admin.Admin) error {
				entries, err := a.Audit(ctx, q)
				if err != nil {
					return err
				}
				return printListing(cmd.OutOrStdout(), output, listAudit(entries))
			})
		},
	}
	c.flags(cmd.Flags())
	f := cmd.Flags()
	f.StringVar(&q.Key.Kind, "kind", "", "only of this kind of objects")
	f.StringVar(&q.Key.Name, "name", "", "only of this name")
	f.StringVar(&q.Key.Namespace, "namespace", "", "only of this namespace")
	f.StringVar(&q.Who, "who", "", `only by: "user NAME", "app NAME", "node NAME", local`)
	f.StringVar(&since, "since", "", "only since a time, or so long: 2h, 7d")
	f.IntVarP(&q.Most, "count", "n", 100, "at most so many")
	_ = cmd.RegisterFlagCompletionFunc("kind", kindCompletions) // the flag was just made
	outputFlag(cmd, &output)
	return cmd
}

func listAudit(entries []admin.AuditEntry) listing {
	l := listing{header: []string{"at", "who", "from", "change", "object", "what", "reason"}, empty: "no change is known"}
	data := []auditInfo{}
	for _, e := range entries {
		data = append(data, auditInfo{
			e.ID, e.Version, e.Time, e.Who, e.Addr, e.Change, e.Key.Kind, e.Key.Namespace, e.Key.Name, e.Reason, e.Before, e.After,
		})
		object := strings.TrimSpace(e.Key.String())
		l.rows = append(l.rows, []any{momentText(e.Time, "-"), e.Who, e.Addr, e.Change, object, cutText(strings.Join(diffSpecs(e.Before, e.After), " "), 80), e.Reason})
	}
	l.data = data
	return l
}

// cutText keeps a table narrow.
func cutText(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-3]) + "..."
	}
	return s
}
