package main

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/wire"
)

const (
	consumeBatchMax = 100
	consumePoll     = 5 * time.Second
)

// consumeOutputs: body is the bodies alone, one a line.
var consumeOutputs = []string{"body", "table", "json", "yaml", "csv", "name"}

type consumeOptions struct {
	connection
	group         string
	count         int
	fromBeginning bool
	timeout       time.Duration
	format        string
	output        string
}

func consumeCommand() *cobra.Command {
	var o consumeOptions
	consume := &cobra.Command{
		Use: "consume TOPIC -g GROUP", Short: "Print messages, and acknowledge what was printed",
		Long: `Print a group's messages as they come, until Ctrl-C or --count, and acknowledge each after it was printed: a message that was printed
and not acknowledged, because something was killed in between, comes again.

A new group starts at the end unless --from-beginning is given; a group that is there goes on where it stands.

With --format each message is printed as it says: %v body, %k key, %o order key, %t topic, %p partition, %i index, %d message id,
%s stored time, %h headers, %% a percent sign, \n \t \\.`,
		Example: `  jmq consume orders -g demo --from-beginning
  jmq consume orders -g demo -n 10 --timeout 5s -o json
  jmq consume orders -g demo --format '%p/%i %k %v\n'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runConsume(cmd, &o, args[0]) },
	}
	f := consume.Flags()
	o.connection.flags(f)
	f.StringVarP(&o.group, "group", "g", "", "consumer group (required)")
	f.IntVarP(&o.count, "count", "n", 0, "stop after so many messages (0: do not)")
	f.BoolVar(&o.fromBeginning, "from-beginning", false, "where a new group starts: at the first message, not at the end")
	f.DurationVar(&o.timeout, "timeout", 0, "stop with exit code 5 when no message comes for so long (0: wait)")
	f.StringVar(&o.format, "format", "", "how to print a message, see above")
	f.StringVarP(&o.output, "output", "o", "body", "form of the output: "+strings.Join(consumeOutputs, ", "))
	completeOutput(consume, consumeOutputs)
	consume.ValidArgsFunction = o.completer(topicNames)
	// The flag was just made, so this cannot fail.
	_ = consume.RegisterFlagCompletionFunc("group", o.flagCompleter(groupNames))
	return consume
}

func runConsume(cmd *cobra.Command, o *consumeOptions, topic string) error {
	if o.group == "" {
		return usagef("say for which group: -g GROUP; usage: %s", cmd.UseLine())
	}
	if o.count < 0 || o.timeout < 0 {
		return usagef("--count and --timeout must not be negative")
	}
	if err := checkOutput(o.output, consumeOutputs); err != nil {
		return err
	}
	if o.format != "" && cmd.Flags().Changed("output") {
		return usagef("give either --format or --output, not both")
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	show, err := printer(out, o)
	if err != nil {
		return err
	}
	cl, err := o.dial(cmd)
	if err != nil {
		return err
	}
	defer closeClient(cl)
	start := client.FromEnd
	if o.fromBeginning {
		start = client.FromBeginning
	}
	consumer, err := cl.Consumer(topic, client.Group(o.group), client.Start(start), client.OnGap(func(g client.Gap) {
		fmt.Fprintf(cmd.ErrOrStderr(), "jmq: messages [%d, %d) of partition %d will never come: %v\n", g.From, g.To, g.Partition, g.Reason)
	}))
	if err != nil {
		return usageError(err)
	}
	ctx := cmd.Context()
	settle, cancel := withGrace(ctx, closeTimeout)
	defer cancel()
	printed, unsettled, last, away := 0, 0, time.Now(), false
	for ctx.Err() == nil && (o.count == 0 || printed < o.count) {
		most := consumeBatchMax
		if o.count > 0 {
			most = min(most, o.count-printed)
		}
		wait := consumePoll
		if o.timeout > 0 {
			wait = min(wait, o.timeout-time.Since(last))
			if wait <= 0 {
				return &codedError{exitTimeout, fmt.Errorf("no message came within %v; %d were printed", o.timeout, printed)}
			}
		}
		got, err := fetchWithin(ctx, consumer, most, max(wait, time.Millisecond), o.timeout > 0)
		if ctx.Err() != nil && len(got) == 0 {
			break // Ctrl-C is the usual end
		}
		if err != nil {
			failed, ok := errors.AsType[*client.Error](err)
			if !ok || wire.Traits[failed.Code].Retry == wire.RetryNever {
				return err
			}
			if !away {
				fmt.Fprintln(cmd.ErrOrStderr(), "jmq: waiting for the broker:", oneLine(err))
				away = true
			}
			continue
		}
		away = false
		for _, d := range got {
			if err := show(d); err != nil {
				return err
			}
		}
		if err := out.Flush(); err != nil {
			return fmt.Errorf("print: %w; what could not be printed comes again", err)
		}
		if len(got) == 0 {
			continue
		}
		if err := consumer.Ack(settle, got...); err != nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "jmq: printed, but not acknowledged:", oneLine(err))
			unsettled += len(got)
		}
		printed += len(got)
		last = time.Now()
	}
	if unsettled > 0 {
		return fmt.Errorf("up to %s were printed and not acknowledged; they come again", counted(unsettled, "message"))
	}
	return nil
}

// fetchGrace is for an answer to come after the wait that was asked for.
const fetchGrace = time.Second

// fetchWithin fetches. With strict, it does not wait for the broker any longer than for a message.
func fetchWithin(ctx context.Context, consumer *client.Consumer, n int, wait time.Duration, strict bool) ([]*client.Delivery, error) {
	if strict {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait+fetchGrace)
		defer cancel()
	}
	return consumer.Fetch(ctx, n, client.Wait(wait))
}

// withGrace returns a context that outlives ctx by grace: what was printed is acknowledged although Ctrl-C came.
func withGrace(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(grace, cancel)
		context.AfterFunc(longer, func() { timer.Stop() })
	})
	return longer, func() {
		stop()
		cancel()
	}
}

// messageInfo is the stable form of a delivered message. A body that is no text is in bodyBase64.
type messageInfo struct {
	ID         string       `json:"id"`
	Topic      string       `json:"topic"`
	Partition  uint16       `json:"partition"`
	Index      uint64       `json:"index"`
	Key        string       `json:"key,omitempty"`
	OrderKey   string       `json:"orderKey,omitempty"`
	Headers    []headerInfo `json:"headers,omitempty"`
	StoredAt   time.Time    `json:"storedAt"`
	Body       *string      `json:"body,omitempty"`
	BodyBase64 []byte       `json:"bodyBase64,omitempty"`
}

type headerInfo struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func infoOf(d *client.Delivery) messageInfo {
	m := messageInfo{ID: d.ID, Topic: d.Topic, Partition: *d.Partition, Index: d.Index, Key: d.Key, OrderKey: d.OrderKey, StoredAt: d.StoredAt}
	for _, h := range d.Headers {
		m.Headers = append(m.Headers, headerInfo{h.Key, h.Value})
	}
	if utf8.Valid(d.Body) {
		body := string(d.Body)
		m.Body = &body
	} else {
		m.BodyBase64 = d.Body
	}
	return m
}

// printer returns what prints one message to w.
func printer(w *bufio.Writer, o *consumeOptions) (func(*client.Delivery) error, error) {
	if o.format != "" {
		return formatPrinter(w, o.format)
	}
	columns := []string{"id", "partition", "index", "key", "stored at", "body"}
	row := func(d *client.Delivery) []string {
		return []string{d.ID, strconv.Itoa(int(*d.Partition)), strconv.FormatUint(d.Index, 10), d.Key, d.StoredAt.Format(time.RFC3339Nano), string(d.Body)}
	}
	begun := false
	switch o.output {
	case "json": // one line a message
		e := json.NewEncoder(w)
		return func(d *client.Delivery) error { return e.Encode(infoOf(d)) }, nil
	case "yaml":
		return func(d *client.Delivery) error {
			if _, err := io.WriteString(w, "---\n"); err != nil {
				return err
			}
			return printYAML(w, infoOf(d))
		}, nil
	case "csv":
		c := csv.NewWriter(w)
		return func(d *client.Delivery) error {
			if !begun {
				begun = true
				if err := c.Write(columns); err != nil {
					return err
				}
			}
			if err := c.Write(row(d)); err != nil {
				return err
			}
			c.Flush()
			return c.Error()
		}, nil
	case "name":
		return func(d *client.Delivery) error {
			_, err := fmt.Fprintln(w, d.ID)
			return err
		}, nil
	case "table": // the widths of what is still to come are not known, so columns are wide enough for the usual
		const layout = "%-26s  %9s  %8s  %-20s  %-30s  %s\n"
		return func(d *client.Delivery) error {
			if !begun {
				begun = true
				fmt.Fprintf(w, layout, "ID", "PARTITION", "INDEX", "KEY", "STORED AT", "BODY")
			}
			r := row(d)
			_, err := fmt.Fprintf(w, layout, r[0], r[1], r[2], r[3], r[4], strings.ReplaceAll(r[5], "\n", "\\n"))
			return err
		}, nil
	}
	return func(d *client.Delivery) error {
		if _, err := w.Write(d.Body); err != nil {
			return err
		}
		return w.WriteByte('\n')
	}, nil
}

// formatPrinter understands what the command's help says of --format.
func formatPrinter(w *bufio.Writer, format string) (func(*client.Delivery) error, error) {
	type part func(d *client.Delivery) string
	text := func(s string) part { return func(*client.Delivery) string { return s } }
	verbs := map[byte]part{
		'%': text("%"),
		'v': func(d *client.Delivery) string { return string(d.Body) },
		'k': func(d *client.Delivery) string { return d.Key },
		'o': func(d *client.Delivery) string { return d.OrderKey },
		't': func(d *client.Delivery) string { return d.Topic },
		'p': func(d *client.Delivery) string { return strconv.Itoa(int(*d.Partition)) },
		'i': func(d *client.Delivery) string { return strconv.FormatUint(d.Index, 10) },
		'd': func(d *client.Delivery) string { return d.ID },
		's': func(d *client.Delivery) string { return d.StoredAt.Format(time.RFC3339Nano) },
		'h': func(d *client.Delivery) string {
			var all []string
			for _, h := range d.Headers {
				all = append(all, h.Key+"="+h.Value)
			}
			return strings.Join(all, ",")
		},
	}
	escapes := map[byte]part{'n': text("\n"), 't': text("\t"), '\\': text("\\")}
	var parts []part
	for i := 0; i < len(format); i++ {
		known := map[byte]map[byte]part{'%': verbs, '\\': escapes}[format[i]]
		if known == nil {
			parts = append(parts, text(format[i:i+1]))
			continue
		}
		i++
		if i == len(format) {
			return nil, usagef("--format ends with %q; see jmq consume --help", format[i-1:])
		}
		p, ok := known[format[i]]
		if !ok {
			return nil, usagef("--format has %q, which is not known; see jmq consume --help", format[i-1:i+1])
		}
		parts = append(parts, p)
	}
	return func(d *client.Delivery) error {
		for _, p := range parts {
			if _, err := w.WriteString(p(d)); err != nil {
				return err
			}
		}
		return nil
	}, nil
}
