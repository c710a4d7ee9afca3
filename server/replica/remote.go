package replica

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/jmqio/jmq/wire"
)

// Remote is wire.Replication over a connection: what a Peer is made of, besides connecting.
type Remote struct {
	// Do sends a request and waits for its answer, whose slices are the caller's: wire.Conn.Call.
	Do func(ctx context.Context, command wire.Command, header, payload []byte) (wire.Frame, error)
	// Start sends a request and does not wait: Peer.Call.
	Start func(ctx context.Context, command wire.Command, header []byte, done func(wire.Frame, error))
}

var _ wire.Replication = Remote{}

func ask[Q, A any, PQ interface {
	*Q
	proto.Message
}, PA interface {
	*A
	proto.Message
}](ctx context.Context, c Remote, command wire.Command, r PQ, payload []byte) (PA, []byte, error) {
	header, err := proto.Marshal(r)
	if err != nil {
		return nil, nil, wire.Errorf(wire.CodeInvalid, "the request cannot be encoded: %v", err)
	}
	f, err := c.Do(ctx, command, header, payload)
	if err != nil {
		return nil, nil, err
	}
	a := PA(new(A))
	if err := proto.Unmarshal(f.Header, a); err != nil {
		return nil, nil, wire.Errorf(wire.CodeMalformed, "the answer to %v cannot be read: %v", command, err)
	}
	return a, f.Payload, nil
}

func (c Remote) Follow(ctx context.Context, r *wire.FollowRequest) (*wire.FollowResponse, error) {
	a, _, err := ask[wire.FollowRequest, wire.FollowResponse](ctx, c, wire.CommandFollow, r, nil)
	return a, err
}

func (c Remote) Meet(ctx context.Context, r *wire.MeetRequest) (*wire.MeetResponse, error) {
	a, _, err := ask[wire.MeetRequest, wire.MeetResponse](ctx, c, wire.CommandMeet, r, nil)
	return a, err
}

func (c Remote) ReadLog(ctx context.Context, r *wire.ReadLogRequest) (*wire.ReadLogResponse, []byte, error) {
	return ask[wire.ReadLogRequest, wire.ReadLogResponse](ctx, c, wire.CommandReadLog, r, nil)
}

func (c Remote) ReadSeed(ctx context.Context, r *wire.ReadSeedRequest) (*wire.ReadSeedResponse, []byte, error) {
	return ask[wire.ReadSeedRequest, wire.ReadSeedResponse](ctx, c, wire.CommandReadSeed, r, nil)
}

func (c Remote) LogSums(ctx context.Context, r *wire.LogSumsRequest) (*wire.LogSumsResponse, error) {
	a, _, err := ask[wire.LogSumsRequest, wire.LogSumsResponse](ctx, c, wire.CommandLogSums, r, nil)
	return a, err
}

func (c Remote) MergeSide(ctx context.Context, r *wire.MergeSideRequest, entries []byte) (*wire.MergeSideResponse, error) {
	a, _, err := ask[wire.MergeSideRequest, wire.MergeSideResponse](ctx, c, wire.CommandMergeSide, r, entries)
	return a, err
}

func (c Remote) TakeOver(ctx context.Context, r *wire.TakeOverRequest) (*wire.TakeOverResponse, error) {
	a, _, err := ask[wire.TakeOverRequest, wire.TakeOverResponse](ctx, c, wire.CommandTakeOver, r, nil)
	return a, err
}

func (c Remote) Resend(ctx context.Context, r *wire.ResendRequest, batch []byte) (*wire.ResendResponse, error) {
	a, _, err := ask[wire.ResendRequest, wire.ResendResponse](ctx, c, wire.CommandResend, r, batch)
	return a, err
}

// Pull as wire.Replication's; done is called on the goroutine that reads the connection.
func (c Remote) Pull(ctx context.Context, r *wire.PullRequest, done func(*wire.PullResponse, []byte, error)) {
	header, err := proto.Marshal(r)
	if err != nil {
		done(nil, nil, wire.Errorf(wire.CodeInvalid, "the request cannot be encoded: %v", err))
		return
	}
	c.Start(ctx, wire.CommandPull, header, func(f wire.Frame, err error) {
		a := new(wire.PullResponse)
		if err == nil {
			if e := proto.Unmarshal(f.Header, a); e != nil {
				err = wire.Errorf(wire.CodeMalformed, "the answer to a pull cannot be read: %v", e)
			}
		}
		if err != nil {
			done(nil, nil, err)
			return
		}
		done(a, f.Payload, nil)
	})
}
