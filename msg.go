package main

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/wire"
)

func msgCommand() *cobra.Command {
	msg := &cobra.Command{Use: "msg", Short: "Look at stored messages"}
	msg.AddCommand(msgGetCommand())
	return msg
}

const msgCountMax = 1000

// bodyForms say how msg get shows a body.
var bodyForms = []string{"auto", "text", "base64", "hex"}

type msgGetOptions struct {
	connection
	at     string
	count  int
	body   string
	output string
}

func msgGetCommand() *cobra.Command {
	var o msgGetOptions
	cmd := &cobra.Command{
		Use: "get TOPIC PARTITION [INDEX]", Short: "Print stored messages, by index or time, without a group", Args: cobra.RangeArgs(2, 3),
		Long: `Print messages as they are stored, from an index on, or from the first one stored at or after --time. Nothing is leased and no group
moves.

--body says how bodies are shown: text, base64, hex, or auto: text where it is text, else base64.`,
		Example: `  jmq msg get orders 3 1234
  jmq msg get orders 3 --time 15m -n 10 -o json
  jmq msg get orders 0 --time '2026-02-25 09:30' --body hex`,
		ValidArgsFunction: o.completer(topicNames),
		RunE:              func(cmd *cobra.Command, args []string) error { return runMsgGet(cmd, &o, args) },
	}
	o.connection.flags(cmd.Flags())
	o.brokerGroupFlag(cmd, "broker group whose partition it is (default: the topic's first)")
	cmd.Flags().StringVar(&o.at, "time", "", "from the first message stored at or after it: a date with its time, or how long ago (15m, 2d)")
	cmd.Flags().IntVarP(&o.count, "count", "n", 1, "how many messages")
	cmd.Flags().StringVar(&o.body, "body", "auto", "how bodies are shown: "+strings.Join(bodyForms, ", "))
	outputFlag(cmd, &o.output)
	// The flag was just made, so this cannot fail.
	_ = cmd.RegisterFlagCompletionFunc("body", cobra.FixedCompletions(bodyForms, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func runMsgGet(cmd *cobra.Command, o *msgGetOptions, args []string) error {
	if err := checkNames(args[:1]); err != nil {
		return err
	}
	topic := args[0]
	partition, err := strconv.ParseUint(args[1], 10, 16)
	if err != nil {
		return usagef("partition %q is no number from 0 to 65535", args[1])
	}
	if o.count < 1 || o.count > msgCountMax {
		return usagef("--count is %d; give 1 to %d", o.count, msgCountMax)
	}
	if !slices.Contains(bodyForms, o.body) {
		return usagef("--body %q is not known; give one of: %s", o.body, strings.Join(bodyForms, ", "))
	}
	r := &wire.PeekRequest{Topic: topic, Partition: uint32(partition)}
	switch {
	case len(args) == 3 && o.at != "":
		return usagef("give either INDEX or --time, not both")
	case len(args) == 3:
		if r.Index, err = strconv.ParseUint(args[2], 10, 64); err != nil {
			return usagef("index %q is no number from 0; for a time give --time", args[2])
		}
	case o.at != "":
		t, err := parseMoment(o.at, time.Now())
		if err != nil {
			return usagef("--time: %w", err)
		}
		r.TimeNs = max(t.UnixNano(), 1)
	default:
		return usagef("say which: INDEX, or --time; usage: %s", cmd.UseLine())
	}
	return o.administer(cmd, fmt.Sprintf("get from %s/%d", topic, partition), func(ctx context.Context, a wire.Admin) error {
		got, err := peek(ctx, a, r, o.count)
		if err != nil {
			return err
		}
		return printMessages(cmd, o, topic, got)
	})
}

// stored is a message as msg get found it, or a gap.
type stored struct {
	wire.Message
	index    uint64
	storedNs int64
	gap      wire.GapReason // not 0: messages [index, to) cannot be read any more
	to       uint64
}

// peek asks as often as it takes for n messages; gaps do not count. No message at all is an error.
func peek(ctx context.Context, a wire.Admin, r *wire.PeekRequest, n int) ([]stored, error) {
	var found []stored
	var codec wire.Codec
	messages := 0
	for messages < n {
		r.MessagesMax = uint32(n - messages)
		answer, err := a.Peek(ctx, r)
		if coded, ok := errors.AsType[*wire.CodeError](err); ok && coded.Code == wire.CodeOutOfRange {
			return nil, &codedError{exitNotFound, fmt.Errorf("nothing is stored there yet: %s", coded.Message)}
		}
		if err != nil {
			return nil, err
		}
		if len(found) == 0 && answer.From == answer.To {
			return nil, &codedError{exitNotFound, fmt.Errorf("nothing is stored there: the partition holds [%d, %d)", answer.First, answer.End)}
		}
		if answer.From == answer.To {
			break
		}
		if answer.Gap != 0 {
			found = append(found, stored{index: answer.From, to: answer.To, gap: wire.GapReason(answer.Gap)})
		} else {
			of, err := storedMessages(&codec, answer)
			if err != nil {
				return nil, err
			}
			found, messages = append(found, of...), messages+len(of)
		}
		r.TimeNs, r.Index = 0, answer.To
	}
	if messages == 0 {
		last := found[len(found)-1]
		return nil, &codedError{exitNotFound, fmt.Errorf("messages [%d, %d) cannot be read any more (%v), and none is stored after them", found[0].index, last.to, last.gap)}
	}
	return found, nil
}

func storedMessages(codec *wire.Codec, r *wire.PeekResponse) ([]stored, error) {
	var found []stored
	for rest := r.Batches; len(rest) > 0; {
		b, after, err := wire.SplitBatch(rest)
		if err != nil {
			return nil, err
		}
		rest = after
		if err := b.Verify(); err != nil {
			return nil, err
		}
		raw, err := codec.Messages(b, nil)
		if err != nil {
			return nil, err
		}
		it := wire.IterateMessages(b, raw)
		for it.Next() {
			if i := b.FirstIndex() + uint64(it.Slot()); i >= r.From && i < r.To {
				found = append(found, stored{Message: it.View.Alias(), index: i, storedNs: b.StoredNs()})
			}
		}
		if err := it.Err(); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, errors.New("the broker's answer has none of the messages that it names")
	}
	return found, nil
}

// storedInfo is the stable form of a stored message, or with gap of messages [index, to) that cannot be read any more.
type storedInfo struct {
	ID         string       `json:"id,omitempty"`
	Topic      string       `json:"topic"`
	Partition  uint16       `json:"partition"`
	Index      uint64       `json:"index"`
	Key        string       `json:"key,omitempty"`
	OrderKey   string       `json:"orderKey,omitempty"`
	Tag        string       `json:"tag,omitempty"`
	Headers    []headerInfo `json:"headers,omitempty"`
	BornAt     *time.Time   `json:"bornAt,omitempty"`
	StoredAt   *time.Time   `json:"storedAt,omitempty"`
	Bytes      int          `json:"bytes"`
	Body       *string      `json:"body,omitempty"`
	BodyBase64 []byte       `json:"bodyBase64,omitempty"`
	BodyHex    string       `json:"bodyHex,omitempty"`
	Gap        string       `json:"gap,omitempty"`
	To         uint64       `json:"to,omitempty"`
}

func printMessages(cmd *cobra.Command, o *msgGetOptions, topic string, messages []stored) error {
	partition, _ := strconv.ParseUint(cmd.Flags().Arg(1), 10, 16) // it was read before
	l := listing{header: []string{"index", "id", "stored at", "key", "order key", "bytes", "body"}}
	data := []storedInfo{}
	for _, m := range messages {
		if m.gap != 0 {
			data = append(data, storedInfo{Topic: topic, Partition: uint16(partition), Index: m.index, Gap: m.gap.String(), To: m.to})
			l.rows = append(l.rows, []any{m.index, "-", "-", "-", "-", 0, fmt.Sprintf("(messages [%d, %d) cannot be read any more: %v)", m.index, m.to, m.gap)})
			continue
		}
		i := storedInfo{
			ID: ulid.ULID(m.ID).String(), Topic: topic, Partition: uint16(partition), Index: m.index, Key: m.Key, OrderKey: m.OrderKey, Tag: m.Tag,
			BornAt: momentOf(m.BornNs), StoredAt: momentOf(m.storedNs), Bytes: len(m.Body),
		}
		for _, h := range m.Headers {
			i.Headers = append(i.Headers, headerInfo{h.Key, h.Value})
		}
		text := string(m.Body)
		switch form := o.body; {
		case form == "hex":
			i.BodyHex = hex.EncodeToString(m.Body)
			text = i.BodyHex
		case form == "base64", form == "auto" && !utf8.Valid(m.Body):
			i.BodyBase64 = m.Body
			text = base64.StdEncoding.EncodeToString(m.Body)
		default:
			i.Body = &text
		}
		data = append(data, i)
		if o.output == "table" {
			text = strings.ToValidUTF8(strings.NewReplacer("\n", "\\n", "\r", "\\r", "\t", "\\t", "\x1b", "\\e").Replace(text), "?")
		}
		l.rows = append(l.rows, []any{m.index, i.ID, i.StoredAt.Format(time.RFC3339Nano), m.Key, m.OrderKey, i.Bytes, text})
	}
	l.data = data
	if o.output == "name" {
		for _, i := range data {
			if i.ID != "" {
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), i.ID); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return printListing(cmd.OutOrStdout(), o.output, l)
}
