package local

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jmqio/jmq/server/dedupe"
	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/planted"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// pending is one record on its way into the log. It comes from the store's pool and goes back when it is committed.
type pending struct {
	journal.Append
	entry [1]journal.Entry

	part     *part          // of a batch, else nil
	window   *dedupe.Window // of a batch whose producer has an id, else nil
	first    index.Index
	batch    index.Batch
	tags     []uint32
	header   [wire.BatchHeaderBytes]byte // what tables see of a batch
	payload  []byte                      // what tables see of another record
	batchOK  func(first index.Index, stored int64, err error)
	recordOK func(error)
}

// payloadKeptMax is the largest buffer that stays with a pooled pending.
const payloadKeptMax = 64 << 10

func (s *Store) take() *pending {
	if a, ok := s.pendings.Get().(*pending); ok {
		return a
	}
	a := new(pending)
	a.Entries = a.entry[:]
	a.Done = func(_ *journal.Append, err error) { s.committed(a, err) }
	return a
}

func (s *Store) put(a *pending) {
	a.part, a.window, a.batchOK, a.recordOK = nil, nil, nil, nil
	a.entry[0] = journal.Entry{}
	a.batch.Tags = nil
	a.Urgent, a.Control, a.Replicated, a.Short = false, false, false, false
	if cap(a.payload) > payloadKeptMax {
		a.payload = nil
	}
	s.pendings.Put(a)
}

// AppendBatch gives the batch its place, appends it and sees to a commit.
func (s *Store) AppendBatch(p store.Partition, batch []byte, done func(first index.Index, stored int64, err error)) error {
	if err := s.QueueBatch(p, batch, done); err != nil {
		return err
	}
	s.Commit()
	return nil
}

// Commit starts a commit of what is queued, if none is running.
func (s *Store) Commit() { s.log.TryLead() }

// QueueBatch gives the batch its place and appends it.
func (s *Store) QueueBatch(p store.Partition, batch []byte, done func(first index.Index, stored int64, err error)) error {
	st, pt, err := s.partOf(p)
	if err != nil {
		return err
	}
	b, err := wire.ParseBatch(batch)
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrBatch, err)
	}
	a := s.take()
	a.part, a.batchOK = pt, done
	a.Replicated = st.topic.Settings.Durability == store.DurabilityReplicated
	a.batch = index.Batch{Size: uint32(len(b)), Count: uint16(b.Count())}
	if a.tags, a.batch.Tags, err = tagsOf(b, a.tags); err != nil {
		s.put(a)
		return err
	}
	key := dedupe.Key{Producer: b.Producer(), Topic: uint64(p.Topic), Incarnation: p.Incarnation, Partition: p.Partition}
	fields := wire.BrokerFields{Namespace: pt.namespace, Partition: p.Partition, Topic: uint64(p.Topic), Incarnation: p.Incarnation}
	a.entry[0] = journal.Entry{Kind: journal.KindMessages, Payload: b}

	s.order.Lock()
	if err = s.takesLocked(); err == nil && pt.ended {
		err = fmt.Errorf("%w: topic %d, incarnation %d is being deleted", store.ErrNoPartition, p.Topic, p.Incarnation)
	}
	var known dedupe.Verdict
	var first index.Index
	var stored int64
	if err == nil && key.Producer != [16]byte{} {
		a.window, known, first, stored = s.dedupe.Begin(key, b.Sequence(), b.Count(), done)
	}
	if err == nil && known == dedupe.Fresh {
		a.Stored = s.opt.Now().UnixNano()
		a.first, a.batch.Stored = pt.assigned, a.Stored
		fields.FirstIndex, fields.StoredNs = uint64(a.first), a.Stored
		b.SetBroker(fields)
		copy(a.header[:], b)
		if err = s.log.Append(&a.Append); err == nil {
			pt.assigned += index.Index(b.Count())
		} else if a.window != nil {
			s.dedupe.Cancel(a.window)
		}
	}
	s.order.Unlock()
	if err != nil || known != dedupe.Fresh {
		replicated := a.Replicated
		s.put(a)
		if err == nil {
			err = s.repeated(known, first, stored, replicated, b, done)
		}
	}
	return err
}

// repeated answers a batch that is not stored since it, or another, was.
func (s *Store) repeated(known dedupe.Verdict, first index.Index, stored int64, replicated bool, b wire.Batch, done dedupe.Done) error {
	switch known {
	case dedupe.Conflict:
		return fmt.Errorf("%w: %w", store.ErrBatch, wire.Errorf(wire.CodeInvalid,
			"sequences %d to %d of the producer are in part those of another batch", b.Sequence(), b.Sequence()+uint64(b.Count())))
	case dedupe.Busy:
		return journal.ErrBusy
	case dedupe.Repeat:
		if replicated {
			return s.confirm(first, stored, done)
		}
		done(first, stored, nil)
	}
	return nil
}

