package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jmqio/jmq/wire"
	"github.com/oklog/ulid/v2"
)

// The calls of this file are for operators and their tools. They are repeated while brokers are away, until ctx ends; but
// not DeleteTopic, SeekGroup and RemoveGroup once one of their attempts may have been carried out: their error is ErrUnknown
// then, and looking comes before another try. A reason is for people, and kept in the broker's journal.

// Topic is a topic as the broker knows it.
type Topic struct {
	Name        string
	ID          uint64
	Incarnation uint32 // topics of the same name, one after the other, differ by it
	Partitions  int
	Created     time.Time
	Settings    TopicSettings
}

// TopicSettings is what can be changed of a topic.
type TopicSettings struct {
	Retention         time.Duration // messages older than that may go; 0: the broker's default; below 0: never by age
	RetentionBytes    int64         // what all partitions may hold together; 0: the broker's default; below 0: no limit
	DiscardUnconsumed bool          // by age and size a message goes even if a group has not consumed it yet
	PauseProduce      bool          // sends are refused: ErrPaused
	PauseConsume      bool          // fetches get nothing
}

// TopicOption is a setting for CreateTopic and AlterTopic.
type TopicOption func(*topicOptions) error

type topicOptions struct {
	partitions *uint32
	settings   *wire.TopicSettings
}

func newTopicOptions(list []TopicOption) (*topicOptions, error) {
	o := &topicOptions{settings: new(wire.TopicSettings)}
	return o, apply(o, list)
}

// Partitions is how many partitions the topic shall have: more than before. Producers use them within a few seconds. Which
// partition an order key falls on changes with it, so the order of a key's messages holds on either side of the change, not
// across it.
func Partitions(n int) TopicOption {
	return func(o *topicOptions) error {
		// How many are too many is the broker's to say.
		o.partitions = new(uint32(min(max(int64(n), 0), math.MaxUint32)))
		if n < 1 {
			return fmt.Errorf("%d partitions: give 1 or more", n)
		}
		return nil
	}
}

// Retention is how long messages are kept at least; 0: the broker's default; below 0: never removed by age.
func Retention(d time.Duration) TopicOption {
	return func(o *topicOptions) error {
		ms := int64(-1)
		if d >= 0 {
			ms = d.Milliseconds()
			if d%time.Millisecond > 0 {
				ms++ // not less than was asked for
			}
		}
		o.settings.RetentionMs = &ms
		return nil
	}
}

// RetentionBytes is what all partitions together may hold; 0: the broker's default; below 0: no limit.
func RetentionBytes(n int64) TopicOption {
	return func(o *topicOptions) error {
		o.settings.RetentionBytes = new(max(n, -1))
		return nil
	}
}

// DiscardUnconsumed lets messages go by age and size even if a group has not consumed them yet.
func DiscardUnconsumed(yes bool) TopicOption {
	return func(o *topicOptions) error { o.settings.DiscardUnconsumed = &yes; return nil }
}

// PauseProduce makes the broker refuse sends, with ErrPaused.
func PauseProduce(yes bool) TopicOption {
	return func(o *topicOptions) error { o.settings.PauseProduce = &yes; return nil }
}

// PauseConsume makes fetches get nothing.
func PauseConsume(yes bool) TopicOption {
	return func(o *topicOptions) error { o.settings.PauseConsume = &yes; return nil }
}

// CreateTopic creates a topic; one that is there with the same shape is fine.
func (c *Client) CreateTopic(ctx context.Context, name string, partitions int, opts ...TopicOption) error {
	o, err := newTopicOptions(append([]TopicOption{Partitions(partitions)}, opts...))
	if err != nil {
		return invalid(opCreate, name, err)
	}
	if err := wire.CheckTopic(name); err != nil {
		return newError(opCreate, name, -1, "", err)
	}
	r := &wire.CreateTopicRequest{Topic: name, Partitions: *o.partitions}
	if len(opts) > 0 {
		r.Settings = o.settings
	}
	_, err = c.operator("").CreateTopic(ctx, r)
	if err == nil {
		c.forget(name)
	}
	return err
}

