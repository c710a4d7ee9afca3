package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jmqio/jmq/client"
	"github.com/jmqio/jmq/wire"
)

// Admin asks the registry. It is safe for concurrent use, and ends with its client.
type Admin struct{ cluster *client.Cluster }

// New returns the calls of this package over a client.
func New(c *client.Client) *Admin { return &Admin{c.Cluster()} }

// Key names an object. Namespace is empty for kinds that belong to none.
type Key struct {
	Kind      string
	Namespace string
	Name      string
}

// NamespaceDefault is the namespace of those who say nothing.
const NamespaceDefault = "default"

func (k Key) String() string {
	if k.Namespace == "" || k.Namespace == NamespaceDefault {
		return k.Kind + " " + k.Name
	}
	return k.Kind + " " + k.Namespace + ":" + k.Name
}

// Object is a thing of the metadata.
type Object struct {
	Key
	Revision uint64          // version of the metadata that changed it last
	Created  uint64          // version that created it
	Spec     json.RawMessage // what it says, without secrets; empty: it was deleted
}

func objectOf(o *wire.Object) *Object {
	if o == nil {
		return nil
	}
	return &Object{Key: Key{o.Kind, o.Namespace, o.Name}, Revision: o.Revision, Created: o.Created, Spec: o.Spec}
}

// Query selects objects; each empty field is any.
type Query struct {
	Kind      string
	Namespace string
	Prefix    string // of names
}

// List returns the objects that the caller may see, by kind, namespace and name. It asks page by page: one that is changed meanwhile may
// be as it was or as it is.
func (a *Admin) List(ctx context.Context, q Query) ([]*Object, error) {
	var all []*Object
	r := &wire.ListObjectsRequest{Kind: q.Kind, Namespace: q.Namespace, Prefix: q.Prefix}
	for {
		var page wire.ListObjectsResponse
		if err := a.cluster.Call(ctx, "list "+orObjects(q.Kind), wire.CommandListObjects, r, &page); err != nil {
			return nil, err
		}
		for _, o := range page.Objects {
			all = append(all, objectOf(o))
		}
		if !page.More || len(page.Objects) == 0 {
			return all, nil
		}
		last := page.Objects[len(page.Objects)-1]
		r.After = last.Kind + "/" + last.Namespace + "/" + last.Name
	}
}

func orObjects(kind string) string {
	if kind == "" {
		return "objects"
	}
	return kind
}

// Get returns an object: client.ErrNotFound when it is not there, or the caller may not see it.
func (a *Admin) Get(ctx context.Context, k Key) (*Object, error) {
	op := "get " + k.String()
	// Of all names that begin with a name, it is the first.
	r := &wire.ListObjectsRequest{Kind: k.Kind, Namespace: k.Namespace, Prefix: k.Name, Limit: 1}
	var page wire.ListObjectsResponse
	if err := a.cluster.Call(ctx, op, wire.CommandListObjects, r, &page); err != nil {
		return nil, err
	}
	if len(page.Objects) == 0 || page.Objects[0].Name != k.Name || page.Objects[0].Kind != k.Kind {
		return nil, &client.Error{Op: op, Partition: -1, Code: wire.CodeNotFound, Err: wire.Errorf(wire.CodeNotFound, "%s is not there", k)}
	}
	return objectOf(page.Objects[0]), nil
}

// Expect is what a Write wants to find.
type Expect struct {
	revision uint64
	create   bool
}

// Revision wants the object as it is at a revision.
func Revision(n uint64) Expect { return Expect{revision: n} }

// Absent wants that it is not there.
var Absent = Expect{create: true}

// Write makes, changes or deletes an object. The spec is all that the object says from then on; nil deletes it.
type Write struct {
	Key    Key
	Spec   json.RawMessage
	Expect Expect
}

// Change is carried out as a whole, in one transaction, or not at all.
type Change struct {
	Writes []Write // at most 1,000, no key twice
	Reason string  // for people; kept in the audit
	DryRun bool    // only say what would be
}

// Result is what a Change did, or would do.
type Result struct {
	Version  uint64
	Changes  []Changed // one a write, in order
	Warnings []string
}

// Changed is what became of an object.
type Changed struct {
	Change        string // created, changed, deleted, unchanged
	Before, After *Object
}

// Apply makes a change. client.ErrConflict: an object is not what it was expected to be, and nothing was changed.
func (a *Admin) Apply(ctx context.Context, c Change) (*Result, error) {
	op := fmt.Sprintf("apply %d objects", len(c.Writes))
	if len(c.Writes) == 1 {
		op = "apply " + c.Writes[0].Key.String()
		if len(c.Writes[0].Spec) == 0 {
			op = "delete " + c.Writes[0].Key.String()
		}
	}
	r := &wire.ApplyObjectsRequest{DryRun: c.DryRun, Reason: c.Reason}
	for _, w := range c.Writes {
		r.Writes = append(r.Writes, &wire.ObjectWrite{
			Object: &wire.Object{Kind: w.Key.Kind, Namespace: w.Key.Namespace, Name: w.Key.Name, Spec: w.Spec},
			Expect: w.Expect.revision, Create: w.Expect.create,
		})
	}
	call := a.cluster.CallOnce
	if c.DryRun {
		call = a.cluster.Call
	}
	var answer wire.ApplyObjectsResponse
	if err := call(ctx, op, wire.CommandApplyObjects, r, &answer); err != nil {
		return nil, err
	}
	result := &Result{Version: answer.Version, Warnings: answer.Warnings}
	for _, x := range answer.Changes {
		result.Changes = append(result.Changes, Changed{x.Change, objectOf(x.Before), objectOf(x.After)})
	}
	return result, nil
}

