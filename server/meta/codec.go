package meta

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/jmqio/jmq/wire"
)

const (
	// SpecBytesMax bounds a spec's JSON.
	SpecBytesMax = 1 << 20
	// ListMax bounds each list and each map of a spec.
	ListMax = 1000
)

// NewSpec returns an empty spec of a kind, or nil if there is no such kind.
func NewSpec(k Kind) Spec {
	switch k {
	case KindNamespace:
		return new(Namespace)
	case KindTopic:
		return new(Topic)
	case KindApp:
		return new(App)
	case KindProducer:
		return new(Producer)
	case KindConsumer:
		return new(Consumer)
	case KindRequest:
		return new(Request)
	case KindCredential:
		return new(Credential)
	case KindUser:
		return new(User)
	case KindBrokerGroup:
		return new(BrokerGroup)
	case KindBroker:
		return new(Broker)
	case KindDataCenter:
		return new(DataCenter)
	case KindReplication:
		return new(Replication)
	}
	return nil
}

// DecodeSpec reads a spec as JSON. It is strict: an unknown field, a field given twice, a wrong type or too much of anything is
// CodeInvalid, with the kind and the field in its text. What values mean is for Validate. data is not retained.
func DecodeSpec(k Kind, data []byte) (Spec, error) {
	spec := NewSpec(k)
	switch {
	case spec == nil:
		return nil, wire.Errorf(wire.CodeInvalid, "%.40q is no kind of object: take one of %s", string(k), kindNames())
	case len(data) > SpecBytesMax:
		return nil, wire.Errorf(wire.CodeInvalid, "the spec of a %s has %d bytes: at most %d are allowed", k, len(data), SpecBytesMax)
	case !utf8.Valid(data):
		return nil, wire.Errorf(wire.CodeInvalid, "the spec of a %s is not UTF-8", k)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	c := checker{d: d}
	if err := c.value(reflect.TypeOf(spec).Elem(), ""); err != nil {
		return nil, wire.Errorf(wire.CodeInvalid, "the spec of a %s: %s", k, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, wire.Errorf(wire.CodeInvalid, "the spec of a %s: more follows after its end", k)
	}
	if err := json.Unmarshal(data, spec); err != nil {
		return nil, wire.Errorf(wire.CodeInvalid, "the spec of a %s: %s", k, decodeText(err))
	}
	return spec, nil
}

// EncodeSpec writes a spec as JSON: the same spec is the same bytes.
func EncodeSpec(s Spec) ([]byte, error) {
	switch v := s.(type) { // a moment is the same in every time zone
	case *Credential:
		c := *v
		c.IssuedAt, c.Expires = c.IssuedAt.UTC(), c.Expires.UTC()
		s = &c
	case *Request:
		c := *v
		c.Decided = c.Decided.UTC()
		s = &c
	case *Broker:
		c := *v
		c.Registered = c.Registered.UTC()
		s = &c
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		return nil, wire.Errorf(wire.CodeInvalid, "the spec of a %s: %s", s.Kind(), err)
	}
	if b.Len() > SpecBytesMax+1 {
		return nil, wire.Errorf(wire.CodeInvalid, "the spec of a %s has %d bytes: at most %d are allowed", s.Kind(), b.Len()-1, SpecBytesMax)
	}
	return b.Bytes()[:b.Len()-1], nil // without Encode's newline
}

// Redact returns a spec without what only nodes may see: the verifier of a credential.
func Redact(s Spec) Spec {
	if c, ok := s.(*Credential); ok {
		r := *c
		r.Salt, r.Iterations, r.StoredKey, r.ServerKey = nil, 0, nil, nil
		return &r
	}
	return s
}

// ToWire returns an object as it goes over the wire, whole: redact it first where it does not go to a node.
func ToWire(o *Object) (*wire.Object, error) {
	w := &wire.Object{Kind: string(o.Kind), Namespace: o.Namespace, Name: o.Name, Revision: uint64(o.Revision), Created: uint64(o.Created), BornNs: o.Born}
	if o.Spec == nil {
		return w, nil
	}
	var err error
	if w.Spec, err = EncodeSpec(o.Spec); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Key, err)
	}
	return w, nil
}

// FromWire reads an object; an empty spec is that of a deleted one.
func FromWire(w *wire.Object) (*Object, error) {
	o := &Object{
		Key:      Key{Kind: Kind(w.GetKind()), Namespace: w.GetNamespace(), Name: w.GetName()},
		Revision: Version(w.GetRevision()), Created: Version(w.GetCreated()), Born: w.GetBornNs(),
	}
	if err := o.Key.Check(); err != nil {
		return nil, err
	}
	if len(w.GetSpec()) == 0 {
		return o, nil
	}
	var err error
	if o.Spec, err = DecodeSpec(o.Kind, w.GetSpec()); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Key, err)
	}
	return o, nil
}

// checker walks over JSON beside the type that it will be put into: encoding/json neither sees fields that come twice nor the case
// of their letters, and stops at no size. A value of another shape is an error at once, so it goes no deeper than the type does.
type checker struct {
	d *json.Decoder
}

