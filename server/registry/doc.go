// Package registry hands metadata out: who may do what, where topics lie, how clients are set.
//
// A Node is the registry role, over a meta.Store. It answers administration (rights are asked of the snapshot, every write is
// audited by the store), takes heartbeats, and judges who is away. It holds nothing that another node over the same database does not
// know or learn within a second, so any number of nodes serve at once.
//
// A Follower is a node without the database: a broker, a proxy. It keeps one connection to one registry node, sends heartbeats, is
// told each change, and keeps what it knows in a file, from which it starts while no registry answers.
//
// A Feed is in both. It is set to one snapshot after the other, and answers those who watch: clients, of the topics that they use
// (WatchRoutes), and nodes, of everything (WatchObjects). What waits takes no goroutine, and a change looks only at those who
// watch what it touches.
//
// Silence is measured where it is judged: a node is away when its beat, as the database has it, did not change for 8 s in
// which the judge itself reached the database all the time. While nobody reaches the database nothing is judged, and nothing
// could be written.
package registry
