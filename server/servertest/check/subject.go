package check

import "slices"

// Subject says which events a violation is about.
type Subject struct {
	IDs []string // messages
	// Events of a partition that touch [From, To), of any group, or of Group and none. With Op, of that op too, whatever they touch.
	Topic     string
	Partition uint16
	Group     string
	From, To  uint64
	Op        Op
	// Without Topic: events of Op, of Proc if it is set, of register Key, of a copy that touches [From, To).
	BrokerGroup, Proc, Key string
}

// Concerns says whether e is one of the events.
func (s *Subject) Concerns(e *Event) bool {
	if e.ID != "" && slices.Contains(s.IDs, e.ID) {
		return true
	}
	if s.Topic == "" {
		return s.Key != "" && e.Key == s.Key && (e.Op == OpWrite || e.Op == OpRead) ||
			s.Op != "" && e.Op == s.Op && e.BrokerGroup == s.BrokerGroup && (s.Proc == "" || e.Proc == s.Proc) && (s.To == 0 || e.Index < s.To && s.From < e.end())
	}
	if e.Topic != s.Topic || s.Group != "" && e.Group != "" && e.Group != s.Group || s.Proc != "" && e.Op == OpScan && e.Proc != s.Proc {
		return false
	}
	switch e.Op {
	case OpDrain:
		return s.Group != ""
	case OpSend:
		return e.Result == OK && e.Partition == s.Partition && s.From <= e.Index && e.Index < s.To
	case OpOffset, OpScanned, OpBalance:
		return e.Partition == s.Partition && e.Op == s.Op
	case OpReset, OpSubscribe:
		return e.Partition == s.Partition && s.Group != ""
	}
	return e.Partition == s.Partition && e.Index < s.To && s.From < e.end()
}

// or is about the messages of o too.
func (s Subject) or(o Subject) Subject {
	s.IDs = append(s.IDs, o.IDs...)
	return s
}

func (s Subject) with(op Op) Subject {
	s.Op = op
	return s
}

func (c *Checker) ofMessage(i int32) Subject { return Subject{IDs: []string{c.messages[i].id}} }

func (c *Checker) ofLog(k logKey, from, to uint64) Subject {
	return Subject{Topic: c.names.name(k.topic), Partition: k.partition, From: from, To: to}
}

func (c *Checker) ofGroup(g *groupPartition, from, to uint64) Subject {
	s := c.ofLog(g.logKey, from, to)
	s.Group = c.names.name(g.group)
	return s
}
