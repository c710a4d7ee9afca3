package dispatch

import "time"

// never is further away than any deadline.
const never = 1 << 62 * time.Nanosecond

// alarm is a deadline in the one heap. Its zero value is not set. Guarded by Dispatcher.mu.
type alarm struct {
	at    time.Duration // since Dispatcher.start
	seq   uint64        // equal times go off in the order in which they were set
	place int           // in the heap, from 1; 0: not set
	owner alarmed
}

// alarmed is what has a deadline: a lease, a partition's pause, a parked fetch, a client without connection.
type alarmed interface {
	expire(d *Dispatcher, out *fetchList)
}

// alarms is a binary heap, the earliest first.
type alarms struct {
	heap []*alarm
	seq  uint64
}

func (d *Dispatcher) set(a *alarm, owner alarmed, at time.Duration) {
	h := &d.mu.alarms
	h.seq++
	if a.place == 0 {
		h.heap = append(h.heap, a)
		a.place = len(h.heap)
	}
	a.at, a.seq, a.owner = at, h.seq, owner
	h.fix(a.place - 1)
	d.arm()
}

func (d *Dispatcher) unset(a *alarm) {
	h := &d.mu.alarms
	if a.place == 0 {
		return
	}
	i, last := a.place-1, len(h.heap)-1
	h.swap(i, last)
	h.heap[last] = nil
	h.heap = h.heap[:last]
	a.place, a.owner = 0, nil
	if i < last {
		h.fix(i)
	}
	// The timer is left: when it fires too early it is set anew.
}

// arm lets the timer fire in time for the earliest alarm.
func (d *Dispatcher) arm() {
	if h := d.mu.alarms.heap; len(h) > 0 && h[0].at < d.armed {
		d.armed = h[0].at
		d.timer.Reset(max(d.armed-d.now(), 0))
	}
}

func (h *alarms) less(i, j int) bool {
	a, b := h.heap[i], h.heap[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (h *alarms) swap(i, j int) {
	h.heap[i], h.heap[j] = h.heap[j], h.heap[i]
	h.heap[i].place, h.heap[j].place = i+1, j+1
}

// fix moves the alarm at i to where it belongs.
func (h *alarms) fix(i int) {
	for i > 0 && h.less(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		small := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < len(h.heap) && h.less(child, small) {
				small = child
			}
		}
		if small == i {
			return
		}
		h.swap(i, small)
		i = small
	}
}

// run is the dispatcher's goroutine.
func (d *Dispatcher) run() {
	defer close(d.done)
	defer d.timer.Stop()
	for {
		select {
		case <-d.timer.C:
			d.expire()
		case <-d.quit:
			return
		}
	}
}

// expire lets all alarms go off whose time has come.
func (d *Dispatcher) expire() {
	var out fetchList
	d.mu.Lock()
	now := d.now()
	for len(d.mu.alarms.heap) > 0 && d.mu.alarms.heap[0].at <= now {
		a := d.mu.alarms.heap[0]
		owner := a.owner
		d.unset(a)
		owner.expire(d, &out)
	}
	d.armed = never
	d.arm()
	report := d.mu.ended
	d.mu.ended = nil
	d.unlock(&out)
	if len(report) > 0 {
		d.o.RanOut()
	}
	var topic, group string
	for i, e := range report {
		if i == 0 || e.queue != report[i-1].queue {
			topic, group = d.o.Source.Names(e.queue)
		}
		d.o.Logger.Info("a lease ended before its messages did", "why", e.why.String(), "topic", topic, "group", group, "partition", e.partition,
			"index", e.lease.From, "to", e.lease.To, "client", e.client, "member", e.member, "leases", e.leases)
	}
}
