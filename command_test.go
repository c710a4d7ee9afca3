package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/jmqio/jmq/scripts/testenv"
	jmqserver "github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/server/servertest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(testenv.Main(m), goleak.Cleanup(func(code int) {
		if built.path != "" {
			_ = os.RemoveAll(filepath.Dir(built.path)) // the test's result matters more
		}
		os.Exit(code)
	}))
}

// shell runs command lines against one broker, in this process.
type shell struct {
	t       *testing.T
	address string
}

// run executes a line, split at blanks, with arguments that hold blanks behind it.
func (s shell) run(stdin, line string, more ...string) (code int, stdout, stderr string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	args := append(strings.Fields(line), more...)
	if s.address != "" {
		args = append(args, "--address", s.address)
	}
	var out, errs bytes.Buffer
	code = execute(ctx, args, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

// ok is run of a line that must succeed, and say nothing on stderr.
func (s shell) ok(stdin, line string, more ...string) string {
	s.t.Helper()
	code, out, errs := s.run(stdin, line, more...)
	if code != exitOK || errs != "" {
		s.t.Fatalf("jmq %s %q: exit %d, stderr %s", line, more, code, errs)
	}
	return out
}

// fails is run of a line that must fail with a code, in one line on stderr that says something.
func (s shell) fails(code int, says, stdin, line string, more ...string) {
	s.t.Helper()
	got, out, errs := s.run(stdin, line, more...)
	if got != code || !strings.Contains(errs, says) || strings.Count(errs, "\n") != 1 || !strings.HasPrefix(errs, "jmq: ") {
		s.t.Errorf("jmq %s %q: exit %d, stdout %q, stderr %q; want exit %d and one line with %q", line, more, got, out, errs, code, says)
	}
}

// The commands of a user's day, against a real broker over TCP: topic, produce in every way, consume in every form, lag.
func TestCommands(t *testing.T) {
	sh := shell{t, servertest.Start(t).Address()}
	if out := sh.ok("", "topic ls"); !strings.Contains(out, "jmq topic create") {
		t.Errorf("no topics: %q", out)
	}
	if out := sh.ok("", "topic create orders -p 1 -o name"); out != "orders\n" {
		t.Errorf("create: %q", out)
	}
	sh.ok("", "topic create orders -p 1") // the same again is fine
	sh.fails(exitError, "topic-exists", "", "topic create orders -p 2")
	sh.ok("", "topic create z.other -p 3")
	if out := sh.ok("", "topic ls -o csv"); !strings.HasPrefix(out, "name,partitions,created at,retention,size limit,paused\norders,1,2") || !strings.Contains(out, "\nz.other,3,2") {
		t.Errorf("ls: %q", out)
	}

	if out := sh.ok("", "produce orders", "hello world", "second"); out != "sent 2 to orders\n" {
		t.Errorf("produce: %q", out)
	}
	if out := sh.ok("one\n\nthree", "produce orders -q"); out != "" {
		t.Errorf("produce -q: %q", out)
	}
	file := filepath.Join(t.TempDir(), "lines")
	if err := os.WriteFile(file, []byte("a\nb\nc\nd\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := sh.ok("", "produce orders -n 2 -f "+file); out != "sent 2 to orders\n" {
		t.Errorf("produce -f: %q", out)
	}
	var receipts []receiptInfo
	out := sh.ok("", "produce orders -k order-17 --order-key c1 -H a=b=c -H empty= -n 3 -o json", "x", "y")
	if err := json.Unmarshal([]byte(out), &receipts); err != nil || len(receipts) != 3 || receipts[2].Index != 9 || len(receipts[0].ID) != 26 || receipts[0].StoredAt.IsZero() {
		t.Errorf("receipts: %s", out)
	}
	sh.ok("", "produce orders", string([]byte{0xff, 0xfe}))

	want := "hello world\nsecond\none\n\nthree\na\nb\nx\ny\nx\n"
	if out := sh.ok("", "consume orders -g pay --from-beginning -n 10"); out != want {
		t.Errorf("consume: got %q, want %q", out, want)
	}
	var lags []lagInfo
	if out := sh.ok("", "group lag orders pay -o json"); json.Unmarshal([]byte(out), &lags) != nil || len(lags) != 1 || lags[0].Lag != 1 || lags[0].AckOffset != 10 || lags[0].End != 11 || lags[0].Group != "pay" {
		t.Errorf("lag: %s", out)
	}
	// What was printed was acknowledged, so only the last one is left; then nothing comes.
	if out := sh.ok("", "consume orders -g pay -n 1"); out != "\xff\xfe\n" {
		t.Errorf("consume the rest: %q", out)
	}
	sh.fails(exitTimeout, "no message came within 50ms; 0 were printed", "", "consume orders -g pay --timeout 50ms")

	consume := func(group string, args ...string) string {
		return sh.ok("", "consume orders --from-beginning -n 11 -g "+group, args...)
	}
	lines := strings.Split(consume("json", "-o", "json"), "\n")
	var m messageInfo
	if err := json.Unmarshal([]byte(lines[7]), &m); err != nil || m.ID != receipts[0].ID || m.Key != "order-17" || m.OrderKey != "c1" || *m.Body != "x" || fmt.Sprint(m.Headers) != "[{a b=c} {empty }]" {
		t.Errorf("json: %s", lines[7])
	}
	if !strings.Contains(lines[10], `"bodyBase64":"`+base64.StdEncoding.EncodeToString([]byte{0xff, 0xfe})) {
		t.Errorf("json of bytes: %s", lines[10])
	}
	if out := consume("yaml", "-o", "yaml"); !strings.Contains(out, "---\nid: "+receipts[0].ID+"\ntopic: orders\n") {
		t.Errorf("yaml: %s", out)
	}
	if out := consume("csv", "-o", "csv"); !strings.HasPrefix(out, "id,partition,index,key,stored at,body\n") || !strings.Contains(out, receipts[0].ID+",0,7,order-17,") {
		t.Errorf("csv: %s", out)
	}
	if out := consume("name", "-o", "name"); !strings.Contains(out, "\n"+receipts[0].ID+"\n") || len(out) != 11*27 {
		t.Errorf("name: %s", out)
	}
	if out := consume("table", "-o", "table"); !strings.HasPrefix(out, "ID  ") || !strings.Contains(out, "hello world\n") {
		t.Errorf("table: %s", out)
	}
	if out := consume("format", "--format", `%t/%p/%i %d %k %o %h %%\t\\%v\n`); !strings.Contains(out, "orders/0/7 "+receipts[0].ID+" order-17 c1 a=b=c,empty= %\t\\x\n") {
		t.Errorf("format: %s", out)
	}
	sh.fails(exitNotFound, "there are: csv, format, json, name, pay, table, yaml", "", "group lag orders nobody")
	for line, want := range map[string]bool{"group lag orders": false, "group lag orders pay": true} {
		if out := sh.ok("", line); strings.Contains(out, "WAITS SINCE") != want {
			t.Errorf("%s: since when messages wait is looked up for one group: %s", line, out)
		}
	}
	if out := sh.ok("", "group lag orders -o name"); strings.Count(out, "\n") != 7 {
		t.Errorf("groups: %q", out)
	}
}

// A stream of lines arrives whole and in order, whatever the sizes; a body of the most bytes that there can be fits, and
// one more is refused with its line, everything before it being stored.
func TestProduceLines(t *testing.T) {
	sh := shell{t, servertest.Start(t).Address()}
	sh.ok("", "topic create orders -p 1")
	var in strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&in, "line %d %s\n", i, strings.Repeat("x", i%500))
	}
	if out := sh.ok(in.String(), "produce orders"); out != "sent 5000 to orders\n" {
		t.Errorf("%q", out)
	}
	if out := sh.ok("", "consume orders -g all --from-beginning -n 5000"); out != in.String() {
		t.Errorf("%d bytes came back of %d, or in another order", len(out), in.Len())
	}
	big := strings.Repeat("b", 4<<20)
	sh.ok("small\n"+big+"\nsmall", "produce orders")
	sh.fails(exitError, "standard input line 2 has more than 4194304 bytes", "small\n"+big+"b\nsmall", "produce orders")
	sh.fails(exitError, "the first 1 lines are stored, go on with line 2", "small\n"+big+"b\nsmall", "produce orders")
	if out := sh.ok("", "group lag orders all -o csv"); !strings.Contains(out, "\nall,0,5,5000,") {
		t.Errorf("lag: %s", out)
	}
}

// What a command cannot do is one line with the next step, and its exit code.
func TestCommandErrors(t *testing.T) {
	server := servertest.Start(t)
	sh := shell{t, server.Address()}
	sh.ok("", "topic create orders")
	sh.fails(exitNotFound, "jmq topic create", "", "produce nothing x")
	sh.fails(exitNotFound, "jmq topic create", "", "consume nothing -g pay")
	sh.fails(exitNotFound, "jmq topic create", "", "group lag nothing")
	sh.fails(exitNotFound, "none consumes it yet", "", "group lag orders nobody")
	for _, name := range []string{"a/b", "..", "a\x00b", strings.Repeat("n", 256), ""} {
		sh.fails(exitUsage, "", "", "topic create", name)
		sh.fails(exitUsage, "", "", "produce", name, "x")
		sh.fails(exitUsage, "", "", "consume -g pay", name)
		sh.fails(exitUsage, "", "", "group lag", name)
	}
	sh.ok("", "topic create", strings.Repeat("n", 255))
	sh.fails(exitUsage, "", "", "topic create many -p 0")
	sh.fails(exitUsage, "", "", "topic create many -p 100000")
	sh.fails(exitUsage, "not NAME=VALUE", "", "produce orders x -H novalue")
	sh.fails(exitUsage, "twice", "", "produce orders x -H a=1 -H a=2")
	sh.fails(exitUsage, "BODYs or --file", "", "produce orders x -f file")
	sh.fails(exitUsage, "--count", "", "produce orders x -n -1")
	sh.fails(exitError, "no-such-file", "", "produce orders -f /no-such-file")
	sh.fails(exitUsage, "", "", "produce orders x -k", strings.Repeat("k", 256))
	sh.fails(exitUsage, "", "", "consume orders -g a/b")
	sh.fails(exitUsage, "--format ends", "", "consume orders -g a --format %")
	sh.fails(exitUsage, `"%q", which is not known`, "", "consume orders -g a --format %q")
	sh.fails(exitUsage, "--format or --output", "", "consume orders -g a --format %v -o json")
	sh.fails(exitUsage, "give one of: body, table", "", "consume orders -g a -o xml")

	nobody := shell{t, "127.0.0.1:1"}
	for _, line := range []string{"produce orders x", "consume orders -g a", "topic ls", "topic create x", "group lag orders"} {
		nobody.fails(exitError, "jmq dev starts one", "", line+" --connect-timeout 2s")
	}
	for _, address := range []string{"http://x", "127.0.0.1:99999", "a b:1"} {
		shell{t, address}.fails(exitUsage, "", "", "topic ls")
	}
	t.Setenv("JMQ_ADDRESS", server.Address())
	shell{t, ""}.ok("", "topic ls")
}

// Verify says what it checked on a stopped broker's folder, refuses a running one's, finds a flipped byte, and leaves the
// folder as it was.
func TestJournalVerify(t *testing.T) {
	server := servertest.Start(t)
	sh := shell{t, server.Address()}
	sh.ok("", "topic create orders")
	sh.ok("", "produce orders -n 500", strings.Repeat("x", 1000))
	local := shell{t, ""}
	folder := server.Folder()
	server.Stop()

	out := local.ok("", "journal verify", folder)
	for _, want := range []string{"checked", "checksum", "whole", "messages", "topic", "epoch"} {
		if !strings.Contains(out, want) {
			t.Errorf("verify says nothing of %q:\n%s", want, out)
		}
	}
	var v verifyResult
	if err := json.Unmarshal([]byte(local.ok("", "journal verify -o json", folder)), &v); err != nil || !v.Whole || v.Segments == 0 || v.Records < 6 || v.TornBytes != 0 {
		t.Errorf("verify -o json: %+v, %v", v, err)
	}
	segments, err := filepath.Glob(filepath.Join(folder, "journal", "0*.journal"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("segments: %v, %v", segments, err)
	}
	content, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	content[4096+300]++
	if err := os.WriteFile(segments[0], content, 0o644); err != nil {
		t.Fatal(err)
	}
	code, out, errs := local.run("", "journal verify", folder)
	if code != exitError || !strings.Contains(out, "DAMAGED") || !strings.Contains(errs, filepath.Base(segments[0])) || strings.Count(errs, "\n") != 1 {
		t.Errorf("after a flipped byte: exit %d\n%s%s", code, out, errs)
	}

	local.fails(exitNotFound, "has no journal", "", "journal verify", t.TempDir())
	local.fails(exitNotFound, "has no journal", "", "journal verify", filepath.Join(t.TempDir(), "none"))
	local.fails(exitUsage, "is a file", "", "journal verify", segments[0])
	local.fails(exitUsage, "usage: jmq journal verify FOLDER", "", "journal verify")
	running := servertest.Start(t)
	local.fails(exitError, "in use; stop its broker first", "", "journal verify", running.Folder())

	// What the journal cannot say of itself: a header is damaged in both copies, the last segment is gone, or is another's.
	content[4096+300]--
	header := slices.Clone(content[:4096])
	clear(content[:4096])
	if err := os.WriteFile(segments[0], content, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := local.run("", "journal verify", folder); code != exitError || !strings.Contains(out, "next start makes again") || strings.Contains(out, "does not start") {
		t.Errorf("without a header: exit %d\n%s%s", code, out, errs)
	}
	copy(content, header)
	if err := os.WriteFile(segments[0], content, 0o644); err != nil {
		t.Fatal(err)
	}
	last := segments[len(segments)-1]
	aside := filepath.Join(t.TempDir(), "aside")
	if err := os.Rename(last, aside); err != nil {
		t.Fatal(err)
	}
	local.fails(exitError, "the last segments are missing", "", "journal verify", folder)
	if err := os.Rename(aside, filepath.Join(folder, "journal", "00000000000000000008.journal")); err != nil {
		t.Fatal(err)
	}
	local.fails(exitError, "is not named", "", "journal verify", folder)
	if err := os.Rename(filepath.Join(folder, "journal"), filepath.Join(t.TempDir(), "away")); err != nil {
		t.Fatal(err)
	}
	local.fails(exitError, "broker.journal.folder", "", "run broker --log.level error --node.wire.listen 127.0.0.1:0 --node.admin.listen 127.0.0.1:0 --data", folder)
	local.fails(exitNotFound, "--journal where", "", "journal verify", folder)
}

// Dump prints every record with what it says, in every form; it chooses by kind and position, and names of topics come from the
// records before.
func TestJournalDump(t *testing.T) {
	server := servertest.Start(t)
	sh := shell{t, server.Address()}
	sh.ok("", "topic create orders -p 1")
	sh.ok("", "produce orders -n 3", "x")
	sh.ok("", "consume orders -g pay --from-beginning -n 3")
	sh.ok("", "topic alter orders -p 2 --retention 7d --reason", "more shops")
	local := shell{t, ""}
	folder := server.Folder()
	server.Stop()

	out := local.ok("", "journal dump", folder)
	for _, want := range []string{
		"  begins epoch ", "create topic orders (id 1.1), 1 partition, retention default, default", "orders/0 [0, 3), compression none", "pay orders/0 [0, 3) acked",
		"alter topic orders (id 1.1), 2 partitions, retention 7d, default", `; reason "more shops"`, "; by app=cli",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("dump says nothing of %q:\n%s", want, out)
		}
	}
	var first, second recordInfo
	lines := strings.Split(local.ok("", "journal dump -o json --kind topic", folder), "\n")
	if len(lines) != 3 || json.Unmarshal([]byte(lines[0]), &first) != nil || json.Unmarshal([]byte(lines[1]), &second) != nil || first.Kind != "topic" || second.Position <= first.Position {
		t.Fatalf("json: %q", lines)
	}
	// From within the first record on the next one is what comes.
	if out := local.ok("", fmt.Sprintf("journal dump -o name --kind topic --from %d", first.Position+1), folder); out != fmt.Sprintln(second.Position) {
		t.Errorf("from: %q, want %d", out, second.Position)
	}
	if out := local.ok("", "journal dump -o csv -n 2", folder); strings.Count(out, "\n") != 3 || !strings.HasPrefix(out, "position,kind,epoch,stored at,bytes,says\n0,epoch,") {
		t.Errorf("csv: %q", out)
	}
	if out := local.ok("", "journal dump -o yaml -n 1 --kind offsetReset", folder); !strings.Contains(out, "group: pay") || !strings.Contains(out, "topic: orders") {
		t.Errorf("yaml: %q", out)
	}
	local.fails(exitUsage, "give some of: noop, epoch, messages", "", "journal dump --kind x", folder)
	local.fails(exitUsage, "--count", "", "journal dump -n -1", folder)
	local.fails(exitNotFound, "has no journal", "", "journal dump", t.TempDir())
	running := servertest.Start(t)
	local.fails(exitError, "in use; stop its broker first", "", "journal dump", running.Folder())

	stopped, cancel := context.WithCancel(context.Background())
	cancel()
	var errs bytes.Buffer
	if code := execute(stopped, []string{"journal", "dump", folder}, nil, new(bytes.Buffer), &errs); code != exitInterrupted || errs.String() != "jmq: stopped; go on with --from 0\n" {
		t.Errorf("stopped: exit %d, %q", code, errs.String())
	}
}

// msg get prints what is stored, by index and by time, whatever compressed it, and moves no group.
func TestMsgGet(t *testing.T) {
	sh := shell{t, servertest.Start(t).Address()}
	sh.ok("", "topic create orders -p 1")
	sh.ok("", "produce orders -k order-17 -H a=b", "one", "two\nlines", string([]byte{0xff, 0xfe}))
	sh.ok("", "consume orders -g pay --from-beginning -n 3")
	var got []storedInfo
	if out := sh.ok("", "msg get orders 0 0 -n 3 -o json"); json.Unmarshal([]byte(out), &got) != nil || len(got) != 3 || *got[0].Body != "one" || got[1].Index != 1 ||
		!bytes.Equal(got[2].BodyBase64, []byte{0xff, 0xfe}) || got[2].Body != nil || got[0].Key != "order-17" || got[0].Headers[0].Value != "b" || got[0].Partition != 0 {
		t.Errorf("json: %s", out)
	}
	if out := sh.ok("", "msg get orders 0 1"); !strings.Contains(out, `two\nlines`) || strings.Count(out, "\n") != 2 {
		t.Errorf("table: %s", out)
	}
	if out := sh.ok("", "msg get orders 0 2 --body hex -o csv"); !strings.HasSuffix(out, ",fffe\n") {
		t.Errorf("csv: %s", out)
	}
	if out := sh.ok("", "msg get orders 0 --time 1h -n 1000 -o name"); strings.Count(out, "\n") != 3 || !strings.HasPrefix(out, got[0].ID+"\n") {
		t.Errorf("by time: %s", out)
	}
	sh.fails(exitNotFound, "nothing is stored there", "", "msg get orders 0 99")
	sh.fails(exitNotFound, "nothing is stored there", "", "msg get orders 0 3")
	sh.fails(exitNotFound, "", "", "msg get orders 9 0")
	sh.fails(exitNotFound, "jmq topic create", "", "msg get nothing 0 0")
	sh.fails(exitUsage, "INDEX, or --time", "", "msg get orders 0")
	sh.fails(exitUsage, "either INDEX or --time", "", "msg get orders 0 0 --time 1h")
	sh.fails(exitUsage, "partition", "", "msg get orders x 0")
	sh.fails(exitUsage, "--count", "", "msg get orders 0 0 -n 0")
	sh.fails(exitUsage, "--body", "", "msg get orders 0 0 --body x")
	sh.fails(exitUsage, "--time", "", "msg get orders 0 --time soon")
}

// A group's day: it is listed, described, moved in every way (dry first), altered, watched and removed; who did it and why is told.
func TestGroups(t *testing.T) {
	server := servertest.Start(t)
	sh := shell{t, server.Address()}
	sh.ok("", "topic create orders -p 1")
	if out := sh.ok("", "group ls"); out != "no group consumes yet\n" {
		t.Errorf("no groups: %q", out)
	}
	sh.ok("", "produce orders -n 10", "x")
	sh.ok("", "consume orders -g pay --from-beginning -n 6")
	sh.ok("", "consume orders -g ship --from-beginning -n 1")
	if out := sh.ok("", "group ls -o name"); out != "pay\nship\n" {
		t.Errorf("ls: %q", out)
	}
	var groups []groupInfo
	if out := sh.ok("", "group ls orders -o json"); json.Unmarshal([]byte(out), &groups) != nil || len(groups) != 2 || groups[0].Lag != 4 || groups[1].Lag != 9 || groups[0].Topic != "orders" {
		t.Errorf("ls: %s", out)
	}
	offset := func() uint64 {
		t.Helper()
		var lags []lagInfo
		out := sh.ok("", "group lag orders pay -o json")
		if err := json.Unmarshal([]byte(out), &lags); err != nil || len(lags) != 1 {
			t.Fatalf("lag: %v %s", err, out)
		}
		return lags[0].AckOffset
	}
	for _, c := range []struct {
		to             string
		from, want     uint64
		again, skipped uint64
		cut            bool
	}{
		{"start", 6, 0, 6, 0, false}, {"end", 0, 10, 0, 10, false}, {"-3", 10, 7, 3, 0, false}, {"+1", 7, 8, 0, 1, false}, {"5", 8, 5, 3, 0, false},
		{"1h", 5, 0, 5, 0, false}, {"99", 0, 10, 0, 10, true}, {"-99", 10, 0, 10, 0, true}, {"2261-01-01", 0, 10, 0, 10, false}, {"+0", 10, 10, 0, 0, false},
	} {
		var dry, moved []seekInfo
		if out := sh.ok("", "group seek orders pay --dry-run -o json --to "+c.to); json.Unmarshal([]byte(out), &dry) != nil || len(dry) != 1 || !dry[0].DryRun {
			t.Fatalf("dry run: %s", out)
		}
		if got := offset(); got != c.from {
			t.Errorf("a dry run moved the group from %d to %d", c.from, got)
		}
		if out := sh.ok("", "group seek orders pay --yes -o json --reason because --to "+c.to); json.Unmarshal([]byte(out), &moved) != nil || len(moved) != 1 {
			t.Fatalf("seek: %s", out)
		}
		want := seekInfo{Group: "pay", Topic: "orders", BrokerGroup: "default", From: c.from, To: c.want, Again: c.again, Skipped: c.skipped, LagFrom: 10 - c.from, LagTo: 10 - c.want, End: 10, Generation: moved[0].Generation, Cut: c.cut}
		if moved[0] != want || offset() != c.want {
			t.Errorf("--to %s: got %+v and stands at %d, want %+v", c.to, moved[0], offset(), want)
		}
		want.DryRun = true
		if dry[0] != want {
			t.Errorf("--to %s: dry run %+v, want %+v", c.to, dry[0], want)
		}
	}
	sh.ok("", "group reset orders pay --yes --reason", "wrong totals")
	out := sh.ok("", "group describe orders pay")
	for _, want := range []string{"pay on orders, in order", "10 messages; 0 leased", "last reset", "by app=cli", ": wrong totals"} {
		if !strings.Contains(out, want) {
			t.Errorf("describe says nothing of %q:\n%s", want, out)
		}
	}
	if out := sh.ok("", "group alter orders pay --window 7"); !strings.Contains(out, "parallel 7") {
		t.Errorf("alter: %s", out)
	}
	if out := sh.ok("", "group alter orders pay --parallel=false"); !strings.Contains(out, "in order") {
		t.Errorf("alter: %s", out)
	}
	sh.fails(exitUsage, "say what to change", "", "group alter orders pay")
	sh.fails(exitUsage, "--window is for", "", "group alter orders pay --parallel=false --window 5")
	sh.fails(exitUsage, "say where to", "", "group seek orders pay --yes")
	sh.fails(exitUsage, "--partition", "", "group seek orders pay --to end --yes --partition 70000")
	sh.fails(exitNotFound, "", "", "group seek orders pay --to end --yes --partition 7")
	for _, line := range []string{"group describe orders nobody", "group lag orders nobody", "group seek orders nobody --to end --yes", "group alter orders nobody --parallel", "group rm orders nobody --yes"} {
		sh.fails(exitNotFound, "there are: pay, ship", "", line)
		sh.fails(exitNotFound, "jmq topic create", "", strings.Replace(line, "orders", "nothing", 1))
	}

	// Watching goes on until it is told to stop.
	watching, stop := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- execute(watching, []string{"group", "lag", "orders", "--watch", "--every", "100ms", "-o", "csv", "-a", server.Address()}, nil, w, io.Discard)
		w.Close()
	}()
	lines := bufio.NewScanner(r)
	seen := 0
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "pay,") {
			if seen++; seen == 3 {
				stop()
			}
		}
	}
	if code := <-ended; code != exitOK || seen < 3 {
		t.Errorf("watch: exit %d after %d times", code, seen)
	}
	stop()

	// Names are completed.
	t.Setenv(envAddress, server.Address())
	for line, want := range map[string]string{
		"topic describe": "orders\n:4\n", "group seek orders": "pay\nship\n:4\n", "consume orders -g": "pay\nship\n:4\n", "group seek orders pay": ":4\n", "msg get": "orders\n:4\n",
	} {
		if out := (shell{t, ""}).okCompletion(append(strings.Fields(line), "")...); out != want {
			t.Errorf("completion of %s: %q, want %q", line, out, want)
		}
	}

	sh.ok("", "group rm orders pay --yes")
	if out := sh.ok("", "group ls -o name"); out != "ship\n" {
		t.Errorf("after rm: %q", out)
	}
}

