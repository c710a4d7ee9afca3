package registry

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/wire"
)

const (
	listMax      = 1000
	listBytesMax = 2 << 20
	auditMax     = 1000
	// changeBytesMax bounds the specs of one change together, so that a version can be told in one answer.
	changeBytesMax = 4 << 20
	// conflictTries is how often a write that does not care what is there is tried when that changes meanwhile.
	conflictTries = 5
)

// ListObjects implements wire.Registry: what the peer may see, without secrets.
func (n *Node) ListObjects(ctx context.Context, r *wire.ListObjectsRequest) (*wire.ListObjectsResponse, error) {
	s := n.store.View()
	who, _ := subjectOf(ctx)
	kinds := slices.Clone(meta.Kinds)
	slices.Sort(kinds)
	if r.Kind != "" {
		if !slices.Contains(kinds, meta.Kind(r.Kind)) {
			return nil, wire.Errorf(wire.CodeInvalid, "%.40q is no kind of object", r.Kind)
		}
		kinds = []meta.Kind{meta.Kind(r.Kind)}
	}
	var after meta.Key
	if r.After != "" {
		parts := strings.SplitN(r.After, "/", 3)
		if len(parts) != 3 {
			return nil, wire.Errorf(wire.CodeInvalid, "after is kind/namespace/name, not %.100q", r.After)
		}
		after = meta.Key{Kind: meta.Kind(parts[0]), Namespace: parts[1], Name: parts[2]}
	}
	limit := int(min(cmp.Or(r.Limit, listMax), listMax))
	response := &wire.ListObjectsResponse{Generation: uint64(s.Generation), Version: uint64(s.Version)}
	bytes := 0
	for _, k := range kinds {
		if k < after.Kind {
			continue
		}
		list := s.List(k)
		from, _ := slices.BinarySearchFunc(list, after, func(o *meta.Object, after meta.Key) int {
			if o.Key.Compare(after) <= 0 {
				return -1
			}
			return 1
		})
		for _, o := range list[from:] {
			if r.Namespace != "" && o.Namespace != r.Namespace || !strings.HasPrefix(o.Name, r.Prefix) || s.MayRead(who, o.Key) != nil {
				continue
			}
			if len(response.Objects) == limit || bytes > listBytesMax {
				response.More = true
				return response, nil
			}
			m, err := shown(o)
			if err != nil {
				return nil, err
			}
			bytes += len(m.Spec) + len(m.Name) + 64
			response.Objects = append(response.Objects, m)
		}
	}
	return response, nil
}

// shown is an object as people see it.
func shown(o *meta.Object) (*wire.Object, error) {
	if o == nil {
		return nil, nil
	}
	return meta.ToWire(&meta.Object{Key: o.Key, Revision: o.Revision, Created: o.Created, Born: o.Born, Spec: meta.Redact(o.Spec)})
}

// ApplyObjects implements wire.Registry.
func (n *Node) ApplyObjects(ctx context.Context, r *wire.ApplyObjectsRequest) (*wire.ApplyObjectsResponse, error) {
	response, err := n.apply(ctx, r)
	if err != nil {
		n.counts.refused.Add(1)
	}
	return response, err
}

// changingMax bounds the changes of one principal under way: changes are made one after the other, and those of others, and of brokers that
// come and go, wait for no more than these.
const changingMax = 16

// enter counts a change of the peer; leave ends it.
func (n *Node) enter(ctx context.Context) (leave func(), err error) {
	who := wire.PeerFrom(ctx).Principal
	who.Credential, who.ExpiresNs = "", 0
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.changing[who] >= changingMax && who.Kind != wire.PrincipalLocal {
		e := wire.Errorf(wire.CodeBusy, "%d changes are under way already", changingMax)
		e.RetryAfter = 100 * time.Millisecond
		return nil, e
	}
	n.mu.changing[who]++
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.mu.changing[who]--; n.mu.changing[who] == 0 {
			delete(n.mu.changing, who)
		}
	}, nil
}

