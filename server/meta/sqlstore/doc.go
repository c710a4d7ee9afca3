// Package sqlstore is the meta.Store over MySQL, MariaDB or SQLite. Any number of stores share one MySQL database, and as
// many processes of one machine one SQLite file.
//
//	jmq_registry    one row: generation, version, floor (deletions up to it are forgotten)
//	jmq_version     one row a version: its stamp, a random number
//	jmq_object      one row an object: key, revision, created, spec as JSON; or, for a day, that it was deleted
//	jmq_audit       one row a write, kept for good; ids are version*1024+n
//	jmq_heartbeat   one row a node
//	jmq_schema      which steps of schema/ were taken
//
// A change begins by counting up the version: whoever holds that row's lock is alone, on any node. It then reads what others changed since
// this store's snapshot, lets the snapshot plan the change, and writes objects, audit and the version's stamp. The stamp answers two questions
// that numbers cannot: whether a commit that was not answered was made (the next transaction, behind the same lock, looks for it), and whether a
// database that has gone on from an old copy still has the history that was seen.
//
// Each store looks at generation, version and stamp every 200 ms, one statement, and reads only what changed. It serves from its snapshot: View and
// Watch never wait for the database. A database that is older than what was seen, or went on without it, is not believed: View keeps what it has, Update
// refuses and Health says so, until NewGeneration.
//
// The SQL is what MySQL 8, MariaDB and SQLite have in common; names are compared as bytes.
package sqlstore