// AlterTopic changes what the options name and nothing else, and returns the topic as it is then.
func (c *Client) AlterTopic(ctx context.Context, name, reason string, opts ...TopicOption) (Topic, error) {
	o, err := newTopicOptions(opts)
	if err != nil {
		return Topic{}, invalid(opAlter, name, err)
	}
	r := &wire.AlterTopicRequest{Topic: name, Partitions: o.partitions, Settings: o.settings, Reason: reason}
	out, err := c.operator("").AlterTopic(ctx, r)
	if err != nil {
		return Topic{}, err
	}
	c.forget(name)
	return topicOf(out.Topic), nil
}

// DeleteTopic deletes a topic with its messages and where its groups stand. A topic made later under its name is another one.
func (c *Client) DeleteTopic(ctx context.Context, name, reason string) error {
	_, err := c.operator("").DeleteTopic(ctx, &wire.DeleteTopicRequest{Topic: name, Reason: reason})
	if err == nil {
		c.forget(name)
	}
	return err
}

// ListTopics returns all topics, by name.
func (c *Client) ListTopics(ctx context.Context) ([]Topic, error) {
	r, err := c.operator("").ListTopics(ctx, &wire.ListTopicsRequest{})
	if err != nil {
		return nil, err
	}
	return collect(r.Topics, topicOf), nil
}

// TopicDescription is a topic with what it holds.
type TopicDescription struct {
	Topic      Topic
	Partitions []TopicPartition
	Groups     []string
	Effective  TopicSettings // with the broker's defaults put in
}

// TopicPartition is what a partition holds: messages [First, End).
type TopicPartition struct {
	BrokerGroup    string
	Partition      uint16
	First, End     uint64
	Bytes          uint64    // of stored batches, about
	Oldest, Newest time.Time // when the first and the last message were stored; zero: there is none
}

// DescribeTopic returns a topic with what it holds, at all its broker groups. With an error it still returns what some of them
// answered; so do GroupLag, ListGroups and SeekGroup.
func (c *Client) DescribeTopic(ctx context.Context, name string) (TopicDescription, error) {
	r, err := c.operator("").DescribeTopic(ctx, &wire.DescribeTopicRequest{Topic: name})
	if r == nil {
		return TopicDescription{}, err
	}
	return TopicDescription{
		Topic: topicOf(r.Topic), Groups: r.Groups, Effective: settingsOf(r.Effective),
		Partitions: collect(r.Partitions, func(p *wire.TopicPartition) TopicPartition {
			return TopicPartition{p.BrokerGroup, uint16(p.Partition), p.First, p.End, p.Bytes, timeOf(p.OldestNs), timeOf(p.NewestNs)}
		}),
	}, err
}

// PartitionLag is where a group stands in one partition.
type PartitionLag struct {
	Group       string
	BrokerGroup string
	Partition   uint16
	First, End  uint64    // what the partition holds: [First, End)
	AckOffset   uint64    // everything below it is consumed
	Consumed    uint64    // messages consumed at or above it
	Lag         uint64    // messages not consumed
	Leased      uint64    // messages leased now
	Leases      int       //
	Member      string    // who holds the lease, or with several one of them; empty: nobody
	Expired     uint64    // messages of which a lease ran out, and that have not ended
	AttemptsMax int       // the most leases that ran out of one message that has not ended
	Oldest      time.Time // when the first message that is not consumed was stored; zero: there is none, or it cannot be read
	Generation  uint32    // each reset raises it
}

