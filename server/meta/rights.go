package meta

import (
	"bytes"
	"slices"
	"time"

	"github.com/jmqio/jmq/wire"
)

// relation says what a subject is to an object. A subject has several.
type relation uint16

const (
	isLocal relation = 1 << iota
	isNode
	isAdmin
	isOperator
	isAuditor
	isViewer
	isSelf     // the app or the user that the object is, or belongs to
	isOwner    // a user who is an owner of the app that the object is, or belongs to; also a member of it
	isMember   // a user who is a member of that app
	isGranter  // a user who is an owner of the app that owns the topic that the object is, or is about
	isNeighbor // an app that uses or owns the topic, or a user of one; of a namespace: that lives in it
)

const (
	rule = isLocal | isAdmin
	run  = rule | isOperator
	look = run | isAuditor | isViewer | isNode
)

// rights are the relations that may do something to an object; those of part may change only what narrow lets them.
type rights struct {
	read, create, change, delete relation
	part                         relation
}

// table is who may do what to objects; the row of a credential is that of its owner's kind. Everything that it does not say is forbidden.
//
// Nobody but the registry writes who is master. What follows from it: only admins make users, nodes and namespaces, so an operator makes no admin. An owner of an app gives access to topics
// that the app owns, and to no others: for these he asks (request), and who approves writes the subscription in the same change. A limit or a
// prohibition is lifted by who could set it, not by whom it binds. Brokers register themselves.
var rightsOf = map[Kind]rights{
	KindNamespace:           {read: look | isNeighbor, create: rule, change: rule, delete: rule},
	KindTopic:               {read: look | isNeighbor | isGranter, create: run, change: run, delete: run, part: isGranter},
	KindApp:                 {read: look | isSelf | isMember, create: run, change: run, delete: run | isOwner, part: isOwner},
	KindProducer:            {read: look | isSelf | isMember | isGranter, create: run | isGranter, change: run | isGranter, delete: run | isGranter | isOwner, part: isOwner},
	KindConsumer:            {read: look | isSelf | isMember | isGranter, create: run | isGranter, change: run | isGranter, delete: run | isGranter | isOwner, part: isOwner},
	KindRequest:             {read: look | isSelf | isMember | isGranter, create: isLocal, change: isLocal, delete: run, part: run | isMember | isGranter},
	credentialOf(OwnerApp):  {read: look | isSelf | isMember, create: run | isOwner, change: run | isOwner, delete: run | isOwner},
	credentialOf(OwnerUser): {read: look | isSelf, create: rule | isSelf, change: rule | isSelf, delete: rule | isSelf},
	credentialOf(OwnerNode): {read: look, create: rule, change: rule, delete: rule},
	KindUser:                {read: look | isSelf, create: rule, change: rule, delete: rule, part: isSelf},
	KindBrokerGroup:         {read: look, create: run, change: run, delete: run},
	KindBroker:              {read: look, create: isLocal, change: isLocal, delete: run},
	KindDataCenter:          {read: look, create: run, change: run, delete: run},
	KindReplication:         {read: look},
}

// operations is who may do what else.
var operations = map[Operation]relation{
	OperateGroup:       run | isOwner,
	ReadGroup:          look | isSelf | isMember | isGranter,
	ReadMessages:       run | isSelf | isOwner | isGranter, // self and owner: of an app that may consume the topic
	ReadStore:          look,
	ReadAudit:          run | isAuditor,
	OperateCluster:     rule,
	OperateBrokerGroup: run,
	BeNode:             isLocal | isNode,
}

// credentialOf is the row of a credential.
func credentialOf(ownerKind string) Kind { return KindCredential + Kind("/"+ownerKind) }

func rowOf(k Kind, spec Spec) rights {
	if c, ok := spec.(*Credential); ok {
		k = credentialOf(c.OwnerKind)
	}
	return rightsOf[k]
}

// MayRead says whether a subject may see an object: CodeForbidden if not, CodeUnauthenticated if it is nobody any more.
func (s *Snapshot) MayRead(who Subject, k Key) error {
	if err := s.alive(&who.Principal); err != nil {
		return err
	}
	if s.roles(&who.Principal)&look != 0 { // of each row; so listing for these looks at no relations
		return nil
	}
	if o := s.Get(k); o == nil || s.relations(&who.Principal, k, o.Spec)&rowOf(k.Kind, o.Spec).read == 0 {
		return forbidden(&who, "may not see %s", k)
	}
	return nil
}

