package calls

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/replica"
	"github.com/jmqio/jmq/server/servertest/check"
	"github.com/jmqio/jmq/server/side"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
)

// opening says who opens a disk, and what for.
type opening struct {
	machine string
	same    bool // the machine did not start anew
	goOn    bool // the store is used, too
}

// judge opens all that is on a disk, and holds it against f. Problems are f's, and an error is one too.
func (s *shape) judge(fs vfs.FS, f *facts, o opening) {
	if err := s.judgeAll(fs, f, o); err != nil {
		f.problem(other, "%v", err)
	}
}

func (s *shape) judgeAll(fs vfs.FS, f *facts, o opening) error {
	state, err := replica.OpenState(fs, dir, o.machine)
	if err != nil {
		return fmt.Errorf("open REPLICA: %w", err)
	}
	f.adoptState(state.Get(), o.same)
	beside, err := side.Open(side.Options{FS: fs, Dir: dir})
	if err != nil {
		return fmt.Errorf("open SIDE: %w", err)
	}
	defer beside.Close()
	offsets := offset.NewTable()
	st, err := local.Open(s.options(fs, offsets))
	if err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	defer st.Close()
	d, err := look(fs, st, offsets, beside)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	f.adopt(d)
	if len(f.problems) > 0 {
		return nil
	}
	if !o.goOn {
		return st.Close()
	}
	if err := f.goOn(st, d); err != nil {
		return fmt.Errorf("go on: %w", err)
	}
	return st.Close()
}

// goOn sends again what the windows of producers must know, and something new.
func (f *facts) goOn(st *local.Store, d *found) error {
	t, there := d.topics[orders]
	if !there {
		return nil
	}
	type answer struct {
		first index.Index
		err   error
	}
	for p, of := range d.parts[orders] {
		pt := store.Partition{Topic: t.ID, Incarnation: t.Incarnation, Partition: uint16(p)}
		var want []index.Index
		answers := make(chan answer, producers*2+1)
		put := func(number int, s *send, first index.Index) error {
			want = append(want, first)
			return st.QueueBatch(pt, s.batch(number), func(first index.Index, _ int64, err error) { answers <- answer{first, err} })
		}
		var again [producers]int
		for i := len(of.messages) - 1; i >= 0; i-- {
			m := of.messages[i]
			s := &f.sends[m.number]
			if m.slot != 0 || again[s.producer] == 2 {
				continue
			}
			again[s.producer]++
			if err := put(m.number, s, m.index); err != nil {
				return err
			}
		}
		number := len(f.sends) + p
		if err := put(number, &send{sequence: uint64(number) * 16, messages: 1}, of.end); err != nil {
			return err
		}
		st.Commit()
		got := map[index.Index]int{}
		for range want {
			a := <-answers
			if a.err != nil {
				return fmt.Errorf("append: %w", a.err)
			}
			got[a.first]++
		}
		for _, first := range want {
			if got[first]--; got[first] < 0 {
				f.problem(twice, "what was sent again to partition %d is at %v, not at %v", p, got, want)
				break
			}
		}
	}
	return nil
}

// tell counts problems, and tells a campaign; and the test, if there are some.
func tell(t *testing.T, to *check.Figures, problems []problem) {
	t.Helper()
	for _, p := range problems {
		*[]*int{lost: &to.Lost, phantom: &to.Phantom, twice: &to.Unexplained, reordered: &to.Reordered, other: &to.Other}[p.what]++
	}
	if err := to.Print(os.Stdout); err != nil {
		t.Error(err)
	}
	if len(problems) > 0 {
		t.Error(text(problems))
	}
}

// figures of what was asked for.
func (f *facts) figures() (all check.Figures) {
	for i := range f.sends {
		switch f.sends[i].outcome {
		case ok:
			all.OK++
		case failed:
			all.Failed++
		default:
			all.Unknown++
		}
	}
	all.Ops = len(f.sends) + f.acks
	return all
}

func text(problems []problem) string {
	var list []string
	for i, p := range problems {
		if i == 5 {
			list = append(list, fmt.Sprintf("and %d more", len(problems)-i))
			break
		}
		list = append(list, p.text)
	}
	return strings.Join(list, "\n")
}
