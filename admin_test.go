package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/offset"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/wire"
)

// Durations, sizes and moments are read with their units and said back; what cannot be meant is refused.
func TestUnits(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "7d": 7 * 24 * time.Hour, "2w": 14 * 24 * time.Hour, "1d12h": 36 * time.Hour, "1.5d": 36 * time.Hour, "0.5h": 30 * time.Minute,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "7", "d", "7x", "week"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q: got %v", text, got)
		}
	}
	for d, want := range map[time.Duration]string{
		1500 * time.Millisecond: "1.5s", 43_880 * time.Millisecond: "44s", 59_900 * time.Millisecond: "1m", time.Minute: "1m", 90 * time.Second: "1m30s", time.Hour: "1h", 25 * time.Hour: "1d1h", 7 * 24 * time.Hour: "7d",
		-time.Hour: "-1h", 59*time.Minute + 59*time.Second: "59m59s", 24*time.Hour + 5*time.Minute: "1d",
	} {
		if got := formatDuration(d); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
	for text, want := range map[string]int64{"500MiB": 500 << 20, "10GB": 10e9, "1024": 1024, "1.5 GiB": 3 << 29} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%s: got %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "x", "-1", "10XB", "999999999EiB"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q: got %d", text, got)
		}
	}
	zone := time.FixedZone("there", 8*3600)
	now := time.Date(2026, 2, 25, 12, 0, 0, 0, zone)
	for text, want := range map[string]time.Time{
		"2026-02-25T09:30:00Z": time.Date(2026, 2, 25, 9, 30, 0, 0, time.UTC), "2026-02-25 09:30": time.Date(2026, 2, 25, 9, 30, 0, 0, zone),
		"2026-02-25": time.Date(2026, 2, 25, 0, 0, 0, 0, zone), "15m": now.Add(-15 * time.Minute), "2d ago": now.Add(-48 * time.Hour),
	} {
		if got, err := parseMoment(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "yesterday", "-5m", "1969-01-01", "2300-01-01", "09:30"} {
		if got, err := parseMoment(text, now); err == nil {
			t.Errorf("%q: got %v", text, got)
		}
	}
}

// Where a group is moved to is one value, and each form of it means one thing.
func TestParseSeek(t *testing.T) {
	now := time.Date(2026, 2, 25, 12, 0, 0, 0, time.UTC)
	for to, want := range map[string]*wire.SeekGroupRequest{
		"start": {To: uint32(wire.SeekStart)}, "end": {To: uint32(wire.SeekEnd)}, "0": {To: uint32(wire.SeekIndex)},
		"1234": {To: uint32(wire.SeekIndex), Index: 1234}, "+5": {To: uint32(wire.SeekShift), Shift: 5}, "-7": {To: uint32(wire.SeekShift), Shift: -7},
		"18446744073709551615": {To: uint32(wire.SeekIndex), Index: 1<<64 - 1},
		"1h":                   {To: uint32(wire.SeekTime), TimeNs: now.Add(-time.Hour).UnixNano()},
		"2026-02-25T09:30:00Z": {To: uint32(wire.SeekTime), TimeNs: now.Add(-150 * time.Minute).UnixNano()},
	} {
		var got wire.SeekGroupRequest
		if err := parseSeek(to, now, &got); err != nil || got.String() != want.String() {
			t.Errorf("%s: got %v, %v", to, &got, err)
		}
	}
	for _, to := range []string{"", "begin", "1x", "+", "-x", "18446744073709551616", "+99999999999999999999"} {
		if err := parseSeek(to, now, new(wire.SeekGroupRequest)); exitCode(err) != exitUsage {
			t.Errorf("%q: got %v", to, err)
		}
	}
}

