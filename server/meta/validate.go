package meta

import (
	"encoding/base64"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

// Bounds of values.
const (
	PartitionsMax   = 4096    // of a topic on each of its broker groups
	PartitionsUsual = 8       // of a topic that says nothing
	TextBytesMax    = 4 << 10 // of a description, a reason
	WindowMax       = 100_000
	CredentialsMax  = 2 // that are good at one time, of one owner: one in use, one to change over to

	nameBytesMax     = 255
	credentialIDMax  = 64
	concurrencyMax   = 10_000
	batchMax         = 1000
	iterationsMin    = 4096
	iterationsMax    = 1_000_000
	timeoutMax       = 5 * time.Minute
	ackTimeoutMin    = time.Second
	ackTimeoutMax    = 12 * time.Hour
	pollWaitMax      = time.Minute
	ageMax           = 100 * 365 * 24 * time.Hour
	delayMax         = 30 * 24 * time.Hour
	perSecondMax     = 1 << 40
	connectionsMax   = 1 << 20
	topicBrokerGroup = 100               // of one topic
	routeMax         = 4 * PartitionsMax // of a topic on all of its broker groups: a route must fit into an answer
)

// Kinds are all kinds, in the order in which objects can be made: each names only kinds before it.
var Kinds = []Kind{
	KindNamespace, KindUser, KindDataCenter, KindBrokerGroup, KindReplication, KindBroker, KindApp, KindTopic, KindProducer, KindConsumer, KindRequest, KindCredential,
}

func kindNames() string {
	var names []string
	for _, k := range Kinds {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}

// Namespaced says whether objects of a kind belong to a namespace.
func (k Kind) Namespaced() bool {
	switch k {
	case KindTopic, KindApp, KindProducer, KindConsumer, KindRequest:
		return true
	}
	return false
}

// Check says what is wrong with a key, as CodeInvalid.
func (k Key) Check() error {
	if NewSpec(k.Kind) == nil {
		return wire.Errorf(wire.CodeInvalid, "%.40q is no kind of object: take one of %s", string(k.Kind), kindNames())
	}
	if k.Kind.Namespaced() {
		if err := checkName("namespace", k.Namespace); err != nil {
			return err
		}
	} else if k.Namespace != "" {
		return wire.Errorf(wire.CodeInvalid, "a %s belongs to no namespace: leave it empty", k.Kind)
	}
	switch k.Kind {
	case KindTopic:
		return wire.CheckTopic(k.Name)
	case KindApp:
		return wire.CheckApp(k.Name)
	case KindProducer, KindConsumer:
		topic, who, ok := strings.Cut(k.Name, "/")
		if !ok {
			return wire.Errorf(wire.CodeInvalid, "the name of a %s is TOPIC/%s: %.100q has no slash", k.Kind, map[Kind]string{KindProducer: "APP", KindConsumer: "GROUP"}[k.Kind], k.Name)
		}
		if err := wire.CheckTopic(topic); err != nil {
			return err
		}
		if k.Kind == KindProducer {
			return wire.CheckApp(who)
		}
		return wire.CheckGroup(who)
	case KindCredential:
		if len(k.Name) > credentialIDMax {
			return wire.Errorf(wire.CodeInvalid, "credential id of %d bytes: at most %d are allowed", len(k.Name), credentialIDMax)
		}
	}
	return checkName(string(k.Kind), k.Name)
}

// checkName judges names of users, brokers and the like: as those of topics, and host names and addresses of mail are among them.
func checkName(what, name string) error {
	if name == "" || len(name) > nameBytesMax || name == "." || name == ".." {
		return wire.Errorf(wire.CodeInvalid, "%s name %.40q: 1 to %d bytes are allowed, and neither . nor ..", what, name, nameBytesMax)
	}
	for i := range len(name) {
		switch b := name[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', b == '_', b == '-', b == '.':
		case b == '@' && what == string(KindUser):
		default:
			return wire.Errorf(wire.CodeInvalid, "%s name %.100q has byte %q at %d: letters, digits, '.', '_' and '-' are allowed", what, name, b, i)
		}
	}
	return nil
}

// TopicOf returns the topic of a producer's or consumer's key, and SubscriberOf its app or group.
func (k Key) TopicOf() string {
	topic, _, _ := strings.Cut(k.Name, "/")
	return topic
}

// SubscriberOf returns the app of a producer's key, the group of a consumer's.
func (k Key) SubscriberOf() string {
	_, who, _ := strings.Cut(k.Name, "/")
	return who
}

// AppOf returns the app that a group is of.
func AppOf(group string) string {
	app, _, _ := strings.Cut(group, ".")
	return app
}

// invalid is what a field has wrong.
func invalid(k Kind, field, format string, args ...any) error {
	e := wire.Errorf(wire.CodeInvalid, format, args...)
	e.Message = "field \"" + field + "\" of a " + string(k) + ": " + e.Message
	return e
}

// rules collects the first thing that is wrong.
type rules struct {
	kind Kind
	err  error
}

func (r *rules) that(ok bool, field, format string, args ...any) {
	if !ok && r.err == nil {
		r.err = invalid(r.kind, field, format, args...)
	}
}

func (r *rules) text(field, s string) {
	r.that(len(s) <= TextBytesMax, field, "it has %d bytes: at most %d are allowed", len(s), TextBytesMax)
	r.that(utf8.ValidString(s), field, "it is not UTF-8")
	for _, c := range s {
		if c != '\n' && c != '\t' && controls(c) {
			r.that(false, field, "control characters are not allowed in it")
		}
	}
}

// name checks the name of another object; "" is left to who calls.
func (r *rules) name(field string, k Kind, s string) {
	key := Key{Kind: k, Name: s}
	if k.Namespaced() {
		key.Namespace = NamespaceDefault
	}
	if err := key.Check(); err != nil && r.err == nil {
		r.that(false, field, "%s", messageOf(err))
	}
}

func (r *rules) names(field string, k Kind, list []string) {
	r.list(field, len(list))
	seen := make(map[string]bool, len(list))
	for _, s := range list {
		r.name(field, k, s)
		r.that(!seen[s], field, "%q is there twice", s)
		seen[s] = true
	}
}

func (r *rules) list(field string, n int) {
	r.that(n <= ListMax, field, "it has %d entries: at most %d are allowed", n, ListMax)
}

func (r *rules) labels(list []string) {
	r.list("labels", len(list))
	seen := make(map[string]bool, len(list))
	for _, s := range list {
		name, value, ok := strings.Cut(s, "=")
		r.that(ok, "labels", "%.100q is not name=value", s)
		r.that(checkName("label", name) == nil, "labels", "name %.100q: letters, digits, '.', '_' and '-' are allowed", name)
		r.that(len(value) <= nameBytesMax && printable(value), "labels", "value of %.100q: at most %d bytes without control characters are allowed", name, nameBytesMax)
		r.that(!seen[name], "labels", "%.100q is there twice", name)
		seen[name] = true
	}
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, controls)
}

// controls says whether a character would tell a terminal what to do, or show what follows in another order.
func controls(c rune) bool { return unicode.IsControl(c) || unicode.Is(unicode.Bidi_Control, c) }

func (r *rules) limit(l Limit) {
	r.within("limit.messagesPerSecond", l.MessagesPerSecond, 0, perSecondMax)
	r.within("limit.bytesPerSecond", l.BytesPerSecond, 0, perSecondMax)
	r.within("limit.connections", int64(l.Connections), 0, connectionsMax)
}

func (r *rules) within(field string, n, low, high int64) {
	r.that(low <= n && n <= high, field, "%d is not within %d to %d", n, low, high)
}

// duration lets 0, the default, through.
func (r *rules) duration(field string, d Duration, low, high time.Duration) {
	r.that(d == 0 || (time.Duration(d) >= low && time.Duration(d) <= high), field, "%s is not within %s to %s", d, Duration(low), Duration(high))
}

func (r *rules) networks(field string, list []string) {
	r.list(field, len(list))
	for _, s := range list {
		_, ok := parseNetwork(s)
		r.that(ok, field, "%.100q is neither an address nor a network as 10.0.0.0/8", s)
	}
}

func (r *rules) oneOf(field, s string, values ...string) {
	r.that(s == "" || slices.Contains(values, s), field, "%.40q is not one of %s", s, strings.Join(values, ", "))
}

// parseNetwork reads an address or a network.
func parseNetwork(s string) (netip.Prefix, bool) {
	if strings.IndexByte(s, '/') >= 0 {
		p, err := netip.ParsePrefix(s)
		return p, err == nil && !p.Addr().Is4In6()
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}, false
	}
	a = a.Unmap()
	return netip.PrefixFrom(a, a.BitLen()), true
}

