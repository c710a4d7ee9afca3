package replica

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/servertest/script"
	"github.com/jmqio/jmq/server/term"
)

// TestScripts runs testdata/*.txt: one broker group in the simulator, where every message and every sync takes a millisecond. Each command prints
// what changed meanwhile. The commands are in command.
func TestScripts(t *testing.T) {
	script.Each(t, func(t *testing.T, file string) {
		var w *world
		script.Run(t, file, func(c script.Command) string {
			if c.Name == "new" {
				w = newWorld(nil, []string{"A", "B", "C"}[:c.Int("nodes", 2)], slices.Contains(c.Words, "auto"))
				w.run(4 * time.Second)
				w.keep = true
				return ""
			}
			out := command(c, w)
			log := strings.Join(w.log, "\n")
			w.log = nil
			if log != "" {
				log += "\n"
			}
			if w.ghost.bad != "" {
				c.Fatalf("%s", w.ghost.bad)
			}
			return log + out
		})
	})
}

// command carries out one line:
//
//	append A [n=2] [replicated] [wait=1s]  sends to A, and prints what the client is told within the time
//	run 5s                                 lets time go by
//	partition A B | reconnect              A and B, or the registry, do not reach each other (one-way: A does not reach B) | all do
//	late A B 1s                            what A sends to B on a connection takes so much longer
//	crash A | power-loss A [keep=3]        kill | and what is not synced is gone, but for what brings it to 3 records
//	start A | pause A | resume A | clean-stop A
//	swap-disk A | image A | old-image A    an empty disk | a copy of it is made | comes back
//	registry up|down                       | restored to what it knew first: registry restored
//	promote A                              by force, with fencing
//	transfer A B                           A hands over to B
//	twin A B                               another process says that it is slave B, and comes to master A
//	status
func command(c script.Command, w *world) string {
	word := func(i int) string {
		if i >= len(c.Words) {
			c.Fatalf("%s: word %d is missing", c.Name, i)
		}
		return c.Words[i]
	}
	node := func(i int) *simNode {
		if n := w.node(word(i)); n != nil {
			return n
		}
		c.Fatalf("no broker %s", word(i))
		return nil
	}
	name := func(i int) string {
		if word(i) == "registry" {
			return ""
		}
		return node(i).name
	}
	switch c.Name {
	case "append":
		kind := normalMessage
		if slices.Contains(c.Words, "replicated") {
			kind = replicatedMessage
		}
		var ids []int
		var out strings.Builder
		for range c.Int("n", 1) {
			id, sent := node(0).append(kind)
			if !sent {
				out.WriteString("refused: nothing was written\n")
				continue
			}
			ids = append(ids, id)
		}
		w.run(c.Duration(c.Str("wait", "20ms")))
		for _, id := range ids {
			if !slices.Contains(w.ghost.ok, id) {
				fmt.Fprintf(&out, "message %d at %d: no answer\n", id, w.ghost.at[id])
			}
		}
		return out.String()
	case "run":
		w.run(c.Duration(word(0)))
	case "partition":
		w.block(name(0), name(1), true)
		if !slices.Contains(c.Words, "one-way") {
			w.block(name(1), name(0), true)
		}
	case "reconnect":
		clear(w.blocked)
	case "late":
		w.late[[2]string{node(0).name, node(1).name}] = c.Duration(word(2))
	case "crash":
		node(0).kill()
	case "power-loss":
		node(0).power(c.Int("keep", 0))
	case "start":
		node(0).start()
	case "pause":
		node(0).pause()
	case "resume":
		node(0).resume()
	case "clean-stop":
		node(0).cleanStop()
	case "swap-disk":
		node(0).swap(true)
	case "image":
		w.images = append(w.images, simImage{node(0), node(0).disk.clone()})
	case "old-image":
		for _, i := range w.images {
			if i.of == node(0) {
				i.of.restore(i.disk)
			}
		}
	case "registry":
		switch word(0) {
		case "restored":
			w.reg.restore(w.reg.old[1])
		default:
			w.reg.up, w.reg.since = word(0) == "up", w.now
		}
	case "promote":
		if !w.reg.force(node(0), false) {
			return "refused: not every broker that is up can be asked\n"
		}
	case "transfer":
		a, persist, err := node(0).leader.HandOver(w.now, node(1).name)
		if err != nil {
			return err.Error() + "\n"
		}
		node(0).ask(a, persist)
		w.run(10 * time.Millisecond)
	case "twin":
		return twin(w, node(0), node(1))
	case "status":
		return w.status()
	default:
		c.Fatalf("no command %s", c.Name)
	}
	return ""
}

// twin comes to master n as slave s, from another process of the same broker, boot and store, and says what the master makes of that.
func twin(w *world, n, s *simNode) string {
	h := Hello{Member: s.self(), Seen: s.disk.state.Seen, History: s.disk.history(), Committed: s.committed()}
	welcome, err := n.leader.Welcome(w.now, h, n.disk.history())
	if err == nil {
		h.Session = welcome.Session
		welcome, err = n.leader.Welcome(w.now, h, n.disk.history())
	}
	out := fmt.Sprintf("session %d of the other process begun %v, %v\n", welcome.Session, welcome.Begun, err)
	session, epoch, _ := s.follower.Session()
	_, err = n.leader.Ack(w.now, session, epoch, s.disk.end(), 0)
	return out + fmt.Sprintf("ack of session %d: %v\n", session, err)
}

func (w *world) status() string {
	var b strings.Builder
	for _, n := range w.nodes {
		var more string
		switch {
		case !n.up:
		case n.leader != nil:
			more = fmt.Sprintf(" of epoch %v", n.leader.Epoch())
		case n.follower != nil && n.conn != nil:
			more = " of " + n.conn.b.name
		default:
			more = fmt.Sprintf(" (%s)", n.why)
		}
		role := n.role
		if n.paused {
			role = "paused " + role
		}
		fmt.Fprintf(&b, "%s %s%s: %s", n.name, role, more, n.disk.show())
		fmt.Fprintf(&b, ", synced %d, committed %d", n.disk.synced, n.committed())
		if n.leader != nil {
			var set []term.Member
			for _, s := range n.leader.Slaves(w.now) {
				if s.InSync {
					set = append(set, s.Member)
				}
			}
			fmt.Fprintf(&b, ", in sync %s", brokers(set))
		}
		if n.refused {
			b.WriteString(", REFUSES")
		}
		b.WriteString("\n")
		if len(n.disk.aside) > 0 {
			a := simDisk{records: n.disk.aside}
			fmt.Fprintf(&b, "  set aside: %s\n", a.show())
		}
	}
	r := w.reg.row
	fmt.Fprintf(&b, "registry: term %d, master %s, set %s\n", r.Term, r.Master.Broker, brokers(r.Set))
	return b.String()
}

// show prints records: epochs as [1.1], messages by id.
func (d *simDisk) show() string {
	if len(d.records) == 0 {
		return "empty"
	}
	var out []string
	for _, r := range d.records {
		s := fmt.Sprint(r.id)
		if r.kind == epochRecord {
			s = fmt.Sprintf("[%v]", r.epoch)
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}
