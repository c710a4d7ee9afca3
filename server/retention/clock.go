package retention

import "time"

// clock judges the wall clock. Times of the monotonic clock are uptime.
type clock struct {
	anchorWall time.Time
	anchorUp   time.Duration
	why        string        // of the last jump; "": none was seen
	at         time.Duration // uptime of the last jump; below 0: before the start
}

// start begins with the clock as it was when the broker was last seen to run, unix nanoseconds (0: not known), and with
// the uptime that had gone by since a jump then (0: there was none).
func (c *clock) start(wall time.Time, last int64, since time.Duration) {
	c.anchorWall, c.anchorUp = wall, 0
	if since > 0 {
		c.at, c.why = -since, "the clock jumped before the broker was started"
	}
	if last == 0 {
		return
	}
	if d := wall.Sub(time.Unix(0, last)); d > jumpStart || d < -jumpStart {
		c.at, c.why = 0, "at the start the clock was "+apart(d)+" of when the broker last ran"
	}
}

// tick looks at the clock and reports whether it jumped since the last call.
func (c *clock) tick(wall time.Time, up time.Duration) (jumped bool) {
	d := wall.Sub(c.anchorWall) - (up - c.anchorUp)
	if d > jumpRunning || d < -jumpRunning {
		c.at, c.why = up, "the clock was set, or the machine slept: it is "+apart(d)+" of where it should be"
		jumped = true
	}
	if jumped || up-c.anchorUp >= anchorFor {
		c.anchorWall, c.anchorUp = wall, up
	}
	return jumped
}

// left is how much is left of a time of uptime since the last jump.
func (c *clock) left(of, up time.Duration) time.Duration {
	if c.why == "" {
		return 0
	}
	return max(0, of-c.since(up))
}

// since is how long the last jump is ago, of uptime; 0 if there was none.
func (c *clock) since(up time.Duration) time.Duration {
	if c.why == "" {
		return 0
	}
	return max(1, up-c.at)
}

// apart says a distance of the clock with its direction.
func apart(d time.Duration) string {
	if d < 0 {
		return ageText(-d) + " behind"
	}
	return ageText(d) + " ahead"
}
