package local

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
)

// A checkpoint is a header and blocks, little-endian (FORMAT.md):
//
//	header  magic "JMQCKPT\0" | version u32 | 0 u32 | store id [16] | position u64 | created i64 | epoch u64 | 0 u32 | crc32c u32
//	block   length u32 | crc32c u32 | kind u8 | 0 [3] | number u32 | payload of length bytes
//
// It says what the records below its position say: the index (which runs it has, and the tails), and each table. crc covers
// everything of a block after itself; number counts the blocks from 0, so that none can be missing; the last is the end.
const (
	checkpointVersion     = 2
	checkpointHeaderBytes = 64
	blockHeaderBytes      = 16
	blockBytesMax         = 16 << 20
	blockEntriesMax       = 8192
	checkpointReadBytes   = 256 << 10
	partitionFixedBytes   = 56
	tableNameBytesMax     = 64

	blockPartition = 1 // topic u64 | incarnation u32 | partition u16 | 0 u16 | first u64 | flushed u64 | last i64 | low u64 | begin u64 | entries
	blockTable     = 2 // nameLength u8 | name | a part of its state
	blockEnd       = 3 // nothing
	blockRuns      = 4 // covered u64, then of each run: from u64 | to u64; the first block

	checkpointPrefix = "checkpoint-"
	checkpointSuffix = ".ckpt"
	checkpointsKept  = 2
)

var checkpointMagic = [8]byte{'J', 'M', 'Q', 'C', 'K', 'P', 'T', 0}

// errCheckpoint: the file is not a whole checkpoint of this store.
var errCheckpoint = errors.New("not a whole checkpoint")

func checkpointName(p journal.Position) string {
	return fmt.Sprintf("%s%020d%s", checkpointPrefix, p, checkpointSuffix)
}

func parseCheckpointName(name string) (journal.Position, bool) {
	s, ok := strings.CutPrefix(name, checkpointPrefix)
	if !ok {
		return 0, false
	}
	if s, ok = strings.CutSuffix(s, checkpointSuffix); !ok || len(s) != 20 {
		return 0, false
	}
	p, err := strconv.ParseUint(s, 10, 64)
	return journal.Position(p), err == nil
}

// checkpointHeader is what a checkpoint says of itself.
type checkpointHeader struct {
	StoreID  [16]byte
	Position journal.Position
	Epoch    journal.Epoch // of the last record below Position
	Created  int64         // unix nanoseconds
}

func (h *checkpointHeader) encode(b []byte) []byte {
	return h.encodeAs(b, checkpointMagic, checkpointVersion)
}

// encodeAs is encode for a file of another kind with the same header.
func (h *checkpointHeader) encodeAs(b []byte, magic [8]byte, version uint32) []byte {
	n := len(b)
	b = append(b, make([]byte, checkpointHeaderBytes)...)
	p := b[n:]
	copy(p, magic[:])
	binary.LittleEndian.PutUint32(p[8:], version)
	copy(p[16:], h.StoreID[:])
	binary.LittleEndian.PutUint64(p[32:], uint64(h.Position))
	binary.LittleEndian.PutUint64(p[40:], uint64(h.Created))
	binary.LittleEndian.PutUint64(p[48:], uint64(h.Epoch))
	binary.LittleEndian.PutUint32(p[60:], crc32.Checksum(p[:60], castagnoli))
	return b
}

func decodeCheckpointHeader(p []byte, magic [8]byte, version uint32) (h checkpointHeader, err error) {
	switch {
	case len(p) < checkpointHeaderBytes:
		return h, fmt.Errorf("%w: %d bytes", errCheckpoint, len(p))
	case !bytes.Equal(p[:8], magic[:]):
		return h, fmt.Errorf("%w: foreign content", errCheckpoint)
	case crc32.Checksum(p[:60], castagnoli) != binary.LittleEndian.Uint32(p[60:]):
		return h, fmt.Errorf("%w: checksum of the header is wrong", errCheckpoint)
	}
	if v := binary.LittleEndian.Uint32(p[8:]); v > version {
		return h, fmt.Errorf("%w: it has version %d, this program reads up to %d", ErrVersion, v, version)
	} else if v < version {
		return h, fmt.Errorf("%w: it has version %d", errCheckpoint, v)
	}
	copy(h.StoreID[:], p[16:])
	h.Position = journal.Position(binary.LittleEndian.Uint64(p[32:]))
	h.Created = int64(binary.LittleEndian.Uint64(p[40:]))
	h.Epoch = journal.Epoch(binary.LittleEndian.Uint64(p[48:]))
	return h, nil
}

// checkpointWriter writes blocks through one buffer.
type checkpointWriter struct {
	f      io.WriterAt
	offset int64
	buf    []byte
	number uint32
	err    error
}

