package retention

import "time"

// Level is how full the fullest of the disks, and of the limit, is.
type Level int

const (
	OK          Level = iota
	Warn              // told to people
	EarlyDelete       // what every group has consumed goes before its time
	Refuse            // sends are refused
)

func (l Level) String() string {
	return [...]string{"ok", "warn", "early-delete", "refusing"}[l]
}

// marks are the shares at which the levels begin. A level is left a little below its mark, so that it does not flap.
type marks [Refuse + 1]float64

// hysteresis is how far below its mark a level is left, as a share.
const hysteresis = 0.02

func (m *marks) leave(l Level) float64 { return max(m[l]-hysteresis, m[l]/2) }

// next is the level at a share of the room in use.
func (m *marks) next(before Level, share float64) Level {
	for l := Refuse; l > OK; l-- {
		if share >= m[l] || l <= before && share > m.leave(l) {
			return l
		}
	}
	return OK
}

// room is something that can be full: a disk, or the limit.
type room struct {
	what  string // for people: "the disk of /data", "broker.store.bytesMax"
	used  int64
	total int64 // 0: it cannot be read
}

func (r *room) share() float64 {
	if r.total <= 0 {
		return 0
	}
	return float64(r.used) / float64(r.total)
}

// beyond is how many bytes are in use above a share of the room; negative: so many are free below it.
func (r *room) beyond(share float64) int64 { return r.used - int64(share*float64(r.total)) }

// fullest is the room that decides; the zero room when none can be read.
func fullest(rooms []room) room {
	var out room
	for _, r := range rooms {
		if r.total > 0 && (out.total == 0 || r.share() > out.share()) {
			out = r
		}
	}
	return out
}

const (
	bytesPerSecondMax = 1 << 30 // no disk fills faster
	lookEveryMin      = 20 * time.Millisecond
	lookEveryFull     = time.Second // at Refuse: only acks and control records come
)

// lookAfter is when the rooms must be looked at again so that Refuse is not overrun: before the fastest disk has filled what is
// left, at most after every.
func (m *marks) lookAfter(l Level, rooms []room, every time.Duration) time.Duration {
	if l == Refuse {
		return min(lookEveryFull, every)
	}
	after := every
	for _, r := range rooms {
		if r.total <= 0 {
			continue
		}
		if left := max(0, float64(-r.beyond(m[Refuse]))) / bytesPerSecondMax; left < after.Seconds() {
			after = time.Duration(left * float64(time.Second))
		}
	}
	return max(after, min(lookEveryMin, every))
}