func messageOf(err error) string {
	if e, ok := err.(*wire.CodeError); ok {
		return e.Message
	}
	return err.Error()
}

func (n *Namespace) Validate() error {
	r := rules{kind: KindNamespace}
	r.text("description", n.Description)
	r.limit(n.Limit)
	r.within("topicsMax", int64(n.TopicsMax), 0, 1<<30)
	r.within("appsMax", int64(n.AppsMax), 0, 1<<30)
	return r.err
}

func (t *Topic) Validate() error {
	r := rules{kind: KindTopic}
	r.text("description", t.Description)
	if t.Owner != "" {
		r.name("owner", KindApp, t.Owner)
	}
	r.oneOf("type", string(t.Type), string(TopicNormal), string(TopicSequential), string(TopicBroadcast))
	r.that(t.Type != TopicSequential, "type", "sequential topics are not served by this version: take %s", TopicNormal)
	r.within("partitions", int64(t.Partitions), 1, PartitionsMax)
	r.names("brokerGroups", KindBrokerGroup, t.BrokerGroups)
	r.that(t.Partitions*len(t.BrokerGroups) <= routeMax, "partitions", "%d on each of %d broker groups: at most %d together are possible, since each client is told of all", t.Partitions, len(t.BrokerGroups), routeMax)
	r.that(len(t.BrokerGroups) > 0, "brokerGroups", "a topic needs one or more")
	r.that(len(t.BrokerGroups) <= topicBrokerGroup, "brokerGroups", "%d: at most %d are possible", len(t.BrokerGroups), topicBrokerGroup)
	r.oneOf("durability", string(t.Durability), string(DurabilityNormal), string(DurabilityReplicated))
	r.that(time.Duration(t.RetentionAge) <= ageMax, "retentionAge", "%s is more than %s: write never", t.RetentionAge, Duration(ageMax))
	r.that(t.RetentionBytes >= -1, "retentionBytes", "%d: -1 is no limit, 0 the broker's default", t.RetentionBytes)
	r.oneOf("orderKeyAway", t.OrderKeyAway, OrderKeyWait, OrderKeyMove)
	r.limit(t.Limit)
	r.labels(t.Labels)
	return r.err
}

