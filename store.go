package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/wire"
)

func storeCommand() *cobra.Command {
	store := &cobra.Command{Use: "store", Short: "What a broker's store takes on its disks"}
	store.AddCommand(storeUsageCommand())
	return store
}

// usageInfo is the stable form of what lies on the disks, and why.
type usageInfo struct {
	State           string     `json:"state"` // ok, warn, early-delete, refusing
	Why             string     `json:"why,omitempty"`
	Retention       string     `json:"retention,omitempty"` // why nothing goes by age at the moment
	Disks           []diskInfo `json:"disks"`
	LimitBytes      uint64     `json:"limitBytes,omitempty"`
	LimitedBytes    uint64     `json:"limitedBytes"`
	JournalBytes    uint64     `json:"journalBytes"`
	IndexBytes      uint64     `json:"indexBytes"`
	CheckpointBytes uint64     `json:"checkpointBytes"`
	DamagedBytes    uint64     `json:"damagedBytes"`
	Segments        uint32     `json:"segments"`
	Begin           uint64     `json:"begin"`
	End             uint64     `json:"end"`
	OldestAt        *time.Time `json:"oldestAt,omitempty"`
	Holds           []holdInfo `json:"holds"`
	Holes           []holeInfo `json:"holes"`
}

type diskInfo struct {
	What   string `json:"what"`
	Folder string `json:"folder"`
	Total  uint64 `json:"totalBytes"`
	Free   uint64 `json:"freeBytes"`
	Error  string `json:"error,omitempty"`
}

type holdInfo struct {
	Topic     string     `json:"topic"`
	Partition uint32     `json:"partition"`
	Group     string     `json:"group,omitempty"`
	First     uint64     `json:"first"`
	Bytes     uint64     `json:"bytes"`
	Since     *time.Time `json:"since,omitempty"`
	Why       string     `json:"why"`
}

type holeInfo struct {
	From     uint64 `json:"from"`
	To       uint64 `json:"to"`
	Messages uint64 `json:"messages"`
}

func usageOf(r *wire.StoreUsageResponse) usageInfo {
	u := usageInfo{
		State: r.State, Why: r.Why, Retention: r.Retention, Disks: []diskInfo{}, LimitBytes: r.LimitBytes, LimitedBytes: r.LimitedBytes,
		JournalBytes: r.JournalBytes, IndexBytes: r.IndexBytes, CheckpointBytes: r.CheckpointBytes, DamagedBytes: r.DamagedBytes,
		Segments: r.Segments, Begin: r.Begin, End: r.End, OldestAt: momentOf(r.OldestNs), Holds: []holdInfo{}, Holes: []holeInfo{},
	}
	for _, d := range r.Disks {
		u.Disks = append(u.Disks, diskInfo{d.What, d.Folder, d.Total, d.Free, d.Error})
	}
	for _, h := range r.Holds {
		u.Holds = append(u.Holds, holdInfo{h.Topic, h.Partition, h.Group, h.First, h.Bytes, momentOf(h.SinceNs), h.Why})
	}
	for _, h := range r.Holes {
		u.Holes = append(u.Holes, holeInfo{h.From, h.To, h.Messages})
	}
	return u
}

