package replica

import (
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/wire"
)

// TestInsideRecord shows that who asks for records from a position inside one is told that, not that the journal is damaged.
func TestInsideRecord(t *testing.T) {
	j, err := journal.Open(journal.Options{FS: vfs.NewMem(), Dir: "journal", StoreID: [16]byte{1}, Term: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	l := log{j: j}
	want := "position 8 lies inside a record"
	if _, _, err := l.readLog(t.Context(), &wire.ReadLogRequest{From: 8, BytesMax: 4096}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("records: %v", err)
	}
	if _, err := l.sums(&wire.LogSumsRequest{From: 8, To: uint64(j.Committed()), Every: 4096}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("checksums: %v", err)
	}
}
