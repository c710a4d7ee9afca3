package retention

import (
	"fmt"
	"math"
	"time"
)

// Grew is called after each commit, on the committing goroutine. It lets the guard look again when a quarter of the room that it
// saw is used up, and refuses sends itself when all of it is: the guard may not get a processor in time.
func (k *Keeper) Grew() {
	if k.o.End == nil {
		return
	}
	end := int64(k.o.End())
	if end < k.soon.Load() {
		return
	}
	nudge(k.look)
	if end >= k.stop.Load() {
		k.word.Lock()
		why := k.word.next
		k.word.Unlock()
		k.say(why, false)
	}
}

// say tells whether sends are taken, "", or why not, when that changed, or the cause of a refusal did.
func (k *Keeper) say(refused string, cause bool) {
	k.word.Lock()
	defer k.word.Unlock()
	if (refused == "") == (k.word.refused == "") && !(cause && refused != "") {
		return
	}
	k.word.refused = refused
	k.o.SetWritable(refused == "", refused)
}

// watch sets when Grew does something: at the level, with the log's end as it was before the rooms were looked at.
func (k *Keeper) watch(level Level, rooms []room, end int64) {
	left, what := int64(math.MaxInt64), ""
	for _, r := range rooms {
		if n := max(0, -r.beyond(k.marks[Refuse])); r.total > 0 && n < left {
			left, what = n, r.what
		}
	}
	soon, stop := int64(math.MaxInt64), int64(math.MaxInt64)
	if level < Refuse && left < math.MaxInt64-end {
		soon, stop = end+left/4, end+left
	}
	k.word.Lock()
	k.word.next = fmt.Sprintf("%s is %d %% full", what, k.o.RefusePercent)
	k.word.Unlock()
	k.soon.Store(soon)
	k.stop.Store(stop)
}

// see looks at folders, disks and the limit, sets the level, and returns after what time it must look again.
func (k *Keeper) see() time.Duration {
	k.guarding.Lock()
	defer k.guarding.Unlock()
	end := int64(0)
	if k.o.End != nil {
		end = int64(k.o.End())
	}
	var rooms []room
	var disks []Disk
	gone := ""
	for _, f := range k.o.Folders {
		d := k.disk(f)
		disks = append(disks, d)
		for _, path := range []string{f.Path, f.Also} {
			if path == "" {
				continue
			}
			if _, err := k.o.FS.Stat(path); notExist(err) {
				gone = "the folder of the " + f.What + " is gone"
			} else if err != nil && d.Error == "" {
				d.Error = err.Error()
			}
		}
		k.tellFolder(f, d.Error)
		if d.Total > 0 {
			rooms = append(rooms, room{what: "the disk of the " + f.What, used: d.Total - d.Free, total: d.Total})
		}
	}
	limited := int64(0)
	if k.o.BytesMax > 0 {
		u, err := k.o.Store.Usage(0)
		if err == nil {
			limited = limitedBytes(&u)
			rooms = append(rooms, room{what: "broker.store.bytesMax", used: limited, total: k.o.BytesMax})
		}
		k.tellUsage(err)
	}

	full := fullest(rooms)
	k.mu.Lock()
	s := &k.mu.status
	before, wasGone := s.level, s.gone
	level := k.marks.next(before, full.share())
	refused := gone
	if refused == "" && level == Refuse {
		refused = fullText(full)
	}
	s.level, s.fullest, s.disks, s.limited, s.gone = level, full, disks, limited, gone
	k.mu.Unlock()

	if gone != wasGone {
		if gone != "" {
			k.o.Logger.Error(gone + ": sends are refused")
		} else {
			k.o.Logger.Warn("the folders of the store are there again", "before", wasGone)
		}
	}
	if level != before {
		log := k.o.Logger.Warn
		if level < before {
			log = k.o.Logger.Info
		}
		// A store that is kept at its limit by early deletion goes to and fro below Refuse for ever.
		if max(level, before) < Refuse {
			if up := k.up(); k.told.levels[level] != 0 && up-k.told.levels[level] < levelEvery {
				log = k.o.Logger.Debug
			} else {
				k.told.levels[level] = max(1, up)
			}
		}
		log("the store is "+level.String(), "before", before.String(), "fullest", full.what, "usedBytes", full.used, "totalBytes", full.total)
	}
	k.watch(level, rooms, end)
	k.say(refused, gone != wasGone)
	if level >= EarlyDelete {
		nudge(k.hurry)
	}
	return k.marks.lookAfter(level, rooms, k.o.Every)
}

const levelEvery = time.Hour

// fullText says how full the fullest room is.
func fullText(r room) string {
	return fmt.Sprintf("%s is %d %% full", r.what, int(r.share()*100))
}

func (k *Keeper) disk(f Folder) Disk {
	d := Disk{What: f.What, Folder: f.Path}
	u, err := k.o.FS.GetDiskUsage(f.Path)
	if err != nil {
		d.Error = err.Error()
		return d
	}
	// What the system keeps for its administrator is neither free nor used, as df says it.
	d.Free, d.Total = int64(u.AvailBytes), int64(u.UsedBytes+u.AvailBytes)
	return d
}

// tellFolder logs when what is wrong with a folder's disk changes. A disk that cannot be read is never full.
func (k *Keeper) tellFolder(f Folder, wrong string) {
	if k.told.folders[f.Path] == wrong {
		return
	}
	if k.told.folders[f.Path] = wrong; wrong == "" {
		k.o.Logger.Info("the free space of a folder's disk can be read again", "what", f.What, "folder", f.Path)
		return
	}
	k.o.Logger.Warn("the free space of a folder's disk cannot be read: it is not watched", "what", f.What, "folder", f.Path, "err", wrong)
}

// tellUsage does so for what the store says it takes.
func (k *Keeper) tellUsage(err error) {
	wrong := ""
	if err != nil {
		wrong = err.Error()
	}
	if k.told.folders[""] == wrong {
		return
	}
	if k.told.folders[""] = wrong; wrong == "" {
		k.o.Logger.Info("what the store takes can be read again")
		return
	}
	k.o.Logger.Warn("what the store takes cannot be read: broker.store.bytesMax is not watched", "err", wrong)
}