// A full disk is explained in one screen: 24 lines of at most 200 characters, with what fills it, who holds it, and what
// would free it; the same is in the JSON.
func TestStoreUsageScreen(t *testing.T) {
	now := time.Date(2026, 2, 25, 12, 0, 0, 0, time.UTC)
	ns := func(before time.Duration) int64 { return now.Add(-before).UnixNano() }
	full := &wire.StoreUsageResponse{
		Disks: []*wire.DiskUsage{
			{What: "journal", Folder: "/data/journal", Total: 50 << 30, Free: 4 << 30},
			{What: "index", Folder: "/fast/index", Error: "permission denied"},
		},
		JournalBytes: 44 << 30, IndexBytes: 200 << 20, CheckpointBytes: 3 << 20, DamagedBytes: 8192, Segments: 176, Begin: 4096, End: 47 << 30,
		OldestNs: ns(9 * 24 * time.Hour), LimitBytes: 48 << 30, LimitedBytes: 45 << 30, State: "refusing",
		Why:       "group shipping has not consumed orders/3 from 1234 on; let it consume, move it (jmq group seek), or remove it",
		Retention: "nothing goes by age: the clock jumped by 3h, until 2026-02-26T12:00:00Z",
		Holds: []*wire.StoreHold{
			{Topic: "orders", Partition: 3, Group: "shipping", First: 1234, Bytes: 30 << 30, SinceNs: ns(9 * 24 * time.Hour), Why: "not consumed"},
			{Topic: "audit", Partition: 0, First: 0, Bytes: 2 << 30, SinceNs: ns(8 * 24 * time.Hour), Why: "retention is 30d"},
		},
		Holes: []*wire.StoreHole{{From: 8192, To: 12288, Messages: 7}},
	}
	for name, r := range map[string]*wire.StoreUsageResponse{
		"usage-full.golden": full,
		"usage-ok.golden":   {State: "ok", Disks: []*wire.DiskUsage{{What: "journal", Folder: "/data", Total: 100, Free: 90}, {What: "index", Folder: "/data"}}},
	} {
		var b bytes.Buffer
		if err := printUsage(&b, "table", usageOf(r), now); err != nil {
			t.Fatal(err)
		}
		golden(t, name, b.String())
		lines := strings.Split(b.String(), "\n")
		if len(lines) > 24 {
			t.Errorf("%s: %d lines", name, len(lines))
		}
	}
	var b bytes.Buffer
	var back usageInfo
	if err := printUsage(&b, "json", usageOf(full), now); err != nil || json.Unmarshal(b.Bytes(), &back) != nil || len(back.Holds) != 2 || back.Holds[0].Bytes != 30<<30 {
		t.Errorf("json: %v\n%s", err, b.String())
	}
	b.Reset()
	if err := printUsage(&b, "csv", usageOf(full), now); err != nil || !strings.Contains(b.String(), "\norders,3,shipping,32212254720,2026-") {
		t.Errorf("csv: %v\n%s", err, b.String())
	}
}

// What destroys something is not done without a terminal unless --yes says so; nothing is sent before.
func TestConfirmation(t *testing.T) {
	nobody := shell{t, "127.0.0.1:1"}
	for _, line := range []string{"topic delete orders", "group rm orders pay", "group seek orders pay --to start", "group reset orders pay"} {
		nobody.fails(exitUsage, "--yes", "", line)
		nobody.fails(exitError, "jmq dev starts one", "", line+" --yes --connect-timeout 2s")
	}
	nobody.fails(exitError, "jmq dev starts one", "", "group seek orders pay --to start --dry-run --connect-timeout 2s")
}

// Where no broker answers, completion has no names and says nothing.
func TestCompletionWithoutBroker(t *testing.T) {
	for _, line := range []string{"topic delete", "group seek orders", "msg get", "consume", "consume orders -g", "group lag"} {
		var out, errs bytes.Buffer
		begun := time.Now()
		args := append(append([]string{"__complete"}, strings.Fields(line)...), "")
		t.Setenv(envAddress, "127.0.0.1:1")
		code := execute(context.Background(), args, nil, &out, &errs)
		if code != exitOK || out.String() != ":4\n" || strings.Contains(errs.String(), "127.0.0.1") || time.Since(begun) > 5*time.Second {
			t.Errorf("%s: exit %d, %q %q after %v", line, code, out.String(), errs.String(), time.Since(begun))
		}
	}
}

