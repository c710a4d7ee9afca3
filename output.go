package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// The forms of every command's output. JSON and YAML have the same fields, which are kept stable; name is the first
// column alone, for shell loops.
var outputs = []string{"table", "json", "yaml", "csv", "name"}

func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "table", "form of the output: "+strings.Join(outputs, ", "))
	completeOutput(cmd, outputs)
	previous := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if err := checkOutput(*output, outputs); err != nil {
			return err
		}
		if previous != nil {
			return previous(cmd, args)
		}
		return nil
	}
}

func completeOutput(cmd *cobra.Command, known []string) {
	// The flag was just made, so this cannot fail.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp))
}

// dropLast leaves the last column out.
func (l *listing) dropLast() {
	l.header = l.header[:len(l.header)-1]
	for i := range l.rows {
		l.rows[i] = l.rows[i][:len(l.header)]
	}
}

// dropColumn leaves a column out.
func (l *listing) dropColumn(n int) {
	l.header = slices.Delete(slices.Clone(l.header), n, n+1)
	for i, r := range l.rows {
		l.rows[i] = slices.Delete(r, n, n+1)
	}
}

// dropIfOne leaves a column out that says the same everywhere: which broker group, where there is one.
func (l *listing) dropIfOne(n int) {
	if !slices.ContainsFunc(l.rows, func(r []any) bool { return r[n] != l.rows[0][n] }) {
		l.dropColumn(n)
	}
}

func checkOutput(output string, known []string) error {
	if !slices.Contains(known, output) {
		return usagef("--output %q is not known; give one of: %s", output, strings.Join(known, ", "))
	}
	return nil
}

// listing is a result to print: rows for people, data for programs.
type listing struct {
	header []string
	rows   [][]any
	data   any
	empty  string // said on the table's place when there is no row
}

func printListing(w io.Writer, output string, l listing) error {
	switch output {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(l.data)
	case "yaml":
		return printYAML(w, l.data)
	case "csv":
		c := csv.NewWriter(w)
		rows := [][]string{l.header}
		for _, r := range l.rows {
			rows = append(rows, texts(r))
		}
		return c.WriteAll(rows)
	case "name":
		for _, r := range l.rows {
			if _, err := fmt.Fprintln(w, r[0]); err != nil {
				return err
			}
		}
		return nil
	}
	if len(l.rows) == 0 {
		_, err := fmt.Fprintln(w, l.empty)
		return err
	}
	t := table.NewWriter()
	style := table.StyleLight
	style.Options = table.OptionsNoBordersAndSeparators
	style.Format.Header = text.FormatUpper
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	header := table.Row{}
	for _, h := range l.header {
		header = append(header, h)
	}
	t.AppendHeader(header)
	for _, r := range l.rows {
		t.AppendRow(r)
	}
	_, err := fmt.Fprintln(w, t.Render())
	return err
}

func texts(row []any) []string {
	var s []string
	for _, v := range row {
		s = append(s, fmt.Sprint(v))
	}
	return s
}

// printYAML writes data with the names and the order that its JSON has.
func printYAML(w io.Writer, data any) error {
	b, err := json.Marshal(data)
	if err != nil {
		return err
	}
	var n yaml.Node
	if err := yaml.Unmarshal(b, &n); err != nil { // JSON is YAML
		return err
	}
	var block func(n *yaml.Node)
	block = func(n *yaml.Node) {
		n.Style = 0
		for _, c := range n.Content {
			block(c)
		}
	}
	block(&n)
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(&n); err != nil {
		return err
	}
	_, err = w.Write(out.Bytes())
	return err
}

// isTerminal says whether w is a person's terminal.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// bold marks what a person looks for, on a terminal that has not said NO_COLOR.
func bold(w io.Writer, s string) string {
	if os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" || !isTerminal(w) {
		return s
	}
	return "\x1b[1m" + s + "\x1b[0m"
}
