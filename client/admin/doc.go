// Package admin has the calls of operators about the cluster as a whole, over a client: the objects of the metadata (topics, apps, rights,
// users, broker groups, ...), credentials, the audit, the nodes. What concerns one topic or group and its messages is in package client
// itself.
//
// An object is named by its kind, namespace and name, and says what it says in its spec, as JSON. Each has a revision, which every change
// raises; a Write says which one it is a change of, so that of two people who edit one thing one gets a conflict (client.ErrConflict), and
// nobody's change is lost.
//
// Calls are repeated while nodes are away, until ctx ends; but not those that change something once one of their attempts may have been
// carried out: their error is client.ErrUnknown then, and looking comes before another try.
package admin