// MayWrite says whether a subject may make a change from before to after (nil: not there): CodeForbidden if not.
func (s *Snapshot) MayWrite(who Subject, k Key, before, after Spec) error {
	if err := s.alive(&who.Principal); err != nil {
		return err
	}
	is := relation(1<<16 - 1)
	full, part := relation(1<<16-1), relation(0)
	for _, spec := range []Spec{before, after} {
		if spec == nil {
			continue
		}
		if spec.Kind() != k.Kind {
			return wire.Errorf(wire.CodeInvalid, "%s is given the spec of a %s", k, spec.Kind())
		}
		is &= s.relations(&who.Principal, k, spec)
		row := rowOf(k.Kind, spec)
		part = row.part
		switch {
		case before == nil:
			full &= row.create
		case after == nil:
			full &= row.delete
		default:
			full &= row.change
		}
	}
	if before == nil && after == nil {
		is, full = s.relations(&who.Principal, k, nil), rightsOf[k.Kind].delete
	}
	if is&full != 0 {
		return nil
	}
	verb := "change"
	switch {
	case before == nil && after != nil:
		verb = "create"
	case after == nil:
		verb = "delete"
	}
	if is&part == 0 || after == nil {
		return forbidden(&who, "may not %s %s", verb, k)
	}
	if before != nil {
		after = (&plan{s: s}).fill(k, after, &Object{Key: k, Spec: before})
	}
	narrowed := narrow(is, nameOf(&who.Principal), before, after)
	if narrowed == nil {
		return forbidden(&who, "may not %s %s", verb, k)
	}
	want, err := EncodeSpec(narrowed)
	if err != nil {
		return err
	}
	got, err := EncodeSpec(after)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return forbidden(&who, "may not %s this of %s", verb, k)
	}
	return nil
}

// narrow returns what a change comes to with only that of it which someone with these relations may do in part; nil: nothing.
func narrow(is relation, actor string, before, after Spec) Spec {
	switch a := after.(type) {
	case *Request:
		return narrowRequest(is, actor, before, a)
	case *Topic:
		if b, ok := before.(*Topic); ok {
			n := *b
			n.Description, n.Labels, n.PauseProduce, n.PauseConsume = a.Description, a.Labels, a.PauseProduce, a.PauseConsume
			return &n
		}
	case *App:
		if b, ok := before.(*App); ok {
			n := *b
			n.Description, n.Owners, n.Members, n.Labels = a.Description, a.Owners, a.Members, a.Labels
			return &n
		}
	case *Producer:
		if b, ok := before.(*Producer); ok {
			n := *a
			n.Limit, n.ForbiddenIPs, n.ForbiddenBrokerGroups = b.Limit, b.ForbiddenIPs, b.ForbiddenBrokerGroups
			return &n
		}
	case *Consumer:
		if b, ok := before.(*Consumer); ok {
			n := *a
			n.Limit, n.ForbiddenIPs, n.ForbiddenBrokerGroups = b.Limit, b.ForbiddenIPs, b.ForbiddenBrokerGroups
			return &n
		}
	case *User:
		if b, ok := before.(*User); ok {
			n := *b
			n.DisplayName, n.Email = a.DisplayName, a.Email
			return &n
		}
	}
	return nil
}

// narrowRequest: members ask in their own name and withdraw; who may grant, and has not asked, decides in his own name.
func narrowRequest(is relation, actor string, before Spec, a *Request) Spec {
	b, ok := before.(*Request)
	if !ok {
		if is&(run|isMember) == 0 {
			return nil
		}
		n := *a
		n.RequestedBy, n.State, n.DecidedBy, n.Decision, n.Decided = actor, RequestOpen, "", "", time.Time{}
		return &n
	}
	n := *b
	switch a.State {
	case RequestWithdrawn:
		if b.RequestedBy != actor {
			return nil
		}
		n.State = a.State
	case RequestApproved, RequestRefused:
		if is&(run|isGranter) == 0 || b.RequestedBy == actor {
			return nil
		}
		n.State, n.DecidedBy, n.Decision, n.Decided = a.State, actor, a.Decision, a.Decided
	default:
		return nil
	}
	return &n
}

// MayOperate says whether a subject may do an operation; topic and group are "" where it concerns none.
func (s *Snapshot) MayOperate(who Subject, op Operation, topic, group string) error {
	p := &who.Principal
	if err := s.alive(p); err != nil {
		return err
	}
	is, ns := s.roles(p), home(p)
	if group != "" {
		is |= s.ofApp(p, ns, AppOf(group))
	}
	if topic != "" {
		is |= s.ofTopic(p, ns, topic)
	}
	if op == ReadMessages {
		is &^= isSelf | isOwner
		switch p.Kind {
		case wire.PrincipalApp:
			if _, err := s.MayConsume(who, topic, p.Name, ""); err == nil || wire.CodeOf(err) == wire.CodePaused {
				is |= isSelf
			}
		case wire.PrincipalUser:
			for _, o := range s.subscriptions(KindConsumer, ns, topic) {
				is |= s.ofApp(p, ns, AppOf(o.SubscriberOf())) & isOwner
			}
		}
	}
	if is&operations[op] == 0 {
		about := ""
		if topic != "" {
			about += " on topic " + topic
		}
		if group != "" {
			about += " of group " + group
		}
		return forbidden(&who, "may not do operation %s%s", op, about)
	}
	return nil
}