// GroupLag returns where a group, or with group empty every group, stands on a topic.
func (c *Client) GroupLag(ctx context.Context, topic, group string) ([]PartitionLag, error) {
	r, err := c.operator("").GroupLag(ctx, &wire.GroupLagRequest{Topic: topic, Group: group})
	return collect(r.Partitions, func(p *wire.GroupPartition) PartitionLag {
		return PartitionLag{
			Group: p.Group, BrokerGroup: p.BrokerGroup, Partition: uint16(p.Partition), First: p.First, End: p.End, AckOffset: p.AckOffset, Consumed: p.Consumed, Lag: p.Lag,
			Leased: p.Leased, Leases: int(p.Leases), Member: p.Member, Expired: p.Expired, AttemptsMax: int(p.AttemptsMax), Oldest: timeOf(p.OldestNs),
			Generation: p.Generation,
		}
	}), err
}

// GroupPolicy is how a topic is given to a group. The zero value is the default: one lease a partition at a time, which keeps
// its order.
type GroupPolicy struct {
	Parallel bool // several members get messages of one partition at the same time
	Window   int  // with Parallel: how many of a partition may be in flight, at most half of them with one member; 0: 2000
}

// GroupSummary is where a group stands on a topic as a whole, at one broker group.
type GroupSummary struct {
	Topic, Group string
	BrokerGroup  string
	Policy       GroupPolicy
	Partitions   int
	Lag, Leased  uint64
	Members      int         // that hold a lease or wait for one
	Waiting      int         // fetches that wait
	Active       time.Time   // when it last fetched, acked or was reset, as far as is known
	Abandoned    bool        // not active for so long that it holds no message any more
	LastReset    *GroupReset // nil: never
}

// GroupReset is who moved a group, and why.
type GroupReset struct {
	Time        time.Time
	Who, Reason string
}

// ListGroups returns the groups of a topic, or with topic empty of all; with group not empty only that one.
func (c *Client) ListGroups(ctx context.Context, topic, group string) ([]GroupSummary, error) {
	r, err := c.operator("").ListGroups(ctx, &wire.ListGroupsRequest{Topic: topic, Group: group})
	return collect(r.Groups, func(g *wire.GroupSummary) GroupSummary {
		s := GroupSummary{
			Topic: g.Topic, Group: g.Group, BrokerGroup: g.BrokerGroup, Policy: policyOf(g.Policy), Partitions: int(g.Partitions), Lag: g.Lag, Leased: g.Leased,
			Members: int(g.Members), Waiting: int(g.Waiting), Active: timeOf(g.ActiveNs), Abandoned: g.Abandoned,
		}
		if g.LastReset != nil {
			s.LastReset = &GroupReset{timeOf(g.LastReset.TimeNs), g.LastReset.Who, g.LastReset.Reason}
		}
		return s
	}), err
}

// SeekTo says where a group is moved to.
type SeekTo uint32

const (
	SeekStart = SeekTo(wire.SeekStart) // the first message kept
	SeekEnd   = SeekTo(wire.SeekEnd)   // behind the last
	SeekTime  = SeekTo(wire.SeekTime)  // the first message stored at or after Time
	SeekIndex = SeekTo(wire.SeekIndex) // Index
	SeekShift = SeekTo(wire.SeekShift) // Shift messages on, or back
)

// Seek says where a group shall stand. What lies outside of a partition is cut to its ends.
type Seek struct {
	To         SeekTo
	Time       time.Time
	Index      uint64
	Shift      int64
	Partitions []uint16 // empty: all
	// BrokerGroup is where; empty: everywhere. What is not the same there (Index) wants one.
	BrokerGroup string
	DryRun      bool // only say what would be
	Reason      string
}

// PartitionSeek is what a Seek did in one partition, or would do.
type PartitionSeek struct {
	BrokerGroup    string
	Partition      uint16
	First, End     uint64
	From, To       uint64 // where the group stood, and stands
	LagFrom, LagTo uint64
	Generation     uint32 // afterwards
	Cut            bool   // To is not what was asked for
}

