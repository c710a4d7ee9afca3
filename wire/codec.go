package wire

import (
	"sync"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Codec compresses and decompresses batches. The zero value is ready; it is safe for concurrent use and has no
// goroutines. It keeps big state: one a process's client or tool is right, and it belongs to its owner, not to the package,
// because zstd keeps channels in it (which tests with fake time may not share).
type Codec struct {
	scratch sync.Pool // *[]byte: messages before compression

	zstdWriter struct {
		sync.Once
		*zstd.Encoder
	}
	zstdReader struct {
		sync.Once
		*zstd.Decoder
	}
}

// AppendBatch is the package's AppendBatch with compression. A batch that compression does not make smaller is written
// without.
func (c *Codec) AppendBatch(dst []byte, producer [16]byte, sequence uint64, compression Compression, msgs []Message) ([]byte, error) {
	if compression == CompressionNone {
		return AppendBatch(dst, producer, sequence, msgs)
	}
	if compression > CompressionSnappy {
		return dst, Errorf(CodeInvalid, "unknown compression %d", uint8(compression))
	}
	scratch, _ := c.scratch.Get().(*[]byte)
	if scratch == nil {
		scratch = new([]byte)
	}
	defer c.scratch.Put(scratch)
	raw, err := appendMessages((*scratch)[:0], msgs)
	if err != nil {
		return dst, err
	}
	*scratch = raw
	begin := len(dst)
	b := appendBatchHeader(dst, producer, sequence, len(msgs))
	b, ok := c.compress(b, compression, raw)
	if !ok {
		compression = CompressionNone
		b = append(b[:begin+BatchHeaderBytes], raw...)
	}
	sealBatch(b[begin:], compression, len(raw))
	return b, nil
}

// compress appends raw, compressed, to b; false when that is not smaller.
func (c *Codec) compress(b []byte, compression Compression, raw []byte) ([]byte, bool) {
	begin := len(b)
	switch compression {
	case CompressionZstd:
		c.zstdWriter.Do(func() {
			e, err := zstd.NewWriter(nil, zstd.WithEncoderCRC(false), zstd.WithWindowSize(1<<20), zstd.WithEncoderConcurrency(2), zstd.WithLowerEncoderMem(true))
			if err != nil {
				panic(err) // constant options
			}
			c.zstdWriter.Encoder = e
		})
		b = c.zstdWriter.EncodeAll(raw, b)
	case CompressionLZ4:
		bound := lz4.CompressBlockBound(len(raw))
		b = append(b, make([]byte, bound)...)
		n, err := lz4.CompressBlock(raw, b[begin:], nil)
		if err != nil || n == 0 { // 0: it cannot be compressed
			return b[:begin], false
		}
		b = b[:begin+n]
	case CompressionSnappy:
		b = append(b, make([]byte, snappy.MaxEncodedLen(len(raw)))...)
		b = b[:begin+len(snappy.Encode(b[begin:], raw))]
	}
	return b, len(b)-begin < len(raw)
}

// Messages returns the messages of b, decompressed into buf when that is needed, in place when not. At most b.RawSize()
// bytes are taken, whatever the compressed bytes say; CodeCorrupt when they do not give exactly those.
func (c *Codec) Messages(b Batch, buf []byte) ([]byte, error) {
	in, size := b[BatchHeaderBytes:], b.RawSize()
	if b.Compression() == CompressionNone {
		return in, nil
	}
	if b.Compression() == CompressionSnappy {
		if n, err := snappy.DecodedLen(in); err != nil || n != size {
			return nil, Errorf(CodeCorrupt, "snappy: %d bytes after decompression, the batch says %d", n, size)
		}
	}
	if cap(buf) < size {
		buf = make([]byte, size)
	}
	buf = buf[:size:size]
	var out []byte
	var err error
	switch b.Compression() {
	case CompressionZstd:
		c.zstdReader.Do(func() {
			d, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(BatchBytesMax), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderConcurrency(2), zstd.WithDecoderLowmem(true))
			if err != nil {
				panic(err) // constant options
			}
			c.zstdReader.Decoder = d
		})
		out, err = c.zstdReader.DecodeAll(in, buf[:0])
	case CompressionLZ4:
		var n int
		if n, err = lz4.UncompressBlock(in, buf); err == nil {
			out = buf[:n]
		}
	case CompressionSnappy:
		out, err = snappy.Decode(buf, in)
	}
	if err != nil {
		return nil, Errorf(CodeCorrupt, "%v: %v", b.Compression(), err)
	}
	if len(out) != size {
		return nil, Errorf(CodeCorrupt, "%v: %d bytes after decompression, the batch says %d", b.Compression(), len(out), size)
	}
	return out, nil
}
