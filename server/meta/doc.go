// Package meta owns the model of jmq's metadata: who may do what with which topic, where it lies, and how clients are set.
// Every change makes a new version of all of it, an immutable Snapshot; the Store contract holds the current one, changes it by
// compare-and-set, and writes each change down (audit) in the same transaction. Engines: memory (here, for tests and as the model that others are
// held to), server/meta/sqlstore. metatest holds them to the contract.
//
// A thing of the metadata is an Object: a Key (kind, namespace, name), a revision, and a Spec of its kind. Specs are JSON
// wherever they are written: in the database, on the wire, in caches on disk, in files for jmq apply; unknown fields are errors (DecodeSpec). What
// a value may be is for Validate, what objects say of each other for Plan, which every change goes through: so whoever reads a Snapshot need not
// doubt it. Plan is pure, and the only one that decides what a change does, so that engines cannot differ.
//
// Who may do what is decided here too: on topics in access.go, on objects and operations by the table in rights.go; testdata/rights.txt
// shows what that comes to.
package meta
