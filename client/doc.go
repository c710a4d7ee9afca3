// Package client is the Go SDK of jmq.
//
//	cl, err := client.Dial(ctx, "jmq://127.0.0.1:50088", client.WithApp("payment"))
//	...
//	defer cl.Close(context.Background())
//
//	p, err := cl.Producer("orders")
//	receipt, err := p.Send(ctx, &client.Message{Key: "order-4711", OrderKey: "customer-12", Body: body})
//
//	c, err := cl.Consumer("orders", client.Concurrency(8))
//	err = c.Run(ctx, func(ctx context.Context, d *client.Delivery) error { return pay(ctx, d.Body) })
//
// # Sending
//
// A send has three outcomes: no error, the message is on the broker's disk; an error that is ErrFailed, it is not stored
// and never will be; an error that is ErrUnknown, it may be (the time was over, or the connection broke, before an
// answer came). Send tries again within its Timeout, with the same message id, wherever an answer or its absence leaves
// that sense. If any attempt was ok, the send is ok; else if any is unknown, the send is unknown. Receipt.Unknown counts the
// attempts that may have left a second copy, which consumers tell by its id.
//
// Messages with the same order key stay in order: in the log, and for each group. The client keeps one unresolved batch
// per partition of order keys; what is sent meanwhile goes in the next one, together. So ordered sends from many
// goroutines are as fast as others, and an idle client waits for nobody.
//
// SendAsync tells the outcome to a callback, SendOneway to nobody; Flush waits for both. Their messages are gathered by
// themselves: what is sent while earlier messages of the partition are under way goes in the next batch, without a timer. A
// producer's Buffer bounds them: when it is full, the caller waits with its context, or gets ErrBusy (BusyWhenFull).
//
// # Receiving
//
// A group gets each message at least once. The broker leases ranges of partitions to consumers; there is no rebalancing
// and nothing to configure: any number of consumers in any number of processes share the load. Within a partition, messages
// come in order, and what follows a message comes only after its end or in the same lease. A message comes again if its ack
// did not arrive, its lease ran out, its consumer died, or its handler failed.
//
// Run calls a handler, Messages is a loop of the caller's, Fetch asks once. Pause and Resume stop and continue all three; what was
// fetched and not handled is given back at once, so that others of the group go on with it. Seek moves the group, Lag
// says where it stands. Messages that the group will never get, because the disk damaged them or retention removed them, are
// told to OnGap.
//
// A handler that needs longer than the ack timeout asks for time with Delivery.Extend, or its consumer does (ExtendLeases). A
// group that is Parallel has several members at work on one partition, and no order.
//
// What a consumer was given and never got (the connection or the context of a Fetch ended before the answer came) is
// given back as soon as there is a connection. So is what was not acknowledged when Run ends or the client is closed. A consumer
// that dies without that keeps others waiting for the broker's grace (10 s), a handler that hangs for its ack timeout.
//
// # Operating
//
// The Client's other calls are what the command line stands on: topics are created, altered, described and deleted, groups
// listed, moved (SeekGroup) and removed, messages read without a group (Peek), and StoreUsage says what lies on the disks.
// They are repeated until their context ends; DeleteTopic, SeekGroup and RemoveGroup, which must not be done twice, only while
// they certainly were not carried out: else their error is ErrUnknown.
//
// # Many broker groups
//
// A topic may lie on several broker groups. Its partitions are those of all of them: a message without order key goes to the next
// one in turn, as many to each broker group as the registry's weights say, to those of the own data center first (WithNear), and to
// another broker group when one fails, refuses or does not answer; one with an order key to its place in the list of
// all partitions (KeyPartition), where it waits for a broker group that is away, or from where it moves (MoveOrderKeys). A consumer receives from all; its concurrency is
// shared between them by turns. A broker group that is added to a topic is used within two seconds, and a group that exists
// begins there with the first message. What is administered is asked of all, and put together.
//
// Routes and settings (timeout, concurrency, batch, pauses) are told by the registry as they change, and override options while
// they are there. Any node will do for Dial. When registry nodes die, others are asked, then brokers; when nobody answers, what is
// known stays, and WithRouteCache keeps it on disk for the next start. A broker without a registry has one broker group, and everything is as its options say.
//
// # When brokers fail
//
// A send has one Timeout for all of its tries, each of which takes at most a third of it. A try that fails, or has no answer in its time, is followed by one
// at another broker group, where no try was yet; Retries bounds how many. The answer of a try that was given up still counts while the
// send has no outcome. A batch that comes to a broker group again has the number that it had there, by which the broker knows what it has
// stored. Broker groups that fail again and again, or are silent, get no sends but a trial now and then: they are used again within
// seconds of their return, at once when a connection or the registry tells of it. So with several broker groups the death of a master is a
// few sends with two attempts, and one that hangs costs each send under way a third of its Timeout, and later ones nothing.
//
// Messages are sent to masters only. When a broker group has another master, what is under way at the old one is waited for, and
// everything else goes to the new one, as soon as the old one or the registry names it; a topic with no other broker group waits for that,
// within Timeout.
//
// While a master is away its messages are read from a slave, which serves after two seconds, and from the master again as soon as that
// answers. Acks go to the broker that gave the lease, or to the master once it has the slave's leases. A lease of the dead master is
// not waited for once the slave serves: its ack is an error (ErrLeaseUnknown, ErrLeaseExpired), and its messages come again.
//
// # Identity
//
// WithCredentials, or WithCredentialsFile, proves on each connection who the client is; WithTLS and WithTLSFiles encrypt, and
// show a certificate, which is an identity too. A client that is refused says so at once (ErrUnauthenticated), and tries again
// seldom.
//
// # Connections
//
// All producers and consumers of a Client share a few connections (two by default for each broker group that they use), on which
// many requests are in flight. They are made when they are first needed, made again by themselves, and ended when no route names
// their broker group any more. A Client that does nothing has one connection. It has a goroutine or two for each connection, one
// that watches routes and settings, one for the callbacks of SendAsync while there are any, and none else but those of Run.
//
// # Errors
//
// Every error that has to do with a broker is an *Error: its Code, and errors.Is with the package's errors, say what the
// matter is, and wire.Traits what helps.
package client
