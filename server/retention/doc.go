// Package retention decides what a store may forget, and when it is too full to take more.
//
// Two goroutines, both owned by the Keeper:
//
//   - the guard looks at the disks and at what the store takes of them, and knows a Level: ok, warn, early delete, refuse. It tells the
//     broker whether sends are taken, and hurries the pass. How long it waits follows from the room that is left: it looks again
//     before the fastest disk could have filled it, and when a commit (Grew) says that a quarter of it is used. A commit that uses up
//     all of it refuses sends itself.
//   - the pass, every Options.Every and when the guard asks for it, trims partitions and lets the store reclaim what nothing needs.
//
// What goes, in each partition [first, end):
//
//	age     everything stored before now - age
//	size    what is more than the partition's part of the topic's bytes
//	early   at Level EarlyDelete or above, oldest first over all topics, until the level is left
//
// never at or above its floor, the lowest index that a group which counts has not consumed. A topic whose settings say DiscardUnconsumed
// has no floor for age and size. Early, only what groups have consumed goes: a topic without a group is left alone. A group that was
// not seen for Options.AbandonedAfter does not count any more.
//
// The wall clock decides about age and about abandoned groups. It jumps against the monotonic clock while the broker runs, and at a
// start against what it was when the broker was last seen to run. After that nothing goes by age for SuspendFor of uptime, and no
// group is taken as abandoned for AbandonedAfter of it. A file keeps how long that is ago, so that a restart does not end it.
package retention
