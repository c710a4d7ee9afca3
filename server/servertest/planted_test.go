//go:build planted

package servertest

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/planted"
)

const plantedBuild = true

// plantedOptions are of the campaigns for a bug that needs a certain fault, which it gets more often.
var plantedOptions = map[string]options{
	"journal: small commit not synced":         {faults: []fault{powerLost}, noCheckpoints: true, segmentBytes: 1 << 20},
	"journal: directory not synced":            {faults: []fault{powerLost}, noCheckpoints: true},
	"journal: failed sync said to be no write": {faults: []fault{syncFailed, powerTorn}},
	"journal: checksum ignored":                {faults: []fault{powerTorn}},
	"journal: kept without rewriting":          {faults: []fault{syncFailed, powerLost}},
	"index: last entry not in the checkpoint":  {faults: []fault{stopped}},
	"dispatch: lease ends early":               {work: 1000},
	"retention: beyond the slowest group":      {depth: true, faults: []fault{powerLost, killed}},
	"store: segment freed though it is needed": {depth: true, faults: []fault{powerLost}},
	"store: carried and not moved":             {depth: true, faults: []fault{killed}, idle: time.Second},
	"store: gap too wide":                      {depth: true, faults: []fault{damaged, powerLost}, damage: messagesOnly},
	"journal: damaged record is read":          {depth: true, faults: []fault{damaged, powerLost}, damage: messagesOnly},
	"broker: group moved without a generation": {depth: true, faults: []fault{stopped}},
}

// plantedToo are bugs that other packages' tests find at once, and campaigns must find too: by which check.
var plantedToo = map[string]string{
	"client: unknown told as failed":                "C2",
	"client: two batches of an order key under way": "C5",
}

// plantedRuns is how many campaigns may be needed for one of them.
const plantedRuns = 20

// plantedCycles are those of a campaign for a bug.
const plantedCycles = 6

// TestPlanted plants each bug in the broker and runs campaigns until the check that is there for it has found it, at most as many as it has.
func TestPlanted(t *testing.T) {
	defer planted.Set("")
	list := planted.Of("server/servertest")
	for name, by := range plantedToo {
		list = append(list, planted.Entry{Name: name, By: by, Runs: plantedRuns})
	}
	for _, p := range list {
		t.Run(p.Name, func(t *testing.T) {
			planted.Set(p.Name)
			o := plantedOptions[p.Name]
			seed := newSeed()
			others := map[string]int{}
			for n := range p.Runs {
				o.seed, o.cycles = seed+uint64(n), plantedCycles
				if o.faults == nil {
					o.faults = []fault{powerLost, powerTorn, killed, syncFailed, stopped} // a full disk takes its time
				}
				v := runCampaign(t, o)
				found := v.found()
				if slices.Contains(found, p.By) {
					t.Logf("found by %v in run %d\n%v", found, n+1, v)
					return
				}
				t.Logf("run %d: %v", n+1, v)
				for _, name := range found {
					others[name]++
				}
			}
			t.Errorf("%s has not found it in %d runs from -seed=%d on; others: %v", p.By, p.Runs, seed, others)
		})
	}
}

var rewrite = flag.Bool("rewrite", false, "write the table of planted bugs anew")

const (
	plantedDoc   = "../../docs/reliability.md"
	plantedBegin = "<!-- Written by go test -tags planted ./server/servertest -run PlantedTable -rewrite, to the line that ends it. -->\n"
	plantedEnd   = "<!-- End of what it writes. -->"
)

// The table of docs/reliability.md is the list, with where the code has each bug.
func TestPlantedTable(t *testing.T) {
	b, err := os.ReadFile(plantedDoc)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), plantedBegin)
	got, after, closed := strings.Cut(rest, plantedEnd)
	if !ok || !closed {
		t.Fatalf("%s has not the lines between which the table is", plantedDoc)
	}
	places := plantedPlaces(t)
	want := "\n| bug | what it does | where | found by | within |\n|---|---|---|---|--:|\n"
	for _, p := range planted.Bugs {
		of := map[string]string{"server/servertest": "campaign", "simulator": "schedule"}
		what := cmp.Or(of[p.Package], of[p.By], "run")
		if p.Runs > 1 {
			what += "s"
		}
		by, within := fmt.Sprintf("`%s` %s", p.Package, p.By), fmt.Sprintf("%d %s", p.Runs, what)
		if too := plantedToo[p.Name]; too != "" {
			by, within = by+"; `server/servertest` "+too, fmt.Sprintf("%s; %d campaigns", within, plantedRuns)
		}
		want += fmt.Sprintf("| %s | %s | %s | %s | %s |\n", p.Name, p.Breaks, strings.Join(places[p.Name], ", "), by, within)
	}
	if want += "\n"; got == want {
		return
	}
	if !*rewrite {
		t.Fatalf("%s has not\n%s", plantedDoc, want)
	}
	if err := os.WriteFile(plantedDoc, []byte(before+plantedBegin+want+plantedEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Every bug that the code can have is in the list, and none that it cannot.
func TestPlantedList(t *testing.T) {
	var listed []string
	for _, p := range planted.Bugs {
		listed = append(listed, p.Name)
	}
	slices.Sort(listed)
	if names := slices.Sorted(maps.Keys(plantedPlaces(t))); !slices.Equal(listed, names) {
		t.Errorf("listed %q, in the code %q", listed, names)
	}
}
