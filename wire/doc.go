// Package wire is what client and server both speak: messages and batches, names and limits, commands and codes, frames,
// and connections on which both sides have many requests in flight. It also declares Broker, Admin and Registry, what may be asked
// of a node, the adapter that serves them over a connection (Handler), and how a peer proves who it is (Authenticator).
// FORMAT.md has the bytes, with a worked example; jmq.proto has the headers.
//
// The way of a message through this package:
//
//	Codec.AppendBatch   messages -> batch, once, in the SDK
//	Conn.Start, Flush   ProduceRequest header + batch -> frame -> socket
//	Conn.Serve          socket -> frame, in the read buffer
//	Session             frame -> Broker.Produce, on the goroutine that read it
//	Batch.SetBroker     the broker's fields, in place
//	Conn.Reply, Flush   ProduceResponse -> frame -> socket, with other answers in one write
//	Conn.Serve          -> the done function of Start
//
// What it promises:
//   - Lengths, counts and names from a peer are judged before memory is taken for them and before anything is done; what is
//     wrong gets a Code, and the Traits table says what a client does with it.
//   - A batch's bytes are never changed but for the broker's fields, and the SDK's checksum covers the rest end to end.
//   - Who a peer is comes from its secret or its certificate, never from what it says; before that it gets 4 KiB and 5 s. An identity
//     that ends takes its connections with it.
//   - A request ends exactly once: with its answer, with CodeDisconnected if it certainly was not sent, or with CodeUnknown.
//   - A peer that does not read, does not write or says nonsense costs itself its connection, and nobody else anything.
//
// Memory is lent: slices given to a function are valid until it returns, unless its comment says otherwise.
package wire