// SeekGroup moves where a group stands: forwards skips messages, backwards delivers them again. What it consumed beyond is
// forgotten, its leases end.
func (c *Client) SeekGroup(ctx context.Context, topic, group string, s Seek) ([]PartitionSeek, error) {
	r := &wire.SeekGroupRequest{Topic: topic, Group: group, To: uint32(s.To), Index: s.Index, Shift: s.Shift, DryRun: s.DryRun, Reason: s.Reason}
	if s.To < SeekStart || s.To > SeekShift {
		return nil, invalid(opSeek, topic, fmt.Errorf("Seek.To %d: give one of SeekStart to SeekShift", s.To))
	}
	if s.To == SeekTime {
		r.TimeNs = nanos(s.Time)
	}
	for _, p := range s.Partitions {
		r.Partitions = append(r.Partitions, uint32(p))
	}
	out, err := c.operator(s.BrokerGroup).SeekGroup(ctx, r)
	return collect(out.Partitions, func(p *wire.SeekPartition) PartitionSeek {
		return PartitionSeek{p.BrokerGroup, uint16(p.Partition), p.First, p.End, p.From, p.To, p.LagFrom, p.LagTo, p.Generation, p.Cut}
	}), err
}

// AlterGroup sets how a topic is given to a group, and returns that with the defaults put in.
func (c *Client) AlterGroup(ctx context.Context, topic, group string, p GroupPolicy, reason string) (GroupPolicy, error) {
	w, err := p.wire()
	if err != nil {
		return GroupPolicy{}, invalid(opPolicy, topic, err)
	}
	r := &wire.AlterGroupRequest{Topic: topic, Group: group, Policy: w, Reason: reason}
	out, err := c.operator("").AlterGroup(ctx, r)
	if err != nil {
		return GroupPolicy{}, err
	}
	return policyOf(out.Policy), nil
}

// RemoveGroup makes a group as if it had never been on the topic. While members of it are there that is refused, with
// ErrMembers, unless force.
func (c *Client) RemoveGroup(ctx context.Context, topic, group, reason string, force bool) error {
	r := &wire.RemoveGroupRequest{Topic: topic, Group: group, Force: force, Reason: reason}
	_, err := c.operator("").RemoveGroup(ctx, r)
	return err
}

// GapReason says why messages are not there.
type GapReason = wire.GapReason

const (
	GapDamaged = wire.GapDamaged // the disk damaged them
	GapTrimmed = wire.GapTrimmed // retention removed them
)

// Peek says which messages of a partition are to be read.
type Peek struct {
	BrokerGroup string // empty: the first of the topic's
	Partition   uint16
	Index       uint64
	Time        time.Time // not zero: from the first message stored at or after it, instead of Index
	Messages    int       // at most; 0: 1
	Bytes       int       // at most, but one message; 0: 1 MiB
}

// Peeked is what a partition holds at [From, To). Without Gap that are Messages; with it they cannot be read any more.
type Peeked struct {
	Messages   []StoredMessage
	From, To   uint64 // equal: there is nothing (yet)
	First, End uint64 // what the partition holds
	Gap        GapReason
}

// StoredMessage is a message where it is stored.
type StoredMessage struct {
	Message
	Index    uint64
	BornAt   time.Time // at the producer
	StoredAt time.Time // at the broker
}

