package retention

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

const (
	holdsDefault = 20
	holdsMost    = 1000
	holesMost    = 1000
)

// Usage says what lies on the disks, and why it is still there.
func (k *Keeper) Usage(_ context.Context, r *wire.StoreUsageRequest) (*wire.StoreUsageResponse, error) {
	most := int(min(r.GetHoldsMax(), holdsMost))
	if most == 0 {
		most = holdsDefault
	}
	u, err := k.o.Store.Usage(most)
	if err != nil {
		return nil, err
	}
	s, _ := k.snapshot()
	wall := k.o.Now()
	out := &wire.StoreUsageResponse{
		JournalBytes: uint64(u.JournalBytes), IndexBytes: uint64(u.IndexBytes), CheckpointBytes: uint64(u.CheckpointBytes),
		DamagedBytes: uint64(u.DamagedBytes), Segments: uint32(u.Segments), Begin: uint64(u.Begin), End: uint64(u.End), OldestNs: u.Oldest,
		LimitBytes: uint64(k.o.BytesMax), LimitedBytes: uint64(limitedBytes(&u)), State: s.level.String(),
	}
	if s.gone != "" {
		out.State = Refuse.String()
	}
	if s.left > 0 {
		out.Retention = fmt.Sprintf("nothing goes by age for %s: %s", ageText(s.left), s.suspended)
	}
	for _, d := range s.disks {
		out.Disks = append(out.Disks, &wire.DiskUsage{What: d.What, Folder: d.Folder, Total: uint64(d.Total), Free: uint64(d.Free), Error: d.Error})
	}
	for _, h := range u.Holds {
		out.Holds = append(out.Holds, k.explain(&h, &s, wall))
	}
	for _, h := range u.Holes[:min(len(u.Holes), holesMost)] {
		out.Holes = append(out.Holes, &wire.StoreHole{From: uint64(h.From), To: uint64(h.To), Messages: h.Messages})
	}
	out.Why = why(&u, &s, out.Holds, wall, k.o.Follows)
	return out, nil
}

// limitedBytes is what counts towards Options.BytesMax.
func limitedBytes(u *store.Usage) int64 {
	return u.JournalBytes + u.IndexBytes + u.CheckpointBytes + u.DamagedBytes
}

// explain names a hold: the group that has not consumed it, or what keeps it though every group has.
func (k *Keeper) explain(h *store.Hold, s *status, wall time.Time) *wire.StoreHold {
	out := &wire.StoreHold{
		Topic: fmt.Sprintf("topic %d, which was deleted", h.Partition.Topic), Partition: uint32(h.Partition.Partition),
		First: uint64(h.First), Bytes: uint64(h.Bytes), SinceNs: h.Stored, Why: h.Why,
	}
	t, ok := k.find(h.Partition)
	if !ok {
		if out.Why == "" {
			out.Why = "the next pass frees it"
		}
		return out
	}
	out.Topic = t.Name
	if h.Why != "" {
		return out
	}
	count := k.o.Groups(topicKey(&t))
	for _, a := range s.abandoned {
		if a.Topic != t.ID {
			continue
		}
		kept := count[:0:0]
		for _, g := range count {
			if g.ID != a.Group {
				kept = append(kept, g)
			}
		}
		count = kept
	}
	l := k.o.limitsOf(t.Settings)
	by, ack := slowest(count, h.Partition.Partition)
	if by != nil && ack <= h.First && !l.discard {
		out.Group = by.Name
		out.Why = "group " + by.Name + " has not consumed it"
		more := -1
		for i := range count {
			if count[i].ack(h.Partition.Partition) <= h.First {
				more++
			}
		}
		if more > 0 {
			out.Why += fmt.Sprintf(", nor %d more", more)
		}
		return out
	}
	var parts []string
	if by == nil {
		parts = append(parts, "no group consumes it")
	} else if ack > h.First {
		parts = append(parts, fmt.Sprintf("every group has consumed it below %d", ack))
	}
	old := wall.Sub(time.Unix(0, h.Stored))
	switch {
	case l.age > 0 && s.left > 0:
		parts = append(parts, "nothing goes by age at the moment")
	case l.age > 0 && old >= l.age:
		parts = append(parts, "older than "+ageText(l.age)+": the next pass trims it")
	case l.age > 0:
		parts = append(parts, "goes by age in "+ageText(l.age-old))
	}
	if l.bytes > 0 {
		or := "goes"
		if l.age > 0 {
			or = "or"
		}
		parts = append(parts, fmt.Sprintf("%s when the topic has over %s", or, bytesText(l.bytes)))
	}
	if l.age == 0 && l.bytes == 0 {
		parts = append(parts, "the topic is kept for ever")
	}
	out.Why = strings.Join(parts, ", ")
	return out
}

func (k *Keeper) find(p store.Partition) (store.Topic, bool) {
	for _, t := range k.o.Store.Topics() {
		if t.ID == p.Topic && t.Incarnation == p.Incarnation {
			return t, true
		}
	}
	return store.Topic{}, false
}

// why is what state the store is in, and what would have to happen for its oldest segment to go.
func why(u *store.Usage, s *status, holds []*wire.StoreHold, wall time.Time, follows bool) string {
	var b strings.Builder
	switch {
	case s.gone != "":
		fmt.Fprintf(&b, "Sends are refused: %s. ", s.gone)
	case s.level == Refuse:
		fmt.Fprintf(&b, "Sends are refused: %s. ", fullText(s.fullest))
	case s.level == EarlyDelete:
		fmt.Fprintf(&b, "What every group has consumed goes before its time: %s. ", fullText(s.fullest))
	case s.level == Warn:
		fmt.Fprintf(&b, "Mind that %s. ", fullText(s.fullest))
	}
	begun := ""
	if u.Oldest > 0 {
		begun = fmt.Sprintf(", begun %s ago,", ageText(wall.Sub(time.Unix(0, u.Oldest))))
	}
	switch {
	case u.Segments <= 1:
		b.WriteString("The journal is one segment, which is being written.")
	case follows && len(holds) == 0:
		fmt.Fprintf(&b, "Nothing holds the oldest segment%s so it goes when the master lets go of it.", strings.TrimSuffix(begun, ",")+",")
	case len(holds) == 0:
		fmt.Fprintf(&b, "Nothing holds the oldest segment%s so the next pass frees it.", strings.TrimSuffix(begun, ",")+",")
	default:
		h := holds[0]
		fmt.Fprintf(&b, "The oldest segment%s is kept by partition %d of topic %s from index %d on", begun, h.Partition, h.Topic, h.First)
		if h.SinceNs > 0 {
			fmt.Fprintf(&b, ", stored %s ago", ageText(wall.Sub(time.Unix(0, h.SinceNs))))
		}
		fmt.Fprintf(&b, ": %s. Without it up to %s could go.", h.Why, bytesText(int64(h.Bytes)))
	}
	return b.String()
}

// ageText is a length of time for people, rounded down to its largest unit.
func ageText(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return fmt.Sprintf("%d s", max(0, d)/time.Second)
}

// bytesText is a size for people, in the same form as the command line's.
func bytesText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	x, i := float64(n), 0
	for ; x >= 1024 && i+1 < len(units); i++ {
		x /= 1024
	}
	if i > 0 && x < 10 {
		return fmt.Sprintf("%.1f %s", x, units[i])
	}
	return fmt.Sprintf("%.0f %s", x, units[i])
}
