package registry

import "time"

// FeedMetrics counts since the start; gauges say so.
type FeedMetrics struct {
	Generation, Version uint64 // gauges: what is told
	RouteWatchers       int    // gauge: waiting
	ObjectWatchers      int    // gauge: waiting
	Snapshots           uint64 // set
	Looked              uint64 // waiting watchers that a change made us look at
	Woken               uint64 // and that were answered for it
	Expired             uint64 // waits that ended without a change
	Views               uint64 // told
	ObjectsTold         uint64
	Resets              uint64 // that began to tell everything anew
}

// NodeMetrics counts since the start; gauges say so.
type NodeMetrics struct {
	Feed           FeedMetrics
	Database       bool   // gauge: can be reached and is trusted
	Heartbeats     uint64 // received
	Beats          uint64 // calls that stored heartbeats
	BeatsFailed    uint64
	Registrations  uint64
	NodesAway      uint64 // judged away by this node
	NodesBack      uint64
	BrokersLiving  int    // gauge: of the metadata
	BrokersAway    int    // gauge
	Changes        uint64 // made through this node
	ChangesRefused uint64 // conflicts, rights, invalid, the database away
	Credentials    uint64 // made
	Promotions     uint64 // of other masters, by this node itself
	Rows           uint64 // of broker groups that were written: who is master, which slaves are in sync
}

// FollowerMetrics counts since the start; gauges say so.
type FollowerMetrics struct {
	Feed          FeedMetrics
	Connected     bool          // gauge: a registry node answers
	Stored        bool          // gauge: and the database has our heartbeats
	Silence       time.Duration // gauge: since a registry node answered; 0: connected
	Connections   uint64        // that were made
	Failures      uint64        // nodes that could not be reached, refused us, or fell silent
	Refused       uint64        // versions lower than what was known
	Snapshots     uint64        // taken
	Resets        uint64        // everything was told anew
	CacheWrites   uint64
	CacheFailures uint64
}