func (n *Node) apply(ctx context.Context, r *wire.ApplyObjectsRequest) (*wire.ApplyObjectsResponse, error) {
	leave, err := n.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if len(r.Writes) > meta.WritesMax {
		return nil, wire.Errorf(wire.CodeTooLarge, "%d writes, a change has at most %d: make several", len(r.Writes), meta.WritesMax)
	}
	p := wire.PeerFrom(ctx)
	writes := make([]meta.Write, len(r.Writes))
	bytes := 0
	free := false // one of them takes what is there, whatever it is
	for i, w := range r.Writes {
		o := w.GetObject()
		if o == nil {
			return nil, wire.Errorf(wire.CodeInvalid, "write %d has no object", i+1)
		}
		k := meta.Key{Kind: meta.Kind(o.Kind), Namespace: o.Namespace, Name: o.Name}
		if k.Kind.Namespaced() && k.Namespace == "" {
			k.Namespace = namespaceOf(p)
		}
		if err := k.Check(); err != nil {
			return nil, err
		}
		writes[i] = meta.Write{Key: k, Expect: meta.Expect{Revision: meta.Version(w.Expect), Create: w.Create, Any: w.Any && !w.Create}}
		free = free || writes[i].Expect.Any
		if len(o.Spec) == 0 {
			continue
		}
		spec, err := meta.DecodeSpec(k.Kind, o.Spec)
		if err != nil {
			return nil, named(k, err)
		}
		writes[i].Spec = spec
		encoded, err := meta.EncodeSpec(spec)
		if err != nil {
			return nil, named(k, err)
		}
		if bytes += len(encoded); bytes > changeBytesMax {
			return nil, wire.Errorf(wire.CodeTooLarge, "a change has at most %d bytes: make several", changeBytesMax)
		}
	}
	for try := 1; ; try++ {
		response, err := n.applyOnce(ctx, r, writes)
		switch wire.CodeOf(err) {
		case wire.CodeConflict, wire.CodeExists, wire.CodeNotFound:
			if free && try < conflictTries && ctx.Err() == nil {
				continue
			}
		}
		return response, err
	}
}

// named puts the key before what is wrong.
func named(k meta.Key, err error) error {
	if e, ok := err.(*wire.CodeError); ok {
		return wire.Errorf(e.Code, "%s: %s", k, e.Message)
	}
	return err
}

// applyOnce makes the change on what is there now. Rights are asked of what is known here, and by the store again of what is there in
// the end (Change.As): this node may not have seen yet what another one took from who asks.
func (n *Node) applyOnce(ctx context.Context, r *wire.ApplyObjectsRequest, asked []meta.Write) (*wire.ApplyObjectsResponse, error) {
	s := n.store.View()
	who, _ := subjectOf(ctx)
	c := meta.Change{By: meta.ActorOf(who), As: &who, Seen: n.seen(), Reason: r.Reason, DryRun: r.DryRun, Writes: slices.Clone(asked)}
	befores := make([]*meta.Object, len(asked))
	for i := range c.Writes {
		w := &c.Writes[i]
		before := s.Get(w.Key)
		befores[i] = before
		var was meta.Spec
		if before != nil {
			was = before.Spec
		}
		if after, ok := w.Spec.(*meta.Credential); ok {
			w.Spec = keepVerifier(was, after)
		}
		if err := s.MayWrite(who, w.Key, was, w.Spec); err != nil {
			return nil, err
		}
		if w.Expect.Any {
			switch {
			case before != nil:
				w.Expect = meta.Expect{Revision: before.Revision}
			case w.Spec != nil:
				w.Expect = meta.Expect{Create: true}
			}
		}
	}
	c, err := n.consequences(ctx, s, c)
	if err != nil {
		return nil, err
	}
	next, _, _, warnings, err := s.Plan(c, n.o.Now())
	if !c.DryRun { // which takes no lock of the database, for which changes wait; whether a change can be made the store says
		next, err = n.store.Update(ctx, c)
	}
	if err != nil {
		return nil, err
	}
	response := &wire.ApplyObjectsResponse{Version: uint64(next.Version), Warnings: warnings}
	bytes, made := 0, false
	for i, w := range c.Writes[:len(asked)] {
		before, after := befores[i], next.Get(w.Key)
		change := &wire.ObjectChange{Change: changeOf(before, after)}
		made = made || change.Change != unchanged
		if change.Before, err = shown(before); err != nil {
			return nil, err
		}
		if change.After, err = shown(after); err != nil {
			return nil, err
		}
		for _, o := range []*wire.Object{change.Before, change.After} {
			if bytes += len(o.GetSpec()); o != nil && bytes > changeBytesMax {
				o.Spec = nil // it would not fit into the answer; it can be read
			}
		}
		response.Changes = append(response.Changes, change)
	}
	if made && !c.DryRun {
		n.counts.changes.Add(1)
	}
	return response, nil
}

// unchanged is what ObjectChange.Change says beside what the audit knows.
const unchanged = "unchanged"

func changeOf(before, after *meta.Object) string {
	switch {
	case before == nil && after == nil, before != nil && after != nil && before.Revision == after.Revision:
		return unchanged
	case before == nil:
		return meta.ChangeCreated
	case after == nil:
		return meta.ChangeDeleted
	}
	return meta.ChangeChanged
}

// keepVerifier puts the verifier of a credential back: who changes one was never shown it. It cannot be changed.
func keepVerifier(before meta.Spec, after *meta.Credential) meta.Spec {
	b, ok := before.(*meta.Credential)
	if !ok || len(after.StoredKey) > 0 {
		return after
	}
	c := *after
	c.Salt, c.Iterations, c.StoredKey, c.ServerKey = b.Salt, b.Iterations, b.StoredKey, b.ServerKey
	if c.IssuedAt.IsZero() {
		c.IssuedAt = b.IssuedAt
	}
	return &c
}

