package broker

import (
	"sync/atomic"
	"time"

	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/wire"
)

// DurationBounds are the upper bounds of a Histogram's buckets; one more bucket holds what is above the last.
var DurationBounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second,
}

// Histogram is a distribution of durations: Counts[i] are those above DurationBounds[i-1] up to DurationBounds[i].
type Histogram struct {
	Counts [len(DurationBounds) + 1]uint64
	Sum    time.Duration
}

// Metrics of a Broker, all counted since New.
type Metrics struct {
	MessagesIn      uint64 // committed
	BytesIn         uint64 // of their batches
	BatchesIn       uint64
	ProduceDuration Histogram // from the request's arrival to its commit, of those that were ok
	MessagesOut     uint64    // delivered, each time they were
	BytesOut        uint64    // of their batches
	Acks            uint64    // messages that ended by an ack
	Releases        uint64    // messages given back
	AcksRefused     uint64    // items of acks that were not ok, repeated ones too
	ReadErrors      uint64    // reads of a leased range that failed
	SkippedDamaged  uint64    // messages that a group was moved over, since the disk damaged them
	SkippedTrimmed  uint64    // and since retention had removed them
	Refused         map[wire.Code]uint64
	Denied          map[wire.Code]uint64 // requests and connections of those who may not, or not now, by what they were told
	Limited         map[string]uint64    // requests above a limit, by the kind of whose it is
	Metadata        MetadataMetrics
	Dispatch        dispatch.Metrics
	Offsets         offset.Counts
	Side            SideMetrics
}

// MetadataMetrics say which metadata a broker follows.
type MetadataMetrics struct {
	Ruled         bool // Options.Metadata
	Generation    uint64
	Version       uint64 // that rights and limits are of; 0: none yet
	TopicsPending int64  // topics that are not yet as that version says
	TopicsUnknown int    // topics that are kept, and not served
}

const codesMax = 128 // codes beyond are counted as the last

type metrics struct {
	messagesIn, bytesIn, batchesIn, messagesOut, bytesOut atomic.Uint64
	acks, releases, acksRefused, readErrors               atomic.Uint64
	skippedDamaged, skippedTrimmed                        atomic.Uint64
	durations                                             [len(DurationBounds) + 1]atomic.Uint64
	durationSum                                           atomic.Int64
	refusals                                              [codesMax]atomic.Uint64
	denials                                               [codesMax]atomic.Uint64
	limits                                                [len(limitedKinds)]atomic.Uint64
}

// limitedKinds have limits.
var limitedKinds = [...]meta.Kind{meta.KindNamespace, meta.KindApp, meta.KindTopic, meta.KindProducer, meta.KindConsumer}

func (m *metrics) limitedBy(k meta.Kind) {
	for i, kind := range limitedKinds {
		if kind == k {
			m.limits[i].Add(1)
		}
	}
}

func (m *metrics) denied(err error) {
	m.denials[min(int(wire.CodeOf(err)), codesMax-1)].Add(1)
}

func (m *metrics) produced(messages, bytes int, took time.Duration) {
	m.messagesIn.Add(uint64(messages))
	m.bytesIn.Add(uint64(bytes))
	m.batchesIn.Add(1)
	i := 0
	for i < len(DurationBounds) && took > DurationBounds[i] {
		i++
	}
	m.durations[i].Add(1)
	m.durationSum.Add(int64(took))
}

func (m *metrics) delivered(messages uint64, bytes int) {
	m.messagesOut.Add(messages)
	m.bytesOut.Add(uint64(bytes))
}

func (m *metrics) acked(items []wire.AckRange, codes []wire.Code) {
	var acks, releases, refused uint64
	for i, code := range codes {
		n := items[i].To - items[i].From
		switch {
		case code != wire.CodeOK:
			refused++
		case items[i].Outcome == wire.Released:
			releases += n
		default:
			acks += n
		}
	}
	m.acks.Add(acks)
	m.releases.Add(releases)
	m.acksRefused.Add(refused)
}

func (m *metrics) skipped(why wire.GapReason, messages uint64) {
	if why == wire.GapDamaged {
		m.skippedDamaged.Add(messages)
	} else {
		m.skippedTrimmed.Add(messages)
	}
}

func (m *metrics) refused(err error) {
	m.refusals[min(int(wire.CodeOf(err)), codesMax-1)].Add(1)
}

// Metrics returns what the broker has counted.
func (b *Broker) Metrics() Metrics {
	m := &b.metrics
	out := Metrics{
		MessagesIn: m.messagesIn.Load(), BytesIn: m.bytesIn.Load(), BatchesIn: m.batchesIn.Load(),
		MessagesOut: m.messagesOut.Load(), BytesOut: m.bytesOut.Load(),
		Acks: m.acks.Load(), Releases: m.releases.Load(), AcksRefused: m.acksRefused.Load(), ReadErrors: m.readErrors.Load(),
		SkippedDamaged: m.skippedDamaged.Load(), SkippedTrimmed: m.skippedTrimmed.Load(),
		Refused: map[wire.Code]uint64{}, Dispatch: b.dispatch.Metrics(), Offsets: b.offsets().Counts(), Side: b.sideMetrics(),
	}
	for i := range m.durations {
		out.ProduceDuration.Counts[i] = m.durations[i].Load()
	}
	out.ProduceDuration.Sum = time.Duration(m.durationSum.Load())
	out.Denied, out.Limited = map[wire.Code]uint64{}, map[string]uint64{}
	for i := range m.denials {
		if n := m.denials[i].Load(); n > 0 {
			out.Denied[wire.Code(i)] = n
		}
	}
	for i := range m.limits {
		if n := m.limits[i].Load(); n > 0 {
			out.Limited[string(limitedKinds[i])] = n
		}
	}
	out.Metadata = MetadataMetrics{Ruled: b.o.Metadata, TopicsPending: b.metadata.pending.Load()}
	if s := b.metadata.snapshot.Load(); s != nil {
		out.Metadata.Generation, out.Metadata.Version = uint64(s.Generation), uint64(s.Version)
	}
	b.metadata.kept.Lock()
	out.Metadata.TopicsUnknown = len(b.metadata.kept.why)
	b.metadata.kept.Unlock()
	for i := range m.refusals {
		if n := m.refusals[i].Load(); n > 0 {
			out.Refused[wire.Code(i)] = n
		}
	}
	return out
}