func (a *App) Validate() error {
	r := rules{kind: KindApp}
	r.text("description", a.Description)
	r.names("owners", KindUser, a.Owners)
	r.names("members", KindUser, a.Members)
	r.limit(a.Limit)
	r.labels(a.Labels)
	return r.err
}

func (p *Producer) Validate() error {
	r := rules{kind: KindProducer}
	r.text("description", p.Description)
	r.list("weights", len(p.Weights))
	sum := 0
	for g, w := range p.Weights {
		r.name("weights", KindBrokerGroup, g)
		r.within("weights."+g, int64(w), 0, 100)
		sum += w
	}
	r.that(sum <= 100, "weights", "they are %d together: at most 100 are possible, what is left is shared by broker groups without one", sum)
	r.duration("timeout", p.Timeout, 10*time.Millisecond, timeoutMax)
	if p.Retries != nil {
		r.within("retries", int64(*p.Retries), 0, 100)
	}
	r.networks("forbiddenIPs", p.ForbiddenIPs)
	r.names("forbiddenBrokerGroups", KindBrokerGroup, p.ForbiddenBrokerGroups)
	r.limit(p.Limit)
	return r.err
}

func (c *Consumer) Validate() error {
	r := rules{kind: KindConsumer}
	r.text("description", c.Description)
	r.within("batchMessages", int64(c.BatchMessages), 0, batchMax)
	r.duration("ackTimeout", c.AckTimeout, ackTimeoutMin, ackTimeoutMax)
	r.duration("pollWait", c.PollWait, 10*time.Millisecond, pollWaitMax)
	r.within("concurrency", int64(c.Concurrency), 0, concurrencyMax)
	r.within("window", int64(c.Window), 0, WindowMax)
	r.that(c.Window == 0 || (c.Parallel != nil && *c.Parallel), "window", "it is of parallel groups: set parallel too")
	r.duration("delay", c.Delay, time.Millisecond, delayMax)
	if p := c.Retry; p != nil {
		r.duration("retry.delay", p.Delay, time.Millisecond, delayMax)
		r.that(p.Multiplier == 0 || (p.Multiplier >= 1 && p.Multiplier <= 100), "retry.multiplier", "%s is not within 1 to 100", strconv.FormatFloat(p.Multiplier, 'g', -1, 64))
		r.duration("retry.delayMax", p.DelayMax, time.Millisecond, delayMax)
		r.within("retry.attemptsMax", int64(p.AttemptsMax), 0, 1<<20)
		r.duration("retry.expiry", p.Expiry, time.Second, ageMax)
	}
	r.list("filters", len(c.Filters))
	for _, f := range c.Filters {
		r.that(f.Type == "tag", "filters", "type %.40q is not one of tag", f.Type)
		r.that(f.Rule != "" && len(f.Rule) <= TextBytesMax && printable(f.Rule), "filters", "a rule is a list of tags separated by |, at most %d bytes", TextBytesMax)
		for tag := range strings.SplitSeq(f.Rule, "|") {
			r.that(tag != "", "filters", "rule %.100q has an empty tag", f.Rule)
		}
	}
	r.networks("forbiddenIPs", c.ForbiddenIPs)
	r.names("forbiddenBrokerGroups", KindBrokerGroup, c.ForbiddenBrokerGroups)
	r.limit(c.Limit)
	return r.err
}