// CreateCredential implements wire.Registry.
func (n *Node) CreateCredential(ctx context.Context, r *wire.CreateCredentialRequest) (*wire.CreateCredentialResponse, error) {
	response, err := n.createCredential(ctx, r)
	if err != nil {
		n.counts.refused.Add(1)
		return nil, err
	}
	n.counts.changes.Add(1)
	n.counts.credentials.Add(1)
	return response, nil
}

func (n *Node) createCredential(ctx context.Context, r *wire.CreateCredentialRequest) (*wire.CreateCredentialResponse, error) {
	leave, err := n.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	who, p := subjectOf(ctx)
	now := n.o.Now().UTC()
	c := &meta.Credential{OwnerKind: r.OwnerKind, Owner: r.Owner, Namespace: r.Namespace, IssuedAt: now.Truncate(time.Second)}
	if c.OwnerKind == meta.OwnerApp && c.Namespace == "" {
		c.Namespace = namespaceOf(p)
	}
	switch {
	case r.ExpiresNs < 0 || r.ExpiresNs > 0 && r.ExpiresNs <= now.UnixNano():
		return nil, wire.Errorf(wire.CodeInvalid, "the credential would have expired already")
	case r.ExpiresNs > 0:
		c.Expires = time.Unix(0, r.ExpiresNs).UTC()
	}
	key := meta.Key{Kind: meta.KindCredential, Name: strings.ToLower(ulid.MustNew(ulid.Timestamp(now), rand.Reader).String())}
	if err := n.store.View().MayWrite(who, key, nil, c); err != nil {
		return nil, err
	}
	random := make([]byte, wire.SecretBytes)
	rand.Read(random) // never fails
	secret := base64.RawURLEncoding.EncodeToString(random)
	v, err := wire.NewVerifier(wire.Secret(secret))
	if err != nil {
		return nil, err
	}
	c.Salt, c.Iterations, c.StoredKey, c.ServerKey = v.Salt, v.Iterations, v.StoredKey, v.ServerKey
	next, err := n.store.Update(ctx, meta.Change{By: meta.ActorOf(who), As: &who, Seen: n.seen(), Reason: r.Reason, Writes: []meta.Write{{Key: key, Spec: c, Expect: meta.Expect{Create: true}}}})
	if err != nil {
		return nil, err
	}
	n.awaitForce(ctx, next, nil) // whoever is given it can use it at once
	return &wire.CreateCredentialResponse{Id: key.Name, Secret: secret, ExpiresNs: r.ExpiresNs}, nil
}

// ListAudit implements wire.Registry.
func (n *Node) ListAudit(ctx context.Context, r *wire.ListAuditRequest) (*wire.ListAuditResponse, error) {
	who, _ := subjectOf(ctx)
	if err := n.store.View().MayOperate(who, meta.ReadAudit, "", ""); err != nil {
		return nil, err
	}
	q := meta.AuditQuery{
		Key: meta.Key{Kind: meta.Kind(r.Kind), Namespace: r.Namespace, Name: r.Name}, Who: r.Who, Before: r.Before,
		Limit: int(min(cmp.Or(r.Limit, 100), auditMax)),
	}
	if r.SinceNs != 0 {
		q.Since = time.Unix(0, r.SinceNs)
	}
	entries, more, err := n.store.Audit(ctx, q)
	if err != nil {
		return nil, err
	}
	response := &wire.ListAuditResponse{More: more}
	bytes := 0
	for i := range entries {
		e := &entries[i]
		if bytes += len(e.Before) + len(e.After) + len(e.Reason); bytes > listBytesMax && i > 0 {
			response.More = true
			break
		}
		response.Entries = append(response.Entries, &wire.AuditEntry{
			Id: e.ID, Version: uint64(e.Version), TimeNs: e.Time.UnixNano(), Who: e.By.Name, Addr: e.By.Addr, Reason: e.Reason, Change: e.Change,
			Kind: string(e.Key.Kind), Namespace: e.Key.Namespace, Name: e.Key.Name, Before: e.Before, After: e.After,
		})
	}
	return response, nil
}

// NewGeneration implements wire.Registry.
func (n *Node) NewGeneration(ctx context.Context, r *wire.NewGenerationRequest) (*wire.NewGenerationResponse, error) {
	who, _ := subjectOf(ctx)
	if err := n.store.View().MayOperate(who, meta.OperateCluster, "", ""); err != nil {
		n.counts.refused.Add(1)
		return nil, err
	}
	s, err := n.store.NewGeneration(ctx, meta.ActorOf(who), r.Reason)
	if err != nil {
		n.counts.refused.Add(1)
		return nil, err
	}
	n.counts.changes.Add(1)
	return &wire.NewGenerationResponse{Generation: uint64(s.Generation), Version: uint64(s.Version)}, nil
}
