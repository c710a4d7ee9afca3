// Command demo sends a log of orders through a broker that is killed on the way, and shows that nothing was lost, that
// every customer's orders came in order, and that every order that came twice has a reason.
//
//	go run ./scripts/demo -jmq ./jmq -orders FILE
//
// The broker is a process of the given binary with eight partitions of topic "orders". Two groups consume while orders are
// sent: payment with three members, shipping with two. Three times it is killed with SIGKILL and started again on the same
// folder and port. What every client saw is written as a history to the demo's folder, and is judged twice: by the ledger
// of each group (ledger.go), which prints its line, and by server/servertest/check.
//
// With -retain the broker has small segments and a limit for its folder that is a fraction of what is sent: the same must
// hold, and the folder, which is measured all the time, may never be larger than the limit.
//
// With -with-cluster the orders go through a cluster of its own: three broker groups of a master and a slave, three registry nodes
// on MariaDB, with authentication and rights. On the way the database is killed, then every registry node, one after the other; with none of
// them left a master is killed and started again; the registry is brought back, and a limit is set by jmq apply -f, which must be in force
// within 2 s; then a slave, a master for some seconds, in which its slave gives out what is there, and a whole broker group are killed and
// started again. Messages must go on through all of it, and the same must hold at the end.
//
//	go run ./scripts/demo -run ./jmq
//
// is what make run does: it starts jmq dev, sends and consumes a sample of orders, and leaves the broker running.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jmqio/jmq/scripts/localcluster"
)

type options struct {
	binary string
	orders string // order log; empty: a generated one
	shape  logShape
	dir    string
	// temporary: dir is made, and removed if nothing is wrong.
	temporary bool
	seed      uint64
	kills     int
	retain    *retain // nil: everything is kept
	small     bool
	cluster   bool // through a cluster
}

func main() {
	o := options{shape: fullLog}
	var run string
	var small, limited, withCluster bool
	var cluster string
	var size localcluster.Options
	flag.StringVar(&o.binary, "jmq", "./jmq", "the jmq binary")
	flag.StringVar(&o.orders, "orders", "", "order log; empty: a generated one of the same size and shape")
	flag.BoolVar(&small, "small", false, "generate a small log, and use a temporary folder")
	flag.StringVar(&o.dir, "dir", "", "folder for data, logs and history (default: scripts/demo/jmq-data, whose last run is removed)")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of the generated log and of the moments of the kills")
	flag.IntVar(&o.kills, "kills", 3, "how often the broker is killed")
	flag.BoolVar(&limited, "retain", false, "with small segments and a limit for the folder, which is measured all the time")
	flag.StringVar(&run, "run", "", "start this jmq binary as jmq dev, send and consume a sample, and stay up")
	flag.BoolVar(&withCluster, "with-cluster", false, "through a cluster of 3 registry nodes and 3 broker groups of master and slave, whose database, registry nodes and brokers are killed")
	flag.StringVar(&cluster, "cluster", "", "up, down or status: what scripts/cluster does with the cluster in -dir")
	flag.IntVar(&size.Registries, "registries", 3, "registry nodes of a new cluster")
	flag.IntVar(&size.Brokers, "brokers", 3, "broker groups of a new cluster")
	flag.IntVar(&size.Slaves, "slaves", 1, "slaves of each broker group of a new cluster")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends the process at once
	var err error
	switch {
	case flag.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flag.Arg(0))
	case cluster != "":
		size.Dir, size.Binary = o.dir, o.binary
		err = runCluster(ctx, cluster, size)
	case run != "":
		err = runSample(ctx, run)
	case withCluster && limited:
		err = errors.New("-with-cluster and -retain are two demonstrations: take one at a time")
	default:
		if small {
			o.shape, o.temporary, o.small = smallLog, o.dir == "", true
		}
		o.cluster = withCluster
		if limited {
			o.retain = newRetain(small)
		}
		err = demo(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// demo is the whole of make demo; a temporary folder is kept only if something is wrong. An error means that a promise was broken, or that it could not be carried out.
func demo(ctx context.Context, o options) (err error) {
	orders, err := loadOrders(o)
	if err != nil {
		return err
	}
	if o.temporary {
		if o.dir, err = os.MkdirTemp("", "jmq-demo-"); err != nil {
			return err
		}
		defer func() {
			if err == nil {
				err = os.RemoveAll(o.dir)
			}
		}()
	}
	if err := prepareFolder(&o); err != nil {
		return err
	}
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	}
	r, err := newRun(o, orders)
	if err != nil {
		return err
	}
	defer r.close()
	if err := r.play(ctx); err != nil {
		if ctx.Err() != nil {
			return errors.New("stopped before the end; data and history so far are in " + o.dir)
		}
		return fmt.Errorf("%w; data and logs are in %s", err, o.dir)
	}
	return r.judge(os.Stdout)
}

// ownFolder keeps the last run until the next one.
var ownFolder = filepath.Join("scripts", "demo", "jmq-data")

func prepareFolder(o *options) error {
	if o.dir == "" {
		o.dir = ownFolder
		if _, err := os.Stat(filepath.Dir(o.dir)); err != nil {
			return fmt.Errorf("start the demo from the project's root, or name a folder with -dir (%w)", err)
		}
		if err := os.RemoveAll(o.dir); err != nil {
			return err
		}
	}
	if entries, err := os.ReadDir(o.dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("folder %s is not empty; name another one with -dir", o.dir)
	}
	return os.MkdirAll(o.dir, 0o755)
}

// loadOrders reads the log, or generates one: as text that is read as any other.
func loadOrders(o options) ([]order, error) {
	if o.orders != "" {
		return readOrders(o.orders)
	}
	var text bytes.Buffer
	if err := generateOrders(&text, o.shape, o.seed); err != nil {
		return nil, err
	}
	return parseOrders("generated order log", &text)
}