// Settings are sent as they were said, and what was not said is not sent.
func TestTopicSettings(t *testing.T) {
	sh := shell{t, "127.0.0.1:1"}
	sh.fails(exitUsage, "say what to change", "", "topic alter orders")
	for _, bad := range []string{"--retention 7", "--retention 0s", "--retention -5m", "--retention-bytes x", "--retention-bytes 0"} {
		sh.fails(exitUsage, strings.Fields(bad)[0], "", "topic alter orders "+bad)
	}
	for _, c := range []struct{ args, want string }{
		{"", "<nil>"}, {"--retention 7d", "retention_ms:604800000"}, {"--retention forever --retention-bytes unlimited", "retention_ms:-1 retention_bytes:-1"},
		{"--retention default --retention-bytes 1KiB --discard-unconsumed", "retention_ms:0 retention_bytes:1024 discard_unconsumed:true"},
		{"--discard-unconsumed=false", "discard_unconsumed:false"},
	} {
		var s settingsFlags
		cmd := topicCreateCommand()
		cmd.ResetFlags()
		s.flags(cmd.Flags())
		if err := cmd.ParseFlags(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		got, err := s.settings(cmd.Flags())
		text := "<nil>"
		if got != nil {
			text = strings.ReplaceAll(got.String(), "  ", " ")
		}
		if err != nil || text != c.want {
			t.Errorf("%s: got %s, %v; want %s", c.args, text, err, c.want)
		}
	}
}

// Records of every kind that says something are put into words, with the names that records before them gave; one that is broken
// is named as such and does not end a dump.
func TestDescribeRecords(t *testing.T) {
	d := recordDecoder{topics: map[offset.Topic]string{}, groups: map[offset.GroupID]string{}}
	topic := offset.Topic{ID: 7, Incarnation: 2}
	say := func(kind journal.Kind, payload []byte) string {
		return d.describe(journal.Record{Kind: kind, Epoch: 1, Position: 4096, Payload: payload}).Says
	}
	b, err := wire.AppendBatch(nil, [16]byte{}, 0, []wire.Message{{ID: [16]byte{1}, Body: []byte("x")}})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := wire.ParseBatch(b)
	if err != nil {
		t.Fatal(err)
	}
	batch.SetBroker(wire.BrokerFields{Topic: topic.ID, Incarnation: topic.Incarnation, Partition: 3, FirstIndex: 10})
	carried := binary.LittleEndian.AppendUint64([]byte{1, byte(journal.KindMessages), 0, 0, 0, 0, 0, 0}, 512)
	carried = append(append(carried, make([]byte, 16)...), batch...)
	expiries := offset.AppendExpiries(nil, []offset.Expiry{{Group: 5, Topic: topic, Partition: 3, Generation: 1, Count: 2, Ranges: offset.Ranges{{From: 10, To: 11}}}})
	for _, c := range []struct {
		kind    journal.Kind
		payload []byte
		want    string
	}{
		{journal.KindMessages, batch, "topic 7.2/3 [10, 11), compression none"},
		{journal.KindTopic, store.AppendTopicRecord(nil, &store.TopicRecord{Operation: store.TopicDelete, Topic: store.Topic{ID: 7, Incarnation: 2, Name: "orders", Partitions: 4}, Who: "ann"}),
			"delete topic orders (id 7.2), 4 partitions, retention default, default, paused: no; by ann"},
		{journal.KindOffsetReset, offset.AppendReset(nil, &offset.Reset{Operation: offset.Move, Group: 5, GroupName: "pay", Topic: topic, TopicName: "orders",
			Starts: []offset.Start{{Partition: 3, Generation: 2, Offset: 9}}, Who: "ann", Why: "wrong totals"}),
			`move of group pay on orders, to 3: 9 (generation 2); by ann; reason "wrong totals"`},
		{journal.KindLeaseExpiry, expiries, "pay orders/3 [10, 11) expired 2 times"},
		{journal.KindCarriedForward, carried, "was messages at position 512: orders/3 [10, 11), compression none"},
		{journal.KindLost, make([]byte, 60), "104 bytes were lost to damage here"},
		{journal.KindEpoch, nil, "begins epoch 0.1"},
		{journal.KindNoop, nil, ""},
	} {
		if got := say(c.kind, c.payload); got != c.want {
			t.Errorf("%v: got %q, want %q", c.kind, got, c.want)
		}
	}
	for _, kind := range []journal.Kind{journal.KindMessages, journal.KindTopic, journal.KindOffsetReset, journal.KindEnd, journal.KindLeaseExpiry, journal.KindCarriedForward} {
		if got := say(kind, []byte{255}); !strings.HasPrefix(got, "cannot be read: ") {
			t.Errorf("a broken %v: %q", kind, got)
		}
	}
}
