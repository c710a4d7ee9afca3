package meta_test

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/servertest/mutate"
	"github.com/jmqio/jmq/wire"
)

// TestDecodeStrict: what a person may get wrong is told with its place.
func TestDecodeStrict(t *testing.T) {
	many := "[" + strings.Repeat(`"a",`, meta.ListMax) + `"a"]`
	weights := "{"
	for i := range meta.ListMax {
		weights += fmt.Sprintf(`"g%d":0,`, i)
	}
	weights += `"g":0}`
	for _, c := range []struct {
		kind       meta.Kind
		json, want string
	}{
		{meta.KindTopic, `{"partition":4}`, `field "partition" is not known; known are description, owner, type, partitions,`},
		{meta.KindTopic, `{"Partitions":4}`, `field "Partitions" is not known`},
		{meta.KindTopic, `{"limit":{"bytes":4}}`, `field "limit.bytes" is not known; known are messagesPerSecond`},
		{meta.KindTopic, `{"partitions":4,"partitions":5}`, `field "partitions" is given twice`},
		{meta.KindProducer, `{"weights":{"a":1,"a":2}}`, `field "weights.a" is given twice`},
		{meta.KindTopic, `{"partitions":"4"}`, `field "partitions" must be a number`},
		{meta.KindTopic, `{"partitions":4.5}`, `field "partitions" cannot be number 4.5`},
		{meta.KindTopic, `{"partitions":1e99}`, `field "partitions" cannot be number 1e99`},
		{meta.KindTopic, `{"partitions":null}`, `field "partitions" is null: leave it out`},
		{meta.KindTopic, `{"archive":1}`, `field "archive" must be true or false`},
		{meta.KindTopic, `{"archive":"true"}`, `field "archive" must be true or false`},
		{meta.KindTopic, `{"description":7}`, `field "description" must be text`},
		{meta.KindTopic, `{"brokerGroups":"b1"}`, `field "brokerGroups" must be a list`},
		{meta.KindTopic, `{"brokerGroups":[["b1"]]}`, `field "brokerGroups[0]" must be text`},
		{meta.KindTopic, `{"limit":[]}`, `field "limit" must be an object`},
		{meta.KindTopic, `{"retentionAge":7}`, `field "retentionAge" must be a duration with its unit`},
		{meta.KindTopic, `{"retentionAge":"7"}`, `"7" is no duration`},
		{meta.KindTopic, `{"retentionAge":"-7h"}`, `"-7h" is no duration`},
		{meta.KindTopic, `{"labels":` + many + `}`, `field "labels" has more than 1000 entries`},
		{meta.KindProducer, `{"weights":` + weights + `}`, `field "weights" has more than 1000 entries`},
		{meta.KindConsumer, `{"filters":[{"type":"tag","rule":"a","x":1}]}`, `field "filters[0].x" is not known; known are type, rule`},
		{meta.KindCredential, `{"expires":"tomorrow"}`, `tomorrow`},
		{meta.KindCredential, `{"salt":"%%%"}`, `base64`},
		{meta.KindApp, `[]`, `field "spec" must be an object`},
		{meta.KindApp, `null`, `field "spec" is null`},
		{meta.KindApp, ``, `it ends in the middle`},
		{meta.KindApp, `{"owners":["a"`, `it ends in the middle`},
		{meta.KindApp, `{} {}`, `more follows after its end`},
		{meta.KindApp, `{]`, `no JSON at byte`},
		{meta.KindApp, "{\"description\":\"\xff\"}", `is not UTF-8`},
		{meta.KindApp, `{"description":"` + strings.Repeat("x", 10<<20) + `"}`, `at most 1048576 are allowed`},
		{meta.KindApp, strings.Repeat("[", 100_000), `field "spec" must be an object`},
		{"policy", `{}`, `"policy" is no kind of object: take one of namespace,`},
	} {
		spec, err := meta.DecodeSpec(c.kind, []byte(c.json))
		if spec != nil || wire.CodeOf(err) != wire.CodeInvalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %.60s: %v, %v; want %q", c.kind, c.json, spec, err, c.want)
		}
		if err != nil && len(err.Error()) > 600 {
			t.Errorf("%s %.60s: an error of %d bytes", c.kind, c.json, len(err.Error()))
		}
	}
}

