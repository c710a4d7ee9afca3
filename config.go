package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"

	"github.com/jmqio/jmq/server"
)

// The configuration is one tree of keys, server.Config. Where a key is set more than once, a flag wins over the
// environment, that over the file, that over the default. Viper does the merging; what it would let pass in silence
// (unknown keys, unknown variables, 1.5 for 1, 5 for 5 ns, true for "true") is found here, with the place named.

const (
	configFileDefault = "jmq.yaml"
	envPrefix         = "JMQ_"
	envTestPrefix     = "JMQ_TEST_" // belongs to the tests
)

const (
	keyData  = "broker.data"
	flagData = "data" // short for it
)

// envOfCommands are the variables that are no key of the tree.
var envOfCommands = []string{"JMQ_CONFIG", envAddress, envContext, envContexts}

// configKey is one leaf of the tree.
type configKey struct {
	name  string // broker.journal.segmentBytesMax
	help  string
	index []int // of the field, for reflect
	kind  reflect.Type
}

func (k configKey) env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(k.name, ".", "_"))
}

// field is the key's place in c.
func (k configKey) field(c *server.Config) reflect.Value {
	return reflect.ValueOf(c).Elem().FieldByIndex(k.index)
}

// configKeys are the leaves of the tree in its order.
func configKeys() []configKey {
	var keys []configKey
	var walk func(t reflect.Type, prefix string, index []int)
	walk = func(t reflect.Type, prefix string, index []int) {
		for i := range t.NumField() {
			f := t.Field(i)
			tag := f.Tag.Get("yaml")
			if tag == "-" {
				continue
			}
			at := append(slices.Clone(index), i)
			if f.Type.Kind() == reflect.Struct {
				walk(f.Type, prefix+tag+".", at)
				continue
			}
			keys = append(keys, configKey{name: prefix + tag, help: f.Tag.Get("help"), index: at, kind: f.Type})
		}
	}
	walk(reflect.TypeFor[server.Config](), "", nil)
	return keys
}

// parse turns the text of an environment variable, or a value as viper gives it, into the key's type.
func (k configKey) parse(raw any) (any, error) {
	text, isText := raw.(string)
	switch k.kind {
	case reflect.TypeFor[time.Duration]():
		if d, ok := raw.(time.Duration); ok {
			return d, nil
		}
		d, err := time.ParseDuration(text)
		if !isText || err != nil {
			return nil, errors.New("must be a duration with its unit, such as 10s or 5m")
		}
		return d, nil
	}
	switch k.kind.Kind() {
	case reflect.Slice:
		return parseList(raw)
	case reflect.String:
		if !isText {
			return nil, errors.New("must be text; quote it")
		}
		return text, nil
	case reflect.Bool:
		if b, ok := raw.(bool); ok {
			return b, nil
		}
		if b, err := strconv.ParseBool(text); isText && err == nil {
			return b, nil
		}
		return nil, errors.New("must be true or false")
	default: // whole numbers
		if n, ok := wholeNumber(raw); ok {
			text, isText = strconv.FormatInt(n, 10), true
		}
		n, err := strconv.ParseInt(text, 10, k.kind.Bits())
		if !isText || err != nil {
			return nil, errors.New("must be a whole number")
		}
		return reflect.ValueOf(n).Convert(k.kind).Interface(), nil
	}
}

// parseList takes a list of texts, or one text with commas between them, as an environment variable or a flag has it.
func parseList(raw any) ([]string, error) {
	wrong := errors.New("must be a list of texts, or one text with commas between them")
	var list []string
	switch v := raw.(type) {
	case []string:
		list = v
	case []any:
		for _, e := range v {
			text, ok := e.(string)
			if !ok {
				return nil, wrong
			}
			list = append(list, text)
		}
	case string:
		if strings.TrimSpace(v) != "" {
			list = strings.Split(v, ",")
		}
	default:
		return nil, wrong
	}
	var out []string
	for _, e := range list {
		e = strings.TrimSpace(e)
		if e == "" {
			return nil, errors.New("has an empty entry")
		}
		out = append(out, e)
	}
	return out, nil
}

func wholeNumber(raw any) (int64, bool) {
	switch n := raw.(type) {
	case int:
		return int64(n), true
	case int64:
		return n, true
	}
	return 0, false
}

// defaultText is the default as the golden list and the flags show it.
func (k configKey) defaultText() string {
	c := server.DefaultConfig()
	if list, ok := k.field(&c).Interface().([]string); ok {
		return strings.Join(list, ",")
	}
	return fmt.Sprint(k.field(&c).Interface())
}