func (s shell) okCompletion(args ...string) string {
	s.t.Helper()
	var out, errs bytes.Buffer
	if code := execute(s.t.Context(), append([]string{"__complete"}, args...), nil, &out, &errs); code != exitOK {
		s.t.Errorf("completion of %q: exit %d, %s", args, code, errs.String())
	}
	return out.String()
}

// Topics are altered, paused and deleted; what is deleted is gone, and a new one of the name is empty.
func TestTopics(t *testing.T) {
	sh := shell{t, servertest.Start(t).Address()}
	sh.ok("", "topic create orders -p 1 --retention 7d --retention-bytes 1GiB")
	sh.ok("", "produce orders x")
	if out := sh.ok("", "topic ls -o csv"); !strings.HasSuffix(out, ",7d,1.0 GiB,no\n") {
		t.Errorf("ls: %s", out)
	}
	if out := sh.ok("", "topic alter orders -p 3 --retention forever"); !strings.Contains(out, "forever") {
		t.Errorf("alter: %s", out)
	}
	sh.fails(exitUsage, "", "", "topic alter orders -p 2")
	sh.ok("", "topic pause orders --produce")
	sh.fails(exitError, "jmq topic resume", "", "produce orders --timeout 300ms x")
	sh.ok("", "topic resume orders")
	sh.ok("", "topic pause orders --consume")
	sh.fails(exitTimeout, "no message came", "", "consume orders -g pay --from-beginning --timeout 300ms")
	sh.ok("", "topic resume orders")
	sh.ok("", "consume orders -g pay --from-beginning -n 1")
	if out := sh.ok("", "topic delete orders --yes"); out != "NAME    IS\norders  deleted\n" {
		t.Errorf("delete: %q", out)
	}
	sh.fails(exitNotFound, "jmq topic create", "", "topic delete orders --yes")
	sh.fails(exitNotFound, "jmq topic create", "", "topic pause orders")
	sh.ok("", "topic create orders -p 1")
	sh.fails(exitNotFound, "nothing is stored there", "", "msg get orders 0 0")
	sh.fails(exitUsage, "-1 is neither a flag nor a place", "", "msg get orders 0 -1")
	if out := sh.ok("", "group ls"); out != "no group consumes yet\n" {
		t.Errorf("groups of the topic before: %s", out)
	}
}

