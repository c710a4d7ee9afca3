package broker

import (
	"context"
	"strings"
	"time"

	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// produceCall is one Produce under way; it goes back to the pool when it is answered.
type produceCall struct {
	b         *Broker
	done      func(*wire.ProduceResponse, error)
	committed func(first index.Index, stored int64, err error) // onCommit, bound once
	started   time.Time
	messages  int
	bytes     int
	route, id uint64 // the route's version and the topic's id, if the client knows others; else 0
	response  wire.ProduceResponse

	infos []wire.MessageInfo // scratch of the check
	raw   []byte
}

func (b *Broker) produceCall() *produceCall {
	if c, ok := b.produces.Get().(*produceCall); ok {
		return c
	}
	c := &produceCall{b: b}
	c.committed = c.onCommit
	return c
}

// Produce implements wire.Broker.
func (b *Broker) Produce(ctx context.Context, r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) {
	c := b.produceCall()
	if err := c.append(ctx, r, done); err != nil {
		c.done = nil
		b.produces.Put(c)
		b.failedBy(err)
		err = coded(err)
		b.metrics.refused(err)
		done(nil, err)
	}
}

// append judges the request and hands it to the store. On nil, onCommit answers and c may be another call's already.
func (c *produceCall) append(ctx context.Context, r *wire.ProduceRequest, done func(*wire.ProduceResponse, error)) error {
	b := c.b
	if err := b.master(); err != nil {
		return err
	}
	peer := wire.PeerFrom(ctx)
	t, ok := b.store.TopicByID(store.TopicID(r.TopicID), incarnationOf(r.RouteVersion))
	// The name too: the id may be of another broker group, or of the store that was here before.
	if !ok || t.Name != r.Topic || t.Namespace != peer.Namespace {
		var err error
		if t, err = b.topic(peer.Namespace, r.Topic); err != nil {
			return b.absent(peer, strings.Clone(r.Topic), "", err)
		}
	}
	g, err := b.granted(peer, &t, dispatch.Queue{Topic: topicKey(&t)}, "")
	if err != nil {
		return err
	}
	if uint32(r.Partition) >= t.Partitions {
		return noPartition(&t, uint32(r.Partition))
	}
	if t.Settings.PauseProduce {
		err := wire.Errorf(wire.CodePaused, "topic %q takes no messages at the moment", t.Name)
		err.RetryAfter = pausedRetry
		return err
	}
	if why := b.refusing.Load(); why != nil {
		return why
	}
	batch, err := wire.ParseBatch(r.Batch)
	if err != nil {
		return err
	}
	c.started = time.Now()
	if err := b.take(g, c.started, batch.Count(), len(batch)); err != nil {
		return err
	}
	c.route, c.id = 0, 0
	if v := routeVersion(&t); v != r.RouteVersion || uint64(t.ID) != r.TopicID {
		c.route, c.id = v, uint64(t.ID)
	}
	if err := c.store(peer, batch, store.Partition{Topic: t.ID, Incarnation: t.Incarnation, Partition: r.Partition}, done); err != nil {
		b.giveBack(g, batch.Count(), len(batch))
		return err
	}
	return nil
}

// store judges a batch and hands it to the store.
func (c *produceCall) store(peer *wire.Peer, batch wire.Batch, p store.Partition, done func(*wire.ProduceResponse, error)) error {
	if err := batch.Verify(); err != nil {
		return err
	}
	if err := c.judge(batch); err != nil {
		return err
	}
	c.done, c.messages, c.bytes = done, batch.Count(), len(batch)
	if peer.Batched {
		return c.b.store.QueueBatch(p, batch, c.committed)
	}
	return c.b.store.AppendBatch(p, batch, c.committed)
}

// SetWritable says whether messages are taken; when not, sends are answered CodeNoSpace and why, which is for people. Acks and all
// that is written for groups and topics goes on. It may be called at any time.
func (b *Broker) SetWritable(ok bool, why string) {
	if ok {
		b.refusing.Store(nil)
		return
	}
	b.refusing.Store(wire.Errorf(wire.CodeNoSpace, "%s", why))
}

// Commit implements wire.Committer: what batched sessions stored is committed.
func (b *Broker) Commit() {
	if b.state.Load() != stateNew { // whatever else: what is queued must not stay there
		b.store.Commit()
	}
}

func noPartition(t *store.Topic, p uint32) error {
	return wire.Errorf(wire.CodePartitionNotFound, "topic %q has no partition %d: it has %d", t.Name, p, t.Partitions)
}

const rawKeptMax = 256 << 10 // scratch that a pooled call keeps

// judge looks into every message, so that whatever is stored can be read by every consumer.
func (c *produceCall) judge(batch wire.Batch) error {
	if batch.Compression() == wire.CompressionNone {
		infos, err := batch.MessageInfos(c.infos[:0])
		c.infos = infos
		return err
	}
	raw, err := c.b.codec.Messages(batch, c.raw)
	if err != nil {
		return err
	}
	if cap(raw) <= rawKeptMax {
		c.raw = raw
	}
	return batch.CheckMessages(raw)
}

// onCommit runs in the journal's committer.
func (c *produceCall) onCommit(first index.Index, stored int64, err error) {
	b, done := c.b, c.done
	if err != nil {
		b.failedBy(err)
		err = coded(err)
		b.metrics.refused(err)
		done(nil, err)
	} else {
		b.metrics.produced(c.messages, c.bytes, time.Since(c.started))
		c.response = wire.ProduceResponse{FirstIndex: uint64(first), StoredNs: stored, RouteVersion: c.route, TopicID: c.id}
		done(&c.response, nil)
	}
	c.done = nil
	b.produces.Put(c)
}
