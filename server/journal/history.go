package journal

// EpochStart says where an epoch begins in a journal.
type EpochStart struct {
	Epoch    Epoch
	Position Position
	Forced   bool // its term was granted by force: what others know to be committed beyond may be cut for it
}