// TestEncode: the same spec is the same bytes, whatever made it.
func TestEncode(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		a, b meta.Spec
		want string
	}{
		{&meta.Topic{}, &meta.Topic{BrokerGroups: []string{}, Labels: []string{}}, `{}`},
		{&meta.Topic{RetentionAge: -1}, &meta.Topic{RetentionAge: -5}, `{"retentionAge":"never"}`},
		{&meta.Producer{Weights: map[string]int{"b": 1, "a": 2, "c": 0}}, &meta.Producer{Weights: map[string]int{"c": 0, "a": 2, "b": 1}}, `{"weights":{"a":2,"b":1,"c":0}}`},
		{&meta.User{Role: meta.RoleAdmin, DisplayName: "<&>"}, &meta.User{Role: meta.RoleAdmin, DisplayName: "<&>"}, `{"displayName":"<&>","role":"admin"}`},
		{&meta.Credential{Expires: at}, &meta.Credential{Expires: at.In(time.FixedZone("x", 3600))}, `{"ownerKind":"","owner":"","expires":"2026-01-02T03:04:05Z"}`},
		{&meta.Namespace{}, &meta.Namespace{}, `{"id":0}`},
	} {
		a, err1 := meta.EncodeSpec(c.a)
		b, err2 := meta.EncodeSpec(c.b)
		if err1 != nil || err2 != nil || string(a) != c.want || string(b) != c.want {
			t.Errorf("%s, %v and %s, %v; want %s", a, err1, b, err2, c.want)
		}
	}
}

// TestDuration: texts and what they are, both ways, also in YAML.
func TestDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0s": 0, "500ms": 500 * time.Millisecond, "90s": 90 * time.Second, "168h": 168 * time.Hour, "7d": 168 * time.Hour, "1d12h": 36 * time.Hour, "1h30m": 90 * time.Minute, "never": -1,
	} {
		var d meta.Duration
		if err := d.UnmarshalText([]byte(text)); err != nil || time.Duration(d) != want {
			t.Errorf("%s is %v, %v", text, time.Duration(d), err)
		}
		var again meta.Duration
		if err := again.UnmarshalText([]byte(d.String())); err != nil || again != d {
			t.Errorf("%s is written %s, which is %v, %v", text, d, again, err)
		}
		var y struct{ A meta.Duration }
		if err := yaml.Unmarshal([]byte("a: "+text), &y); err != nil || y.A != d {
			t.Errorf("yaml %s is %v, %v", text, y.A, err)
		}
		if b, err := yaml.Marshal(y); err != nil || !strings.Contains(string(b), d.String()) {
			t.Errorf("yaml of %s: %s, %v", d, b, err)
		}
	}
	if got := meta.Duration(168 * time.Hour).String(); got != "168h" {
		t.Error(got)
	}
	for _, text := range []string{"", "7", "-1s", "d", "1.5d", "99999d", "9999999h", "1w", "h", "-1d", "1d-1h"} {
		var d meta.Duration
		if err := d.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %v", text, d)
		}
	}
}

// TestRedact: nothing of a credential's verifier is left, and the credential itself is as it was.
func TestRedact(t *testing.T) {
	c := secret(meta.OwnerNode, "n")
	b, err := meta.EncodeSpec(meta.Redact(c))
	if err != nil || string(b) != `{"ownerKind":"node","owner":"n"}` || len(c.StoredKey) != 32 {
		t.Fatalf("%s, %v", b, err)
	}
}

