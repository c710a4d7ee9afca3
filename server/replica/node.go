package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/term"
	"github.com/jmqio/jmq/wire"
)

func (n Node) withDefaults() Node {
	n.Timing = n.Timing.withDefaults()
	n.Timing.CheckEvery = cmp.Or(n.Timing.CheckEvery, 10*time.Minute)
	if n.Now == nil {
		n.Now = time.Now
	}
	if n.Every == nil {
		n.Every = func(d time.Duration) time.Duration { return d }
	}
	if n.Logger == nil {
		n.Logger = slog.New(slog.DiscardHandler)
	}
	if n.Changed == nil {
		n.Changed = func() {}
	}
	if n.MasterBegin == nil {
		n.MasterBegin = func(_, _ journal.Position) {}
	}
	if n.Side == nil {
		n.Side = func() (bool, bool) { return false, false }
	}
	if n.Peers == nil {
		n.Peers = func() map[string][]string { return nil }
	}
	if n.Row == nil {
		n.Row = func() (term.Row, bool) { return term.Row{}, false }
	}
	if n.Ask == nil {
		n.Ask = func(context.Context, term.Ask) (term.Row, bool, error) {
			return term.Row{}, false, errors.New("replica: there is no registry")
		}
	}
	return n
}

// Near refuses a term that cannot be (term.Leap), before it is promised for good.
func (f *StateFile) Near(t uint32) error {
	if seen := f.Seen(); t > seen && t-seen > term.Leap {
		return wire.Errorf(wire.CodeInvalid, "term %d is far above %d, the highest that was met", t, seen)
	}
	return nil
}

// ofGroup refuses what is meant for another broker group.
func (n Node) ofGroup(brokerGroup string) error {
	if brokerGroup != n.BrokerGroup {
		return wire.Errorf(wire.CodeInvalid, "broker %s is of broker group %s, not of %s", n.Self.Broker, n.BrokerGroup, brokerGroup)
	}
	return nil
}

// knows says whether a broker is another one of the broker group.
func (n Node) knows(broker string) bool {
	_, ok := n.Peers()[broker]
	return ok && broker != n.Self.Broker
}

// others are the other brokers of the broker group, by name.
func (n Node) others() []string {
	var list []string
	for name := range n.Peers() {
		if name != n.Self.Broker {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// ask runs do with a connection to a broker.
func (n Node) ask(broker string, do func(Peer) error) error {
	addresses, ok := n.Peers()[broker]
	if !ok {
		return fmt.Errorf("replica: no address of broker %s is known", broker)
	}
	peer := n.Dial(broker, addresses)
	defer peer.Close()
	return do(peer)
}

// HistoryOf is what a journal has.
func HistoryOf(j *journal.Journal) History { return historyOf(j) }

// MetOf is what another broker answered when it was met.
func MetOf(broker string, a *wire.MeetResponse) (Met, error) {
	st := a.GetStatus()
	m := Met{Member: term.Member{Broker: broker, Boot: st.GetBoot(), Store: st.GetStore()}, Seen: st.GetSeenTerm(), Master: st.GetRole() == roleMaster,
		Fresh: st.GetFresh(), History: historyFrom(st.GetBegin(), st.GetEnd(), a.GetHistory()), Committed: journal.Position(st.GetCommitted())}
	if err := m.History.Check(); err != nil {
		return m, fmt.Errorf("broker %s: %w", broker, err)
	}
	return m, nil
}

// historyOf is what a journal has.
func historyOf(j *journal.Journal) History {
	h := History{End: j.Written(), Epochs: j.History()}
	for n := len(h.Epochs); n > 0 && h.Epochs[n-1].Position >= h.End; n-- { // begun in between
		h.Epochs = h.Epochs[:n-1]
	}
	h.Begin = j.Begin()
	for len(h.Epochs) > 1 && h.Epochs[1].Position <= h.Begin { // trimmed in between
		h.Epochs = h.Epochs[1:]
	}
	if h.Begin == h.End {
		h.Epochs = nil
	}
	return h
}

func wireHistory(h History) []*wire.EpochStart {
	list := make([]*wire.EpochStart, len(h.Epochs))
	for i, e := range h.Epochs {
		list[i] = &wire.EpochStart{Epoch: uint64(e.Epoch), Position: uint64(e.Position), Forced: e.Forced}
	}
	return list
}

// historyFrom is what a peer says that it has; Check it.
func historyFrom(begin, end uint64, list []*wire.EpochStart) History {
	h := History{Begin: journal.Position(begin), End: journal.Position(end)}
	for _, e := range list {
		h.Epochs = append(h.Epochs, journal.EpochStart{Epoch: journal.Epoch(e.GetEpoch()), Position: journal.Position(e.GetPosition()), Forced: e.GetForced()})
	}
	return h
}
