package meta

import (
	"net/netip"

	"github.com/jmqio/jmq/wire"
)

// Rights are decided here and nowhere else, on the final resource: brokers, registry, proxies and the console ask these functions.

// Subject is who asks, and from where.
type Subject struct {
	wire.Principal
	Addr netip.Addr // zero: unknown
}

// Grant is what a subject was granted on a topic.
type Grant struct {
	Topic    *Object
	Spec     *Topic
	App      *App      // nil: local
	Producer *Producer // of a grant to produce; nil: local
	Consumer *Consumer // of a grant to consume; nil: local
}

// MayProduce grants a subject to send to a topic through a broker group. An error is CodeTopicNotFound, CodeForbidden,
// CodePaused or CodeUnauthenticated (its credential or app is not good any more).
func (s *Snapshot) MayProduce(who Subject, topic, brokerGroup string) (Grant, error) {
	return Grant{}, wire.Errorf(wire.CodeInternal, "not built yet")
}

// MayConsume grants a subject to consume a topic as group: an app only as itself or as one of its subgroups.
func (s *Snapshot) MayConsume(who Subject, topic, group, brokerGroup string) (Grant, error) {
	return Grant{}, wire.Errorf(wire.CodeInternal, "not built yet")
}

// MayRead says whether a subject may see an object: CodeForbidden if not.
func (s *Snapshot) MayRead(who Subject, k Key) error {
	return wire.Errorf(wire.CodeInternal, "not built yet")
}

// MayWrite says whether a subject may make a change from before to after (nil: not there): CodeForbidden if not.
func (s *Snapshot) MayWrite(who Subject, k Key, before, after Spec) error {
	return wire.Errorf(wire.CodeInternal, "not built yet")
}

// Operation is what an operator does beside changing objects.
type Operation string

const (
	OperateGroup   Operation = "group"   // seek, alter, remove a group; of an app's owner too
	ReadGroup      Operation = "lag"     // see where groups stand
	ReadMessages   Operation = "peek"    // read messages without a group
	ReadStore      Operation = "store"   // store usage, nodes
	ReadAudit      Operation = "audit"   //
	OperateCluster Operation = "cluster" // new generation
	BeNode         Operation = "node"    // heartbeat, watch all metadata with its verifiers
)

// MayOperate says whether a subject may do an operation; topic and group are "" where it concerns none.
func (s *Snapshot) MayOperate(who Subject, op Operation, topic, group string) error {
	return wire.Errorf(wire.CodeInternal, "not built yet")
}

// Alive says whether a principal is still good: CodeUnauthenticated when its credential was revoked or has expired, its app, user or
// namespace was disabled or is gone.
func (s *Snapshot) Alive(p wire.Principal, nowNs int64) error {
	return wire.Errorf(wire.CodeInternal, "not built yet")
}
