package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jmqio/jmq/client"
)

// A message is sent, received and acknowledged. devBroker is the address of a broker: "" is that of `jmq dev` on this
// machine.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cl, err := client.Dial(ctx, devBroker(), client.WithApp("payment"))
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close(context.Background())
	if err := cl.CreateTopic(ctx, "orders", 8); err != nil {
		log.Fatal(err)
	}

	p, err := cl.Producer("orders")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := p.Send(ctx, &client.Message{Key: "order-4711", OrderKey: "customer-12", Body: []byte(`{"amount": 1995}`)}); err != nil {
		log.Fatal(err)
	}

	c, err := cl.Consumer("orders", client.Start(client.FromBeginning))
	if err != nil {
		log.Fatal(err)
	}
	err = c.Run(ctx, func(ctx context.Context, d *client.Delivery) error {
		fmt.Printf("%s: %s\n", d.Key, d.Body)
		cancel() // one is enough here
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: order-4711: {"amount": 1995}
}

// The three outcomes of a send.
func ExampleProducer_Send() {
	ctx := context.Background()
	cl, err := client.Dial(ctx, devBroker())
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close(ctx)
	p, err := cl.Producer("not-there", client.Timeout(2*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	m := &client.Message{Body: []byte("hello")}
	receipt, err := p.Send(ctx, m)
	switch {
	case err == nil:
		fmt.Println("stored")
	case errors.Is(err, client.ErrUnknown):
		m.ID = receipt.MessageID // so that a copy is known as one
		fmt.Println("it may be stored: send it again")
	case errors.Is(err, client.ErrNotFound):
		fmt.Println("not stored, no such topic")
	default:
		fmt.Println("not stored:", err)
	}
	// Output: not stored, no such topic
}

// Messages of one order key are stored together and in order.
func ExampleProducer_SendBatch() {
	ctx := context.Background()
	cl, err := client.Dial(ctx, devBroker())
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close(ctx)
	if err := cl.CreateTopic(ctx, "steps", 4); err != nil {
		log.Fatal(err)
	}
	p, err := cl.Producer("steps")
	if err != nil {
		log.Fatal(err)
	}
	receipts, err := p.SendBatch(ctx, []*client.Message{
		{OrderKey: "order-1", Body: []byte("paid")},
		{OrderKey: "order-1", Body: []byte("packed")},
		{OrderKey: "order-1", Body: []byte("sent")},
	})
	if err != nil {
		log.Fatal(err) // a *client.BatchError, which knows of each message
	}
	for _, r := range receipts {
		fmt.Println(r.Index)
	}
	// Output:
	// 0
	// 1
	// 2
}

// Messages are sent without waiting for each: the outcome comes to a callback. What is sent while a batch is under way goes
// in the next one, together.
func ExampleProducer_SendAsync() {
	ctx := context.Background()
	cl, err := client.Dial(ctx, devBroker())
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close(ctx)
	if err := cl.CreateTopic(ctx, "clicks", 1); err != nil {
		log.Fatal(err)
	}
	p, err := cl.Producer("clicks", client.Buffer(1000, 1<<20))
	if err != nil {
		log.Fatal(err)
	}
	stored := 0 // callbacks come one after the other
	for range 100 {
		p.SendAsync(ctx, &client.Message{OrderKey: "visitor-7", Body: []byte("click")}, func(r client.Receipt, err error) {
			if err != nil {
				log.Print(err)
				return
			}
			stored++
		})
	}
	if err := p.Flush(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(stored)
	// Output: 100
}

// Nobody asks what became of a message that is sent one way.
func ExampleProducer_SendOneway() {
	ctx := context.Background()
	cl, err := client.Dial(ctx, devBroker())
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close(ctx) // waits for what is under way
	if err := cl.CreateTopic(ctx, "heartbeats", 1); err != nil {
		log.Fatal(err)
	}
	p, err := cl.Producer("heartbeats", client.BusyWhenFull())
	if err != nil {
		log.Fatal(err)
	}
	switch err := p.SendOneway(ctx, &client.Message{Key: "sensor-3"}); {
	case errors.Is(err, client.ErrBusy):
		fmt.Println("dropped: the buffer is full")
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Println("on its way")
	}
	// Output: on its way
}

// Messages are fetched and acknowledged one by one, without a handler.
func ExampleConsumer_Fetch() {
	ctx := context.Background()
	cl, err := client.Dial(ctx, devBroker())
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close(ctx)
	if err := cl.CreateTopic(ctx, "jobs", 1); err != nil {
		log.Fatal(err)
	}
	c, err := cl.Consumer("jobs", client.Group("worker.night"))
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Subscribe(ctx); err != nil { // from here on
		log.Fatal(err)
	}
	p, err := cl.Producer("jobs")
	if err != nil {
		log.Fatal(err)
	}
	for _, job := range []string{"count", "print"} {
		if _, err := p.Send(ctx, &client.Message{Body: []byte(job)}); err != nil {
			log.Fatal(err)
		}
	}
	for n := 0; n < 2; {
		deliveries, err := c.Fetch(ctx, 10, client.Wait(time.Second))
		if err != nil {
			log.Fatal(err)
		}
		for _, d := range deliveries {
			fmt.Printf("%s\n", d.Body)
			if err := d.Ack(ctx); err != nil {
				log.Fatal(err)
			}
			n++
		}
	}
	// Output:
	// count
	// print
}

// Handlers that fail get their message again, in order, after a pause.
func ExampleConsumer_Run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cl, err := client.Dial(ctx, devBroker(), client.WithApp("shipping"))
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close(context.Background())
	if err := cl.CreateTopic(ctx, "parcels", 1); err != nil {
		log.Fatal(err)
	}
	p, err := cl.Producer("parcels")
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"small", "large"} {
		if _, err := p.Send(ctx, &client.Message{Body: []byte(name)}); err != nil {
			log.Fatal(err)
		}
	}
	c, err := cl.Consumer("parcels", client.Start(client.FromBeginning), client.Backoff(time.Millisecond, time.Second))
	if err != nil {
		log.Fatal(err)
	}
	tries := 0
	err = c.Run(ctx, func(ctx context.Context, d *client.Delivery) error {
		if tries++; tries == 1 {
			return errors.New("no van")
		}
		fmt.Printf("%s\n", d.Body)
		if string(d.Body) == "large" {
			cancel()
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// small
	// large
}

// Messages are received in a loop. What was fetched and had no turn when the loop ends is given back.
func ExampleConsumer_Messages() {
	ctx := context.Background()
	cl, err := client.Dial(ctx, devBroker(), client.WithApp("reader"))
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close(ctx)
	if err := cl.CreateTopic(ctx, "news", 1); err != nil {
		log.Fatal(err)
	}
	p, err := cl.Producer("news")
	if err != nil {
		log.Fatal(err)
	}
	for _, title := range []string{"first", "second", "third"} {
		if _, err := p.Send(ctx, &client.Message{Body: []byte(title)}); err != nil {
			log.Fatal(err)
		}
	}
	c, err := cl.Consumer("news", client.Start(client.FromBeginning))
	if err != nil {
		log.Fatal(err)
	}
	for d, err := range c.Messages(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", d.Body)
		if err := d.Ack(ctx); err != nil {
			log.Fatal(err)
		}
		if string(d.Body) == "second" {
			break
		}
	}
	lags, err := c.Lag(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("left:", lags[0].Lag)
	// Output:
	// first
	// second
	// left: 1
}

// A paused consumer fetches nothing: others of its group get what comes.
func ExampleConsumer_Pause() {
	ctx := context.Background()
	cl, err := client.Dial(ctx, devBroker(), client.WithApp("pauser"))
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close(ctx)
	if err := cl.CreateTopic(ctx, "alarms", 1); err != nil {
		log.Fatal(err)
	}
	p, err := cl.Producer("alarms")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := p.Send(ctx, &client.Message{Body: []byte("fire")}); err != nil {
		log.Fatal(err)
	}
	c, err := cl.Consumer("alarms", client.Start(client.FromBeginning))
	if err != nil {
		log.Fatal(err)
	}
	c.Pause()
	ds, err := c.Fetch(ctx, 1, client.Wait(10*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("paused:", len(ds))
	c.Resume()
	if ds, err = c.Fetch(ctx, 1); err != nil {
		log.Fatal(err)
	}
	fmt.Println("resumed:", len(ds))
	if err := c.Ack(ctx, ds...); err != nil {
		log.Fatal(err)
	}
	// Output:
	// paused: 0
	// resumed: 1
}

// A group is moved back, after a look at what that would do.
func ExampleConsumer_Seek() {
	ctx := context.Background()
	cl, err := client.Dial(ctx, devBroker(), client.WithApp("billing"))
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close(ctx)
	if err := cl.CreateTopic(ctx, "invoices", 1); err != nil {
		log.Fatal(err)
	}
	p, err := cl.Producer("invoices")
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		if _, err := p.Send(ctx, &client.Message{}); err != nil {
			log.Fatal(err)
		}
	}
	c, err := cl.Consumer("invoices") // a new group stands at the end
	if err != nil {
		log.Fatal(err)
	}
	back := client.Seek{To: client.SeekShift, Shift: -2, Reason: "billed wrongly", DryRun: true}
	for {
		moves, err := c.Seek(ctx, back)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(moves[0].From, "to", moves[0].To)
		if !back.DryRun {
			break
		}
		back.DryRun = false
	}
	lags, err := c.Lag(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("lag", lags[0].Lag)
	// Output:
	// 3 to 1
	// 3 to 1
	// lag 2
}

// In a parallel group what follows a message does not wait for its end.
func ExampleParallel() {
	ctx := context.Background()
	cl, err := client.Dial(ctx, devBroker(), client.WithApp("mailer"))
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close(ctx)
	if err := cl.CreateTopic(ctx, "mails", 1); err != nil {
		log.Fatal(err)
	}
	p, err := cl.Producer("mails")
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		if _, err := p.Send(ctx, &client.Message{}); err != nil {
			log.Fatal(err)
		}
	}
	c, err := cl.Consumer("mails", client.Start(client.FromBeginning), client.Parallel(100))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		ds, err := c.Fetch(ctx, 1)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(ds[0].Index, ds[0].Attempt)
		defer ds[0].Ack(ctx)
	}
	// Output:
	// 0 1
	// 1 1
}

// A handler that finds out that it will need longer asks for time.
func ExampleDelivery_Extend() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cl, err := client.Dial(ctx, devBroker(), client.WithApp("video"))
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close(context.Background())
	if err := cl.CreateTopic(ctx, "films", 1); err != nil {
		log.Fatal(err)
	}
	p, err := cl.Producer("films")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := p.Send(ctx, &client.Message{Body: []byte("a long one")}); err != nil {
		log.Fatal(err)
	}
	c, err := cl.Consumer("films", client.Start(client.FromBeginning), client.OnGap(func(g client.Gap) {
		log.Printf("messages %d to %d of partition %d are lost: %v", g.From, g.To, g.Partition, g.Reason)
	}))
	if err != nil {
		log.Fatal(err)
	}
	err = c.Run(ctx, func(ctx context.Context, d *client.Delivery) error {
		if err := d.Extend(ctx, time.Hour); err != nil {
			return err // others have it by now
		}
		fmt.Println(time.Until(d.Deadline) > 50*time.Minute)
		cancel()
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: true
}

// A topic is made with settings, altered, read without a group, and deleted.
func ExampleClient_AlterTopic() {
	ctx := context.Background()
	cl, err := client.Dial(ctx, devBroker())
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close(ctx)
	if err := cl.CreateTopic(ctx, "audit", 2, client.Retention(30*24*time.Hour)); err != nil {
		log.Fatal(err)
	}
	topic, err := cl.AlterTopic(ctx, "audit", "more load", client.Partitions(4), client.RetentionBytes(1<<30))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(topic.Partitions, topic.Settings.Retention, topic.Settings.RetentionBytes)
	p, err := cl.Producer("audit")
	if err != nil {
		log.Fatal(err)
	}
	r, err := p.Send(ctx, &client.Message{Body: []byte("someone did something")})
	if err != nil {
		log.Fatal(err)
	}
	got, err := cl.Peek(ctx, "audit", client.Peek{Partition: r.Partition, Index: r.Index})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", got.Messages[0].Body)
	if err := cl.DeleteTopic(ctx, "audit", "of no use"); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 4 720h0m0s 1073741824
	// someone did something
}

// Which groups a topic has, and what they have not consumed.
func ExampleClient_ListGroups() {
	ctx := context.Background()
	cl, err := client.Dial(ctx, devBroker())
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close(ctx)
	if err := cl.CreateTopic(ctx, "reports", 1); err != nil {
		log.Fatal(err)
	}
	for _, group := range []string{"day", "night"} {
		c, err := cl.Consumer("reports", client.Group(group))
		if err != nil {
			log.Fatal(err)
		}
		if err := c.Subscribe(ctx); err != nil {
			log.Fatal(err)
		}
	}
	if err := cl.RemoveGroup(ctx, "reports", "night", "nobody works at night", false); err != nil {
		log.Fatal(err) // client.ErrMembers while consumers of it are there
	}
	groups, err := cl.ListGroups(ctx, "reports", "")
	if err != nil {
		log.Fatal(err)
	}
	for _, g := range groups {
		fmt.Println(g.Group, g.Lag)
	}
	// Output: day 0
}

// A client starts without a registry node when it was told before where its brokers are.
func ExampleWithRouteCache() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "payment-routes-") // in a program: one that stays, as /var/lib/payment/routes
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	cl, err := client.Dial(ctx, devBroker(), client.WithApp("payment"), client.WithRouteCache(folder))
	if err != nil {
		log.Fatal(err) // none of the addresses answers, and no broker in the cache does
	}
	defer cl.Close(ctx)
	if err := cl.CreateTopic(ctx, "refunds", 1); err != nil {
		log.Fatal(err)
	}
	p, err := cl.Producer("refunds")
	if err != nil {
		log.Fatal(err)
	}
	r, err := p.Send(ctx, &client.Message{Body: []byte(`{"amount": 1995}`)})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("index", r.Index)
	// Output: index 0
}