// roles is what a principal is, whatever the object.
func (s *Snapshot) roles(p *wire.Principal) relation {
	switch p.Kind {
	case wire.PrincipalLocal:
		return isLocal
	case wire.PrincipalNode:
		return isNode
	case wire.PrincipalUser:
		if u := s.User(p.Name); u != nil {
			switch u.Role {
			case RoleAdmin:
				return isAdmin
			case RoleOperator:
				return isOperator
			case RoleAuditor:
				return isAuditor
			case RoleViewer:
				return isViewer
			}
		}
	}
	return 0
}

// relations is what a principal is to an object. Who owns an app or a topic is what s says, never what a change would make of it.
func (s *Snapshot) relations(p *wire.Principal, k Key, spec Spec) relation {
	is := s.roles(p)
	switch k.Kind {
	case KindNamespace:
		switch p.Kind {
		case wire.PrincipalApp:
			if home(p) == k.Name {
				is |= isNeighbor
			}
		case wire.PrincipalUser:
			for _, o := range s.appsOf(p.Name) {
				if o.Namespace == k.Name {
					is |= isNeighbor
				}
			}
		}
	case KindTopic:
		is |= s.ofTopic(p, k.Namespace, k.Name)
		for _, kind := range []Kind{KindProducer, KindConsumer} {
			for _, o := range s.subscriptions(kind, k.Namespace, k.Name) {
				if s.ofApp(p, k.Namespace, AppOf(o.SubscriberOf())) != 0 {
					is |= isNeighbor
				}
			}
		}
	case KindApp:
		is |= s.ofApp(p, k.Namespace, k.Name)
	case KindProducer, KindConsumer:
		is |= s.ofApp(p, k.Namespace, AppOf(k.SubscriberOf())) | s.ofTopic(p, k.Namespace, k.TopicOf())&^isNeighbor
	case KindRequest:
		if q, ok := spec.(*Request); ok {
			is |= s.ofApp(p, k.Namespace, q.App) | s.ofTopic(p, k.Namespace, q.Topic)&^isNeighbor
		}
	case KindCredential:
		if c, ok := spec.(*Credential); ok {
			switch {
			case c.OwnerKind == OwnerApp:
				is |= s.ofApp(p, c.Namespace, c.Owner)
			case c.OwnerKind == OwnerUser && p.Kind == wire.PrincipalUser && p.Name == c.Owner:
				is |= isSelf
			}
		}
	case KindUser:
		if p.Kind == wire.PrincipalUser && p.Name == k.Name {
			is |= isSelf
		}
	}
	return is
}

// ofApp is what a principal is to an app.
func (s *Snapshot) ofApp(p *wire.Principal, namespace, app string) relation {
	switch p.Kind {
	case wire.PrincipalApp:
		if p.Name == app && home(p) == namespace {
			return isSelf
		}
	case wire.PrincipalUser:
		a := s.App(namespace, app)
		switch {
		case a == nil:
		case slices.Contains(a.Owners, p.Name):
			return isOwner | isMember
		case slices.Contains(a.Members, p.Name):
			return isMember
		}
	}
	return 0
}

// ofTopic is what a principal is to a topic through the app that owns it.
func (s *Snapshot) ofTopic(p *wire.Principal, namespace, topic string) relation {
	t := s.Topic(namespace, topic)
	if t == nil || t.Owner == "" {
		return 0
	}
	is := s.ofApp(p, namespace, t.Owner)
	switch {
	case is&isOwner != 0:
		return isGranter | isNeighbor
	case is != 0:
		return isNeighbor
	}
	return 0
}

// subscriptions are the producers or consumers of a topic.
func (s *Snapshot) subscriptions(k Kind, namespace, topic string) []*Object {
	return s.kinds[indexOf(k)].relate(func(o *Object, add func(namespace, name string)) {
		add(o.Namespace, o.TopicOf())
	})[name{namespace, topic}]
}

// appsOf are the apps of which a user is an owner or a member.
func (s *Snapshot) appsOf(user string) []*Object {
	return s.kinds[indexApp].relate(func(o *Object, add func(namespace, name string)) {
		a := o.Spec.(*App)
		for _, u := range slices.Concat(a.Owners, a.Members) {
			add("", u)
		}
	})[name{"", user}]
}

// Subscriptions are the producers (KindProducer) or consumers (KindConsumer) of a topic, in no order. The first call after a change of one
// looks at all of them, later ones at none; nobody changes the slice.
func (s *Snapshot) Subscriptions(k Kind, namespace, topic string) []*Object {
	if k != KindProducer && k != KindConsumer {
		return nil
	}
	return s.subscriptions(k, namespace, topic)
}
