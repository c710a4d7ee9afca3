-- +goose Up
CREATE TABLE jmq_registry (
	id         INTEGER NOT NULL PRIMARY KEY,
	generation INTEGER NOT NULL,
	version    INTEGER NOT NULL,
	floor      INTEGER NOT NULL
);

CREATE TABLE jmq_version (
	version INTEGER NOT NULL PRIMARY KEY,
	stamp   INTEGER NOT NULL,
	time    INTEGER NOT NULL
);

CREATE TABLE jmq_object (
	kind      TEXT    NOT NULL,
	namespace TEXT    NOT NULL,
	name      TEXT    NOT NULL,
	revision  INTEGER NOT NULL,
	created   INTEGER NOT NULL,
	born      INTEGER NOT NULL,
	deleted   INTEGER NOT NULL,
	spec      TEXT    NOT NULL,
	PRIMARY KEY (kind, namespace, name)
);
CREATE INDEX jmq_object_revision ON jmq_object (revision);
CREATE INDEX jmq_object_deleted ON jmq_object (deleted);

CREATE TABLE jmq_audit (
	id        INTEGER NOT NULL PRIMARY KEY,
	version   INTEGER NOT NULL,
	time      INTEGER NOT NULL,
	who       TEXT    NOT NULL,
	addr      TEXT    NOT NULL,
	reason    TEXT    NOT NULL,
	operation TEXT    NOT NULL,
	kind      TEXT    NOT NULL,
	namespace TEXT    NOT NULL,
	name      TEXT    NOT NULL,
	before_   TEXT    NOT NULL,
	after_    TEXT    NOT NULL
);
CREATE INDEX jmq_audit_object ON jmq_audit (kind, namespace, name, id);
CREATE INDEX jmq_audit_who ON jmq_audit (who, id);
CREATE INDEX jmq_audit_time ON jmq_audit (time);

CREATE TABLE jmq_heartbeat (
	node  TEXT    NOT NULL PRIMARY KEY,
	boot  TEXT    NOT NULL,
	count INTEGER NOT NULL,
	time  INTEGER NOT NULL,
	info  BLOB    NOT NULL
);
