package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jmqio/jmq/wire"
)

// Epoch of a journal: the term that the registry gave, and the master's own count in it.
type Epoch struct{ Term, Start uint32 }

func (e Epoch) String() string { return fmt.Sprintf("%d.%d", e.Term, e.Start) }

func epochOf(n uint64) Epoch { return Epoch{uint32(n >> 32), uint32(n)} }

// Replica is what a broker says of its copy of its broker group's journal.
type Replica struct {
	Role      string // master, slave, waiting, copying
	Why       string // it waits, refuses, or is degraded
	NoRoom    string // why nothing more is taken there: a disk is full
	Store     string // id
	Boot      string // of what it may rely on
	Epoch     Epoch  // of a master its own, else that of the journal's last record
	Begin     uint64 // positions
	End       uint64
	Synced    uint64
	Committed uint64
	SeenTerm  uint32        // the highest that it met
	Refused   bool          // it would have to give up what it knows to be committed
	Serving   bool          // a slave that serves reads
	Fresh     bool          // its store is new
	SyncDelay time.Duration // of a slave: the age of the oldest byte that is not on its disk
	Slaves    []SlaveState  // of a master
}

// SlaveState is what a master says of a slave.
type SlaveState struct {
	Broker string
	InSync bool
	State  string // in-sync, catching-up, full-copy, away, refused
	Acked  uint64
	Behind uint64        // bytes
	Lag    time.Duration // since it had all
	Ack    time.Duration // from push to ack, the median of the last ones
	Join   time.Duration // it is in step, and joins after so long; 0: it is not, or it has joined
}

func replicaOf(s *wire.ReplicaStatus) *Replica {
	if s == nil {
		return nil
	}
	r := &Replica{
		Role: s.Role, Why: s.Why, NoRoom: s.NoRoom, Store: s.Store, Boot: s.Boot, Epoch: epochOf(s.Epoch), Begin: s.Begin, End: s.End, Synced: s.Synced, Committed: s.Committed,
		SeenTerm: s.SeenTerm, Refused: s.Refused, Serving: s.Serving, Fresh: s.Fresh, SyncDelay: time.Duration(s.SyncDelayMs) * time.Millisecond,
	}
	for _, x := range s.Slaves {
		r.Slaves = append(r.Slaves, SlaveState{
			Broker: x.Broker, InSync: x.InSync, State: x.State, Acked: x.Acked, Behind: x.LagBytes,
			Lag: time.Duration(x.LagMs) * time.Millisecond, Ack: time.Duration(x.AckUs) * time.Microsecond,
			Join: time.Duration(x.JoinMs) * time.Millisecond,
		})
	}
	return r
}

// Row is what the registry keeps of a broker group.
type Row struct {
	Term     uint32   // 0: it never had a master
	Master   string   // broker
	Forced   bool     // the term was granted by an operator, who accepted loss
	InSync   []string // slaves, as the master told last
	Transfer string   // the slave that the master hands over to as soon as it can
}

// BrokerGroup is how a broker group is.
type BrokerGroup struct {
	Name      string
	Mode      string // fixed, auto
	State     string // active, read-only, draining
	Row       Row
	Condition string // ok, degraded, full, silent, no-master, waiting, refused; with why, and since when
	Brokers   []Node // the master first
}

// What an operator does to a broker group.
const (
	Promote  = "promote"  // name another master; what only the old one has may be lost
	Transfer = "transfer" // have the master hand over; nothing is lost
	Drain    = "drain"    // take no more messages
	Activate = "activate" // take messages again
)

// Operation is something that an operator does to a broker group.
type Operation struct {
	BrokerGroup string
	Action      string
	Broker      string   // of Promote and Transfer; empty: the best one
	Off         []string // Promote: brokers that are known to be off; all others must answer
	Force       bool     // Promote: what may be lost is accepted
	DryRun      bool
	Reason      string // for people; kept in the audit
}

// Outcome is what an Operation did, or would do.
type Outcome struct {
	Groups []BrokerGroup // the one, as it is then
	Lost   []string      // Promote: what is or would be lost, in words
	Left   []string      // Drain: what is still in the broker group, in words
	// Took is how long it took until the other broker was heard to serve as master, of Promote and Transfer that are done: nothing was taken for a part of it. 0: it did not
	// within 30 s.
	Took time.Duration
	Done bool // Promote without Force: nothing was done if something may be lost. Drain: nothing is left
}

// BrokerGroups says how a broker group is, "": how all are.
func (a *Admin) BrokerGroups(ctx context.Context, name string) ([]BrokerGroup, error) {
	var answer wire.BrokerGroupResponse
	if err := a.cluster.Call(ctx, "status of broker groups", wire.CommandBrokerGroup, &wire.BrokerGroupRequest{Action: "status", BrokerGroup: name}, &answer); err != nil {
		return nil, err
	}
	return brokerGroupsOf(&answer)
}

