package local

import (
	"errors"
	"fmt"

	"github.com/jmqio/jmq/server/journal"
)

const tailBytes = 1 << 20 // of the tail that are read at once, unless a record is larger

// Tail calls each with the records of a followed log behind what is applied, in order, as far as they can be read: what lies above the
// committed position may be cut yet. Their payloads are valid until each returns. It ends with the first error of each.
func (s *Store) Tail(each func(journal.Record) error) error {
	log, ok := s.log.(interface {
		ReadRaw(from journal.Position, buf []byte) (int, error)
	})
	if !ok {
		return nil // what is written here is committed here
	}
	buf := make([]byte, tailBytes)
	for at := s.Applied(); ; {
		n, err := log.ReadRaw(at, buf)
		switch corrupt := (*journal.CorruptError)(nil); {
		case errors.Is(err, journal.ErrTooLarge) && len(buf) < journal.RecordBytesMax:
			buf = make([]byte, journal.RecordBytesMax)
			continue
		case errors.Is(err, journal.ErrBeyond), errors.As(err, &corrupt):
			return nil
		case err != nil:
			return fmt.Errorf("store: read the tail at %d: %w", at, err)
		case n == 0:
			return nil
		}
		if err := journal.EachRaw(buf[:n], each); err != nil {
			return err
		}
		at += journal.Position(n)
	}
}
