// Package dispatch decides who may take which messages now. It lives in memory only: after a restart every lease is
// gone, and what had not ended is given again.
//
// A Queue is a group on a topic. Each of its partitions has at most one lease, held by one member, over the first run of
// committed messages that have not ended:
//
//	ended (offset.Progress)        leased                     free
//	[0, Ack) and Consumed          [From, To)                 [To, end)
//	                               To <= end, From = Ack when it was given
//
// An ack counts here when it arrives, before its record is committed: so the next range can be leased while the disk
// works, and it is never undone, since a commit that fails stops the whole broker. A lease ends when each of its messages
// was acked or released, at its ack timeout, a grace after its client's last connection was gone, or when its member says
// that it does not have it (reconcile.go). What it leaves is the first run again, so order is kept.
//
// A fetch that finds nothing may park. A parked fetch is an entry in its queue's list, not a goroutine. It ends by a
// lease, its wait time, Cancel, Stop, or a later fetch of its member that reconciles. Whenever a partition gets something to give (a commit, the end of a lease or of a
// pause), of the parked fetches that accept it the first whose member holds the fewest partitions gets it. Therefore:
//
//	no partition is ready while a parked fetch accepts it
//
// and a fetch that arrives may take any ready partition at once without passing by one that waits.
//
// One lock guards all of it, held for short computations; Source and Waiter are called without it. One goroutine, owned
// by the Dispatcher, waits for the earliest of all deadlines.
package dispatch