// checkpointBufferBytes is how much is gathered for one write.
const checkpointBufferBytes = 1 << 20

func (w *checkpointWriter) write(force bool) {
	if w.err != nil || len(w.buf) == 0 || (!force && len(w.buf) < checkpointBufferBytes) {
		return
	}
	_, w.err = w.f.WriteAt(w.buf, w.offset)
	w.offset += int64(len(w.buf))
	w.buf = w.buf[:0]
}

// begin starts a block and returns where it lies in buf.
func (w *checkpointWriter) begin(kind byte) int {
	at := len(w.buf)
	w.buf = append(w.buf, 0, 0, 0, 0, 0, 0, 0, 0, kind, 0, 0, 0)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, w.number)
	w.number++
	return at
}

func (w *checkpointWriter) end(at int) {
	p := w.buf[at:]
	binary.LittleEndian.PutUint32(p, uint32(len(p)-blockHeaderBytes))
	binary.LittleEndian.PutUint32(p[4:], crc32.Checksum(p[8:], castagnoli))
	w.write(false)
}

// finish writes the end.
func (w *checkpointWriter) finish() error {
	if w.err == nil {
		w.end(w.begin(blockEnd))
		w.write(true)
	}
	return w.err
}

func (w *checkpointWriter) runs(covered uint64, list []index.RunID) {
	at := w.begin(blockRuns)
	w.buf = binary.LittleEndian.AppendUint64(w.buf, covered)
	for _, r := range list {
		w.buf = binary.LittleEndian.AppendUint64(w.buf, r.From)
		w.buf = binary.LittleEndian.AppendUint64(w.buf, r.To)
	}
	w.end(at)
}

func (w *checkpointWriter) partition(st *index.State) {
	seed := st.Key.Seed()
	begin, tail := st.Flushed, st.Tail
	for {
		part := tail[:min(len(tail), blockEntriesMax)]
		tail = tail[len(part):]
		at := w.begin(blockPartition)
		b := w.buf
		b = binary.LittleEndian.AppendUint64(b, st.Key.Topic)
		b = binary.LittleEndian.AppendUint32(b, st.Key.Incarnation)
		b = binary.LittleEndian.AppendUint16(b, st.Key.Partition)
		b = append(b, 0, 0)
		b = binary.LittleEndian.AppendUint64(b, uint64(st.First))
		b = binary.LittleEndian.AppendUint64(b, uint64(st.Flushed))
		b = binary.LittleEndian.AppendUint64(b, uint64(st.Last))
		b = binary.LittleEndian.AppendUint64(b, st.Low)
		b = binary.LittleEndian.AppendUint64(b, uint64(begin))
		for i := range part {
			b = index.AppendEntry(b, seed, begin+index.Index(i), &part[i])
		}
		w.buf = b
		w.end(at)
		begin += index.Index(len(part))
		if len(tail) == 0 || w.err != nil {
			return
		}
	}
}

func (w *checkpointWriter) table(name string, state []byte) {
	for {
		part := state[:min(len(state), checkpointBufferBytes)]
		state = state[len(part):]
		at := w.begin(blockTable)
		w.buf = append(w.buf, byte(len(name)))
		w.buf = append(w.buf, name...)
		w.buf = append(w.buf, part...)
		w.end(at)
		if len(state) == 0 || w.err != nil {
			return
		}
	}
}

// checkpointVisitor is told what a checkpoint holds.
type checkpointVisitor struct {
	// runs is called first, once.
	runs func(covered uint64, list []index.RunID)
	// partition is called with a partition's first part; more is false. With more, Tail continues what came before.
	partition func(st *index.State, more bool) error
	// table is called with the whole state of each.
	table func(name string, state []byte) error
}

// readCheckpoint decodes a checkpoint. With a nil visitor it only checks that it is whole. Errors that are not the
// reader's or the visitor's wrap errCheckpoint or ErrVersion. Memory is bounded by the largest table.
func readCheckpoint(r io.Reader, v *checkpointVisitor) (h checkpointHeader, err error) {
	return readBlocks(r, checkpointMagic, checkpointVersion, v)
}