// confirm answers the repeat of a batch of a replicated topic, which may have been committed on one machine alone: when what is written
// now is on two, everything before it is.
func (s *Store) confirm(first index.Index, stored int64, done dedupe.Done) error {
	a := s.take()
	a.recordOK = func(err error) {
		if err != nil {
			first, stored = 0, 0
		}
		done(first, stored, err)
	}
	a.Replicated = true
	a.payload = a.payload[:0]
	a.entry[0] = journal.Entry{Kind: journal.KindNoop}
	return s.appendPending(a, nil)
}

// takesLocked says whether anything may be appended. s.order is held.
func (s *Store) takesLocked() error {
	if p := s.failure.Load(); p != nil {
		return *p
	}
	if s.order.closed {
		return journal.ErrClosed
	}
	return nil
}

const (
	// Of a message, wire/batch.go: the fixed part, of which the last byte says whether a tag hash follows it.
	messageBytesMin = 32
	messageHasTag   = 1
)

// tagsOf puts the tag hashes of the batch's messages into buf, and returns it and what the index takes: nil when no message
// has a tag or the batch is compressed. It steps from length to length and looks at nothing else: the messages were judged
// by whoever took them from outside, and lengths that do not fill the batch are an error only because this walk needs them.
func tagsOf(b wire.Batch, buf []uint32) (kept, tags []uint32, err error) {
	buf = buf[:0]
	if b.Compression() != wire.CompressionNone {
		return buf, nil, nil
	}
	rest, some := b[wire.BatchHeaderBytes:], uint32(0)
	for i := range b.Count() {
		if len(rest) < messageBytesMin {
			return buf, nil, fmt.Errorf("%w: message %d is cut", store.ErrBatch, i)
		}
		n := binary.LittleEndian.Uint32(rest)
		if n < messageBytesMin || uint64(n) > uint64(len(rest)) {
			return buf, nil, fmt.Errorf("%w: message %d has length %d of %d", store.ErrBatch, i, n, len(rest))
		}
		tag := uint32(0)
		if rest[messageBytesMin-1]&messageHasTag != 0 && n >= messageBytesMin+4 {
			tag = binary.LittleEndian.Uint32(rest[messageBytesMin:])
			some |= tag
		}
		buf = append(buf, tag)
		rest = rest[n:]
	}
	if len(rest) != 0 {
		return buf, nil, fmt.Errorf("%w: %d bytes after the last message", store.ErrBatch, len(rest))
	}
	if some == 0 {
		return buf, nil, nil
	}
	return buf, buf, nil
}

// AppendRecord appends one record of another kind.
func (s *Store) AppendRecord(kind journal.Kind, payload []byte, done func(error)) error {
	if err := s.appendRecord(kind, payload, done, false); err != nil {
		return err
	}
	s.log.TryLead()
	return nil
}

func (s *Store) appendRecord(kind journal.Kind, payload []byte, done func(error), urgent bool) error {
	switch kind {
	case 0, journal.KindNoop, journal.KindEpoch, journal.KindMessages:
		panic(fmt.Sprintf("store: AppendRecord of kind %d", kind))
	}
	a := s.take()
	a.recordOK = done
	a.Urgent, a.Control = urgent, isControl(kind)
	a.payload = append(a.payload[:0], payload...)
	a.entry[0] = journal.Entry{Kind: kind, Payload: a.payload}
	return s.appendPending(a, nil)
}

// isControl says which records go on in the log's reserve when the disk is full: those that let consumers and operators free it.
func isControl(kind journal.Kind) bool {
	switch kind {
	case journal.KindEnd, journal.KindLeaseExpiry, journal.KindOffsetReset, journal.KindRetryHandoff, journal.KindRetryEnd, journal.KindTopic:
		return true
	}
	return false
}

// appendPending appends a record that is not a batch. placed is called under the order lock when it has its place.
func (s *Store) appendPending(a *pending, placed func()) error {
	s.order.Lock()
	err := s.takesLocked()
	if a.Urgent && errors.Is(err, journal.ErrClosed) {
		err = nil // a closing log lets in what was held back
	}
	if err == nil {
		a.Stored = s.opt.Now().UnixNano()
		err = s.log.Append(&a.Append)
	}
	if err == nil && placed != nil {
		placed()
	}
	s.order.Unlock()
	if err != nil {
		s.put(a)
	}
	return err
}

