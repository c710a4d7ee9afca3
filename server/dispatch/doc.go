// Package dispatch decides who may take which messages now. It lives in memory only: after a restart every lease is
// gone, and what had not ended is given again.
//
// A Queue is a group on a topic. Each of its partitions has leases, each held by one member, over messages that have not
// ended. What was given before comes before what never was:
//
//	ended (offset.Progress)    leased, or back from a lease       fresh
//	[0, Ack) and Consumed      the rest of [Ack, next)            the rest of [next, end)
//
// The group's policy says how many leases a partition has:
//
//	exclusive    at most one, over the first run: From = Ack when it was given. So order is kept.
//	parallel     any number, with at most Window messages in flight, at most half of them with one member while another
//	             holds or waits. Given first: what a lease ran out of, then what came back otherwise, then what is fresh.
//
// With both:
//
//	no message is in two leases, has ended when it is given, or lies at or above the committed end
//	Lease.Attempt = 1 + its leases that ran out, the same for all messages of a lease; above 1 the lease has one message
//
// A lease ends when each of its messages was acked, skipped or released, at its ack timeout (which Extend moves), a grace after
// its client's last connection was gone, when its member says that it does not have it (reconcile.go), or when the group is
// moved or its policy turned (Reload), or removed (Forget). At the timeout and after the grace it has run out: so the message that
// kills its consumer is found, since it comes alone from then on. What is counted is journalled (TakeExpiries) with the next
// commit, and nobody waits for it. What a crash takes of it is a count: some message is given with others, and once more,
// before it is known again.
//
// An ack counts here when it arrives, before its record is committed: so the next range can be leased while the disk
// works, and it is never undone, since a commit that fails stops the whole broker.
//
// A fetch that finds nothing may park. A parked fetch is an entry in its queue's list, not a goroutine. It ends by a
// lease, its wait time, Cancel, Stop, Forget, or a later fetch of its member that reconciles. Whenever a partition gets something
// to give (a commit, the end of a lease or of a pause, room in a window), of the parked fetches that accept it and may have more
// of it the first whose member has the least gets it. Therefore:
//
//	no partition is ready while a parked fetch accepts it and has room
//	no member gets more than a fair share, ceil(partitions/members), while one that has less waits for it
//
// and a fetch that arrives may take any ready partition at once without passing by one that waits. A partition is not kept free
// for a member that does not ask: who is busy with what it has, for minutes maybe, shall not stop those who wait.
//
// One lock guards all of it, held for short computations; Source and Waiter are called without it. One goroutine, owned
// by the Dispatcher, waits for the earliest of all deadlines.
package dispatch
