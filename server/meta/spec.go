package meta

import (
	"time"

	"github.com/jmqio/jmq/server/term"
)

// Duration is written as text with its unit: "168h", "500ms", "7d"; below 0: "never". 0 or absent: the default.
type Duration time.Duration

// Limit bounds what one broker takes; 0: no limit.
type Limit struct {
	MessagesPerSecond int64 `json:"messagesPerSecond,omitempty"`
	BytesPerSecond    int64 `json:"bytesPerSecond,omitempty"`
	Connections       int   `json:"connections,omitempty"` // of an app or a namespace
}

// Namespace separates tenants: names of topics, apps and groups are its own.
type Namespace struct {
	ID          uint32 `json:"id"`             // in the journal; given by Plan, and never to another one
	Last        uint32 `json:"last,omitempty"` // of the default namespace: the highest number that was ever given
	Description string `json:"description,omitempty"`
	Limit       Limit  `json:"limit,omitzero"`
	TopicsMax   int    `json:"topicsMax,omitempty"` // 0: no limit
	AppsMax     int    `json:"appsMax,omitempty"`
}

// TopicType as in JMQ.
type TopicType string

const (
	TopicNormal     TopicType = "normal"
	TopicSequential TopicType = "sequential"
	TopicBroadcast  TopicType = "broadcast"
)

// Durability of a topic: see the promises.
type Durability string

const (
	DurabilityNormal     Durability = "normal"
	DurabilityReplicated Durability = "replicated"
)

// Topic is a topic on one or more broker groups. An absent retention is the broker's default.
type Topic struct {
	Description       string     `json:"description,omitempty"`
	Owner             string     `json:"owner,omitempty"`        // app
	Type              TopicType  `json:"type,omitempty"`         // absent: normal
	Partitions        int        `json:"partitions,omitempty"`   // on each broker group; absent at creation: 8; later: as they are
	BrokerGroups      []string   `json:"brokerGroups,omitempty"` // absent at creation: up to three are chosen; later: as they are
	Durability        Durability `json:"durability,omitempty"`
	RetentionAge      Duration   `json:"retentionAge,omitempty"` // below 0: never by age
	RetentionBytes    int64      `json:"retentionBytes,omitempty"`
	DiscardUnconsumed bool       `json:"discardUnconsumed,omitempty"`
	Archive           bool       `json:"archive,omitempty"`
	PauseProduce      bool       `json:"pauseProduce,omitempty"`
	PauseConsume      bool       `json:"pauseConsume,omitempty"`
	OrderKeyAway      string     `json:"orderKeyAway,omitempty"` // absent: wait; move: order keys whose broker group is away go to another one, and may overtake what waits there
	Limit             Limit      `json:"limit,omitzero"`
	Labels            []string   `json:"labels,omitempty"` // name=value
}

// App is an application: what produces and consumes. Its owners may give and take its rights.
type App struct {
	Description string   `json:"description,omitempty"`
	Owners      []string `json:"owners,omitempty"` // users
	Members     []string `json:"members,omitempty"`
	Disabled    bool     `json:"disabled,omitempty"` // its credentials count for nothing
	Limit       Limit    `json:"limit,omitzero"`
	Labels      []string `json:"labels,omitempty"`
}

// Producer lets an app send to a topic, and says how its clients are set.
type Producer struct {
	Description           string         `json:"description,omitempty"`
	Weights               map[string]int `json:"weights,omitempty"` // by broker group, 0 to 100; those without share what is left of 100
	Near                  *bool          `json:"near,omitempty"`    // broker groups of the client's data center first
	Timeout               Duration       `json:"timeout,omitempty"` // of a send with all its tries
	Retries               *int           `json:"retries,omitempty"`
	Archive               *bool          `json:"archive,omitempty"` // absent: as the topic says
	Paused                bool           `json:"paused,omitempty"`
	ForbiddenIPs          []string       `json:"forbiddenIPs,omitempty"` // addresses or networks (CIDR)
	ForbiddenBrokerGroups []string       `json:"forbiddenBrokerGroups,omitempty"`
	Limit                 Limit          `json:"limit,omitzero"`
}

// Consumer lets a group consume a topic, and says how.
type Consumer struct {
	Description           string       `json:"description,omitempty"`
	Near                  *bool        `json:"near,omitempty"`
	Archive               *bool        `json:"archive,omitempty"`
	BatchMessages         int          `json:"batchMessages,omitempty"`
	AckTimeout            Duration     `json:"ackTimeout,omitempty"`
	PollWait              Duration     `json:"pollWait,omitempty"`
	Concurrency           int          `json:"concurrency,omitempty"`
	Parallel              *bool        `json:"parallel,omitempty"` // absent: as the group is
	Window                int          `json:"window,omitempty"`
	Delay                 Duration     `json:"delay,omitempty"` // from stored to given
	Paused                bool         `json:"paused,omitempty"`
	Retry                 *RetryPolicy `json:"retry,omitempty"`
	Filters               []Filter     `json:"filters,omitempty"`
	ForbiddenIPs          []string     `json:"forbiddenIPs,omitempty"`
	ForbiddenBrokerGroups []string     `json:"forbiddenBrokerGroups,omitempty"`
	Limit                 Limit        `json:"limit,omitzero"`
}

