package meta

import (
	"net/netip"
	"slices"

	"github.com/jmqio/jmq/wire"
)

// Rights are decided here and nowhere else, on the final resource: brokers, registry, proxies and the console ask these functions.
// Who may see and change objects is the table in rights.go.

// Subject is who asks, and from where.
type Subject struct {
	wire.Principal
	Addr netip.Addr // zero: unknown
}

// SpeaksFor says whether a peer that may be a node may speak for this one: a certificate is of one node, a credential may be shared by all.
func SpeaksFor(p wire.Principal, node string) error {
	if p.Kind == wire.PrincipalNode && p.Credential == "" && p.Name != node {
		return wire.Errorf(wire.CodeForbidden, "the certificate is of node %s, which does not speak for node %s", p.Name, node)
	}
	return nil
}

// Grant is what a subject was granted on a topic.
type Grant struct {
	Topic    *Object
	Spec     *Topic
	App      *App      // nil: local, or an admin
	Producer *Producer // of a grant to produce; nil: local, or an admin
	Consumer *Consumer // of a grant to consume; nil: local or an admin, and the group has no subscription
}

// home is the namespace that a principal works in.
func home(p *wire.Principal) string {
	if p.Namespace == "" {
		return NamespaceDefault
	}
	return p.Namespace
}

// MayProduce grants a subject to send to a topic through a broker group; an empty one is not looked at. An error is
// CodeTopicNotFound, CodeForbidden, CodePaused or CodeUnauthenticated (its credential or app is not good any more). With CodePaused the grant is given too.
func (s *Snapshot) MayProduce(who Subject, topic, brokerGroup string) (Grant, error) {
	g, hash, free, err := s.may(&who, topic)
	if err != nil {
		return Grant{}, err
	}
	paused := g.Spec.PauseProduce
	if !free {
		if o := s.kinds[indexProducer].getPair(hash, g.Topic.Namespace, topic, who.Name); o != nil {
			g.Producer, _ = o.Spec.(*Producer)
		}
		if g.Producer == nil {
			return Grant{}, forbidden(&who, "may not produce to topic %s", topic)
		}
		if err := allowed(&who, topic, brokerGroup, g.Producer.ForbiddenIPs, g.Producer.ForbiddenBrokerGroups); err != nil {
			return Grant{}, err
		}
		paused = paused || g.Producer.Paused
	}
	if paused {
		return g, wire.Errorf(wire.CodePaused, "topic %s takes nothing from %s", topic, nameOf(&who.Principal))
	}
	return g, nil
}

// MayConsume grants a subject to consume a topic as group: an app only as itself or as one of its subgroups. Errors are as those of
// MayProduce; with CodePaused the grant is given too, since what was leased before may be acked.
func (s *Snapshot) MayConsume(who Subject, topic, group, brokerGroup string) (Grant, error) {
	g, hash, free, err := s.may(&who, topic)
	if err != nil {
		return Grant{}, err
	}
	o := s.kinds[indexConsumer].getPair(hash, g.Topic.Namespace, topic, group)
	if app := AppOf(group); o == nil && app != group {
		o = s.kinds[indexConsumer].getPair(hash, g.Topic.Namespace, topic, app)
	}
	if o != nil {
		g.Consumer, _ = o.Spec.(*Consumer)
	}
	if !free {
		if AppOf(group) != who.Name {
			return Grant{}, forbidden(&who, "may not consume as group %s: only as itself or as one of its subgroups", group)
		}
		if g.Consumer == nil {
			return Grant{}, forbidden(&who, "may not consume topic %s", topic)
		}
		if err := allowed(&who, topic, brokerGroup, g.Consumer.ForbiddenIPs, g.Consumer.ForbiddenBrokerGroups); err != nil {
			return Grant{}, err
		}
	}
	if g.Spec.PauseConsume || (g.Consumer != nil && g.Consumer.Paused) {
		return g, wire.Errorf(wire.CodePaused, "topic %s gives nothing to group %s", topic, group)
	}
	return g, nil
}

// may begins a grant: free says that who asks needs no subscription; hash is that of the topic's name, for getPair.
func (s *Snapshot) may(who *Subject, topic string) (g Grant, hash uint64, free bool, err error) {
	switch who.Kind {
	case wire.PrincipalLocal:
		free = true
	case wire.PrincipalApp:
		if g.App, err = s.appAlive(&who.Principal); err != nil {
			return g, 0, false, err
		}
	case wire.PrincipalUser:
		user, err := s.userAlive(&who.Principal)
		if err != nil {
			return g, 0, false, err
		}
		if user.Role != RoleAdmin {
			return g, 0, false, forbidden(who, "neither produces nor consumes: use a credential of an app")
		}
		free = true
	default:
		return g, 0, false, forbidden(who, "neither produces nor consumes: use a credential of an app")
	}
	ns := home(&who.Principal)
	hash = mix(hashNamespace(ns), hashString(topic))
	if g.Topic = s.kinds[indexTopic].getHashed(hash, Key{KindTopic, ns, topic}); g.Topic == nil {
		return g, 0, false, wire.Errorf(wire.CodeTopicNotFound, "topic %s", topic)
	}
	g.Spec, _ = g.Topic.Spec.(*Topic)
	return g, hash, free, nil
}