// Edit changes an object as edit says, which is given its spec as it is and may be called again: when somebody else changed it
// meanwhile, it is read and edited anew. An edit that leaves the spec as it is changes nothing.
func (a *Admin) Edit(ctx context.Context, k Key, reason string, edit func(spec map[string]any) error) (*Result, error) {
	for {
		o, err := a.Get(ctx, k)
		if err != nil {
			return nil, err
		}
		spec := map[string]any{}
		d := json.NewDecoder(bytes.NewReader(o.Spec))
		d.UseNumber()
		if err := d.Decode(&spec); err != nil {
			return nil, fmt.Errorf("the spec of %s: %w", k, err)
		}
		if err := edit(spec); err != nil {
			return nil, err
		}
		b, err := json.Marshal(spec)
		if err != nil {
			return nil, fmt.Errorf("the spec of %s: %w", k, err)
		}
		r, err := a.Apply(ctx, Change{Writes: []Write{{k, b, Revision(o.Revision)}}, Reason: reason})
		if wire.CodeOf(err) != wire.CodeConflict || ctx.Err() != nil {
			return r, err
		}
	}
}

// Owner is whom a credential is of.
type Owner struct {
	Kind      string // app, user, node
	Name      string
	Namespace string // of an app
}

// Credential proves who somebody is.
type Credential struct {
	ID      string
	Secret  wire.Secret // shown here, and never again
	Expires time.Time   // zero: never
}

// CreateCredential makes a credential with a fresh secret; expires zero: it does not end by itself.
func (a *Admin) CreateCredential(ctx context.Context, of Owner, expires time.Time, reason string) (Credential, error) {
	r := &wire.CreateCredentialRequest{OwnerKind: of.Kind, Owner: of.Name, Namespace: of.Namespace, ExpiresNs: nanos(expires), Reason: reason}
	var answer wire.CreateCredentialResponse
	if err := a.cluster.CallOnce(ctx, "create credential of "+of.Kind+" "+of.Name, wire.CommandCreateCredential, r, &answer); err != nil {
		return Credential{}, err
	}
	return Credential{answer.Id, wire.Secret(answer.Secret), timeOf(answer.ExpiresNs)}, nil
}

// AuditQuery selects audit entries; each empty field is any.
type AuditQuery struct {
	Key   Key
	Who   string // as an entry says it: "user NAME", "app NAME", "local"
	Since time.Time
	Most  int // entries; 0: 100
}

// AuditEntry is one change of one object.
type AuditEntry struct {
	ID      uint64
	Version uint64
	Time    time.Time
	Who     string
	Addr    string
	Reason  string
	Change  string // created, changed, deleted, new-generation
	Key     Key
	Before  json.RawMessage // empty: it was not there
	After   json.RawMessage
}

// Audit returns who changed what, the newest first.
func (a *Admin) Audit(ctx context.Context, q AuditQuery) ([]AuditEntry, error) {
	const pageMax = 1000
	most := q.Most
	if most <= 0 {
		most = 100
	}
	var all []AuditEntry
	r := &wire.ListAuditRequest{Kind: q.Key.Kind, Namespace: q.Key.Namespace, Name: q.Key.Name, Who: q.Who, SinceNs: nanos(q.Since)}
	for {
		r.Limit = uint32(min(most-len(all), pageMax))
		var page wire.ListAuditResponse
		if err := a.cluster.Call(ctx, "list audit", wire.CommandListAudit, r, &page); err != nil {
			return nil, err
		}
		for _, e := range page.Entries {
			all = append(all, AuditEntry{
				ID: e.Id, Version: e.Version, Time: time.Unix(0, e.TimeNs), Who: e.Who, Addr: e.Addr, Reason: e.Reason, Change: e.Change,
				Key: Key{e.Kind, e.Namespace, e.Name}, Before: e.Before, After: e.After,
			})
		}
		if !page.More || len(page.Entries) == 0 || len(all) >= most {
			return all, nil
		}
		r.Before = page.Entries[len(page.Entries)-1].Id
	}
}

// Node is a node that gives signs of life, or did.
type Node struct {
	Name            string
	Roles           []string
	BrokerGroup     string // of a broker
	Addresses       []string
	DataCenter      string
	Labels          []string
	Version         string // of the program
	State           string // serving, failed, stopping
	Away            bool
	Silent          time.Duration // since its last sign of life
	Generation      uint64        // of the metadata that is in force there
	MetadataVersion uint64
	Connections     int
	BytesIn         uint64 // since its start
	BytesOut        uint64
	Replica         *Replica // of a broker that says what it has; nil: it does not
}