// RetryPolicy is how a message that failed is given again.
type RetryPolicy struct {
	Delay       Duration `json:"delay,omitempty"`       // before the first retry; absent: 1 s
	Multiplier  float64  `json:"multiplier,omitempty"`  // absent: 2
	DelayMax    Duration `json:"delayMax,omitempty"`    // absent: 5 min
	AttemptsMax int      `json:"attemptsMax,omitempty"` // 0: no limit
	Expiry      Duration `json:"expiry,omitempty"`      // absent: 72 h
}

// Filter lets through what it matches. Type "tag": rule is a list of tags, separated by |.
type Filter struct {
	Type string `json:"type"`
	Rule string `json:"rule"`
}

// Request asks for access; it is kept when it was decided.
type Request struct {
	Topic       string    `json:"topic"`
	App         string    `json:"app"`
	Group       string    `json:"group,omitempty"` // of consume; absent: the app
	Right       string    `json:"right"`           // produce, consume
	Reason      string    `json:"reason,omitempty"`
	RequestedBy string    `json:"requestedBy"`
	State       string    `json:"state,omitempty"` // absent: open; approved, refused, withdrawn
	DecidedBy   string    `json:"decidedBy,omitempty"`
	Decision    string    `json:"decision,omitempty"` // why
	Decided     time.Time `json:"decided,omitzero"`
}

// Credential proves an identity by SCRAM-SHA-256 (RFC 5802, 7677). Only the verifier is kept; whoever reads it cannot log in with it.
type Credential struct {
	OwnerKind  string    `json:"ownerKind"` // app, user, node
	Owner      string    `json:"owner"`
	Namespace  string    `json:"namespace,omitempty"` // of an app
	Salt       []byte    `json:"salt,omitempty"`
	Iterations int       `json:"iterations,omitempty"`
	StoredKey  []byte    `json:"storedKey,omitempty"`
	ServerKey  []byte    `json:"serverKey,omitempty"`
	IssuedAt   time.Time `json:"issuedAt,omitzero"`
	Expires    time.Time `json:"expires,omitzero"` // zero: never
	Revoked    bool      `json:"revoked,omitempty"`
}

// User is a person.
type User struct {
	DisplayName string `json:"displayName,omitempty"`
	Email       string `json:"email,omitempty"`
	Role        Role   `json:"role"`
	Disabled    bool   `json:"disabled,omitempty"`
}

// Role is what a user may do beside what is his as owner or member of apps.
type Role string

const (
	RoleUser     Role = "user"     // own apps only: reads what concerns them, asks for access
	RoleViewer   Role = "viewer"   // reads everything but audit
	RoleAuditor  Role = "auditor"  // reads everything
	RoleOperator Role = "operator" // changes topics, subscriptions, groups, broker groups
	RoleAdmin    Role = "admin"    // everything
)

// BrokerGroup is one master and its slaves.
type BrokerGroup struct {
	Description string   `json:"description,omitempty"`
	DataCenter  string   `json:"dataCenter,omitempty"`
	Mode        string   `json:"mode,omitempty"`  // absent: fixed; auto
	State       string   `json:"state,omitempty"` // absent: active; read-only, draining
	Labels      []string `json:"labels,omitempty"`
}

// Broker is a node that registered. Its lines of it change only when it registers anew, or when it is found silent or back.
type Broker struct {
	BrokerGroup string    `json:"brokerGroup"`
	Addresses   []string  `json:"addresses,omitempty"`
	Slave       bool      `json:"slave,omitempty"` // as configured: it never becomes the first master. Who is master Replication says
	DataCenter  string    `json:"dataCenter,omitempty"`
	Labels      []string  `json:"labels,omitempty"`
	Version     string    `json:"version,omitempty"`
	Boot        string    `json:"boot,omitempty"`
	Registered  time.Time `json:"registered,omitzero"`
	Away        bool      `json:"away,omitempty"`
}

// Replication is the row of a broker group: see package term. It comes with the first master, and goes with its broker group.
type Replication term.Row

// DataCenter knows which addresses lie in it.
type DataCenter struct {
	Description string   `json:"description,omitempty"`
	Networks    []string `json:"networks,omitempty"` // CIDR
}

func (*Namespace) Kind() Kind   { return KindNamespace }
func (*Topic) Kind() Kind       { return KindTopic }
func (*App) Kind() Kind         { return KindApp }
func (*Producer) Kind() Kind    { return KindProducer }
func (*Consumer) Kind() Kind    { return KindConsumer }
func (*Request) Kind() Kind     { return KindRequest }
func (*Credential) Kind() Kind  { return KindCredential }
func (*User) Kind() Kind        { return KindUser }
func (*BrokerGroup) Kind() Kind { return KindBrokerGroup }
func (*Broker) Kind() Kind      { return KindBroker }
func (*DataCenter) Kind() Kind  { return KindDataCenter }
func (*Replication) Kind() Kind { return KindReplication }
