package main

import (
	"context"
	"fmt"
	"strconv"
)

// What a slave costs, and what it is for.

// slave: how much of its throughput a broker keeps with a slave in sync, to how much the limit program keeps.
func (f *full) slave(ctx context.Context) error {
	const row = "slave"
	systems := []struct {
		command string
		flags   []string
	}{{"limit", nil}, {"limit", []string{"--slave"}}, {"produce", nil}, {"produce", []string{"--slave"}}}
	for _, producers := range []int{64, 256} {
		name := fmt.Sprintf("%dx1", producers)
		var kept, limitKept, brokerKept []float64
		var alone, with cost
		for i := range f.size.pairs {
			f.step(fmt.Sprintf("%s with a slave: round %d of %d", name, i+1, f.size.pairs))
			var got [4]float64
			for k := range systems {
				k = (k + i) % len(systems) // each is first in every fourth round
				s := systems[k]
				r, err := f.bench(ctx, nil, s.command, f.timed(append([]string{"--producers", strconv.Itoa(producers)}, s.flags...)...)...)
				if err != nil {
					return err
				}
				if got[k] = r.MessagesPerSec; got[k] == 0 {
					return fmt.Errorf("%s of %s: nothing was measured", s.command, name)
				}
				switch k {
				case 2:
					alone = append(alone, r.CPUUsPerMessage)
				case 3:
					with = append(with, r.CPUUsPerMessage)
				}
			}
			limit, broker := got[1]/got[0], got[3]/got[2]
			kept, limitKept, brokerKept = append(kept, broker/limit), append(limitKept, limit), append(brokerKept, broker)
		}
		l := newLine(row, name+" with a slave to without, of the broker to of the limit program", "x", kept).atLeast(0.97)
		_, l.Got, _ = interval(brokerKept)
		_, l.Base, _ = interval(limitKept)
		f.add(l)
		f.add(newLine(row, "of that, the broker with a slave to without", "x", brokerKept))
		f.add(newLine(row, "and the limit program with a slave to without", "x", limitKept))
		f.addCost(row, "master's CPU us a message with a slave, to without", with, alone)
	}
	return nil
}