func storeUsageCommand() *cobra.Command {
	var c connection
	var output string
	var holds uint32
	cmd := &cobra.Command{
		Use: "usage", Short: "Say how full the disks are, what takes the space, and why it is still there", Args: cobra.NoArgs,
		Long: `Say how full the disks are, what takes the space, and why it is still there: the groups and settings that keep the oldest messages, the
largest first, and what the disk damaged.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.administer(cmd, "store usage", func(ctx context.Context, a wire.Admin) error {
				r, err := a.StoreUsage(ctx, &wire.StoreUsageRequest{HoldsMax: holds})
				if err != nil {
					return err
				}
				return printUsage(cmd.OutOrStdout(), output, usageOf(r), time.Now())
			})
		},
	}
	c.flags(cmd.Flags())
	c.brokerGroupFlag(cmd, "of the broker of this broker group (default: the first that answers)")
	cmd.Flags().Uint32VarP(&holds, "holds", "n", 10, "how many of those that hold space to name")
	outputFlag(cmd, &output)
	return cmd
}

// stateMeaning says what each state does to those who send.
var stateMeaning = map[string]string{
	"ok":           "there is room",
	"warn":         "the disk fills up",
	"early-delete": "what every group has consumed is deleted although its age allows more",
	"refusing":     "sends are refused; acks and deletion go on, and sends are taken again by themselves when there is room",
}

func printUsage(w io.Writer, output string, u usageInfo, now time.Time) error {
	l := listing{header: []string{"topic", "partition", "group", "holds", "since", "first", "why"}, data: u}
	for _, h := range u.Holds {
		size, since, group := any(h.Bytes), "", h.Group
		if h.Since != nil {
			since = h.Since.Format(time.RFC3339)
		}
		if output == "table" {
			size, since = formatSize(int64(h.Bytes)), "-"
			if h.Since != nil {
				since = ago(h.Since.UnixNano(), now)
			}
			if group == "" {
				group = "-"
			}
		}
		l.rows = append(l.rows, []any{h.Topic, h.Partition, group, size, since, h.First, h.Why})
	}
	if output != "table" {
		return printListing(w, output, l)
	}
	var b strings.Builder
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "%-11s"+format+"\n", append([]any{what}, args...)...)
	}
	line("state", "%s: %s", bold(w, u.State), stateMeaning[u.State])
	for _, d := range u.Disks {
		switch {
		case d.Error != "":
			line("disk", "%-8s free space cannot be read: %s (%s)", d.What, d.Error, d.Folder)
		case d.Total == 0:
			line("disk", "%-8s free space is not known (%s)", d.What, d.Folder)
		default:
			line("disk", "%-8s %s of %s, %s free (%s)", d.What, usedBar(d.Total-min(d.Free, d.Total), d.Total), formatSize(int64(d.Total)), formatSize(int64(d.Free)), d.Folder)
		}
	}
	if u.LimitBytes > 0 {
		line("limit", "%-8s %s of %s (broker.store.bytesMax), %s taken", "folders", usedBar(u.LimitedBytes, u.LimitBytes), formatSize(int64(u.LimitBytes)), formatSize(int64(u.LimitedBytes)))
	}
	line("takes", "journal %s in %s, index %s, checkpoints %s, set aside as damaged %s",
		formatSize(int64(u.JournalBytes)), counted(u.Segments, "segment"), formatSize(int64(u.IndexBytes)), formatSize(int64(u.CheckpointBytes)), formatSize(int64(u.DamagedBytes)))
	oldest := ""
	if u.OldestAt != nil {
		oldest = ", the oldest segment was begun " + ago(u.OldestAt.UnixNano(), now)
	}
	line("journal", "positions [%d, %d)%s", u.Begin, u.End, oldest)
	if u.Why != "" {
		line("why", "%s", u.Why)
	}
	if u.Retention != "" {
		line("retention", "%s", u.Retention)
	}
	if len(u.Holes) > 0 {
		messages := uint64(0)
		for _, h := range u.Holes {
			messages += h.Messages
		}
		line("DAMAGE", "%s of the journal cannot be read, with about %s; consumers skip what is there", counted(len(u.Holes), "range"), counted(messages, "message"))
		const shown = 5
		for _, h := range u.Holes[:min(shown, len(u.Holes))] {
			line("", "positions [%d, %d), %s, about %s", h.From, h.To, formatSize(int64(h.To-h.From)), counted(h.Messages, "message"))
		}
		if len(u.Holes) > shown {
			line("", "and %d more: -o json has them all", len(u.Holes)-shown)
		}
	}
	b.WriteString("\n")
	if len(l.rows) == 0 {
		b.WriteString("nothing holds the oldest segments but retention\n")
	} else {
		b.WriteString("What keeps the oldest segments, the largest first:\n\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil || len(l.rows) == 0 {
		return err
	}
	return printListing(w, output, l)
}

// usedBar draws how much of total is used.
func usedBar(used, total uint64) string {
	const width = 24
	share := min(float64(used)/float64(total), 1)
	filled := int(share*width + 0.5)
	return fmt.Sprintf("[%s%s] %5.1f %%", strings.Repeat("#", filled), strings.Repeat("-", width-filled), 100*float64(used)/float64(total))
}
