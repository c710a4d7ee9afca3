package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An order log is text: one header line, then one line a purchase with four columns separated by spaces: customer id
// (5 digits), date (YYYYMMDD), number of CDs, amount in US dollars with two decimals. Lines end with LF or CRLF.
const ordersHeader = "customer_id date number_of_cds dollar_value"

// order is one purchase. Its number is its line in the file, as an editor counts.
type order struct {
	Number   int    `json:"order"`
	Customer string `json:"customer"`
	Date     string `json:"date"` // YYYY-MM-DD
	CDs      int    `json:"cds"`
	Cents    int64  `json:"amountCents"`
}

// lineError names the file and the line that is wrong.
type lineError struct {
	File   string
	Line   int
	Reason string
}

func (e *lineError) Error() string { return fmt.Sprintf("%s line %d: %s", e.File, e.Line, e.Reason) }

// readOrders reads a whole log, or says in one line what is wrong with it: a cut file is refused, not half used.
func readOrders(file string) ([]order, error) {
	f, err := os.Open(file)
	if err != nil {
		if p, ok := errors.AsType[*fs.PathError](err); ok {
			err = p.Err
		}
		return nil, fmt.Errorf("order log %s: %w; give a file with ORDERS=FILE, or none for a generated log", file, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, fmt.Errorf("order log %s: is a folder; give a file with ORDERS=FILE", file)
	}
	orders, err := parseOrders(file, f)
	if err != nil {
		return nil, fmt.Errorf("order log %w", err)
	}
	return orders, nil
}

func parseOrders(file string, r io.Reader) ([]order, error) {
	const lineBytesMax = 4096
	in := bufio.NewReaderSize(r, lineBytesMax)
	var orders []order
	for line := 1; ; line++ {
		bad := func(format string, args ...any) error {
			return &lineError{file, line, fmt.Sprintf(format, args...)}
		}
		text, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, bad("is longer than %d bytes: not an order log", lineBytesMax)
		case errors.Is(err, io.EOF) && len(text) == 0:
			switch {
			case line == 1:
				return nil, bad("is not there: the file is empty")
			case len(orders) == 0:
				return nil, bad("is not there: the file has a header and no orders")
			}
			return orders, nil
		case errors.Is(err, io.EOF):
			return nil, bad("has no line end: the file was cut off here")
		case err != nil:
			return nil, bad("cannot be read: %v", err)
		}
		columns := strings.Fields(string(text))
		if line == 1 {
			if strings.Join(columns, " ") != ordersHeader {
				return nil, bad("is not the header %q: not an order log", ordersHeader)
			}
			continue
		}
		o, reason := parseOrder(columns)
		if reason != "" {
			return nil, bad("%s", reason)
		}
		o.Number = line
		orders = append(orders, o)
	}
}

// parseOrder returns the order or what is wrong with the columns.
func parseOrder(columns []string) (o order, reason string) {
	if len(columns) != 4 {
		return o, fmt.Sprintf("has %d columns, not 4 (customer, date, CDs, amount)", len(columns))
	}
	customer, date, cds, amount := columns[0], columns[1], columns[2], columns[3]
	if len(customer) != 5 || !digits(customer) {
		return o, fmt.Sprintf("customer %q is not 5 digits", customer)
	}
	day, err := time.Parse("20060102", date)
	if err != nil {
		return o, fmt.Sprintf("date %q is not YYYYMMDD", date)
	}
	n, err := strconv.Atoi(cds)
	if err != nil || !digits(cds) || n < 1 {
		return o, fmt.Sprintf("number of CDs %q is not a number from 1", cds)
	}
	dollars, cents, ok := strings.Cut(amount, ".")
	if !ok || len(cents) != 2 || !digits(cents) || !digits(dollars) || len(dollars) > 12 {
		return o, fmt.Sprintf("amount %q is not dollars with two decimals", amount)
	}
	total, _ := strconv.ParseInt(dollars+cents, 10, 64) // at most 14 digits
	return order{Customer: customer, Date: day.Format(time.DateOnly), CDs: n, Cents: total}, ""
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// logShape is the size of a generated log.
type logShape struct {
	purchases, customers, customerMax int // customerMax: purchases of the busiest customer
}

// The shape of a real shop's log of one and a half years, and a small one for quick tests.
var (
	fullLog  = logShape{purchases: 69_659, customers: 23_570, customerMax: 217}
	smallLog = logShape{purchases: 6_000, customers: 2_000, customerMax: 60}
)

// generateOrders writes a log of the given shape: most customers buy once or twice, few buy often; lines are grouped
// by customer, then by date. The same seed gives the same log.
func generateOrders(w io.Writer, shape logShape, seed uint64) error {
	random := rand.New(rand.NewPCG(seed, 1))
	// How often each customer buys: once, and the rest by weights with a heavy tail.
	counts := make([]int, shape.customers)
	cumulated := make([]float64, shape.customers)
	sum := 0.0
	for i := range counts {
		counts[i] = 1
		weight := random.ExpFloat64()
		sum += weight * weight * weight
		cumulated[i] = sum
	}
	busiest := random.IntN(shape.customers)
	counts[busiest] = shape.customerMax
	for left := shape.purchases - shape.customers - (shape.customerMax - 1); left > 0; {
		i, _ := slices.BinarySearch(cumulated, random.Float64()*sum)
		if counts[i] < shape.customerMax {
			counts[i]++
			left--
		}
	}
	out := bufio.NewWriter(w)
	fmt.Fprint(out, " customer_id  date number_of_cds  dollar_value\r\n")
	begin := time.Date(1997, time.January, 1, 0, 0, 0, 0, time.UTC)
	const firstDays, allDays = 90, 546 // first bought in the first quarter of 1997; seen until June 1998
	for i, n := range counts {
		days := make([]int, n)
		first := random.IntN(firstDays)
		for j := 1; j < n; j++ {
			days[j] = random.IntN(allDays - first)
		}
		slices.Sort(days)
		for _, d := range days {
			cds := 1 + int(random.ExpFloat64()*1.5)
			cents := 0
			if random.IntN(870) != 0 { // some are given away
				cents = cds*1200 + random.IntN(600*cds)
			}
			fmt.Fprintf(out, " %05d %s %2d %4d.%02d\r\n", i+1, begin.AddDate(0, 0, first+d).Format("20060102"), cds, cents/100, cents%100)
		}
	}
	return out.Flush()
}

// sums are the figures of a log.
type sums struct {
	orders, customers int
	cents             int64
}

func sumOrders(orders []order) sums {
	s := sums{orders: len(orders)}
	seen := map[string]bool{}
	for _, o := range orders {
		seen[o.Customer] = true
		s.cents += o.Cents
	}
	s.customers = len(seen)
	return s
}

// dollars writes cents as 2500315.63.
func dollars(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }
