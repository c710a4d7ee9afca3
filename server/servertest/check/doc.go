// Package check decides from a history whether a broker kept its promises. A history is JSON lines: what producers,
// consumers and test harnesses saw, each with the time it began and the time it returned, merged from any number of
// processes in any order (the events of one scan excepted). The checker knows nothing of the broker: what it says
// rests on what clients saw.
//
//	C1 no loss             every ok message is in each complete scan taken after it, and was given to each drained group
//	C2 no phantom          what was read was sent before, not refused, and is the same: hash, key, sequence, topic
//	C3 explained           every further copy in the log, and every further delivery, has a reason, named and counted; the attempts of
//	                       one call leave one copy in a partition
//	C4 indexes             dense, unique, increasing; one index is one message for every reader and replica, for ever;
//	                       all copies of a journal have the same records and index, and groups at the same places
//	C5 order               per producer and per order key: in the log, and in first receptions of each group
//	C6 ack state           ack offset and ranges are the acks that were ok; never back without a reset; an ack counts
//	                       only from who holds the lease; what was acked ok is not given again
//	C7 no skip             a lease begins with the first message that has not ended (acked, filtered, expired), and passes over none
//	C8 conservation        what is stored is what was acked, was skipped, or is pending; as many as the broker says
//	C9 fencing             an epoch has one writer; once somebody serves in it, no send that begins later is ok in a lower one
//	C10 linearizable       registers (settings of topics), and where groups stand; a group has one lease at a time in a partition
//	C11 no leak            goroutines, open files, files and memory come back to what they were
//
// What was damaged (OpLost) may be missing, and nothing else may be said to be lost; a scan tells each such gap. What was trimmed
// must have come to each group before.
//
// A violation is reported with its evidence. A check that found nothing to look at says so: "ok" is never a history
// without the events that could have shown the opposite.
//
// FORMAT.md has every event. A million operations (sends and acks of 333,000 messages and two groups, with what came of them: 490 MB of
// lines) take 7 s of processor time and 0.7 GB.
package check