func allowed(who *Subject, topic, brokerGroup string, networks, brokerGroups []string) error {
	if len(networks) > 0 {
		addr := who.Addr.Unmap().WithZone("")
		if !addr.IsValid() {
			return forbidden(who, "may not use topic %s from an address that is not known", topic)
		}
		for _, n := range networks {
			// What cannot be read forbids all.
			if p, ok := parseNetwork(n); !ok || p.Contains(addr) {
				return forbidden(who, "may not use topic %s from %s", topic, addr)
			}
		}
	}
	if brokerGroup != "" && slices.Contains(brokerGroups, brokerGroup) {
		return forbidden(who, "may not use topic %s at broker group %s", topic, brokerGroup)
	}
	return nil
}

func nameOf(p *wire.Principal) string {
	if p.Kind == wire.PrincipalLocal {
		return p.Kind.String()
	}
	if p.Kind == wire.PrincipalApp && p.Namespace != "" && p.Namespace != NamespaceDefault {
		return p.Kind.String() + " " + p.Namespace + ":" + p.Name
	}
	return p.Kind.String() + " " + p.Name
}

// ActorOf is how a subject is written down in audit entries and requests.
func ActorOf(who Subject) Actor {
	a := Actor{Name: nameOf(&who.Principal)}
	if who.Addr.IsValid() {
		a.Addr = who.Addr.String()
	}
	return a
}

func forbidden(who *Subject, format string, args ...any) error {
	e := wire.Errorf(wire.CodeForbidden, format, args...)
	e.Message = nameOf(&who.Principal) + " " + e.Message
	return e
}

func unauthenticated(p *wire.Principal, why string) error {
	return wire.Errorf(wire.CodeUnauthenticated, "%s: %s", nameOf(p), why)
}

// Alive says whether a principal is still good: CodeUnauthenticated when its credential was revoked or has expired, its app, user or
// namespace was disabled or is gone.
func (s *Snapshot) Alive(p wire.Principal, nowNs int64) error {
	if p.ExpiresNs != 0 && nowNs >= p.ExpiresNs {
		return unauthenticated(&p, "its credential has expired")
	}
	if c := s.credentialOf(&p); c != nil && !c.Expires.IsZero() && nowNs >= c.Expires.UnixNano() {
		return unauthenticated(&p, "its credential has expired")
	}
	return s.alive(&p)
}

// alive is Alive without its looks at the clock.
func (s *Snapshot) alive(p *wire.Principal) (err error) {
	switch p.Kind {
	case wire.PrincipalLocal:
	case wire.PrincipalApp:
		_, err = s.appAlive(p)
	case wire.PrincipalUser:
		_, err = s.userAlive(p)
	case wire.PrincipalNode:
		err = s.credentialAlive(p)
	default:
		err = unauthenticated(p, "it is nobody")
	}
	return err
}

func (s *Snapshot) appAlive(p *wire.Principal) (*App, error) {
	app := of[App](s, KindApp, home(p), p.Name)
	switch {
	case app == nil:
		return nil, unauthenticated(p, "it is not there any more")
	case app.Disabled:
		return nil, unauthenticated(p, "it is disabled")
	}
	return app, s.credentialAlive(p)
}

func (s *Snapshot) userAlive(p *wire.Principal) (*User, error) {
	user := of[User](s, KindUser, "", p.Name)
	switch {
	case user == nil:
		return nil, unauthenticated(p, "it is not there any more")
	case user.Disabled:
		return nil, unauthenticated(p, "it is disabled")
	}
	return user, s.credentialAlive(p)
}

func (s *Snapshot) credentialOf(p *wire.Principal) *Credential {
	if p.Credential == "" {
		return nil
	}
	return of[Credential](s, KindCredential, "", p.Credential)
}

func (s *Snapshot) credentialAlive(p *wire.Principal) error {
	if p.Credential == "" {
		return nil // it showed a certificate
	}
	c := s.credentialOf(p)
	switch {
	case c == nil:
		return unauthenticated(p, "its credential is not there any more")
	case c.Revoked:
		return unauthenticated(p, "its credential was revoked")
	case c.OwnerKind != p.Kind.String() || c.Owner != p.Name || (p.Kind == wire.PrincipalApp && c.Namespace != home(p)):
		return unauthenticated(p, "its credential is of somebody else")
	}
	return nil
}

// PrincipalOf returns whom a credential is of, and whether it is good: neither revoked nor expired, and its owner there and not disabled.
func (s *Snapshot) PrincipalOf(id string, nowNs int64) (p wire.Principal, c *Credential, ok bool) {
	if c = s.Credential(id); c == nil {
		return p, nil, false
	}
	p = wire.Principal{Name: c.Owner, Namespace: c.Namespace, Credential: id}
	switch c.OwnerKind {
	case OwnerApp:
		p.Kind = wire.PrincipalApp
	case OwnerUser:
		p.Kind = wire.PrincipalUser
	case OwnerNode:
		p.Kind = wire.PrincipalNode
	default:
		return wire.Principal{}, nil, false
	}
	if !c.Expires.IsZero() {
		p.ExpiresNs = c.Expires.UnixNano()
	}
	return p, c, s.Alive(p, nowNs) == nil
}

// Operation is what an operator does beside changing objects.
type Operation string

const (
	OperateGroup       Operation = "group"        // seek, alter, remove a group; of an app's owner too
	ReadGroup          Operation = "lag"          // see where groups stand
	ReadMessages       Operation = "peek"         // read messages without a group
	ReadStore          Operation = "store"        // store usage, nodes
	ReadAudit          Operation = "audit"        //
	OperateCluster     Operation = "cluster"      // new generation
	OperateBrokerGroup Operation = "broker group" // promote, transfer, drain, activate
	BeNode             Operation = "node"         // heartbeat, watch all metadata with its verifiers
)
