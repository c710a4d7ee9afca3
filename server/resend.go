package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/broker"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

const (
	resendRetry  = time.Second     // after a failure
	resendWithin = 5 * time.Second // for one batch
	resendNote   = time.Second     // so often it is written down how far it came
)

// resends sends the messages again that were set aside with the end of this broker's journal, to who is master now. That is owed after a promotion by
// force, and where a fixed broker group got a new term since: its master may have gone on alone, and what it acknowledged last was on the one disk that
// another took the place of, as when a master came with an empty disk, and then with its own again. Else what the master had not was not committed,
// and nobody was told that it was.
//
// Which of the messages were acknowledged is not known for sure: all of them are sent, with their ids, in the order of the journal, by one
// goroutine at a time, which closing the engine ends and waits for. Producers keep their ids and sequences, so that what the master has already, from
// a try before or from its producer, is not stored again.
type resends struct {
	tried   time.Time
	settled map[string]bool // files that nothing is to be done with
	running atomic.Bool
	stop    context.CancelFunc // nil: nothing runs
	wait    sync.WaitGroup
	said    string // why the last try failed; of the goroutine
}

// resent counts what was set aside, in messages, since the process began.
type resent struct{ sent, skipped atomic.Int64 }

// resender is the master, or the way to it.
type resender interface {
	Resend(ctx context.Context, r *wire.ResendRequest, batch []byte) (*wire.ResendResponse, error)
}

var _ resender = (*broker.Broker)(nil)

// close ends what runs.
func (v *resends) close() {
	if v.stop != nil {
		v.stop()
	}
	v.wait.Wait()
}

// resend begins with the next file, if there is one and its turn has come. Only the goroutine that decides calls it.
func (x *replicas) resend(e *engine) {
	v := &e.resends
	asides := e.journal().SetAside()
	if len(asides) <= len(v.settled) || v.running.Load() || time.Since(v.tried) < resendRetry {
		return
	}
	epoch, master := e.journal().Epoch(), ""
	if e.slave != nil {
		name, session, ok := e.slave.Session()
		if !ok || session != epoch {
			return // the records that say how its epoch was granted have not come yet
		}
		master = name
	}
	v.tried = time.Now()
	dir := x.s.copies().journal.own
	asides, err := journal.ListAside(x.s.config.FS, dir)
	if err != nil {
		x.s.log.Warn("what was set aside cannot be listed", "brokerGroup", x.group(), "err", err)
		return
	}
	if v.settled == nil {
		v.settled = map[string]bool{}
	}
	for _, a := range e.journal().SetAside() { // one that was removed is settled
		v.settled[a.Name] = true
	}
	var next *journal.Aside
	for i, a := range asides {
		if a.Resent == nil || !a.Resent.Done {
			delete(v.settled, a.Name)
			next = cmp.Or(next, &asides[i])
		}
	}
	if next == nil {
		return
	}
	if !mayBeCommitted(next, x.auto(), e.journal().Begin(), e.journal().History()) {
		err := journal.NoteResent(x.s.config.FS, dir, next.Name, journal.Resent{Next: next.To, Done: true, Why: "who went on as master had all that was committed"})
		if err != nil {
			x.s.log.Warn("what was set aside", "err", err)
		}
		v.tried = time.Time{}
		return
	}
	ctx, cancel := context.WithCancel(x.ctx)
	v.stop = cancel
	v.running.Store(true)
	v.wait.Go(func() {
		defer cancel()
		defer v.running.Store(false)
		to := resender(e.broker)
		if master != "" {
			p := x.dialer.peer(x.peers()[master])
			defer p.Close()
			to = p
		}
		if err := x.resendFile(ctx, e, dir, *next, epoch, to); err == nil {
			v.said = ""
		} else if text := err.Error(); ctx.Err() == nil && text != v.said {
			v.said = text
			x.s.log.Warn("messages that were set aside are not all sent again yet, trying on", "brokerGroup", x.group(), "file", next.Name, "master", master, "err", err)
		}
	})
}

// mayBeCommitted says whether what was set aside may have been acknowledged: a master promoted by force took its place, or on a fixed broker group one of
// the next term, which has what other disks than that of its master had. (A master that opened again in the same term had all on its own disk, and an
// auto broker group asks the registry before one disk is enough.) True where it is not known any more.
func mayBeCommitted(a *journal.Aside, auto bool, begin journal.Position, history []journal.EpochStart) bool {
	if begin > a.From {
		return true
	}
	next := true
	for _, h := range history {
		if h.Epoch <= a.Epoch {
			continue
		}
		if h.Forced || next && !auto && h.Epoch.Term() > a.Epoch.Term() {
			return true
		}
		next = false
	}
	return false
}

