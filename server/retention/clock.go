package retention

import "time"

// clock judges the wall clock. Times that it is given of the monotonic clock are since the start.
type clock struct {
	anchorWall time.Time
	anchorUp   time.Duration
	until      time.Duration // uptime at which a suspension ends; 0: none
	why        string        // of the suspension
}

// start begins with the clock as it was when the broker was last seen to run, unix nanoseconds (0: not known), and what
// was left of a suspension then.
func (c *clock) start(wall time.Time, last int64, left time.Duration) {
	c.anchorWall, c.anchorUp = wall, 0
	if left > 0 {
		c.until, c.why = min(left, SuspendFor), "the clock jumped before the broker was started"
	}
	if last == 0 {
		return
	}
	if d := wall.Sub(time.Unix(0, last)); d > jumpStart || d < -jumpStart {
		c.until, c.why = SuspendFor, "at the start the clock was "+apart(d)+" of when the broker last ran"
	}
}

// tick looks at the clock and reports whether it jumped since the last call.
func (c *clock) tick(wall time.Time, up time.Duration) (jumped bool) {
	d := wall.Sub(c.anchorWall) - (up - c.anchorUp)
	if d > jumpRunning || d < -jumpRunning {
		c.until, c.why = up+SuspendFor, "the clock was set, or the machine slept: it is "+apart(d)+" of where it should be"
		jumped = true
	}
	if jumped || up-c.anchorUp >= anchorFor {
		c.anchorWall, c.anchorUp = wall, up
	}
	if c.until != 0 && up >= c.until {
		c.until, c.why = 0, ""
	}
	return jumped
}

// left is how long nothing is decided by the clock.
func (c *clock) left(up time.Duration) time.Duration {
	return max(0, c.until-up)
}

// apart says a distance of the clock with its direction.
func apart(d time.Duration) string {
	if d < 0 {
		return ageText(-d) + " behind"
	}
	return ageText(d) + " ahead"
}