func (c *checker) value(t reflect.Type, at string) error {
	tok, err := c.d.Token()
	if err != nil {
		return errors.New(syntaxText(err))
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if tok == nil {
		return fmt.Errorf("field %q is null: leave it out", orSpec(at))
	}
	want, scalar := shape(t)
	switch v := tok.(type) {
	case json.Delim:
		switch {
		case v == '{' && want == "an object":
			return c.object(t, at)
		case v == '[' && want == "a list":
			for i := 0; c.d.More(); i++ {
				if i == ListMax {
					return fmt.Errorf("field %q has more than %d entries", at, ListMax)
				}
				if err := c.value(t.Elem(), at+"["+strconv.Itoa(i)+"]"); err != nil {
					return err
				}
			}
			return c.end()
		}
	case string:
		if scalar && want != "a number" && want != "true or false" {
			return nil
		}
	case json.Number:
		if want == "a number" {
			return nil
		}
	case bool:
		if want == "true or false" {
			return nil
		}
	}
	return fmt.Errorf("field %q must be %s", orSpec(at), want)
}

func (c *checker) object(t reflect.Type, at string) error {
	seen := map[string]bool{}
	for c.d.More() {
		tok, err := c.d.Token()
		if err != nil {
			return errors.New(syntaxText(err))
		}
		name := tok.(string) // the decoder lets nothing else be a key
		under := name
		if at != "" {
			under = at + "." + name
		}
		if seen[name] {
			return fmt.Errorf("field %.100q is given twice", under)
		}
		if len(seen) == ListMax {
			return fmt.Errorf("field %q has more than %d entries", orSpec(at), ListMax)
		}
		seen[name] = true
		elem := t
		if t.Kind() == reflect.Map {
			elem = t.Elem()
		} else if elem = fieldsOf(t)[name]; elem == nil {
			return fmt.Errorf("field %.100q is not known; known are %s", under, fieldNames(t))
		}
		if err := c.value(elem, under); err != nil {
			return err
		}
	}
	return c.end()
}

// end reads the bracket at the end of a list or an object.
func (c *checker) end() error {
	if _, err := c.d.Token(); err != nil {
		return errors.New(syntaxText(err))
	}
	return nil
}

var (
	timeType   = reflect.TypeFor[time.Time]()
	bytesType  = reflect.TypeFor[[]byte]()
	textReader = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// shape says what JSON a type is written as.
func shape(t reflect.Type) (want string, scalar bool) {
	switch {
	case t == timeType:
		return "a time as 2026-01-31T15:04:05Z", true
	case reflect.PointerTo(t).Implements(textReader):
		return "a duration with its unit, as 90s or 168h", true
	case t == bytesType:
		return "text in base64", true
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object", false
	case reflect.Slice:
		return "a list", false
	case reflect.String:
		return "text", true
	case reflect.Bool:
		return "true or false", true
	}
	return "a number", true
}

// fields holds what fieldsOf found, by type.
var fields sync.Map

// fieldsOf returns the types of a struct's fields by their names in JSON.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	if m, ok := fields.Load(t); ok {
		return m.(map[string]reflect.Type)
	}
	m := map[string]reflect.Type{}
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			m[name] = f.Type
		}
	}
	fields.Store(t, m)
	return m
}

func fieldNames(t reflect.Type) string {
	var names []string
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

func orSpec(at string) string {
	if at == "" {
		return "spec"
	}
	return at
}

func syntaxText(err error) string {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return "it ends in the middle"
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("no JSON at byte %d: %s", e.Offset, e)
	}
	return err.Error()
}

func decodeText(err error) string {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Sprintf("field %q cannot be %s", e.Field, e.Value)
	}
	return syntaxText(err)
}

// String writes a duration as it is in a spec.
func (d Duration) String() string {
	if d < 0 {
		return durationNever
	}
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// durationNever is how a duration below 0 is written, which only a topic's retentionAge may be.
const durationNever = "never"

// MarshalText writes "168h", "500ms" or "never"; JSON and YAML use it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a number with its unit, up to days (d): "168h", "1h30m", "7d"; or "never".
func (d *Duration) UnmarshalText(b []byte) error {
	text := string(b)
	if text == durationNever {
		*d = -1
		return nil
	}
	var days time.Duration
	rest := text
	if n, after, ok := strings.Cut(text, "d"); ok {
		whole, err := strconv.ParseUint(n, 10, 16)
		if err != nil {
			return durationError(text)
		}
		days, rest = time.Duration(whole)*24*time.Hour, after
	}
	var v time.Duration
	if rest != "" || days == 0 {
		var err error
		if v, err = time.ParseDuration(rest); err != nil || v < 0 {
			return durationError(text)
		}
	}
	if *d = Duration(days + v); *d < 0 {
		return durationError(text)
	}
	return nil
}

func durationError(text string) error {
	return fmt.Errorf("%.40q is no duration: write a number with its unit, as 500ms, 90s, 168h or 7d", text)
}