// resendFile sends what is left of one file, and notes how far it came.
func (x *replicas) resendFile(ctx context.Context, e *engine, dir string, a journal.Aside, epoch journal.Epoch, to resender) error {
	vf := x.s.config.FS
	state := journal.Resent{Next: a.From}
	if a.Resent != nil {
		state = *a.Resent
	}
	if e.slave != nil { // a store that was just opened may not know yet which topics there were
		applying, cancel := context.WithTimeout(ctx, resendWithin)
		defer cancel()
		if err := e.store.WaitApplied(applying, a.From); err != nil {
			return err
		}
	}
	x.s.log.Info("messages that were set aside are sent again", "brokerGroup", x.group(), "file", a.Name, "position", uint64(state.Next), "to", uint64(a.To))
	tail := tail{of: func(t offset.Topic) (store.Topic, bool) { return e.store.TopicByID(store.TopicID(t.ID), t.Incarnation) }}
	noted := time.Now()
	err := journal.Dump(vf, vf.PathJoin(dir, "diverged", a.Name), 0, func(rec journal.Record) error {
		out, err := tail.next(rec)
		switch {
		case err == nil && out.messages == 0 || rec.Position < state.Next:
			return nil
		case err == nil && out.gone == "":
			out.request.BrokerGroup, out.request.Broker, out.request.Epoch = x.group(), x.name(), uint64(epoch)
			sending, cancel := context.WithTimeout(ctx, resendWithin)
			_, err = to.Resend(sending, out.request, out.batch)
			cancel()
			if err != nil && !noPlace(wire.CodeOf(err)) {
				return err
			}
		case err == nil:
			err = errors.New(out.gone)
		}
		state.Next = rec.Position + 1
		if err != nil {
			x.resent.skipped.Add(int64(out.messages))
			state.Skipped += int64(out.messages)
			if state.Why == "" {
				state.Why = err.Error()
			}
			return nil
		}
		x.resent.sent.Add(int64(out.messages))
		state.Sent += int64(out.messages)
		if time.Since(noted) < resendNote {
			return nil
		}
		noted = time.Now()
		return journal.NoteResent(vf, dir, a.Name, state)
	})
	var corrupt *journal.CorruptError
	if errors.As(err, &corrupt) { // all that can be read was given
		state.Why, err = cmp.Or(state.Why, err.Error()), nil
	}
	if state.Done = err == nil; state.Done {
		state.Next = a.To
		x.s.log.Info("messages that were set aside were sent again", "brokerGroup", x.group(), "file", a.Name, "sent", state.Sent, "skipped", state.Skipped, "why", state.Why)
	}
	return errors.Join(err, journal.NoteResent(vf, dir, a.Name, state))
}

// noPlace says whether a master's answer means that a batch will never be taken.
func noPlace(c wire.Code) bool {
	switch c {
	case wire.CodeTopicNotFound, wire.CodePartitionNotFound, wire.CodeInvalid, wire.CodeMalformed, wire.CodeCorrupt, wire.CodeTooLarge:
		return true
	}
	return false
}

// tail reads the records of what was set aside, in order: which topics their batches are of is said by records before them, or by the store.
type tail struct {
	of    func(offset.Topic) (store.Topic, bool)
	own   map[offset.Topic]store.Topic // made or altered in the tail
	batch []byte
}

// again is a batch that is to be sent again. It is valid until the next one.
type again struct {
	messages int // 0: the record has none
	gone     string
	request  *wire.ResendRequest
	batch    []byte
}

// next takes one record. An error: it cannot be read.
func (t *tail) next(rec journal.Record) (out again, err error) {
	switch rec.Kind {
	case journal.KindTopic:
		r, err := store.ParseTopicRecord(rec.Payload)
		if err != nil {
			return out, err
		}
		if t.own == nil {
			t.own = map[offset.Topic]store.Topic{}
		}
		t.own[offset.Topic{ID: uint64(r.Topic.ID), Incarnation: r.Topic.Incarnation}] = r.Topic
	case journal.KindMessages:
		t.batch = append(t.batch[:0], rec.Payload...)
		b, err := wire.ParseBatch(t.batch)
		if err != nil {
			return out, err
		}
		out.messages = b.Count()
		id := offset.Topic{ID: b.Topic(), Incarnation: b.Incarnation()}
		topic, ok := t.own[id]
		if !ok {
			topic, ok = t.of(id)
		}
		if !ok {
			out.gone = fmt.Sprintf("topic %d.%d is not there any more", id.ID, id.Incarnation)
			return out, nil
		}
		out.request = &wire.ResendRequest{Namespace: topic.Namespace, Topic: topic.Name, Created: topic.Origin.Created, Partition: uint32(b.Partition())}
		b.SetBroker(wire.BrokerFields{})
		out.batch = b
	}
	return out, nil
}
