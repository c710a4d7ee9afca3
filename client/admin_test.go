package client

import (
	"context"
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/jmqio/jmq/wire"
	"google.golang.org/protobuf/proto"
)

// adminBroker answers one kind of call with what the test gives, and keeps the request.
type adminBroker struct {
	*fakeBroker
	got    proto.Message
	calls  int
	answer proto.Message
	errs   []error // of the first calls
}

func answerOf[R proto.Message](b *adminBroker, r proto.Message) (R, error) {
	var none R
	b.got = r
	b.calls++
	if n := b.calls - 1; n < len(b.errs) {
		return none, b.errs[n]
	}
	return b.answer.(R), nil
}

func (b *adminBroker) AlterTopic(_ context.Context, r *wire.AlterTopicRequest) (*wire.AlterTopicResponse, error) {
	return answerOf[*wire.AlterTopicResponse](b, r)
}

func (b *adminBroker) DeleteTopic(_ context.Context, r *wire.DeleteTopicRequest) (*wire.DeleteTopicResponse, error) {
	return answerOf[*wire.DeleteTopicResponse](b, r)
}

func (b *adminBroker) DescribeTopic(_ context.Context, r *wire.DescribeTopicRequest) (*wire.DescribeTopicResponse, error) {
	return answerOf[*wire.DescribeTopicResponse](b, r)
}

func (b *adminBroker) CreateTopic(_ context.Context, r *wire.CreateTopicRequest) (*wire.CreateTopicResponse, error) {
	return answerOf[*wire.CreateTopicResponse](b, r)
}

func (b *adminBroker) ListGroups(_ context.Context, r *wire.ListGroupsRequest) (*wire.ListGroupsResponse, error) {
	return answerOf[*wire.ListGroupsResponse](b, r)
}

func (b *adminBroker) SeekGroup(_ context.Context, r *wire.SeekGroupRequest) (*wire.SeekGroupResponse, error) {
	return answerOf[*wire.SeekGroupResponse](b, r)
}

func (b *adminBroker) AlterGroup(_ context.Context, r *wire.AlterGroupRequest) (*wire.AlterGroupResponse, error) {
	return answerOf[*wire.AlterGroupResponse](b, r)
}

func (b *adminBroker) RemoveGroup(_ context.Context, r *wire.RemoveGroupRequest) (*wire.RemoveGroupResponse, error) {
	return answerOf[*wire.RemoveGroupResponse](b, r)
}

func (b *adminBroker) Peek(_ context.Context, r *wire.PeekRequest) (*wire.PeekResponse, error) {
	return answerOf[*wire.PeekResponse](b, r)
}

func (b *adminBroker) StoreUsage(_ context.Context, r *wire.StoreUsageRequest) (*wire.StoreUsageResponse, error) {
	return answerOf[*wire.StoreUsageResponse](b, r)
}

func startAdmin(t *testing.T, answer proto.Message, errs ...error) (*Client, *adminBroker) {
	b := &adminBroker{fakeBroker: newFakeBroker(), answer: answer, errs: errs}
	s := newFakeServer(b.fakeBroker, false)
	s.h = wire.NewHandler(wire.Services{Broker: b, Admin: b}, wire.HandlerOptions{})
	c, err := Dial(context.Background(), "x", WithDialer(s.dial), WithApp("app"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
		s.close()
	})
	return c, b
}