// Operate does something to a broker group. Transfer and Promote wait until the other broker serves as master, up to half a minute.
func (a *Admin) Operate(ctx context.Context, o Operation) (*Outcome, error) {
	begun := time.Now()
	r := &wire.BrokerGroupRequest{BrokerGroup: o.BrokerGroup, Action: o.Action, Broker: o.Broker, Off: o.Off, Force: o.Force, DryRun: o.DryRun, Reason: o.Reason}
	call := a.cluster.CallOnce
	if o.DryRun {
		call = a.cluster.Call
	}
	var answer wire.BrokerGroupResponse
	if err := call(ctx, o.Action+" broker group "+o.BrokerGroup, wire.CommandBrokerGroup, r, &answer); err != nil {
		return nil, err
	}
	groups, err := brokerGroupsOf(&answer)
	if err != nil {
		return nil, err
	}
	if o.Action == Transfer && !o.DryRun && !answer.Done {
		if groups, err = a.transferred(ctx, groups); err != nil {
			return nil, fmt.Errorf("transfer of broker group %s: %w", o.BrokerGroup, err)
		}
		answer.Done = true
	}
	out := &Outcome{Groups: groups, Lost: answer.Lost, Left: answer.Left, Done: answer.Done}
	if (o.Action == Transfer || o.Action == Promote) && answer.Done && !o.DryRun && a.served(ctx, out) {
		out.Took = time.Since(begun)
	}
	return out, nil
}

// served waits until the master that was named serves. That it is named is so whether or not it can be heard here.
func (a *Admin) served(ctx context.Context, r *Outcome) bool {
	ctx, cancel := context.WithTimeout(ctx, servedWithin)
	defer cancel()
	for {
		if len(r.Groups) == 1 {
			for _, b := range r.Groups[0].Brokers {
				if b.Name == r.Groups[0].Row.Master && !b.Away && b.Replica != nil && b.Replica.Role == "master" && b.Replica.Epoch.Term >= r.Groups[0].Row.Term {
					return true
				}
			}
		}
		t := time.NewTimer(servedEvery)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return false
		}
		if len(r.Groups) != 1 {
			return false
		}
		if now, err := a.BrokerGroups(ctx, r.Groups[0].Name); err == nil {
			r.Groups = now
		}
	}
}

const (
	servedWithin = 30 * time.Second
	servedEvery  = 100 * time.Millisecond
)

// transferred waits until a transfer that is under way has come about.
func (a *Admin) transferred(ctx context.Context, begun []BrokerGroup) ([]BrokerGroup, error) {
	if len(begun) != 1 {
		return nil, errors.New("the registry does not say how the broker group is")
	}
	was, now := begun[0], begun
	for now[0].Row.Term == was.Row.Term && now[0].Row.Transfer == was.Row.Transfer {
		t := time.NewTimer(transferEvery)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		}
		next, err := a.BrokerGroups(ctx, was.Name)
		if err != nil {
			return nil, err
		}
		if now = next; len(now) != 1 {
			return nil, errors.New("the broker group is gone")
		}
	}
	if was.Row.Transfer != "" && now[0].Row.Master != was.Row.Transfer {
		return nil, fmt.Errorf("broker %s did not hand over to broker %s, and goes on: see its log", was.Row.Master, was.Row.Transfer)
	}
	return now, nil
}

// transferEvery is how often it is asked whether a transfer has come about.
const transferEvery = 500 * time.Millisecond

func brokerGroupsOf(r *wire.BrokerGroupResponse) ([]BrokerGroup, error) {
	var all []BrokerGroup
	for _, s := range r.Groups {
		g := BrokerGroup{Name: s.BrokerGroup, Mode: s.Mode, State: s.State, Condition: s.Condition}
		if len(s.Row) > 0 {
			type member struct{ Broker string }
			var row struct {
				Term     uint32
				Master   member
				Forced   bool
				Set      []member
				Transfer string
			}
			if err := json.Unmarshal(s.Row, &row); err != nil {
				return nil, fmt.Errorf("the row of broker group %s: %w", s.BrokerGroup, err)
			}
			g.Row = Row{Term: row.Term, Master: row.Master.Broker, Forced: row.Forced, Transfer: row.Transfer}
			for _, m := range row.Set {
				g.Row.InSync = append(g.Row.InSync, m.Broker)
			}
		}
		for _, n := range s.Brokers {
			g.Brokers = append(g.Brokers, nodeOf(n))
		}
		all = append(all, g)
	}
	return all, nil
}