// configFlags adds --config and one flag for each key.
func configFlags(f *pflag.FlagSet) {
	f.String("config", "", "configuration file (default: $JMQ_CONFIG, else "+configFileDefault+" if it is there)")
	for _, k := range configKeys() {
		flag := f.VarPF(&configFlag{key: k, text: k.defaultText()}, k.name, "", k.help)
		if k.kind.Kind() == reflect.Bool {
			flag.NoOptDefVal = "true"
		}
	}
}

// configFlag checks a flag's type while it is parsed, so that the flag is named in the error.
type configFlag struct {
	key  configKey
	text string
}

func (f *configFlag) String() string { return f.text }
func (f *configFlag) Type() string {
	switch f.key.kind {
	case reflect.TypeFor[time.Duration]():
		return "duration"
	case reflect.TypeFor[[]string]():
		return "list"
	}
	return strings.TrimSuffix(f.key.kind.Kind().String(), "64")
}
func (f *configFlag) Set(s string) error {
	if _, err := f.key.parse(s); err != nil {
		return err
	}
	f.text = s
	return nil
}

// loadConfig reads the tree from defaults, the file, the environment and the flags. All that is wrong is in the error,
// one line each.
func loadConfig(flags *pflag.FlagSet, environ []string) (server.Config, error) {
	c := server.DefaultConfig()
	keys := configKeys()
	errs := unknownEnv(keys, environ)

	file, content, err := readConfigFile(flags)
	if err != nil {
		return c, err
	}
	lines, fileErrs := checkConfigFile(file, content, keys)
	errs = append(errs, fileErrs...)
	if len(errs) > 0 {
		return c, usageError(errors.Join(errs...))
	}

	v := viper.New()
	v.SetConfigType("yaml")
	if err := v.ReadConfig(bytes.NewReader(content)); err != nil {
		return c, usageError(fmt.Errorf("%s: %w", file, err))
	}
	source := map[string]string{}
	for _, k := range keys {
		v.SetDefault(k.name, k.field(&c).Interface())
		if line, ok := lines[k.name]; ok {
			source[k.name] = fmt.Sprintf("%s line %d: ", file, line)
		}
		if value, ok := lookupEnv(environ, k.env()); ok && value != "" {
			v.Set(k.name, value)
			source[k.name] = k.env() + ": "
		}
		flag := flags.Lookup(k.name)
		if short := flags.Lookup(flagData); k.name == keyData && short != nil && short.Changed {
			flag = short // both share one value: the last one given wins
		}
		if flag != nil && flag.Changed {
			v.Set(k.name, flag.Value.String())
			source[k.name] = "--" + flag.Name + ": "
		}
	}
	for _, k := range keys {
		value, err := k.parse(v.Get(k.name))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s%s: %q %w", source[k.name], k.name, fmt.Sprint(v.Get(k.name)), err))
			continue
		}
		k.field(&c).Set(reflect.ValueOf(value))
	}
	if len(errs) == 0 {
		for _, err := range splitErrors(c.Validate()) {
			if wrong, ok := errors.AsType[*server.KeyError](err); ok {
				err = fmt.Errorf("%s%w", source[wrong.Key], wrong)
			}
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return c, usageError(errors.Join(errs...))
	}
	return c, nil
}

// splitErrors takes apart what errors.Join put together.
func splitErrors(err error) []error {
	if err == nil {
		return nil
	}
	parts := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		parts = joined.Unwrap()
	}
	// fmt.Errorf with two %w unwraps to parts too, but says more than they do.
	if errors.Join(parts...).Error() != err.Error() {
		return []error{err}
	}
	return parts
}

// lookupEnv finds name in environ; the last one wins, as in a process.
func lookupEnv(environ []string, name string) (string, bool) {
	value, found := "", false
	for _, e := range environ {
		if k, v, _ := strings.Cut(e, "="); k == name {
			value, found = v, true
		}
	}
	return value, found
}

// unknownEnv has an error for each JMQ_ variable that means nothing.
func unknownEnv(keys []configKey, environ []string) []error {
	known := slices.Clone(envOfCommands)
	for _, k := range keys {
		known = append(known, k.env())
	}
	var errs []error
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, envPrefix) || strings.HasPrefix(name, envTestPrefix) || slices.Contains(known, name) {
			continue
		}
		errs = append(errs, fmt.Errorf("environment: unknown variable %s%s", name, didYouMean(name, known)))
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errs
}