// Each call asks what its arguments say, and returns what was answered.
func TestAdmin(t *testing.T) {
	ctx := context.Background()
	at := time.Unix(1700000000, 123)
	topic := &wire.Topic{Name: "orders", Id: 3, Incarnation: 9, Partitions: 4, CreatedNs: at.UnixNano(),
		Settings: &wire.TopicSettings{RetentionMs: new(int64(-1)), RetentionBytes: new(int64(5)), PauseProduce: new(true)}}
	plain := Topic{"orders", 3, 9, 4, at, TopicSettings{Retention: -1, RetentionBytes: 5, PauseProduce: true}}
	for name, c := range map[string]struct {
		call   func(c *Client) (any, error)
		ask    proto.Message
		answer proto.Message
		want   any
	}{
		"create": {
			func(c *Client) (any, error) { return nil, c.CreateTopic(ctx, "orders", 4, Retention(time.Hour+1)) },
			&wire.CreateTopicRequest{Topic: "orders", Partitions: 4, Settings: &wire.TopicSettings{RetentionMs: new(int64(3600001))}},
			&wire.CreateTopicResponse{}, nil,
		},
		"create plain": {
			func(c *Client) (any, error) { return nil, c.CreateTopic(ctx, "orders", 4) },
			&wire.CreateTopicRequest{Topic: "orders", Partitions: 4}, &wire.CreateTopicResponse{}, nil,
		},
		"alter": {
			func(c *Client) (any, error) {
				return c.AlterTopic(ctx, "orders", "why", Partitions(9), RetentionBytes(-7), Retention(-1), DiscardUnconsumed(true), PauseProduce(false), PauseConsume(true))
			},
			&wire.AlterTopicRequest{Topic: "orders", Reason: "why", Partitions: new(uint32(9)), Settings: &wire.TopicSettings{RetentionMs: new(int64(-1)),
				RetentionBytes: new(int64(-1)), DiscardUnconsumed: new(true), PauseProduce: new(false), PauseConsume: new(true)}},
			&wire.AlterTopicResponse{Topic: topic}, plain,
		},
		"delete": {
			func(c *Client) (any, error) { return nil, c.DeleteTopic(ctx, "orders", "why") },
			&wire.DeleteTopicRequest{Topic: "orders", Reason: "why"}, &wire.DeleteTopicResponse{}, nil,
		},
		"describe": {
			func(c *Client) (any, error) { return c.DescribeTopic(ctx, "orders") },
			&wire.DescribeTopicRequest{Topic: "orders"},
			&wire.DescribeTopicResponse{Topic: topic, Groups: []string{"pay"}, Effective: &wire.TopicSettings{RetentionMs: new(int64(1000))},
				Partitions: []*wire.TopicPartition{{Partition: 1, First: 2, End: 3, Bytes: 4, OldestNs: at.UnixNano()}}},
			TopicDescription{plain, []TopicPartition{{"", 1, 2, 3, 4, at, time.Time{}}}, []string{"pay"}, TopicSettings{Retention: time.Second}},
		},
		"groups": {
			func(c *Client) (any, error) { return c.ListGroups(ctx, "orders", "") },
			&wire.ListGroupsRequest{Topic: "orders"},
			&wire.ListGroupsResponse{Groups: []*wire.GroupSummary{
				{Topic: "orders", Group: "pay", Policy: &wire.GroupPolicy{Parallel: true, Window: 7}, Partitions: 4, Lag: 5, Leased: 6, Members: 7, Waiting: 8,
					ActiveNs: at.UnixNano(), Abandoned: true, LastReset: &wire.GroupReset{TimeNs: at.UnixNano(), Who: "me", Reason: "why"}},
				{Topic: "orders", Group: "ship"},
			}},
			[]GroupSummary{{"orders", "pay", "", GroupPolicy{true, 7}, 4, 5, 6, 7, 8, at, true, &GroupReset{at, "me", "why"}}, {Topic: "orders", Group: "ship"}},
		},
		"seek": {
			func(c *Client) (any, error) {
				return c.SeekGroup(ctx, "orders", "pay", Seek{To: SeekTime, Time: at, Index: 1, Shift: -2, Partitions: []uint16{3}, DryRun: true, Reason: "why"})
			},
			&wire.SeekGroupRequest{Topic: "orders", Group: "pay", To: 3, TimeNs: at.UnixNano(), Index: 1, Shift: -2, Partitions: []uint32{3}, DryRun: true, Reason: "why"},
			&wire.SeekGroupResponse{Partitions: []*wire.SeekPartition{{Partition: 3, First: 1, End: 9, From: 2, To: 5, LagFrom: 7, LagTo: 4, Generation: 6, Cut: true}}},
			[]PartitionSeek{{"", 3, 1, 9, 2, 5, 7, 4, 6, true}},
		},
		"policy": {
			func(c *Client) (any, error) {
				return c.AlterGroup(ctx, "orders", "pay", GroupPolicy{Parallel: true}, "why")
			},
			&wire.AlterGroupRequest{Topic: "orders", Group: "pay", Policy: &wire.GroupPolicy{Parallel: true}, Reason: "why"},
			&wire.AlterGroupResponse{Policy: &wire.GroupPolicy{Parallel: true, Window: 2000}}, GroupPolicy{true, 2000},
		},
		"remove": {
			func(c *Client) (any, error) { return nil, c.RemoveGroup(ctx, "orders", "pay", "why", true) },
			&wire.RemoveGroupRequest{Topic: "orders", Group: "pay", Force: true, Reason: "why"}, &wire.RemoveGroupResponse{}, nil,
		},
		"peek a gap": {
			func(c *Client) (any, error) { return c.Peek(ctx, "orders", Peek{Partition: 2, Time: at, Messages: 5}) },
			&wire.PeekRequest{Topic: "orders", Partition: 2, TimeNs: at.UnixNano(), MessagesMax: 5},
			&wire.PeekResponse{From: 4, To: 6, First: 1, End: 9, Gap: 1}, Peeked{nil, 4, 6, 1, 9, GapDamaged},
		},
		"usage": {
			func(c *Client) (any, error) { return c.StoreUsage(ctx, 3) },
			&wire.StoreUsageRequest{HoldsMax: 3},
			&wire.StoreUsageResponse{Disks: []*wire.DiskUsage{{What: "journal", Folder: "/x", Total: 3, Free: 2, Error: "e"}}, JournalBytes: 1, IndexBytes: 2, CheckpointBytes: 3,
				DamagedBytes: 4, Segments: 5, Begin: 6, End: 7, OldestNs: at.UnixNano(), LimitBytes: 8, LimitedBytes: 9, State: "warn", Why: "w",
				Holds: []*wire.StoreHold{{Topic: "orders", Partition: 1, Group: "pay", First: 2, Bytes: 3, SinceNs: at.UnixNano(), Why: "h"}},
				Holes: []*wire.StoreHole{{From: 1, To: 2, Messages: 3}}, Retention: "r"},
			StoreUsage{Disks: []DiskUsage{{"journal", "/x", 3, 2, "e"}}, JournalBytes: 1, IndexBytes: 2, CheckpointBytes: 3, DamagedBytes: 4, Segments: 5, Begin: 6, End: 7,
				Oldest: at, LimitBytes: 8, LimitedBytes: 9, State: "warn", Why: "w", Holds: []StoreHold{{"orders", 1, "pay", 2, 3, at, "h"}}, Holes: []StoreHole{{1, 2, 3}}, Retention: "r"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cl, b := startAdmin(t, c.answer)
			got, err := c.call(cl)
			if err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(b.got, c.ask) {
				t.Errorf("asked %v\nwant  %v", b.got, c.ask)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// What may not be done twice is not repeated once it may have been done; what was certainly not done, is.
func TestAdminRepeats(t *testing.T) {
	ctx := context.Background()
	unknown, busy := wire.Errorf(wire.CodeUnknown, "x"), wire.Errorf(wire.CodeBusy, "x")
	for name, c := range map[string]struct {
		answer proto.Message
		once   bool
		call   func(c *Client) error
	}{
		"delete": {&wire.DeleteTopicResponse{}, true, func(c *Client) error { return c.DeleteTopic(ctx, "t", "") }},
		"remove": {&wire.RemoveGroupResponse{}, true, func(c *Client) error { return c.RemoveGroup(ctx, "t", "g", "", false) }},
		"seek": {&wire.SeekGroupResponse{}, true, func(c *Client) error {
			_, err := c.SeekGroup(ctx, "t", "g", Seek{To: SeekShift, Shift: 1})
			return err
		}},
		"dry run": {&wire.SeekGroupResponse{}, false, func(c *Client) error {
			_, err := c.SeekGroup(ctx, "t", "g", Seek{To: SeekShift, Shift: 1, DryRun: true})
			return err
		}},
		"alter": {&wire.AlterTopicResponse{}, false, func(c *Client) error { _, err := c.AlterTopic(ctx, "t", ""); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			cl, b := startAdmin(t, c.answer, busy, unknown)
			err := c.call(cl)
			if c.once && (!errors.Is(err, ErrUnknown) || b.calls != 2) || !c.once && (err != nil || b.calls != 3) {
				t.Errorf("%v after %d calls", err, b.calls)
			}
		})
	}
}

// What cannot be meant is refused here.
func TestAdminArguments(t *testing.T) {
	ctx := context.Background()
	cl, b := startAdmin(t, nil)
	for name, call := range map[string]func() error{
		"partitions": func() error { return cl.CreateTopic(ctx, "t", 0) },
		"more":       func() error { _, err := cl.AlterTopic(ctx, "t", "", Partitions(-1)); return err },
		"seek":       func() error { _, err := cl.SeekGroup(ctx, "t", "g", Seek{}); return err },
		"window":     func() error { _, err := cl.AlterGroup(ctx, "t", "g", GroupPolicy{Window: -1}, ""); return err },
		"peek":       func() error { _, err := cl.Peek(ctx, "t", Peek{Messages: -1}); return err },
		"usage":      func() error { _, err := cl.StoreUsage(ctx, -1); return err },
	} {
		if err := call(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if b.calls != 0 {
		t.Errorf("%d calls", b.calls)
	}
	for in, want := range map[time.Time]int64{{}: 0, time.Unix(-5, 0): 1, time.Unix(0, 0): 1, time.Unix(1, 2): 1e9 + 2, time.Unix(1<<50, 0): math.MaxInt64} {
		if got := nanos(in); got != want {
			t.Errorf("nanos(%v) = %d, want %d", in, got, want)
		}
	}
}
