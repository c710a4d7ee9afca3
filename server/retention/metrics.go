package retention

import "time"

// Metrics of a Keeper; counters since Start.
type Metrics struct {
	Level      Level
	Share      float64 // of the fullest room in use
	Disks      []Disk
	Limit      int64 // Options.BytesMax
	Limited    int64 // bytes that count towards it; 0 without one
	Gone       bool  // a folder of the store is gone
	Suspended  time.Duration
	Jumps      uint64 // of the clock
	Abandoned  int    // (group, topic)
	TrimmedAge uint64 // messages
	TrimmedSize,
	TrimmedEarly uint64
	Reclaimed int64 // bytes
	Passes    uint64
	Errors    uint64 // passes that did not do all they had to
}

// Metrics returns what the Keeper has seen and counted.
func (k *Keeper) Metrics() Metrics {
	s, c := k.snapshot()
	return Metrics{
		Level: s.level, Share: s.fullest.share(), Disks: s.disks, Limit: k.o.BytesMax, Limited: s.limited, Gone: s.gone != "",
		Suspended: s.left, Jumps: c.jumps, Abandoned: len(s.abandoned),
		TrimmedAge: c.trimmed[byAge], TrimmedSize: c.trimmed[bySize], TrimmedEarly: c.trimmed[early],
		Reclaimed: c.reclaimed, Passes: c.passes, Errors: c.errors,
	}
}