// Nodes is what a registry node knows of all nodes.
type Nodes struct {
	Nodes      []Node
	Generation uint64
	Version    uint64 // of the metadata
	Database   string // ok, or what is wrong with it
}

// Ahead returns a living node that has a newer generation than the database, or a newer version of the same one: the database was
// restored from a copy or exchanged, or else its change is so young that the registry node has not read it yet. nil: there is none.
func (n *Nodes) Ahead() *Node {
	for i := range n.Nodes {
		if x := &n.Nodes[i]; !x.Away && (x.Generation > n.Generation || x.Generation == n.Generation && x.MetadataVersion > n.Version) {
			return x
		}
	}
	return nil
}

// Nodes returns all nodes.
func (a *Admin) Nodes(ctx context.Context) (*Nodes, error) {
	var r wire.ListNodesResponse
	if err := a.cluster.Call(ctx, "list nodes", wire.CommandListNodes, &wire.ListNodesRequest{}, &r); err != nil {
		return nil, err
	}
	all := &Nodes{Generation: r.Generation, Version: r.Version, Database: r.Database}
	for _, n := range r.Nodes {
		all.Nodes = append(all.Nodes, nodeOf(n))
	}
	return all, nil
}

func nodeOf(n *wire.Node) Node {
	h := n.GetLast()
	return Node{
		Name: h.GetNode(), Roles: h.GetRoles(), BrokerGroup: h.GetBrokerGroup(), Addresses: h.GetAddresses(), DataCenter: h.GetDataCenter(),
		Labels: h.GetLabels(), Version: h.GetVersion(), State: h.GetState(), Away: n.GetAway(), Silent: time.Duration(n.GetSilentMs()) * time.Millisecond,
		Generation: h.GetGeneration(), MetadataVersion: h.GetMetadataVersion(), Connections: int(h.GetConnections()),
		BytesIn: h.GetBytesIn(), BytesOut: h.GetBytesOut(), Replica: replicaOf(h.GetReplica()),
	}
}

// inForceEvery is how often InForce asks.
const inForceEvery = 50 * time.Millisecond

// InForce returns when a version of the metadata is in force at every node that lives: what was changed is known then wherever one
// connects to. 0 is the newest that the registry node that answers knows. Nodes say so twice a second.
func (a *Admin) InForce(ctx context.Context, version uint64) error {
	// A registry node that has just begun has not heard of all that live.
	brokers, err := a.List(ctx, Query{Kind: "broker"})
	if err != nil {
		return err
	}
	tick := time.NewTicker(inForceEvery)
	defer tick.Stop()
	for {
		all, err := a.Nodes(ctx)
		if err != nil {
			return err
		}
		if version == 0 {
			version = all.Version
		}
		behind := ""
		for _, b := range brokers {
			var spec struct{ Away bool }
			known := slices.ContainsFunc(all.Nodes, func(n Node) bool { return n.Name == b.Name })
			if err := json.Unmarshal(b.Spec, &spec); err == nil && !spec.Away && !known {
				behind = b.Name
			}
		}
		for _, n := range all.Nodes {
			if !n.Away && len(all.Nodes) > 1 && (n.Generation != all.Generation || n.MetadataVersion < version) {
				behind = n.Name
			}
		}
		if behind == "" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("node %s has not version %d of the metadata yet: %w", behind, version, ctx.Err())
		}
	}
}

// NewGeneration says that the database was restored from a copy or begun anew: everyone takes what it has from then on, although that may
// be older than what is known.
func (a *Admin) NewGeneration(ctx context.Context, reason string) (generation, version uint64, err error) {
	var r wire.NewGenerationResponse
	err = a.cluster.CallOnce(ctx, "new generation", wire.CommandNewGeneration, &wire.NewGenerationRequest{Reason: reason}, &r)
	return r.Generation, r.Version, err
}

// Identity is as whom the cluster knows the client, and who said so.
type Identity struct {
	Kind       string // app, user, node; local: nobody was asked, on loopback
	Name       string
	Namespace  string
	Credential string // id; empty: a certificate, or nothing
	Role       string // of a user
	Expires    time.Time
	Addr       string // of the client, as the node sees it
	Node       string // who answers
	NodeRoles  []string
}

// WhoAmI returns as whom the cluster knows the client.
func (a *Admin) WhoAmI(ctx context.Context) (Identity, error) {
	var r wire.WhoAmIResponse
	if err := a.cluster.Call(ctx, "whoami", wire.CommandWhoAmI, &wire.WhoAmIRequest{}, &r); err != nil {
		return Identity{}, err
	}
	i := r.GetIdentity()
	return Identity{
		Kind: i.GetKind(), Name: i.GetName(), Namespace: i.GetNamespace(), Credential: i.GetCredential(), Role: i.GetRole(), Expires: timeOf(i.GetExpiresNs()),
		Addr: r.Addr, Node: r.Node, NodeRoles: r.Roles,
	}, nil
}

// timeOf is zero for 0, which is no time on the wire.
func timeOf(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
