package main

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

// dumpOptions say what of a journal is printed.
type dumpOptions struct {
	folders stoppedFolder
	kinds   []string
	from    uint64
	count   int
	output  string
}

func journalDumpCommand() *cobra.Command {
	o := dumpOptions{folders: stoppedFolder{instead: "dump a copy of the folder"}}
	cmd := &cobra.Command{
		Use: "dump FOLDER|FILE", Short: "Print the records of a stopped broker's journal, with what they say", Args: cobra.ExactArgs(1),
		Long: `Print the records of the journal in a data folder, in order, with what they say: topics that were made, changed and deleted, and groups that
were moved, with who did it and why; ends of messages; the headers of message batches (jmq msg get prints messages). Nothing is changed;
the broker of the folder must be stopped. A file that was set aside (jmq journal aside ls) may be given too, whether the broker is stopped or not.

The output may be long: --kind and --from choose, -n ends it, and Ctrl-C says where to go on. What is damaged is left out and named at the
end, with exit code 1.`,
		Example: `  jmq journal dump ./jmq-data --kind topic,offsetReset
  jmq journal dump ./jmq-data --from 4096 -n 20 -o json
  jmq journal dump ./jmq-data/journal/diverged/00000000000000001096-00000000000000002048-1.2.journal`,
		RunE: func(cmd *cobra.Command, args []string) error { return dumpJournal(cmd, &o, args[0]) },
	}
	o.folders.flags(cmd.Flags())
	f := cmd.Flags()
	f.StringSliceVar(&o.kinds, "kind", nil, "only these kinds, by comma: "+strings.Join(kindNames(), ", "))
	f.Uint64Var(&o.from, "from", 0, "from this position on; it need not be that of a record (0: the begin)")
	f.IntVarP(&o.count, "count", "n", 0, "stop after so many records (0: do not)")
	outputFlag(cmd, &o.output)
	// The flag was just made, so this cannot fail.
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(kindNames(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func kindNames() []string {
	var names []string
	for k := journal.KindNoop; k <= journal.KindLost; k++ {
		names = append(names, k.String())
	}
	return names
}

func dumpJournal(cmd *cobra.Command, o *dumpOptions, folder string) error {
	if o.count < 0 {
		return usagef("--count is %d; give a number from 0", o.count)
	}
	for _, k := range o.kinds {
		if !slices.Contains(kindNames(), k) {
			return usagef("--kind %q is not known; give some of: %s", k, strings.Join(kindNames(), ", "))
		}
	}
	dir := folder
	if !isAside(folder) {
		var release func()
		var err error
		if dir, release, err = o.folders.open(folder); err != nil {
			return err
		}
		defer release()
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	d := recordDecoder{topics: map[offset.Topic]string{}, groups: map[offset.GroupID]string{}}
	show := recordPrinter(out, o.output)
	var enough, stopped = errors.New("enough"), errors.New("stopped")
	next, printed := o.from, 0
	err := journal.Dump(vfs.Default, dir, journal.Position(o.from), func(rec journal.Record) error {
		next = uint64(rec.Position)
		if cmd.Context().Err() != nil {
			return stopped
		}
		info := d.describe(rec) // also of what is not printed: it may give names
		if len(o.kinds) > 0 && !slices.Contains(o.kinds, info.Kind) {
			return nil
		}
		if o.count > 0 && printed == o.count {
			return enough
		}
		printed++
		return show(info)
	})
	if flushErr := out.Flush(); flushErr != nil {
		return fmt.Errorf("print: %w", flushErr)
	}
	switch {
	case err == nil, errors.Is(err, enough):
		return nil
	case errors.Is(err, stopped):
		return &codedError{exitInterrupted, fmt.Errorf("stopped; go on with --from %d", next)}
	}
	return err
}

// recordInfo is the stable form of a record. Data depends on its kind.
type recordInfo struct {
	Position uint64    `json:"position"`
	Kind     string    `json:"kind"`
	Epoch    string    `json:"epoch"`
	StoredAt time.Time `json:"storedAt"`
	Bytes    int       `json:"bytes"` // of the payload
	Says     string    `json:"says"`
	Data     any       `json:"data,omitempty"`
}

// recordDecoder knows the names that the records before gave to topics and groups.
type recordDecoder struct {
	topics map[offset.Topic]string
	groups map[offset.GroupID]string
	ends   []offset.End
}

func (d *recordDecoder) topic(t offset.Topic) string {
	if name, ok := d.topics[t]; ok {
		return name
	}
	return fmt.Sprintf("topic %d.%d", t.ID, t.Incarnation)
}

func (d *recordDecoder) group(g offset.GroupID) string {
	if name, ok := d.groups[g]; ok {
		return name
	}
	return fmt.Sprintf("group %d", g)
}

func (d *recordDecoder) describe(rec journal.Record) recordInfo {
	i := recordInfo{Position: uint64(rec.Position), Kind: rec.Kind.String(), Epoch: fmt.Sprint(rec.Epoch), StoredAt: time.Unix(0, rec.Stored), Bytes: len(rec.Payload)}
	var err error
	switch rec.Kind {
	case journal.KindMessages:
		i.Says, i.Data, err = d.batch(rec.Payload)
	case journal.KindTopic:
		i.Says, i.Data, err = d.topicRecord(rec.Payload)
	case journal.KindOffsetReset:
		i.Says, i.Data, err = d.reset(rec.Payload)
	case journal.KindEnd:
		i.Says, i.Data, err = d.endRecord(rec.Payload)
	case journal.KindLeaseExpiry:
		i.Says, i.Data, err = d.expiries(rec.Payload)
	case journal.KindCarriedForward:
		i.Says, i.Data, err = d.carried(rec.Payload)
	case journal.KindLost:
		i.Says = fmt.Sprintf("%d bytes were lost to damage here", journal.RecordBytes(len(rec.Payload)))
	case journal.KindEpoch:
		i.Says = "begins epoch " + i.Epoch
	}
	if err != nil {
		i.Says = "cannot be read: " + oneLine(err)
	}
	return i
}

type batchInfo struct {
	Topic       string    `json:"topic"`
	TopicID     uint64    `json:"topicId"`
	Incarnation uint32    `json:"incarnation"`
	Partition   uint16    `json:"partition"`
	First       uint64    `json:"first"`
	Count       int       `json:"count"`
	Compression string    `json:"compression"`
	StoredAt    time.Time `json:"storedAt"`
}

func (d *recordDecoder) batch(payload []byte) (string, any, error) {
	b, err := wire.ParseBatch(payload)
	if err != nil {
		return "", nil, err
	}
	t := d.topic(offset.Topic{ID: b.Topic(), Incarnation: b.Incarnation()})
	i := batchInfo{t, b.Topic(), b.Incarnation(), b.Partition(), b.FirstIndex(), b.Count(), b.Compression().String(), time.Unix(0, b.StoredNs())}
	return fmt.Sprintf("%s/%d [%d, %d), compression %s", t, i.Partition, i.First, i.First+uint64(i.Count), i.Compression), i, nil
}

type topicChangeInfo struct {
	Operation string    `json:"operation"`
	Topic     topicInfo `json:"topic"` // after it; of a deletion before it
	Who       string    `json:"who,omitempty"`
	Why       string    `json:"why,omitempty"`
}

func (d *recordDecoder) topicRecord(payload []byte) (string, any, error) {
	r, err := store.ParseTopicRecord(payload)
	if err != nil {
		return "", nil, err
	}
	t := r.Topic
	d.topics[offset.Topic{ID: uint64(t.ID), Incarnation: t.Incarnation}] = t.Name
	s := settingsInfo{max(t.Settings.RetentionAge.Milliseconds(), -1), max(t.Settings.RetentionBytes, -1), t.Settings.DiscardUnconsumed, t.Settings.PauseProduce, t.Settings.PauseConsume}
	operation := map[store.TopicOperation]string{store.TopicCreate: "create", store.TopicAlter: "alter", store.TopicDelete: "delete"}[r.Operation]
	i := topicChangeInfo{operation, topicInfo{t.Name, t.Partitions, time.Unix(0, t.Created), uint64(t.ID), t.Incarnation, s}, r.Who, r.Why}
	says := fmt.Sprintf("%s topic %s (id %d.%d), %s, retention %s, %s, paused: %s%s", operation, t.Name, t.ID, t.Incarnation, counted(t.Partitions, "partition"), s.age(), s.size(), s.paused(), audit(r.Who, r.Why))
	return says, i, nil
}

// audit says who did it and why, as far as that is known.
func audit(who, why string) string {
	s := ""
	if who != "" {
		s += "; by " + who
	}
	if why != "" {
		s += "; reason " + strconv.Quote(why)
	}
	return s
}

type groupResetInfo struct {
	Operation string           `json:"operation"`
	Group     string           `json:"group"`
	Topic     string           `json:"topic"`
	Parallel  bool             `json:"parallel"`
	Window    uint32           `json:"window,omitempty"`
	Starts    []groupStartInfo `json:"starts"`
	Who       string           `json:"who,omitempty"`
	Why       string           `json:"why,omitempty"`
}

type groupStartInfo struct {
	Partition  uint16 `json:"partition"`
	Generation uint32 `json:"generation"`
	Offset     uint64 `json:"offset"`
}

func (d *recordDecoder) reset(payload []byte) (string, any, error) {
	r, err := offset.DecodeReset(payload)
	if err != nil {
		return "", nil, err
	}
	d.groups[r.Group] = r.GroupName
	if r.TopicName != "" {
		d.topics[r.Topic] = r.TopicName
	}
	i := groupResetInfo{r.Operation.String(), r.GroupName, d.topic(r.Topic), r.Policy.Parallel, r.Policy.Window, []groupStartInfo{}, r.Who, r.Why}
	var places []string
	for _, s := range r.Starts {
		i.Starts = append(i.Starts, groupStartInfo{s.Partition, s.Generation, uint64(s.Offset)})
		places = append(places, fmt.Sprintf("%d: %d (generation %d)", s.Partition, s.Offset, s.Generation))
	}
	says := fmt.Sprintf("%s of group %s on %s", i.Operation, r.GroupName, i.Topic)
	if len(places) > 0 {
		says += ", to " + shorten(places)
	}
	if r.Policy.Parallel {
		says += fmt.Sprintf(", parallel %d", r.Policy.Window)
	}
	return says + audit(r.Who, r.Why), i, nil
}

type rangeInfo struct {
	Group      string `json:"group"`
	Topic      string `json:"topic"`
	Partition  uint16 `json:"partition"`
	Generation uint32 `json:"generation"`
	What       string `json:"what"`
	From       uint64 `json:"from"`
	To         uint64 `json:"to"`
}

var outcomeNames = map[wire.Outcome]string{
	wire.Acked: "acked", wire.Retried: "retried", wire.Rejected: "rejected", wire.Skipped: "skipped", wire.Filtered: "filtered", wire.Expired: "expired", wire.Released: "released",
}

func sayRanges(ranges []rangeInfo) string {
	var s []string
	for _, r := range ranges {
		s = append(s, fmt.Sprintf("%s %s/%d [%d, %d) %s", r.Group, r.Topic, r.Partition, r.From, r.To, r.What))
	}
	return shorten(s)
}

func (d *recordDecoder) endRecord(payload []byte) (string, any, error) {
	var err error
	if d.ends, err = offset.DecodeEnds(d.ends[:0], payload); err != nil {
		return "", nil, err
	}
	ranges := []rangeInfo{}
	for _, e := range d.ends {
		ranges = append(ranges, rangeInfo{d.group(e.Group), d.topic(e.Topic), e.Partition, e.Generation, outcomeNames[e.Outcome], uint64(e.Range.From), uint64(e.Range.To)})
	}
	return sayRanges(ranges), ranges, nil
}

func (d *recordDecoder) expiries(payload []byte) (string, any, error) {
	expiries, err := offset.DecodeExpiries(payload)
	if err != nil {
		return "", nil, err
	}
	ranges := []rangeInfo{}
	for _, e := range expiries {
		for _, r := range e.Ranges {
			ranges = append(ranges, rangeInfo{d.group(e.Group), d.topic(e.Topic), e.Partition, e.Generation, "expired " + counted(e.Count, "time"), uint64(r.From), uint64(r.To)})
		}
	}
	return sayRanges(ranges), ranges, nil
}

type carriedInfo struct {
	Kind     string    `json:"kind"`
	Position uint64    `json:"position"`
	Epoch    string    `json:"epoch"`
	StoredAt time.Time `json:"storedAt"`
	Batch    any       `json:"batch,omitempty"`
}

func (d *recordDecoder) carried(payload []byte) (string, any, error) {
	c, err := local.Carried(payload)
	if err != nil {
		return "", nil, err
	}
	i := carriedInfo{c.Kind.String(), uint64(c.Position), fmt.Sprint(c.Epoch), time.Unix(0, c.Stored), nil}
	says := fmt.Sprintf("was %s at position %d", i.Kind, i.Position)
	if c.Kind == journal.KindMessages {
		text, batch, err := d.batch(c.Payload)
		if err != nil {
			return "", nil, err
		}
		says, i.Batch = says+": "+text, batch
	}
	return says, i, nil
}

// recordPrinter prints record by record: there may be more than memory holds.
func recordPrinter(w io.Writer, output string) func(recordInfo) error {
	begun := false
	switch output {
	case "json": // one line a record
		e := json.NewEncoder(w)
		return func(r recordInfo) error { return e.Encode(r) }
	case "yaml":
		return func(r recordInfo) error {
			if _, err := io.WriteString(w, "---\n"); err != nil {
				return err
			}
			return printYAML(w, r)
		}
	case "csv":
		c := csv.NewWriter(w)
		return func(r recordInfo) error {
			if !begun {
				begun = true
				if err := c.Write([]string{"position", "kind", "epoch", "stored at", "bytes", "says"}); err != nil {
					return err
				}
			}
			if err := c.Write([]string{strconv.FormatUint(r.Position, 10), r.Kind, r.Epoch, r.StoredAt.Format(time.RFC3339Nano), strconv.Itoa(r.Bytes), r.Says}); err != nil {
				return err
			}
			c.Flush()
			return c.Error()
		}
	case "name":
		return func(r recordInfo) error {
			_, err := fmt.Fprintln(w, r.Position)
			return err
		}
	}
	const layout = "%14v  %-14s  %-6s  %-30s  %8v  %s\n"
	return func(r recordInfo) error {
		if !begun {
			begun = true
			if _, err := fmt.Fprintf(w, layout, "POSITION", "KIND", "EPOCH", "STORED AT", "BYTES", "SAYS"); err != nil {
				return err
			}
		}
		_, err := fmt.Fprintf(w, layout, r.Position, r.Kind, r.Epoch, r.StoredAt.Format(time.RFC3339Nano), r.Bytes, r.Says)
		return err
	}
}