// readConfigFile returns the file's name and content; both empty when there is none and none was asked for.
func readConfigFile(flags *pflag.FlagSet) (string, []byte, error) {
	file, asked := os.Getenv("JMQ_CONFIG"), true
	if f := flags.Lookup("config"); f != nil && f.Changed {
		file = f.Value.String()
	}
	if file == "" {
		file, asked = configFileDefault, false
	}
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && !asked {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, usageError(fmt.Errorf("configuration file %s: %w; name a file that is there with --config", file, server.PathCause(err)))
	}
	return file, content, nil
}

// checkConfigFile holds the file to the tree and returns the line of each key that it sets.
func checkConfigFile(file string, content []byte, keys []configKey) (map[string]int, []error) {
	leaves, sections := map[string]configKey{}, map[string]bool{"": true}
	var all []string
	for _, k := range keys {
		leaves[k.name] = k
		all = append(all, k.name)
		for i, r := range k.name {
			if r == '.' && !sections[k.name[:i]] {
				sections[k.name[:i]] = true
				all = append(all, k.name[:i])
			}
		}
	}
	var root, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	if err := decoder.Decode(&root); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, []error{fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))}
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, []error{fmt.Errorf("%s: has more than one document", file)}
	}
	var errs []error
	bad := func(n *yaml.Node, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s line %d: %s", file, n.Line, fmt.Sprintf(format, args...)))
	}
	lines := map[string]int{}
	var walk func(n *yaml.Node, section string)
	walk = func(n *yaml.Node, section string) {
		if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
			return // a section with nothing in it
		}
		if n.Kind != yaml.MappingNode {
			if section == "" {
				bad(n, "must be a tree of keys, such as broker:")
			} else {
				bad(n, "%s is a section and takes keys, not a value", section)
			}
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			for value.Kind == yaml.AliasNode {
				value = value.Alias
			}
			name := strings.TrimPrefix(section+"."+key.Value, ".")
			if _, twice := lines[name]; twice {
				bad(key, "%s is there twice", name)
				continue
			}
			leaf, isLeaf := leaves[name]
			switch {
			case strings.Contains(key.Value, "."):
				bad(key, "unknown key %s; write one level a line, as a tree", name)
			case isLeaf:
				lines[name] = key.Line
				if why := leaf.checkNode(value); why != "" {
					bad(key, "%s: %s", name, why)
				}
			case sections[name]:
				lines[name] = key.Line
				walk(value, name)
			default:
				bad(key, "unknown key %s%s", name, didYouMean(name, all))
			}
		}
	}
	walk(root.Content[0], "")
	return lines, errs
}

// checkNode says why a value of the file is not of the key's type, or "".
func (k configKey) checkNode(n *yaml.Node) string {
	if n.Kind == yaml.SequenceNode && k.kind.Kind() == reflect.Slice {
		for _, e := range n.Content {
			if e.Kind != yaml.ScalarNode || e.Tag != "!!str" {
				return fmt.Sprintf("line %d: must be a list of texts; quote them", e.Line)
			}
		}
		return ""
	}
	if n.Kind != yaml.ScalarNode {
		return "takes one value, not a list or a section"
	}
	if n.Tag == "!!null" {
		return "has no value"
	}
	want := "!!str"
	switch {
	case k.kind == reflect.TypeFor[time.Duration]():
		if n.Tag == "!!int" || n.Tag == "!!float" {
			return fmt.Sprintf("%s must be a duration with its unit, such as 10s or 5m", n.Value)
		}
	case k.kind.Kind() == reflect.Bool:
		want = "!!bool"
	case k.kind.Kind() != reflect.String && k.kind.Kind() != reflect.Slice:
		want = "!!int"
	}
	if n.Tag != want {
		_, err := k.parse(yamlOther{n.Value}) // for the reason
		return fmt.Sprintf("%q %v", n.Value, err)
	}
	if _, err := k.parse(n.Value); want == "!!str" && err != nil {
		return fmt.Sprintf("%q %v", n.Value, err)
	}
	return ""
}

// yamlOther is a value of a type that no key has.
type yamlOther struct{ text string }

// didYouMean names the known word nearest to word, if one is near.
func didYouMean(word string, known []string) string {
	best, bestDistance := "", min(len(word)/3+1, 4)
	for _, k := range known {
		if d := editDistance(strings.ToLower(word), strings.ToLower(k)); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	if best == "" {
		return "; see jmq config ls"
	}
	return "; did you mean " + best + "?"
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