// readBlocks is readCheckpoint for a file of another kind with the same blocks.
func readBlocks(r io.Reader, magic [8]byte, version uint32, v *checkpointVisitor) (h checkpointHeader, err error) {
	br := bufio.NewReaderSize(r, checkpointReadBytes) // r itself, if it is one
	var head [checkpointHeaderBytes]byte
	n, err := io.ReadFull(br, head[:])
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return h, err
	}
	if h, err = decodeCheckpointHeader(head[:n], magic, version); err != nil {
		return h, err
	}
	var (
		payload []byte
		last    index.State // the partition that is being read
		next    index.Index // where its next part must begin
		any     bool
		table   string
		state   []byte
	)
	endTable := func() error {
		if table == "" || v == nil {
			return nil
		}
		err := v.table(table, state)
		table, state = "", state[:0]
		return err
	}
	for number := uint32(0); ; number++ {
		var bh [blockHeaderBytes]byte
		if _, err := io.ReadFull(br, bh[:]); err != nil {
			return h, cut(err)
		}
		length, kind := binary.LittleEndian.Uint32(bh[0:]), bh[8]
		if length > blockBytesMax || binary.LittleEndian.Uint32(bh[12:]) != number {
			return h, fmt.Errorf("%w: header of block %d is wrong", errCheckpoint, number)
		}
		// Grown as bytes come, so that a wrong length costs no memory.
		payload = payload[:0]
		for len(payload) < int(length) {
			n := min(int(length)-len(payload), 64<<10)
			at := len(payload)
			payload = slices.Grow(payload, n)[:at+n]
			if _, err := io.ReadFull(br, payload[at:]); err != nil {
				return h, cut(err)
			}
		}
		if crc32.Update(crc32.Checksum(bh[8:], castagnoli), castagnoli, payload) != binary.LittleEndian.Uint32(bh[4:]) {
			return h, fmt.Errorf("%w: checksum of block %d is wrong", errCheckpoint, number)
		}
		if (kind == blockRuns) != (number == 0) {
			return h, fmt.Errorf("%w: block %d has kind %d", errCheckpoint, number, kind)
		}
		switch kind {
		case blockRuns:
			covered, list, err := decodeRuns(payload)
			if err != nil {
				return h, fmt.Errorf("%w: block %d: %w", errCheckpoint, number, err)
			}
			if v != nil {
				v.runs(covered, list)
			}
		case blockPartition:
			st, begin, err := decodePartition(payload)
			if err != nil {
				return h, fmt.Errorf("%w: block %d: %w", errCheckpoint, number, err)
			}
			more := begin != st.Flushed
			if more && (!any || st.Key != last.Key || begin != next || st.First != last.First || st.Flushed != last.Flushed) {
				return h, fmt.Errorf("%w: block %d continues nothing", errCheckpoint, number)
			}
			last, next, any = st, begin+index.Index(len(st.Tail)), true
			last.Tail = nil
			if v != nil {
				if err := v.partition(&st, more); err != nil {
					return h, err
				}
			}
		case blockTable:
			if len(payload) < 1 || payload[0] == 0 || len(payload) < 1+int(payload[0]) {
				return h, fmt.Errorf("%w: block %d: name of the table is cut", errCheckpoint, number)
			}
			name := string(payload[1 : 1+payload[0]])
			if name != table {
				if err := endTable(); err != nil {
					return h, err
				}
				table = name
			}
			if v != nil {
				state = append(state, payload[1+len(name):]...)
			}
		case blockEnd:
			if err := endTable(); err != nil {
				return h, err
			}
			if _, err := br.ReadByte(); !errors.Is(err, io.EOF) {
				return h, fmt.Errorf("%w: something follows its end", errCheckpoint)
			}
			return h, nil
		default:
			return h, fmt.Errorf("%w: block %d has unknown kind %d", errCheckpoint, number, kind)
		}
	}
}

func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is cut", errCheckpoint)
	}
	return err
}

func decodeRuns(p []byte) (covered uint64, list []index.RunID, err error) {
	if len(p)%16 != 8 {
		return 0, nil, fmt.Errorf("runs of %d bytes", len(p))
	}
	covered = binary.LittleEndian.Uint64(p)
	last := uint64(0)
	for p = p[8:]; len(p) > 0; p = p[16:] {
		r := index.RunID{From: binary.LittleEndian.Uint64(p), To: binary.LittleEndian.Uint64(p[8:])}
		if r.From < last || r.To <= r.From || r.To > covered {
			return 0, nil, fmt.Errorf("run %v cannot be", r)
		}
		last = r.To
		list = append(list, r)
	}
	return covered, list, nil
}

