package wire

// Limits that both sides check before they take memory.
const (
	BodyBytesMax     = 4 << 20               // one message's body
	BatchBytesMax    = BodyBytesMax + 64<<10 // one encoded batch, and its messages before compression
	BatchMessagesMax = 1000
	NameBytesMax     = 255     // topic, app, group, business id, order key, tag
	HelloBytesMax    = 4 << 10 // any frame before it is known who the peer is
	FrameBytesMax    = BatchBytesMax + 64<<10
	PartitionsMax    = 1 << 16

	HeadersMax           = 64       // headers of one message, the tag's among them
	HeaderValueBytesMax  = 16 << 10 // a header's value; its key: NameBytesMax
	TraceContextBytesMax = 1 << 10

	// FetchBytesMax bounds FetchRequest.BytesMax. Batches are given whole, so an answer may pass it by one batch.
	FetchBytesMax = 4 << 20
	FetchHeldMax  = 1000 // leases that a fetch may name as held
	// ReplyBytesMax bounds every frame that a server sends.
	ReplyBytesMax = FetchBytesMax + FrameBytesMax

	WatchedTopicsMax   = 1000
	WatchWaitMsMax     = 60_000
	ObjectWritesMax    = 1000               // of one ApplyObjects
	SpecBytesMax       = 1 << 20            // of one object
	ObjectNameBytesMax = 2*NameBytesMax + 1 // TOPIC/GROUP
	ReasonBytesMax     = 1 << 10
	watchesMax         = 16 // parked watches of a session
	heartbeatTextsMax  = 64 // addresses, labels or roles of a node
	pageMax            = 10_000
)