// Peek reads messages without a group: nothing is leased, nothing moves.
func (c *Client) Peek(ctx context.Context, topic string, p Peek) (Peeked, error) {
	if err := errors.Join(between("Peek: Messages", p.Messages, 0, wire.BatchMessagesMax), between("Peek: Bytes", p.Bytes, 0, wire.FetchBytesMax)); err != nil {
		return Peeked{}, invalid(opPeek, topic, err)
	}
	r := &wire.PeekRequest{Topic: topic, Partition: uint32(p.Partition), Index: p.Index, TimeNs: nanos(p.Time), MessagesMax: uint32(p.Messages), BytesMax: uint32(p.Bytes)}
	var out wire.PeekResponse
	at, err := c.cluster.locatedAt(ctx, topic, p.BrokerGroup)
	if err == nil {
		err = at.call(ctx, opPeek, topic, repeatAlways, wire.CommandPeek, r, &out)
	}
	if err != nil {
		return Peeked{}, newError(opPeek, topic, int(p.Partition), "", err)
	}
	got := Peeked{From: out.From, To: out.To, First: out.First, End: out.End, Gap: GapReason(out.Gap)}
	if got.Gap != 0 {
		return got, nil
	}
	err = c.readBatches(out.Batches, out.From, out.To, func(index uint64, stored time.Time, m wire.Message) {
		got.Messages = append(got.Messages, StoredMessage{
			Message: messageOf(topic, at.group(), &p.Partition, m), Index: index, BornAt: time.Unix(0, m.BornNs), StoredAt: stored,
		})
	})
	if err != nil {
		return Peeked{}, newError(opPeek, topic, int(p.Partition), "", err)
	}
	return got, nil
}

// readBatches gives messages [from, to) of stored batches to each, which must hold all of them. What each gets stays valid
// as long as the batches.
func (c *Client) readBatches(batches []byte, from, to uint64, each func(index uint64, stored time.Time, m wire.Message)) error {
	next := from
	for rest := batches; len(rest) > 0; {
		b, after, err := wire.SplitBatch(rest)
		if err != nil {
			return err
		}
		rest = after
		if err := b.Verify(); err != nil {
			return err
		}
		raw, err := c.codec.Messages(b, nil)
		if err != nil {
			return err
		}
		stored := time.Unix(0, b.StoredNs())
		it := wire.IterateMessages(b, raw)
		for it.Next() {
			index := b.FirstIndex() + uint64(it.Slot())
			if index < from || index >= to {
				continue
			}
			if index != next {
				return wire.Errorf(wire.CodeMalformed, "index %d where %d was due in [%d, %d)", index, next, from, to)
			}
			next++
			each(index, stored, it.View.Alias())
		}
		if err := it.Err(); err != nil {
			return err
		}
	}
	if next != to {
		return wire.Errorf(wire.CodeMalformed, "%d messages of [%d, %d)", next-from, from, to)
	}
	return nil
}

func messageOf(topic, brokerGroup string, partition *uint16, m wire.Message) Message {
	return Message{
		Topic: topic, BrokerGroup: brokerGroup, ID: ulid.ULID(m.ID).String(), Key: m.Key, OrderKey: m.OrderKey, Tag: m.Tag, Headers: m.Headers, Body: m.Body, Flag: m.Flag,
		Priority: m.Priority, Partition: partition,
	}
}

// StoreUsage is what lies on a broker's disks, and why.
type StoreUsage struct {
	Disks           []DiskUsage
	JournalBytes    uint64 // segments, spares, the reserve
	IndexBytes      uint64
	CheckpointBytes uint64
	DamagedBytes    uint64 // set aside
	Segments        int
	Begin, End      uint64    // positions that the journal keeps: [Begin, End)
	Oldest          time.Time // when the oldest segment was begun
	LimitBytes      uint64    // broker.store.bytesMax; 0: none
	LimitedBytes    uint64    // what counts towards it
	State           string    // ok, warn, early-delete, refusing
	Why             string    // what would have to happen for the oldest segment to go
	Holds           []StoreHold
	Holes           []StoreHole // ranges that were damaged
	Retention       string      // empty: as configured; else why nothing goes by age at the moment
}

// DiskUsage is a disk that a folder of the store lies on.
type DiskUsage struct {
	What        string // journal, index
	Folder      string
	Total, Free uint64 // Total 0: cannot be read
	Error       string // why not
}

// StoreHold is what keeps the oldest segments from going.
type StoreHold struct {
	Topic     string
	Partition uint16
	Group     string // that has not consumed it; empty: retention keeps it
	First     uint64 // index
	Bytes     uint64 // of journal that could go without this hold, about
	Since     time.Time
	Why       string
}