func decodePartition(p []byte) (st index.State, begin index.Index, err error) {
	if len(p) < partitionFixedBytes || (len(p)-partitionFixedBytes)%index.EntryBytes != 0 {
		return st, 0, fmt.Errorf("partition of %d bytes", len(p))
	}
	st.Key.Topic = binary.LittleEndian.Uint64(p[0:])
	st.Key.Incarnation = binary.LittleEndian.Uint32(p[8:])
	st.Key.Partition = binary.LittleEndian.Uint16(p[12:])
	st.First = index.Index(binary.LittleEndian.Uint64(p[16:]))
	st.Flushed = index.Index(binary.LittleEndian.Uint64(p[24:]))
	st.Last = int64(binary.LittleEndian.Uint64(p[32:]))
	st.Low = binary.LittleEndian.Uint64(p[40:])
	begin = index.Index(binary.LittleEndian.Uint64(p[48:]))
	if begin < st.Flushed {
		return st, 0, errors.New("tail begins below what the runs hold")
	}
	p = p[partitionFixedBytes:]
	seed := st.Key.Seed()
	st.Tail = make([]index.Entry, 0, len(p)/index.EntryBytes)
	for i := begin; len(p) > 0; i++ {
		e, wrong := index.DecodeEntry(seed, i, p)
		if wrong != "" {
			return st, 0, errors.New(wrong)
		}
		st.Tail = append(st.Tail, e)
		p = p[index.EntryBytes:]
	}
	return st, begin, nil
}

// checkpoints lists those of the folder, the newest first, and removes what a crash left half written.
func (f *folder) checkpoints() ([]journal.Position, error) {
	names, err := f.fs.List(f.dir)
	if err != nil {
		return nil, fmt.Errorf("store: list folder %s: %w", f.dir, err)
	}
	var found []journal.Position
	for _, n := range names {
		if s, ok := strings.CutSuffix(n, temporary); ok {
			if _, ok := parseCheckpointName(s); ok {
				if err := f.fs.Remove(f.path(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return nil, fmt.Errorf("store: remove %s: %w", f.path(n), err)
				}
			}
			continue
		}
		if p, ok := parseCheckpointName(n); ok {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b journal.Position) int {
		switch {
		case a > b:
			return -1
		case a < b:
			return 1
		}
		return 0
	})
	return found, nil
}

// keepOnly removes all checkpoints but that of a position, and what is half written.
func (f *folder) keepOnly(p journal.Position) error {
	all, err := f.checkpoints() // it removes what is half written
	if err != nil {
		return err
	}
	for _, other := range all {
		if other == p {
			continue
		}
		if err := f.fs.Remove(f.path(checkpointName(other))); err != nil {
			return fmt.Errorf("store: remove old checkpoint: %w", err)
		}
	}
	return syncDir(f.fs, f.dir)
}

// openCheckpoint checks that the checkpoint of that position is whole and this store's, and gives it to v.
func (f *folder) openCheckpoint(p journal.Position, v *checkpointVisitor) (h checkpointHeader, err error) {
	path := f.path(checkpointName(p))
	r, err := f.fs.Open(path)
	if err != nil {
		return h, fmt.Errorf("store: open %s: %w", path, err)
	}
	defer r.Close()
	st, err := r.Stat()
	if err != nil {
		return h, fmt.Errorf("store: look at %s: %w", path, err)
	}
	// Twice: what is restored must be whole.
	for _, v := range []*checkpointVisitor{nil, v} {
		h, err = readCheckpoint(io.NewSectionReader(r, 0, st.Size()), v)
		if err == nil && h.StoreID != f.storeID {
			err = fmt.Errorf("%w: it is of another store (%x)", errCheckpoint, h.StoreID)
		}
		if err == nil && h.Position != p {
			err = fmt.Errorf("%w: it is that of position %d", errCheckpoint, h.Position)
		}
		if err != nil {
			return h, fmt.Errorf("store: %s: %w", path, err)
		}
	}
	return h, nil
}

// writeCheckpoint writes a checkpoint: new file, synced, renamed, folder synced; then drops those that are not kept.
func (f *folder) writeCheckpoint(h *checkpointHeader, fill func(*checkpointWriter) error) (size int64, err error) {
	path := f.path(checkpointName(h.Position))
	name := path + temporary
	if err := f.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("store: remove %s: %w", name, err)
	}
	vf, err := f.fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return 0, fmt.Errorf("store: make %s: %w", name, err)
	}
	w := &checkpointWriter{f: vf, buf: h.encode(nil)}
	if w.err = fill(w); w.finish() == nil {
		w.err = vf.Sync()
	}
	if err := errors.Join(w.err, vf.Close()); err != nil {
		return 0, fmt.Errorf("store: write %s: %w", name, err)
	}
	if err := f.fs.Rename(name, path); err != nil {
		return 0, fmt.Errorf("store: rename %s: %w", name, err)
	}
	if err := syncDir(f.fs, f.dir); err != nil {
		return 0, err
	}
	all, err := f.checkpoints()
	if err != nil {
		return 0, err
	}
	for i, p := range all {
		if i >= checkpointsKept {
			if err := f.fs.Remove(f.path(checkpointName(p))); err != nil {
				return 0, fmt.Errorf("store: remove old checkpoint: %w", err)
			}
		}
	}
	return w.offset, nil
}
