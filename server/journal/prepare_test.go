package journal

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmqio/jmq/server/journal/journaltest"
)

// TestPreparerRests: that no segment can be prepared is told once, not at each try, and so is its end; once the journal has
// failed nothing more is written ahead.
func TestPreparerRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := journaltest.New(nil)
		var log bytes.Buffer
		o := testOptions(fs)
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		o.SegmentBytesFirst, o.SegmentBytesMax = segmentBytesFloor, 4*segmentBytesFloor // a full one is more than the first
		// A full segment cannot be written.
		broken := func(op journaltest.Op) journaltest.Fault {
			if op.Call == journaltest.Write && op.Zeroes && op.Offset >= segmentBytesFloor && strings.Contains(op.Path, "spare") {
				return journaltest.Fault{Err: syscall.EIO}
			}
			return journaltest.Fault{}
		}
		fs.SetBefore(broken)
		j, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := strings.Count(log.String(), "not prepared"); n != 1 {
			t.Errorf("told %d times, want once:\n%s", n, log.String())
		}
		fs.SetBefore(nil)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := strings.Count(log.String(), "prepared again"); n != 1 {
			t.Errorf("its end is told %d times, want once:\n%s", n, log.String())
		}

		s := sender{j: j}
		for len(*j.list.Load()) == 1 { // the spare is used, and the next one not made
			fs.SetBefore(broken)
			s.mustSend(t, 5000)
		}
		fs.SetBefore(func(op journaltest.Op) journaltest.Fault {
			if op.Call == journaltest.SyncData {
				return journaltest.Fault{Err: syscall.EIO}
			}
			return journaltest.Fault{}
		})
		if err := s.send(100); !errors.Is(err, ErrUnknown) {
			t.Fatal(err)
		}
		synctest.Wait() // a spare that was being written then is ended
		fs.SetBefore(nil)
		fs.TakeOps()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if ops := fs.TakeOps(); len(ops) > 0 {
			t.Errorf("after the failure: %v", ops)
		}
		if err := j.Close(); !errors.Is(err, ErrFailed) {
			t.Errorf("Close: %v", err)
		}
	})
}