// beforeCommit asks for the records that were held back. The log calls it at the start of each commit.
func (s *Store) beforeCommit() {
	if s.opt.Gather == nil || !s.started.Load() {
		return
	}
	s.opt.Gather(s.add)
}

func (s *Store) gathered(kind journal.Kind, payload []byte, done func(error)) {
	if err := s.appendRecord(kind, payload, done, true); err != nil {
		done(err)
	}
}

// committed is called by the log for each record, in order.
func (s *Store) committed(a *pending, err error) {
	if err == nil {
		rec := journal.Record{
			Kind: a.entry[0].Kind, Position: a.entry[0].Position, Stored: a.Stored, Payload: a.payload,
		}
		size := len(a.payload)
		if a.part != nil {
			rec.Payload, size = a.header[:], int(a.batch.Size)
			a.batch.Position = uint64(rec.Position)
		}
		rec.Epoch = s.log.Epoch()
		err = s.applyRecord(&rec, size, a.part, a.first, &a.batch)
		if err == nil && a.part != nil && !a.part.grown {
			a.part.grown = true
			s.grown = append(s.grown, a.part)
		}
	}
	var repeats []dedupe.Done
	if err != nil {
		s.fail()
		if a.window != nil {
			repeats = s.dedupe.Fail(a.window)
		}
	} else if a.Short {
		err = store.ErrOneCopy
	}
	if a.window != nil {
		repeats = append(repeats, s.dedupe.Landed()...)
	}
	batchOK, recordOK, first, stored := a.batchOK, a.recordOK, a.first, a.Stored
	s.put(a)
	if batchOK != nil {
		if err != nil {
			first, stored = 0, 0
		}
		batchOK(first, stored, err)
		for _, done := range repeats {
			done(first, stored, err)
		}
	} else {
		recordOK(err)
	}
}

// applyRecord puts one committed record into the index and the tables. size is that of its payload. Live and recovery
// come through here.
func (s *Store) applyRecord(rec *journal.Record, size int, pt *part, first index.Index, b *index.Batch) error {
	s.apply.Lock()
	defer s.apply.Unlock()
	if s.apply.err != nil {
		return s.unappliedLocked()
	}
	if err := s.applyLocked(rec, pt, first, b); err != nil {
		s.apply.err = fmt.Errorf("store: record at position %d cannot be applied: %w", rec.Position, err)
		return s.unappliedLocked()
	}
	s.apply.end = rec.Position + journal.Position(journal.RecordBytes(size))
	s.apply.epoch = rec.Epoch
	s.apply.since += int64(journal.RecordBytes(size))
	if s.apply.since >= s.opt.CheckpointBytes || s.index.TailBytes() > s.opt.IndexTailBytesMax {
		s.background.kick()
	}
	return nil
}

// unappliedLocked is what whoever appended a record is told when it is in the log, but cannot be applied.
func (s *Store) unappliedLocked() error { return fmt.Errorf("%w: %w", journal.ErrUnknown, s.apply.err) }

func (s *Store) applyLocked(rec *journal.Record, pt *part, first index.Index, b *index.Batch) error {
	switch rec.Kind {
	case journal.KindNoop, journal.KindEpoch:
		return nil
	case journal.KindCarriedForward:
		return s.moveLocked(rec)
	case journal.KindMessages:
		var err error
		if !s.started.Load() { // a Reset may come yet
			pt.end, err = s.index.Append(pt.key(), first, b)
		} else {
			if pt.ref == (index.Ref{}) {
				pt.ref = s.index.Ref(pt.key())
			}
			pt.end, err = s.index.AppendTo(pt.ref, first, b)
		}
		if err != nil {
			return err
		}
	}
	if err := s.applyTopic(rec); err != nil {
		return fmt.Errorf("table %s: %w", topicsTable, err)
	}
	if rec.Kind == journal.KindEnd && s.opt.Follow && planted.Bug("store: slave knows no ends") {
		return nil
	}
	for _, t := range s.tables[1:] {
		if err := t.Apply(*rec); err != nil {
			return fmt.Errorf("table %s: %w", t.Name(), err)
		}
	}
	return nil
}

// afterCommit is called by the log when all records of a commit were called back.
func (s *Store) afterCommit() {
	if !s.started.Load() {
		return
	}
	w := s.watch.Load()
	for i, pt := range s.grown {
		pt.grown = false
		s.grown[i] = nil
		if w != nil && !pt.gone { // else it was deleted in the same commit
			(*w)(pt.id, pt.end)
		}
	}
	s.grown = s.grown[:0]
	s.opt.AfterCommit()
}
