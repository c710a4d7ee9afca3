package wire

// Limits that both sides check before they take memory.
const (
	BodyBytesMax     = 4 << 20               // one message's body
	BatchBytesMax    = BodyBytesMax + 64<<10 // one encoded batch
	BatchMessagesMax = 1000
	NameBytesMax     = 255     // topic, app, group, business id, order key
	HelloBytesMax    = 4 << 10 // any frame before the hello is done
	FrameBytesMax    = BatchBytesMax + 64<<10
	PartitionsMax    = 1 << 16
)
