package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/jmqio/jmq/client"
)

const (
	sampleTopic = "sample"
	sampleSize  = 1000
)

// runSample is make run: jmq dev, a sample of orders through it, and then it stays up until Ctrl-C.
func runSample(ctx context.Context, binary string) error {
	dev := exec.Command(binary, "dev")
	dev.Stdout, dev.Stderr = os.Stdout, os.Stderr
	// A Ctrl-C is passed on below, once: a second one would end it at once, without a clean stop.
	dev.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := dev.Start(); err != nil {
		return fmt.Errorf("start %s: %w", binary, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- dev.Wait() }() // received below, always
	sampled := make(chan error, 1)
	sampling, cancel := context.WithCancel(ctx)
	go func() { sampled <- sample(sampling, os.Getenv("JMQ_NODE_WIRE_LISTEN")) }() // ends with sampling; received below
	var sampleErr error
	for waiting := sampled; ; {
		select {
		case sampleErr = <-waiting:
			waiting = nil
			if sampleErr != nil && ctx.Err() == nil {
				fmt.Fprintln(os.Stderr, "the sample failed:", sampleErr)
				_ = dev.Process.Signal(syscall.SIGTERM) // it may have ended
			}
		case <-ctx.Done():
			_ = dev.Process.Signal(syscall.SIGTERM) // it may have ended
			ctx = context.WithoutCancel(ctx)
		case err := <-ended:
			cancel()
			if waiting != nil {
				<-waiting
			}
			return errors.Join(err, sampleErr)
		}
	}
}

// sample sends and consumes orders, and prints the count.
func sample(ctx context.Context, address string) error {
	var text bytes.Buffer
	if err := generateOrders(&text, logShape{purchases: sampleSize, customers: 400, customerMax: 20}, 1); err != nil {
		return err
	}
	orders, err := parseOrders("sample", &text)
	if err != nil {
		return err
	}
	c, err := dialSoon(ctx, address)
	if err != nil {
		return err
	}
	defer closeClient(c)
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	if err := c.CreateTopic(ctx, sampleTopic, topicPartitions); err != nil {
		return err
	}
	// A group of its own for each run, so that it gets this sample and no older one.
	consumer, err := c.Consumer(sampleTopic, client.Group("sample"), client.Start(client.FromEnd), client.Concurrency(2))
	if err != nil {
		return err
	}
	if err := consumer.Subscribe(ctx); err != nil {
		return err
	}
	producer, err := c.Producer(sampleTopic)
	if err != nil {
		return err
	}
	begun := time.Now()
	batch := make([]*client.Message, len(orders))
	mine := map[string]bool{}
	for i, o := range orders {
		body, err := json.Marshal(o)
		if err != nil {
			return err
		}
		batch[i] = &client.Message{Key: "order-" + strconv.Itoa(o.Number), OrderKey: o.Customer, Body: body}
	}
	receipts, err := producer.SendBatch(ctx, batch)
	if err != nil {
		return err
	}
	for _, r := range receipts {
		mine[r.MessageID] = true
	}
	receiving, done := context.WithCancel(ctx)
	defer done()
	received, cents := 0, int64(0)
	for received < len(mine) {
		got, err := consumer.Fetch(receiving, 100, client.Wait(time.Second))
		if err != nil {
			return err
		}
		for _, d := range got {
			var o order
			if !mine[d.ID] || json.Unmarshal(d.Body, &o) != nil {
				continue // of an earlier run that was stopped in between
			}
			received++
			cents += o.Cents
		}
		if err := consumer.Ack(ctx, got...); err != nil {
			return err
		}
	}
	fmt.Printf("\nsample: sent %d orders to topic %q, received %d, amount %s, in %.2f s\n", len(orders), sampleTopic, received, dollars(cents), time.Since(begun).Seconds())
	return nil
}

// dialSoon waits for the broker that is just being started.
func dialSoon(ctx context.Context, address string) (*client.Client, error) {
	deadline := time.Now().Add(20 * time.Second)
	for {
		c, err := client.Dial(ctx, address)
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return c, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
