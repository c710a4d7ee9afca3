package wire

// A batch is what a producer sends, a journal record holds and a consumer gets: the same bytes all the way, encoded
// once by the SDK. Little-endian; the broker writes the broker's fields and nothing else, so the SDK's checksum guards
// bodies from end to end.
//
//	 0  length       u32   the whole batch
//	 4  version      u8    1
//	 5  reserved     [3]   0
//	    -- the broker's, 0 when sent --
//	 8  namespace    u32
//	12  partition    u16
//	14  reserved     u16   0
//	16  topic        u64   topic id
//	24  incarnation  u32   of the topic
//	28  reserved     u32   0
//	32  firstIndex   u64   index of the first message in the partition
//	40  stored       i64   unix nanoseconds at the broker
//	48  reserved     u64   0
//	    -- the SDK's, never changed after --
//	56  crc          u32   CRC32C of [60, length)
//	60  compression  u8    of the messages: 0 none, 1 zstd, 2 lz4, 3 snappy
//	61  flags        u8    0
//	62  count        u16   messages, 1..1000
//	64  producer     [16]  producer id
//	80  sequence     u64   of the first message, counted per producer and partition
//	88  rawSize      u32   size of the messages before compression
//	92  reserved     [12]  0
//	104 messages, possibly compressed
//
// A message:
//
//	 0  length       u32   of the whole message
//	 4  id           [16]  ULID
//	20  keyHash      u64   xxhash64 of the order key; 0 without one
//	28  born         i64   unix nanoseconds at the producer
//	36  flag         u16   the user's
//	38  priority     u8    0..9
//	39  attributes   u8    0
//	40  tagHash      u32   of the filter tag; 0 without one
//	44  bodyLength   u32
//	48  then, each with a uvarint length before it: business id, order key, trace context; a uvarint count of
//	    light queues (0 now; each topic id uvarint, name); a uvarint count of headers, each key, value; then the body
//
// FORMAT.md has a worked example, held by a golden test.
const (
	BatchVersion     = 1
	BatchHeaderBytes = 104
)
