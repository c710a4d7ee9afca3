package journal

import (
	"encoding/binary"
	"fmt"
)

// EachRaw calls each with the records in b, which ReadRaw has read. Their payloads lie in b. It ends with the first error.
func EachRaw(b []byte, each func(Record) error) error {
	for len(b) > 0 {
		n := 0
		if len(b) >= recordHeaderBytes {
			n = int(binary.LittleEndian.Uint32(b[atLength:]))
		}
		if n < recordHeaderBytes || align8(n) > len(b) {
			return fmt.Errorf("journal: %d bytes are not whole records", len(b))
		}
		if err := each(fields(b[:n])); err != nil {
			return err
		}
		b = b[align8(n):]
	}
	return nil
}
