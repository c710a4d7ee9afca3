// Package broker answers what clients ask of one broker: it implements wire.Broker and wire.Admin over a store.Store, the
// offsets in it and a dispatcher. It has no sockets, files or SQL. Every request is checked, limited and counted here,
// whatever front end it came through.
//
// One request's way:
//
//	Produce    check names, header, checksum and messages -> Store.AppendBatch -> (committed) answer
//	Fetch      lease from dispatch -> Store.Read -> answer; or park in dispatch -> (commit, end of a lease) reader
//	           goroutine -> Store.Read -> answer
//	Ack        dispatch -> (next commit) Gather: all acks of all clients as one KindEnd record -> (committed) answer
//	Subscribe  a new group: one KindOffsetReset record -> (committed) answer
//	Alter..., Delete..., Seek..., Remove...   one after another: look, one record -> (committed) dispatch is told -> answer
//
// Produce, Ack and a Fetch that finds something run in the caller's goroutine up to the store. Fetches that waited are
// answered by a few reader goroutines, so that neither the journal's committer nor a timer ever reads messages. There is no
// goroutine for a request.
//
// A Fetch whose read says that messages are gone for good (trimmed, or lost to damage) moves its group over all of them: they
// end as skipped, in the journal like acks, and the fetch is answered with the gap.
//
// A change of a topic or a group is seen through once it was begun, whether or not its caller still waits, since dispatch must
// learn what was committed. No group is born on a topic while that is altered or deleted, or a group removed from it; so no birth
// follows the record of a deletion, and what is counted of partitions and groups stays right.
//
// With a registry (Options.Metadata) Apply takes its snapshots: rights and limits at once, then topics and groups follow in the store. Of what a
// subscription says, its delay, retry policy and filters have no effect here.
//
// A batch is judged whole before it is stored: its checksum, and the lengths inside every message. A compressed one is
// opened for that, which costs a core about 1 us per KiB and keeps out what no consumer could ever read: a group would
// be stuck at it until a person moved its offset.
//
// When the queue of appends is full a producer gets CodeBusy at once, with a time to wait, whatever its timeout: the
// goroutine that would wait reads one of few connections, with the acks and fetches of everybody else on it.
package broker