// StoreHole is a damaged range [From, To) of positions.
type StoreHole struct {
	From, To uint64
	Messages uint64 // that were in it, as far as is known
}

// StoreUsage returns what lies on a broker's disks and why it is still there: of the one at home, or one that it names. Of
// another one, Cluster.Group says it. holdsMax bounds Holds; 0: 20.
func (c *Client) StoreUsage(ctx context.Context, holdsMax int) (StoreUsage, error) {
	if err := between("StoreUsage: holdsMax", holdsMax, 0, math.MaxInt32); err != nil {
		return StoreUsage{}, invalid(opUsage, "", err)
	}
	r, err := c.operator("").StoreUsage(ctx, &wire.StoreUsageRequest{HoldsMax: uint32(holdsMax)})
	if err != nil {
		return StoreUsage{}, err
	}
	return StoreUsage{
		Disks: collect(r.Disks, func(d *wire.DiskUsage) DiskUsage {
			return DiskUsage{d.What, d.Folder, d.Total, d.Free, d.Error}
		}),
		JournalBytes: r.JournalBytes, IndexBytes: r.IndexBytes, CheckpointBytes: r.CheckpointBytes, DamagedBytes: r.DamagedBytes,
		Segments: int(r.Segments), Begin: r.Begin, End: r.End, Oldest: timeOf(r.OldestNs), LimitBytes: r.LimitBytes, LimitedBytes: r.LimitedBytes,
		State: r.State, Why: r.Why, Retention: r.Retention,
		Holds: collect(r.Holds, func(h *wire.StoreHold) StoreHold {
			return StoreHold{h.Topic, uint16(h.Partition), h.Group, h.First, h.Bytes, timeOf(h.SinceNs), h.Why}
		}),
		Holes: collect(r.Holes, func(h *wire.StoreHole) StoreHole { return StoreHole{h.From, h.To, h.Messages} }),
	}, nil
}

func invalid(op, topic string, err error) error {
	return newError(op, topic, -1, "", wire.Errorf(wire.CodeInvalid, "%v", err))
}

func collect[W, T any](from []W, make func(W) T) []T {
	to := slices.Grow([]T(nil), len(from))
	for _, w := range from {
		to = append(to, make(w))
	}
	return to
}

func topicOf(t *wire.Topic) Topic {
	return Topic{t.GetName(), t.GetId(), t.GetIncarnation(), int(t.GetPartitions()), timeOf(t.GetCreatedNs()), settingsOf(t.GetSettings())}
}

func settingsOf(s *wire.TopicSettings) TopicSettings {
	retention := time.Duration(s.GetRetentionMs())
	if retention > 0 {
		retention = min(retention, math.MaxInt64/time.Millisecond) * time.Millisecond
	}
	return TopicSettings{retention, s.GetRetentionBytes(), s.GetDiscardUnconsumed(), s.GetPauseProduce(), s.GetPauseConsume()}
}

func policyOf(p *wire.GroupPolicy) GroupPolicy {
	return GroupPolicy{p.GetParallel(), int(p.GetWindow())}
}

func (p GroupPolicy) wire() (*wire.GroupPolicy, error) {
	if err := between("GroupPolicy: Window", p.Window, 0, math.MaxInt32); err != nil {
		return nil, err
	}
	return &wire.GroupPolicy{Parallel: p.Parallel, Window: uint32(p.Window)}, nil
}

// timeOf is zero for 0, which is no time on the wire.
func timeOf(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// nanos is the other way; times before 1970 and beyond 2262 become the ends of what can be said.
func nanos(t time.Time) int64 {
	switch {
	case t.IsZero():
		return 0
	case t.Unix() < 0:
		return 1
	case t.Unix() >= math.MaxInt64/int64(time.Second):
		return math.MaxInt64
	}
	return max(t.UnixNano(), 1)
}
