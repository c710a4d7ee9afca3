package server

import (
	"context"
	"encoding/json"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

// replication answers other brokers of the broker group, and observers, by the log that is open now. Only peers that are nodes, or local ones, may ask.
type replication struct{ *replicas }

var _ wire.Replication = replication{}

// may says whether a peer may ask.
func (x replication) may(ctx context.Context) error {
	p := wire.PeerFrom(ctx)
	if s := x.snapshot(); s != nil {
		return s.MayOperate(meta.Subject{Principal: p.Principal}, meta.BeNode, "", "")
	}
	if p.Principal.Kind != wire.PrincipalLocal {
		return wire.Errorf(wire.CodeMetadataAway, "no metadata is known here yet")
	}
	return nil
}

// mayAs says whether a peer may ask as a broker.
func (x replication) mayAs(ctx context.Context, broker string) error {
	if err := x.may(ctx); err != nil {
		return err
	}
	return meta.SpeaksFor(wire.PeerFrom(ctx).Principal, broker)
}

// speaksIn says whether a peer may speak in a slave's session.
func speaksIn(ctx context.Context, m *replica.Master, session uint64) error {
	if broker := m.SlaveOf(session); broker != "" {
		return meta.SpeaksFor(wire.PeerFrom(ctx).Principal, broker)
	}
	return nil // the master refuses it
}

// ofGroup refuses what is meant for another broker group.
func (x replication) ofGroup(brokerGroup string) error {
	if brokerGroup != x.group() {
		return wire.Errorf(wire.CodeInvalid, "broker %s is of broker group %s, not of %s", x.name(), x.group(), brokerGroup)
	}
	return nil
}

// atMaster is the log of the master that this broker is.
func (x replication) atMaster(ctx context.Context) (*replica.Master, error) {
	if err := x.may(ctx); err != nil {
		return nil, err
	}
	if m := x.master.Load(); m != nil {
		return m, nil
	}
	return nil, x.notMaster()
}

// log is what both kinds of logs answer.
type log interface {
	Meet(context.Context, *wire.MeetRequest) (*wire.MeetResponse, error)
	ReadLog(context.Context, *wire.ReadLogRequest) (*wire.ReadLogResponse, []byte, error)
	LogSums(context.Context, *wire.LogSumsRequest) (*wire.LogSumsResponse, error)
}

var errReopening = wire.Errorf(wire.CodeStopping, "the broker is opening its store")

// open is the log that is open now, or nil.
func (x *replicas) open() log {
	if m := x.master.Load(); m != nil {
		return m
	}
	if s := x.slave.Load(); s != nil {
		return s
	}
	return nil
}

// Follow implements wire.Replication, as those that follow.
func (x replication) Follow(ctx context.Context, r *wire.FollowRequest) (*wire.FollowResponse, error) {
	if err := x.mayAs(ctx, r.Broker); err != nil {
		return nil, err
	}
	m, err := x.atMaster(ctx)
	if err != nil {
		return nil, err
	}
	a, err := m.Follow(ctx, r)
	if err == nil && !r.Side && !r.Served {
		x.cameFrom(r.Broker)
	}
	return a, err
}

func (x replication) Pull(ctx context.Context, r *wire.PullRequest, done func(*wire.PullResponse, []byte, error)) {
	m, err := x.atMaster(ctx)
	if err == nil {
		err = speaksIn(ctx, m, r.Session)
	}
	if err != nil {
		done(nil, nil, err)
		return
	}
	m.Pull(ctx, r, done)
}

func (x replication) ReadSeed(ctx context.Context, r *wire.ReadSeedRequest) (*wire.ReadSeedResponse, []byte, error) {
	m, err := x.atMaster(ctx)
	if err == nil {
		err = speaksIn(ctx, m, r.Session)
	}
	if err != nil {
		return nil, nil, err
	}
	return m.ReadSeed(ctx, r)
}

func (x replication) Meet(ctx context.Context, r *wire.MeetRequest) (*wire.MeetResponse, error) {
	if err := x.may(ctx); err != nil {
		return nil, err
	}
	if err := x.ofGroup(r.BrokerGroup); err != nil {
		return nil, err
	}
	if l := x.open(); l != nil {
		return l.Meet(ctx, r)
	}
	if err := x.state.Near(r.Term); err != nil {
		return nil, err
	}
	// Between two openings: what is promised holds for the next one, and what there was is there. (While a full copy is made that is the old
	// store: what the copy acks counts nowhere.)
	if r.Term > x.state.Seen() {
		if err := x.state.Update(func(s *replica.State) { s.Seen = max(s.Seen, r.Term) }); err != nil {
			return nil, wire.Errorf(wire.CodeFailed, "%v", err)
		}
	}
	if l := x.open(); l != nil {
		return l.Meet(ctx, r) // it may have taken something before it knew of the promise
	}
	st, h := x.closed()
	a := &wire.MeetResponse{Status: st}
	for _, e := range h.Epochs {
		a.History = append(a.History, &wire.EpochStart{Epoch: uint64(e.Epoch), Position: uint64(e.Position), Forced: e.Forced})
	}
	return a, nil
}

func (x replication) ReadLog(ctx context.Context, r *wire.ReadLogRequest) (*wire.ReadLogResponse, []byte, error) {
	if err := x.may(ctx); err != nil {
		return nil, nil, err
	}
	if l := x.open(); l != nil {
		return l.ReadLog(ctx, r)
	}
	return nil, nil, errReopening
}

func (x replication) LogSums(ctx context.Context, r *wire.LogSumsRequest) (*wire.LogSumsResponse, error) {
	if err := x.may(ctx); err != nil {
		return nil, err
	}
	if l := x.open(); l != nil {
		return l.LogSums(ctx, r)
	}
	return nil, errReopening
}

func (x replication) MergeSide(ctx context.Context, r *wire.MergeSideRequest, entries []byte) (*wire.MergeSideResponse, error) {
	if err := x.mayAs(ctx, r.Broker); err != nil {
		return nil, err
	}
	if err := x.ofGroup(r.BrokerGroup); err != nil {
		return nil, err
	}
	e := x.r.engine.Load()
	if e == nil || e.master == nil {
		return nil, x.notMaster()
	}
	a, err := e.broker.MergeSide(ctx, r, entries)
	if err == nil && r.Last {
		x.cameFrom(r.Broker)
	}
	return a, err
}

func (x replication) Resend(ctx context.Context, r *wire.ResendRequest, batch []byte) (*wire.ResendResponse, error) {
	if err := x.mayAs(ctx, r.Broker); err != nil {
		return nil, err
	}
	e := x.r.engine.Load()
	if e == nil || e.master == nil {
		return nil, x.notMaster()
	}
	return e.broker.Resend(ctx, r, batch)
}

func (x replication) TakeOver(ctx context.Context, r *wire.TakeOverRequest) (*wire.TakeOverResponse, error) {
	if err := x.may(ctx); err != nil {
		return nil, err
	}
	if err := x.ofGroup(r.BrokerGroup); err != nil {
		return nil, err
	}
	var row term.Row
	if err := json.Unmarshal(r.Row, &row); err != nil {
		return nil, wire.Errorf(wire.CodeInvalid, "the row cannot be read: %v", err)
	}
	x.hearRow(row, x.generation())
	return &wire.TakeOverResponse{}, nil
}

// historyLooked is that of a closed store.
func historyLooked(l *local.Looked) replica.History {
	h := replica.History{Begin: l.Begin, End: l.End}
	if l.Begin < l.End {
		h.Epochs = l.History
	}
	return h
}
