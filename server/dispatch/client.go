package dispatch

import "github.com/jmqio/jmq/wire"

// Client is who holds leases, together with a member's number: a process that dialled, whatever its connections. Its id is what it
// says; whom it is of is what it proved, so nobody has another's leases by taking its id.
type Client struct {
	Namespace uint32
	Kind      wire.PrincipalKind
	Principal string // name
	ID        string
}

// client is kept while it has a connection or a member. Guarded by Dispatcher.mu.
type client struct {
	key     Client
	members map[memberKey]*member
	conns   int
	parked  int   // its fetches that wait
	gone    alarm // set while its connections are gone and the grace runs

	reconciled map[memberKey]uint64 // the round in which each member reconciled last; nil while conns is 0
}

type memberKey struct {
	queue  *queue
	number uint32
}

// member is one consumer in one queue. It is kept while it holds or waits.
type member struct {
	client *client
	key    memberKey
	leases []*lease // it holds, ascending by id
	parked []*Fetch // in order of arrival
	asks   bool     // it is in the middle of a call, and not gone though it has nothing
}

func (m *member) active() bool { return m.asks || len(m.leases)+len(m.parked) > 0 }

func (d *Dispatcher) client(key Client) *client {
	c := d.mu.clients[key]
	if c == nil {
		c = &client{key: key, members: map[memberKey]*member{}}
		d.mu.clients[key] = c
	}
	return c
}

// member returns the member, made if it is not there. Whoever asks must make it active or call settle.
func (d *Dispatcher) member(key Client, q *queue, number uint32) *member {
	c, k := d.client(key), memberKey{q, number}
	m := c.members[k]
	if m == nil {
		if n := len(d.mu.spare); n > 0 {
			m = d.mu.spare[n-1]
			d.mu.spare = d.mu.spare[:n-1]
		} else {
			m = &member{}
		}
		m.client, m.key = c, k
		c.members[k] = m
		q.members++
	}
	return m
}

// findMember returns the member, or nil.
func (d *Dispatcher) findMember(key Client, q *queue, number uint32) *member {
	if c := d.mu.clients[key]; c != nil {
		return c.members[memberKey{q, number}]
	}
	return nil
}

// settle forgets m if it neither holds nor waits, and its client if that has nothing more.
func (d *Dispatcher) settle(m *member) {
	if m.active() {
		return
	}
	c, q := m.client, m.key.queue
	delete(c.members, m.key)
	if q.members--; q.members == 1 && q.policy.Parallel && q.parked.head != nil {
		d.mu.alone = append(d.mu.alone, q)
	}
	m.client, m.key = nil, memberKey{}
	if len(d.mu.spare) < spareMax {
		d.mu.spare = append(d.mu.spare, m)
	}
	d.settleClient(c)
}

func (d *Dispatcher) settleClient(c *client) {
	if c.conns == 0 && len(c.members) == 0 {
		d.unset(&c.gone)
		delete(d.mu.clients, c.key)
	}
}

// Attach notes a connection of a client. A client that comes back within the grace keeps its leases. A client that was
// never attached, such as one in this process, loses them by the ack timeout only.
func (d *Dispatcher) Attach(key Client) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.client(key)
	c.conns++
	d.unset(&c.gone)
}

// Detach notes that a connection ended, once for each Attach and after the last request that came over it. Its parked
// fetches are the caller's to cancel.
func (d *Dispatcher) Detach(key Client) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.mu.clients[key]
	if c == nil || c.conns == 0 {
		panic("dispatch: a client was detached that was not attached: " + key.ID)
	}
	c.conns--
	if c.conns > 0 {
		return
	}
	c.reconciled = nil
	if len(c.members) == 0 {
		d.settleClient(c)
		return
	}
	d.set(&c.gone, c, d.now()+d.o.Grace)
}

// expire ends the client's leases: its grace is over.
func (c *client) expire(d *Dispatcher, out *fetchList) {
	// Ending a lease may forget its member, and the last member its client.
	var held []*lease
	for _, m := range c.members {
		held = append(held, m.leases...)
	}
	sortLeases(held)
	for _, l := range held {
		d.endLease(l, EndedGone, out)
	}
}

// Revoke ends what a client has in a queue, since it may not consume there any more or not now: its fetches that wait end with err,
// and with leases its leases end too.
func (d *Dispatcher) Revoke(key Queue, c Client, err error, leases bool) {
	var out fetchList
	d.mu.Lock()
	defer d.unlock(&out)
	q, client := d.mu.queues[key], d.mu.clients[c]
	if q == nil || client == nil {
		return
	}
	var members []*member
	for k, m := range client.members {
		if k.queue == q {
			members = append(members, m)
		}
	}
	// First the fetches, so that none of them gets what the leases leave. A member is not forgotten meanwhile.
	var held []*lease
	for _, m := range members {
		m.asks = true
		for len(m.parked) > 0 {
			f := m.parked[0]
			d.unpark(q, f)
			f.Err = err
			out.push(f)
		}
		if leases {
			held = append(held, m.leases...)
		}
	}
	sortLeases(held)
	for _, l := range held {
		d.endLease(l, EndedRevoked, &out)
	}
	for _, m := range members {
		m.asks = false
		d.settle(m)
	}
}
