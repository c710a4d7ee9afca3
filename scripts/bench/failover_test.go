package main

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jmqio/jmq/client"
)

// What is said of sends: errors, unknown outcomes, the slowest, the p99, and how long a broker group took nothing, whatever others took.
func TestJudged(t *testing.T) {
	begin := time.Now()
	one := func(from, to int, brokerGroup string, unknown int, err error) send {
		at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
		return send{at(from), at(to), brokerGroup, unknown, err}
	}
	bad := errors.New("bad")
	sends := []send{
		one(0, 10, "b1", 0, nil), one(0, 20, "b2", 0, nil), one(10, 30, "b1", 1, nil), one(20, 200, "b2", 0, nil), one(30, 300, "b1", 0, bad),
		one(300, 310, "b1", 0, nil), one(300, 320, "", 0, fmt.Errorf("send: %w", client.ErrUnknown)),
	}
	if o := judged(sends); o.errors != 2 || o.unknown != 2 || o.slowest != 270 || o.first != bad {
		t.Errorf("%+v", o)
	}
	if g1, g2, g3 := longestGap(sends, "b1"), longestGap(sends, "b2"), longestGap(sends, "b3"); g1 != 280*time.Millisecond || g2 != 180*time.Millisecond || g3 != 0 {
		t.Errorf("gaps %v %v %v", g1, g2, g3)
	}
	if v := p99(sends); v != 270 {
		t.Errorf("p99 %v", v)
	}
	if v := p99(nil); v != 0 {
		t.Errorf("p99 of nothing: %v", v)
	}
}
