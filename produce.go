package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/wire"
)

const (
	produceBatchMax      = 100     // messages in a send
	produceBatchBytesMax = 1 << 20 // after that a send is full
)

type produceOptions struct {
	connection
	key, orderKey string
	orderKeyMove  bool
	headers       []string
	count         int
	file          string
	timeout       time.Duration
	quiet         bool
	output        string
}

func produceCommand() *cobra.Command {
	var o produceOptions
	produce := &cobra.Command{
		Use: "produce TOPIC [BODY...]", Short: "Send messages",
		Long: `Send messages: each BODY; without one, each line of the standard input or of --file.

A message counts as sent when it is on the broker's disk. Messages with the same --order-key stay in order.`,
		Example: `  jmq produce orders 'hello'
  jmq produce orders -k order-17 -H source=web '{"amountCents":1177}'
  jmq produce orders -f orders.jsonl`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runProduce(cmd, &o, args[0], args[1:]) },
	}
	f := produce.Flags()
	o.connection.flags(f)
	f.StringVarP(&o.key, "key", "k", "", "business id of each message, for finding it")
	f.StringVar(&o.orderKey, "order-key", "", "messages with the same order key stay in order")
	f.BoolVar(&o.orderKeyMove, "order-key-move", false, "while the broker group of the order key is away send to another one, out of order, instead of waiting")
	f.StringArrayVarP(&o.headers, "header", "H", nil, "header of each message, NAME=VALUE; may be given several times")
	f.IntVarP(&o.count, "count", "n", 0, "how many to send: the first lines, or the BODYs again and again (0: all of them, once)")
	f.StringVarP(&o.file, "file", "f", "", "send the lines of this file (-: of the standard input)")
	f.DurationVar(&o.timeout, "timeout", 3*time.Second, "how long a send may take")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "no progress and no summary")
	outputFlag(produce, &o.output)
	produce.ValidArgsFunction = o.completer(topicNames)
	return produce
}

// receiptInfo is the stable form of a receipt.
type receiptInfo struct {
	ID        string    `json:"id"`
	Topic     string    `json:"topic"`
	Partition uint16    `json:"partition"`
	Index     uint64    `json:"index"`
	StoredAt  time.Time `json:"storedAt"`

	BrokerGroup string `json:"brokerGroup"`
	Attempts    int    `json:"attempts"`
	Unknown     int    `json:"unknown"` // attempts that may have left another copy
}

func runProduce(cmd *cobra.Command, o *produceOptions, topic string, bodies []string) error {
	headers, err := parseHeaders(o.headers)
	if err != nil {
		return err
	}
	if o.count < 0 {
		return usagef("--count is %d; give a number from 0", o.count)
	}
	if o.file != "" && len(bodies) > 0 {
		return usagef("give either BODYs or --file, not both")
	}
	source, err := openSource(cmd.InOrStdin(), o, bodies)
	if err != nil {
		return err
	}
	defer source.close()
	cl, err := o.dial(cmd)
	if err != nil {
		return err
	}
	defer closeClient(cl)
	options := []client.ProducerOption{client.Timeout(o.timeout)}
	if o.orderKeyMove {
		options = append(options, client.MoveOrderKeys())
	}
	producer, err := cl.Producer(topic, options...)
	if err != nil {
		return usageError(err)
	}

	if len(bodies) == 0 && o.file == "" && !o.quiet && isTerminal(cmd.InOrStdin()) {
		fmt.Fprintln(cmd.ErrOrStderr(), "each line is a message; Ctrl-D ends")
	}
	ctx := cmd.Context()
	bar := newProgress(cmd.ErrOrStderr(), "sent", false, o.quiet)
	defer bar.close()
	var receipts []client.Receipt
	listed := cmd.Flags().Changed("output")
	sent := int64(0)
	for err == nil {
		var batch []*client.Message
		batch, err = source.next(ctx, func(body []byte) *client.Message {
			return &client.Message{Key: o.key, OrderKey: o.orderKey, Headers: headers, Body: body}
		})
		if len(batch) == 0 {
			break
		}
		// A Ctrl-C must not cut a send: it is answered, or its time runs out.
		got, sendErr := producer.SendBatch(context.WithoutCancel(ctx), batch)
		stored := len(batch)
		if partly, ok := errors.AsType[*client.BatchError](sendErr); ok {
			stored = 0
			for i, e := range partly.Errors {
				if e == nil {
					stored++
					if listed {
						receipts = append(receipts, got[i])
					}
				}
			}
		} else if sendErr != nil {
			stored = 0
		} else if listed {
			receipts = append(receipts, got...)
		}
		sent += int64(stored)
		bar.set(sent, source.total)
		if sendErr != nil {
			err = sendError(sendErr)
		}
	}
	bar.close()
	if errors.Is(err, io.EOF) { // all is sent
		err = nil
	}
	if listed {
		if printErr := printListing(cmd.OutOrStdout(), o.output, listReceipts(receipts)); printErr != nil {
			return errors.Join(err, printErr)
		}
	} else if !o.quiet && err == nil {
		fmt.Fprintf(cmd.OutOrStdout(), "sent %d to %s\n", sent, topic)
	}
	switch {
	case err == nil:
		return nil
	case len(bodies) == 0 && sent > 0:
		return fmt.Errorf("%w; the first %d lines are stored, go on with line %d (tail -n +%d)", err, sent, sent+1, sent+1)
	case sent > 0:
		return fmt.Errorf("%w; %d are stored", err, sent)
	}
	return err
}