// The index of a stopped broker is made again from its journal: the same messages are there, groups stand where they stood, also
// when an attempt before was stopped in the middle.
func TestIndexRebuild(t *testing.T) {
	server := servertest.Start(t)
	sh := shell{t, server.Address()}
	sh.ok("", "topic create orders -p 2")
	const messages = 60_000 // so many that the index has files
	sh.ok("", fmt.Sprintf("produce orders -n %d", messages), "x")
	sh.ok("", "consume orders -g pay --from-beginning -n 1000 -o name")
	lags := sh.ok("", "group lag orders pay -o json")
	first := sh.ok("", "msg get orders 1 0 -o json")
	local := shell{t, ""}
	folder := server.Folder()
	local.fails(exitError, "in use; stop its broker first", "", "index rebuild", folder)
	server.Stop()
	t.Chdir(filepath.Dir(folder)) // a name from there is one too
	for _, folder := range []string{folder, filepath.Base(folder)} {
		var r rebuildResult
		out := local.ok("", "index rebuild -o json", folder)
		if err := json.Unmarshal([]byte(out), &r); err != nil || r.Topics != 1 || r.Partitions != 2 || r.Messages != messages || r.Files == 0 {
			t.Errorf("rebuild: %v %s", err, out)
		}
		if _, err := os.Stat(filepath.Join(folder, "index.before")); !os.IsNotExist(err) {
			t.Errorf("what was before stays: %v", err)
		}
		// As after a stop in the middle: all files are set aside.
		if _, err := setIndexAside(filepath.Join(folder, "index")); err != nil {
			t.Fatal(err)
		}
	}
	sh.address = servertest.Start(t, func(c *jmqserver.Config) { c.Broker.Data = folder }).Address()
	if out := sh.ok("", "group lag orders pay -o json"); out != lags {
		t.Errorf("lag: %s, want %s", out, lags)
	}
	if out := sh.ok("", "msg get orders 1 0 -o json"); out != first {
		t.Errorf("a message: %s, want %s", out, first)
	}
	local.fails(exitNotFound, "has no journal", "", "index rebuild", t.TempDir())
	local.fails(exitUsage, "usage: jmq index rebuild FOLDER", "", "index rebuild")
}

