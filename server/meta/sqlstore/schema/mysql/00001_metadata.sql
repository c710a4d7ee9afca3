-- Names are bytes: they are compared as such, and nothing is padded. Each statement can be repeated, since MySQL has no
-- transactions of definitions.
-- +goose Up
CREATE TABLE IF NOT EXISTS jmq_registry (
	id         INT    NOT NULL PRIMARY KEY,
	generation BIGINT NOT NULL,
	version    BIGINT NOT NULL,
	floor      BIGINT NOT NULL
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS jmq_version (
	version BIGINT NOT NULL PRIMARY KEY,
	stamp   BIGINT NOT NULL,
	time    BIGINT NOT NULL
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS jmq_object (
	kind      VARBINARY(32)   NOT NULL,
	namespace VARBINARY(255)  NOT NULL,
	name      VARBINARY(1024) NOT NULL,
	revision  BIGINT          NOT NULL,
	created   BIGINT          NOT NULL,
	born      BIGINT          NOT NULL,
	deleted   BIGINT          NOT NULL,
	spec      MEDIUMTEXT      NOT NULL,
	PRIMARY KEY (kind, namespace, name),
	KEY jmq_object_revision (revision),
	KEY jmq_object_deleted (deleted)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS jmq_audit (
	id        BIGINT          NOT NULL PRIMARY KEY,
	version   BIGINT          NOT NULL,
	time      BIGINT          NOT NULL,
	who       VARBINARY(1024) NOT NULL,
	addr      VARBINARY(255)  NOT NULL,
	reason    TEXT            NOT NULL,
	operation VARBINARY(32)   NOT NULL,
	kind      VARBINARY(32)   NOT NULL,
	namespace VARBINARY(255)  NOT NULL,
	name      VARBINARY(1024) NOT NULL,
	before_   MEDIUMTEXT      NOT NULL,
	after_    MEDIUMTEXT      NOT NULL,
	KEY jmq_audit_object (kind, namespace, name, id),
	KEY jmq_audit_who (who, id),
	KEY jmq_audit_time (time)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS jmq_heartbeat (
	node  VARBINARY(255) NOT NULL PRIMARY KEY,
	boot  VARBINARY(255) NOT NULL,
	count BIGINT         NOT NULL,
	time  BIGINT         NOT NULL,
	info  MEDIUMBLOB     NOT NULL
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