// TestWire: objects over the wire and back, deleted ones too.
func TestWire(t *testing.T) {
	s := world(t)
	for _, kind := range meta.Kinds {
		for _, o := range s.List(kind) {
			w, err := meta.ToWire(o)
			if err != nil {
				t.Fatal(err)
			}
			got, err := meta.FromWire(w)
			if err != nil || !reflect.DeepEqual(got, o) {
				t.Fatalf("%+v, %v; want %+v", got, err, o)
			}
		}
	}
	gone := &meta.Object{Key: k(meta.KindApp, "x"), Revision: 7, Created: 3}
	w, err := meta.ToWire(gone)
	if err != nil || len(w.Spec) != 0 {
		t.Fatal(w, err)
	}
	if got, err := meta.FromWire(w); err != nil || !reflect.DeepEqual(got, gone) {
		t.Fatal(got, err)
	}
	for _, bad := range []*wire.Object{{}, {Kind: "app", Name: "x"}, {Kind: "app", Namespace: "default", Name: "x y"}, {Kind: "user", Namespace: "default", Name: "x"}, {Kind: "user", Name: "x", Spec: []byte("{")}} {
		if got, err := meta.FromWire(bad); wire.CodeOf(err) != wire.CodeInvalid {
			t.Errorf("%v: %v, %v", bad, got, err)
		}
	}
}

// FuzzDecodeSpec: whatever is given, an answer comes; what is taken is written in one form, which is read as the same, and no second reading gives another.
func FuzzDecodeSpec(f *testing.F) {
	s := world(f)
	var seeds [][]byte // the kind's number first
	for i, kind := range meta.Kinds {
		for _, o := range s.List(kind) {
			b, err := meta.EncodeSpec(o.Spec)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(string(kind), b)
			seeds = append(seeds, append([]byte{byte(i)}, b...))
		}
	}
	for i := range meta.Kinds {
		seeds = append(seeds, append([]byte{byte(i)}, `{}`...))
	}
	f.Add("consumer", []byte(`{"retry":{"delay":"1s","multiplier":1.5},"filters":[{"type":"tag","rule":"a|b"}],"near":true,"parallel":false,"delay":"1d2h"}`))
	f.Add("producer", []byte(`{"weights":{"a":1,"b":2},"retries":0,"forbiddenIPs":["10.0.0.0/8"]}`))
	f.Add("request", []byte(`{"topic":"t","app":"a","right":"produce","requestedBy":"user u","decided":"2026-01-02T03:04:05+01:00"}`))
	f.Add("topic", []byte(`{"partitions":1,"partitions":2}`))
	check := func(t testing.TB, kind string, data []byte) bool {
		spec, err := meta.DecodeSpec(meta.Kind(kind), data)
		if err != nil {
			if wire.CodeOf(err) != wire.CodeInvalid {
				t.Fatalf("refused with %v", err)
			}
			return false
		}
		_ = spec.Validate()
		a, err := meta.EncodeSpec(spec)
		if err != nil {
			if spec.Validate() == nil {
				t.Fatalf("valid, and cannot be written: %v", err)
			}
			return true
		}
		again, err := meta.DecodeSpec(meta.Kind(kind), a)
		if err != nil {
			t.Fatalf("%s cannot be read again: %v", a, err)
		}
		if b, err := meta.EncodeSpec(again); err != nil || !bytes.Equal(a, b) {
			t.Fatalf("%s is written %s the second time, %v", a, b, err)
		}
		if (spec.Validate() == nil) != (again.Validate() == nil) {
			t.Fatalf("%s: %v, then %v", a, spec.Validate(), again.Validate())
		}
		return true
	}
	mutate.Run(f, mutate.Decoder{Seeds: seeds, Slowness: 4, Check: func(t testing.TB, b []byte) bool {
		return len(b) > 0 && check(t, string(meta.Kinds[int(b[0])%len(meta.Kinds)]), b[1:])
	}})
	f.Fuzz(func(t *testing.T, kind string, data []byte) { check(t, kind, data) })
}