// A journal with a segment gone and bytes flipped is refused by the broker; a dry run says what a repair would do and changes nothing;
// the repair does it, once; then the broker starts and what is left is there.
func TestJournalRepair(t *testing.T) {
	server := servertest.Start(t)
	sh := shell{t, server.Address()}
	sh.ok("", "topic create orders -p 1")
	sh.ok("", "produce orders -n 4000", strings.Repeat("x", 1000))
	local := shell{t, ""}
	folder := server.Folder()
	local.fails(exitError, "in use; stop its broker first", "", "journal repair", folder)
	server.Stop()
	if out := local.ok("", "journal repair", folder); !strings.Contains(out, "nothing to repair") {
		t.Errorf("of a whole journal: %s", out)
	}
	segments, err := filepath.Glob(filepath.Join(folder, "journal", "0*.journal"))
	if err != nil || len(segments) < 4 {
		t.Fatalf("segments: %v, %v", segments, err)
	}
	if err := os.Remove(segments[2]); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	content[20_000]++
	if err := os.WriteFile(segments[0], content, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := local.run("", "journal verify", folder); code != exitError || !strings.Contains(out, "the broker does not start") ||
		strings.Contains(out, "next start") || !strings.Contains(errs, "segment is missing") || !strings.Contains(errs, "journal repair") || strings.Count(errs, "\n") != 1 {
		t.Errorf("verify: exit %d %s%s", code, out, errs)
	}
	var dry, done repairResult
	if out := local.ok("", "journal repair --dry-run -o json", folder); json.Unmarshal([]byte(out), &dry) != nil || !dry.DryRun || len(dry.Missing) != 1 || len(dry.Lost) == 0 {
		t.Fatalf("dry run: %s", out)
	}
	local.fails(exitUsage, "say --yes", "", "journal repair", folder)
	if out := local.ok("", "journal repair --yes -o json", folder); json.Unmarshal([]byte(out), &done) != nil || done.DryRun {
		t.Fatalf("repair: %s", out)
	}
	if dry.DryRun = false; fmt.Sprint(dry) != fmt.Sprint(done) {
		t.Errorf("it did %+v, and had said %+v", done, dry)
	}
	if out := local.ok("", "journal repair --yes", folder); !strings.Contains(out, "nothing to repair") {
		t.Errorf("of a repaired journal: %s", out)
	}
	if out := local.ok("", "journal verify", folder); !strings.Contains(out, "lost to damage before, and known to be: ") || !strings.Contains(out, "whole") {
		t.Errorf("verify of a repaired journal: %s", out)
	}
	if out := local.ok("", "journal dump --kind lost", folder); !strings.Contains(out, "bytes were lost to damage here") {
		t.Errorf("dump of a repaired journal: %s", out)
	}
	// The store's identity is made again too.
	store := filepath.Join(folder, "STORE")
	was, err := os.ReadFile(store)
	if err != nil {
		t.Fatal(err)
	}
	for _, damage := range []func() error{func() error { return os.Remove(store) }, func() error { return os.WriteFile(store, was[3:], 0o644) }} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		local.fails(exitError, "jmq journal repair", "", "run broker --log.level error --node.wire.listen 127.0.0.1:0 --node.admin.listen 127.0.0.1:0 --data", folder)
		if out := local.ok("", "journal repair --yes", folder); !strings.Contains(out, "identity made again") {
			t.Errorf("repair of the identity: %s", out)
		}
		if is, err := os.ReadFile(store); err != nil || string(is) != string(was) {
			t.Errorf("identity %q, %v, want %q", is, err, was)
		}
	}
	sh.address = servertest.Start(t, func(c *jmqserver.Config) { c.Broker.Data = folder }).Address()
	var usage usageInfo
	if out := sh.ok("", "store usage -o json"); json.Unmarshal([]byte(out), &usage) != nil || len(usage.Holes) == 0 {
		t.Errorf("usage says nothing of holes: %s", out)
	}
	var got []storedInfo
	if out := sh.ok("", "msg get orders 0 0 -n 1000 -o json"); json.Unmarshal([]byte(out), &got) != nil || len(got) != 1001 || got[0].Gap != "damaged" || got[0].To != got[1].Index {
		t.Errorf("%d found, the first %+v", len(got), got[0])
	}
	code, out, errs := sh.run("", "consume orders -g pay --from-beginning --timeout 1s -o name")
	lost, gaps := 0, regexp.MustCompile(`\[(\d+), (\d+)\) of partition 0 will never come: damaged`).FindAllStringSubmatch(errs, -1)
	for _, gap := range gaps {
		from, _ := strconv.Atoi(gap[1])
		to, _ := strconv.Atoi(gap[2])
		lost += to - from
	}
	// How many were in what is lost depends on how they were sent: in about a fourth of the journal, and one batch.
	if code != exitTimeout || len(gaps) < 2 || lost == 0 || lost > 2000 || strings.Count(out, "\n") != 4000-lost {
		t.Errorf("consume: exit %d, %d messages, %d lost, %s", code, strings.Count(out, "\n"), lost, errs)
	}
}