// sendError shows the first cause of a batch that was not stored, which all of its messages share in practice.
func sendError(err error) error {
	if partly, ok := errors.AsType[*client.BatchError](err); ok {
		for _, e := range partly.Errors {
			if e != nil {
				return e
			}
		}
	}
	return err
}

func parseHeaders(list []string) (client.Headers, error) {
	var headers client.Headers
	for _, h := range list {
		name, value, ok := strings.Cut(h, "=")
		if !ok || name == "" {
			return nil, usagef("header %q is not NAME=VALUE", h)
		}
		if _, twice := headers.Get(name); twice {
			return nil, usagef("header %q is given twice", name)
		}
		headers.Set(name, value)
	}
	return headers, nil
}

func listReceipts(receipts []client.Receipt) listing {
	l := listing{header: []string{"id", "topic", "partition", "index", "stored at"}, empty: "nothing sent"}
	data := []receiptInfo{}
	for _, r := range receipts {
		data = append(data, receiptInfo{r.MessageID, r.Topic, r.Partition, r.Index, r.StoredAt, r.BrokerGroup, r.Attempts, r.Unknown})
		l.rows = append(l.rows, []any{r.MessageID, r.Topic, r.Partition, r.Index, r.StoredAt.Format(time.RFC3339Nano)})
	}
	l.data = data
	return l
}

// bodySource gives bodies: lines that a goroutine of its own reads, so that what has come can be sent while nothing more
// comes.
type bodySource struct {
	bodies chan []byte
	fail   error // why the bodies ended, if not by their end; set before bodies is closed
	total  int64 // how many there will be, -1: not known
	file   io.Closer
	stop   chan struct{}
	held   []byte // did not fit into the send before; nil: none
}

func openSource(stdin io.Reader, o *produceOptions, bodies []string) (*bodySource, error) {
	s := &bodySource{bodies: make(chan []byte, 4*produceBatchMax), total: -1, stop: make(chan struct{})}
	if len(bodies) > 0 {
		count := len(bodies)
		if o.count > 0 {
			count = o.count
		}
		s.total = int64(count)
		go func() { // ends at the last body, or with close
			defer close(s.bodies)
			for i := range count {
				if !s.give([]byte(bodies[i%len(bodies)])) {
					return
				}
			}
		}()
		return s, nil
	}
	name := "standard input"
	if o.file != "" && o.file != "-" {
		f, err := os.Open(o.file)
		if err != nil {
			return nil, fmt.Errorf("file %s: %w; give one that can be read", o.file, server.PathCause(err))
		}
		s.file, name, stdin = f, o.file, f
	}
	if o.count > 0 {
		s.total = int64(o.count)
	}
	go func() { // ends at the last line, or with close, at the latest when a line comes
		defer close(s.bodies)
		s.fail = s.lines(stdin, name, o.count)
	}()
	return s, nil
}

// lines gives each line without its end; a last one without an end counts.
func (s *bodySource) lines(r io.Reader, name string, countMax int) error {
	in := bufio.NewReaderSize(r, 64<<10)
	for n := 1; countMax == 0 || n <= countMax; n++ {
		var line []byte
		for {
			part, err := in.ReadSlice('\n')
			line = append(line, part...)
			if len(line) > wire.BodyBytesMax+1 {
				return fmt.Errorf("%s line %d has more than %d bytes, the most that a message holds; split it", name, n, wire.BodyBytesMax)
			}
			if err == nil {
				line = line[:len(line)-1]
				break
			}
			if errors.Is(err, bufio.ErrBufferFull) {
				continue
			}
			if !errors.Is(err, io.EOF) {
				return fmt.Errorf("%s line %d: %w", name, n, server.PathCause(err))
			}
			if len(line) > 0 {
				s.give(line)
			}
			return nil
		}
		if !s.give(line) {
			return nil
		}
	}
	return nil
}

func (s *bodySource) give(body []byte) bool {
	select {
	case s.bodies <- body:
		return true
	case <-s.stop:
		return false
	}
}

// next returns at least one message, and with it what has come by now, as long as it fits into one send. At the end the
// error is io.EOF or why the source ended.
func (s *bodySource) next(ctx context.Context, message func([]byte) *client.Message) ([]*client.Message, error) {
	var batch []*client.Message
	bytes := 0
	// add says whether more may follow; a body that does not fit is held for the next send.
	add := func(body []byte) bool {
		if len(batch) > 0 && bytes+len(body) > produceBatchBytesMax {
			s.held = body
			return false
		}
		batch = append(batch, message(body))
		bytes += len(body)
		return len(batch) < produceBatchMax
	}
	if s.held != nil {
		body := s.held
		s.held = nil
		add(body)
	} else {
		select {
		case <-ctx.Done():
			return nil, &codedError{exitInterrupted, errors.New("stopped")}
		case body, ok := <-s.bodies:
			if !ok {
				return nil, s.end()
			}
			add(body)
		}
	}
	for {
		select {
		case body, ok := <-s.bodies:
			if !ok || !add(body) {
				return batch, nil // at the end, the next call finds it
			}
		default:
			return batch, nil
		}
	}
}

func (s *bodySource) end() error {
	if s.fail != nil {
		return s.fail
	}
	return io.EOF
}

func (s *bodySource) close() {
	close(s.stop)
	if s.file != nil {
		_ = s.file.Close() // it was only read
	}
}