// What a request asks for, and how it stands.
const (
	RightProduce = "produce"
	RightConsume = "consume"

	RequestOpen      = ""
	RequestApproved  = "approved"
	RequestRefused   = "refused"
	RequestWithdrawn = "withdrawn"
)

func (q *Request) Validate() error {
	r := rules{kind: KindRequest}
	r.name("topic", KindTopic, q.Topic)
	r.name("app", KindApp, q.App)
	r.that(q.Right == RightProduce || q.Right == RightConsume, "right", "%.40q is not one of %s, %s", q.Right, RightProduce, RightConsume)
	if q.Group != "" {
		r.that(q.Right == RightConsume, "group", "only who asks to consume has one")
		r.that(wire.CheckGroup(q.Group) == nil && AppOf(q.Group) == q.App, "group", "%.100q is neither the app nor app.subgroup", q.Group)
	}
	r.text("reason", q.Reason)
	r.that(q.RequestedBy != "" && len(q.RequestedBy) <= 2*nameBytesMax && printable(q.RequestedBy), "requestedBy", "%.100q is nobody: write user NAME", q.RequestedBy)
	r.that(len(q.DecidedBy) <= 2*nameBytesMax && printable(q.DecidedBy), "decidedBy", "%.100q is nobody", q.DecidedBy)
	r.oneOf("state", q.State, RequestApproved, RequestRefused, RequestWithdrawn)
	decided := q.State == RequestApproved || q.State == RequestRefused
	r.that(decided == (q.DecidedBy != ""), "decidedBy", "it is there when, and only when, the state is %s or %s", RequestApproved, RequestRefused)
	r.that(!decided || q.DecidedBy != q.RequestedBy || q.DecidedBy == wire.PrincipalLocal.String(), "decidedBy", "nobody decides on what was asked for by the same: let another one decide")
	r.text("decision", q.Decision)
	return r.err
}

// Kinds of owners of credentials.
const (
	OwnerApp  = "app"
	OwnerUser = "user"
	OwnerNode = "node"
)

func (c *Credential) Validate() error {
	r := rules{kind: KindCredential}
	switch c.OwnerKind {
	case OwnerApp:
		r.name("owner", KindApp, c.Owner)
		r.name("namespace", KindNamespace, c.Namespace)
	case OwnerUser:
		r.name("owner", KindUser, c.Owner)
	case OwnerNode:
		r.name("owner", KindBroker, c.Owner)
	default:
		r.that(false, "ownerKind", "%.40q is not one of %s, %s, %s", c.OwnerKind, OwnerApp, OwnerUser, OwnerNode)
	}
	r.that(c.OwnerKind == OwnerApp || c.Namespace == "", "namespace", "only a credential of an app has one")
	r.that(len(c.Salt) >= 8 && len(c.Salt) <= 64, "salt", "%d bytes: 8 to 64 are possible", len(c.Salt))
	r.within("iterations", int64(c.Iterations), iterationsMin, iterationsMax)
	r.that(len(c.StoredKey) == 32, "storedKey", "%d bytes, not 32: %d characters of base64", len(c.StoredKey), base64.StdEncoding.EncodedLen(32))
	r.that(len(c.ServerKey) == 32, "serverKey", "%d bytes, not 32: %d characters of base64", len(c.ServerKey), base64.StdEncoding.EncodedLen(32))
	r.time("issuedAt", c.IssuedAt)
	r.time("expires", c.Expires)
	return r.err
}

// time checks that a moment can be written as JSON and counted in nanoseconds of unix time.
func (r *rules) time(field string, t time.Time) {
	r.that(t.IsZero() || (t.Year() >= 1970 && t.Year() < 2262), field, "%d is not a year from 1970 to 2261", t.Year())
}

