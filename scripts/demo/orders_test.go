package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jmqio/jmq/server/servertest/mutate"
)

// A generated log has exactly the figures that were asked for, reads back, and is the same for the same seed.
func TestGeneratedLog(t *testing.T) {
	for _, shape := range []logShape{fullLog, smallLog} {
		var first, second bytes.Buffer
		for _, b := range []*bytes.Buffer{&first, &second} {
			if err := generateOrders(b, shape, 7); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Error("the same seed gave two logs")
		}
		orders, err := parseOrders("generated", &first)
		if err != nil {
			t.Fatal(err)
		}
		perCustomer, most, once, free := map[string]int{}, 0, 0, 0
		dates := map[string]string{}
		for i, o := range orders {
			if o.Number != i+2 {
				t.Fatalf("order %d has number %d, want its line %d", i, o.Number, i+2)
			}
			if o.Date < dates[o.Customer] {
				t.Fatalf("line %d: customer %s buys on %s after %s", o.Number, o.Customer, o.Date, dates[o.Customer])
			}
			dates[o.Customer] = o.Date
			perCustomer[o.Customer]++
			most = max(most, perCustomer[o.Customer])
			if o.Cents == 0 {
				free++
			}
		}
		for _, n := range perCustomer {
			if n == 1 {
				once++
			}
		}
		if s := sumOrders(orders); s.orders != shape.purchases || s.customers != shape.customers || most != shape.customerMax {
			t.Errorf("%d orders of %d customers, at most %d each, want %+v", s.orders, s.customers, most, shape)
		}
		if once < shape.customers/3 || free == 0 {
			t.Errorf("%d customers bought once of %d, %d orders of 0.00: not the shape of a shop", once, shape.customers, free)
		}
	}
}

// Amounts are integers all the way: the line that a float would get wrong.
func TestOrderColumns(t *testing.T) {
	log := " customer_id  date number_of_cds  dollar_value\r\n 00001 19970101  1   11.77\r\n 00002 19970112  5    0.29\n"
	orders, err := parseOrders("log", strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	want := []order{{2, "00001", "1997-01-01", 1, 1177}, {3, "00002", "1997-01-12", 5, 29}}
	for i := range want {
		if len(orders) != len(want) || orders[i] != want[i] {
			t.Fatalf("got %+v, want %+v", orders, want)
		}
	}
	if s := sumOrders(orders); s != (sums{2, 2, 1206}) || dollars(s.cents) != "12.06" {
		t.Errorf("sums %+v as %s", s, dollars(s.cents))
	}
}

// A log that is cut, foreign, empty or has a bad line is refused with its name and the line.
func TestBadOrderLogs(t *testing.T) {
	const header = " customer_id  date number_of_cds  dollar_value\r\n"
	const good = " 00001 19970101  1   11.77\r\n"
	for _, c := range []struct {
		name, content string
		line          int
		says          string
	}{
		{"empty", "", 1, "the file is empty"},
		{"header only", header, 2, "no orders"},
		{"foreign text", "hello\nworld\n", 1, "not an order log"},
		{"foreign bytes", strings.Repeat("\x7fELF\x00", 4000), 1, "not an order log"},
		{"csv", "customer_id,date,number_of_cds,dollar_value\n", 1, "not an order log"},
		{"header cut", header[:20], 1, "cut off"},
		{"cut within a line", header + good + good[:20], 3, "cut off"},
		{"cut before a line end", header + good + good[:len(good)-2], 3, "cut off"},
		{"few columns", header + good + " 00001 19970101  1\r\n", 3, "3 columns"},
		{"many columns", header + " 00001 19970101  1 11.77 x\r\n", 2, "5 columns"},
		{"blank line", header + good + "\r\n" + good, 3, "0 columns"},
		{"customer", header + " 0001 19970101  1   11.77\r\n", 2, `customer "0001"`},
		{"date", header + " 00001 19970231  1   11.77\r\n", 2, `date "19970231"`},
		{"no CDs", header + " 00001 19970101  0   11.77\r\n", 2, `CDs "0"`},
		{"signed CDs", header + " 00001 19970101  +1   11.77\r\n", 2, `CDs "+1"`},
		{"amount without cents", header + " 00001 19970101  1   11\r\n", 2, `amount "11"`},
		{"negative amount", header + " 00001 19970101  1   -1.77\r\n", 2, `amount "-1.77"`},
		{"amount beyond an integer", header + " 00001 19970101  1   99999999999999999999.77\r\n", 2, "amount"},
		{"long line", header + " " + strings.Repeat("0", 5000) + "\r\n", 2, "longer than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "orders.txt")
			if err := os.WriteFile(file, []byte(c.content), 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := readOrders(file)
			wrong, ok := errors.AsType[*lineError](err)
			if !ok || wrong.Line != c.line || wrong.File != file || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line naming %s line %d with %q", err, file, c.line, c.says)
			}
		})
	}
	for _, missing := range []string{filepath.Join(t.TempDir(), "none.txt"), t.TempDir()} {
		if _, err := readOrders(missing); err == nil || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "ORDERS=FILE") {
			t.Errorf("readOrders(%s): %v, want an error naming it and what to give", missing, err)
		}
	}
}

// FuzzParseOrders shows that no file crashes the reader, and that an error is always one line naming the place.
func FuzzParseOrders(f *testing.F) {
	seeds := [][]byte{
		[]byte(" customer_id  date number_of_cds  dollar_value\r\n 00001 19970101  1   11.77\r\n"),
		[]byte(" customer_id  date number_of_cds  dollar_value\n 00001 19970101  1   11.7"),
	}
	mutate.Fuzz(f, mutate.Decoder{Seeds: seeds, Slowness: 4, Check: func(t testing.TB, content []byte) bool {
		orders, err := parseOrders("log", bytes.NewReader(content))
		if err == nil && len(orders) == 0 {
			t.Error("no orders and no error")
		}
		if err != nil && (!strings.HasPrefix(err.Error(), "log line ") || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q", err)
		}
		return err == nil
	}})
}
