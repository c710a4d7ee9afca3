package server

import (
	"github.com/jmqio/jmq/server/broker"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/retention"
)

// stateName is where, in the data folder, retention keeps the clock.
const stateName = "RETENTION"

// keep starts what keeps the store within its bounds.
func (s *Server) keep(e *engine, offsets *offset.Table) (*retention.Keeper, error) {
	b := &s.config.Broker
	vf := s.config.FS
	return retention.Start(retention.Options{
		Store: e.store, Groups: func(t offset.Topic) []retention.Group { return groupsOf(e.broker, offsets, t) }, Settled: e.broker.Settled,
		SetWritable: e.broker.SetWritable, End: e.store.Committed,
		FS: vf, StateFile: vf.PathJoin(s.dir, stateName),
		Folders: []retention.Folder{
			{What: "journal", Path: s.folder(b.Journal.Folder, "journal"), Also: vf.PathJoin(s.dir, "STORE")},
			{What: "index", Path: s.folder(b.Index.Folder, "index")},
		},
		Age: b.Retention.Age, Bytes: b.Retention.Bytes, AbandonedAfter: b.Retention.AbandonedAfter, Every: b.Retention.Every,
		Follows: e.follows, BytesMax: b.Store.BytesMax, WarnPercent: b.Disk.WarnPercent, EarlyDeletePercent: b.Disk.EarlyDeletePercent, RefusePercent: b.Disk.RefusePercent,
		Now: s.config.Now, Logger: s.log,
	})
}

// folder is a folder of its own, or one in the data folder.
func (s *Server) folder(own, name string) string {
	if own != "" {
		return own
	}
	return s.config.FS.PathJoin(s.dir, name)
}

// groupsOf returns where the groups of a topic stand.
func groupsOf(b *broker.Broker, offsets *offset.Table, t offset.Topic) []retention.Group {
	groups := offsets.GroupsOf(t)
	out := make([]retention.Group, 0, len(groups))
	for _, g := range groups {
		out = append(out, retention.Group{ID: g.ID, Name: g.Name, Active: b.Active(g.ID, t), Acks: offsets.Acks(g.ID, t)})
	}
	return out
}