func (u *User) Validate() error {
	r := rules{kind: KindUser}
	r.that(len(u.DisplayName) <= nameBytesMax && printable(u.DisplayName), "displayName", "at most %d bytes without control characters are allowed", nameBytesMax)
	r.that(len(u.Email) <= nameBytesMax && printable(u.Email) && (u.Email == "" || strings.Count(u.Email, "@") == 1), "email", "%.100q is no address", u.Email)
	r.that(u.Role != "" && slices.Contains(Roles, u.Role), "role", "%.40q is not one of %s, %s, %s, %s, %s", string(u.Role), RoleUser, RoleViewer, RoleAuditor, RoleOperator, RoleAdmin)
	return r.err
}

// Roles are all roles.
var Roles = []Role{RoleUser, RoleViewer, RoleAuditor, RoleOperator, RoleAdmin}

// Modes of a broker group: whether a complete slave is promoted without an operator.
const (
	BrokerGroupFixed = "fixed"
	BrokerGroupAuto  = "auto"
)

// What becomes of order keys whose broker group is away.
const (
	OrderKeyWait = "wait"
	OrderKeyMove = "move"
)

// States of a broker group.
const (
	BrokerGroupActive   = "active"
	BrokerGroupReadOnly = "read-only"
	BrokerGroupDraining = "draining"
)

func (g *BrokerGroup) Validate() error {
	r := rules{kind: KindBrokerGroup}
	r.text("description", g.Description)
	if g.DataCenter != "" {
		r.name("dataCenter", KindDataCenter, g.DataCenter)
	}
	r.oneOf("mode", g.Mode, BrokerGroupFixed, BrokerGroupAuto)
	r.oneOf("state", g.State, BrokerGroupActive, BrokerGroupReadOnly, BrokerGroupDraining)
	r.labels(g.Labels)
	return r.err
}

func (b *Broker) Validate() error {
	r := rules{kind: KindBroker}
	r.name("brokerGroup", KindBrokerGroup, b.BrokerGroup)
	r.that(len(b.Addresses) > 0 && len(b.Addresses) <= 16, "addresses", "%d: 1 to 16 are possible", len(b.Addresses))
	for _, a := range b.Addresses {
		host, port, err := net.SplitHostPort(a)
		n, perr := strconv.ParseUint(port, 10, 16)
		r.that(err == nil && host != "" && perr == nil && n > 0 && len(a) <= nameBytesMax && printable(a), "addresses", "%.100q is not host:port", a)
	}
	if b.DataCenter != "" {
		r.name("dataCenter", KindDataCenter, b.DataCenter)
	}
	r.labels(b.Labels)
	r.that(len(b.Version) <= nameBytesMax && printable(b.Version), "version", "at most %d bytes are allowed", nameBytesMax)
	r.that(len(b.Boot) <= nameBytesMax && printable(b.Boot), "boot", "at most %d bytes are allowed", nameBytesMax)
	r.time("registered", b.Registered)
	return r.err
}

func (d *DataCenter) Validate() error {
	r := rules{kind: KindDataCenter}
	r.text("description", d.Description)
	r.networks("networks", d.Networks)
	return r.err
}

// replicasMax bounds the brokers of a broker group.
const replicasMax = 64

func (p *Replication) Validate() error {
	r := rules{kind: KindReplication}
	r.that(p.Term > 0, "term", "it begins with 1")
	member := func(field string, m *term.Member) {
		r.name(field+".broker", KindBroker, m.Broker)
		r.that(m.Boot != "" && len(m.Boot) <= nameBytesMax && printable(m.Boot), field+".boot", "1 to %d bytes are possible", nameBytesMax)
		r.that(m.Store != "" && len(m.Store) <= nameBytesMax && printable(m.Store), field+".store", "1 to %d bytes are possible", nameBytesMax)
	}
	member("master", &p.Master)
	r.that(len(p.Set) <= replicasMax, "set", "it has %d entries: at most %d are possible", len(p.Set), replicasMax)
	for i := range p.Set {
		m := &p.Set[i]
		member("set", m)
		r.that(m.Broker != p.Master.Broker, "set", "the master %q is no slave", m.Broker)
		r.that(i == 0 || p.Set[i-1].Broker < m.Broker, "set", "%q is not after the one before it", m.Broker)
	}
	if p.Transfer != "" {
		r.name("transfer", KindBroker, p.Transfer)
	}
	return r.err
}
