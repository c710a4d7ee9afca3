package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jmqio/jmq/server/servertest"
)

// An operator's day with a broker group of two brokers: who is master is said, the master hands over and takes over again, it is stopped and its slave is promoted
// by force, its broker group is drained, and a topic leaves it when all is consumed.
func TestOperateReplicas(t *testing.T) {
	t.Setenv(envContexts, filepath.Join(t.TempDir(), "contexts.yaml"))
	c := servertest.StartCluster(t, servertest.ClusterOptions{BrokerGroups: 2, Slaves: 1, Memory: true})
	sh := shell{t, c.Registries[0].Address()}
	g := c.Groups[0]
	g.InSync(1)
	status := func() brokerGroupInfo {
		t.Helper()
		var infos []brokerGroupInfo
		if out := sh.ok("", "broker-group status bg1 -o json"); json.Unmarshal([]byte(out), &infos) != nil || len(infos) != 1 {
			t.Fatalf("%s", out)
		}
		return infos[0]
	}
	until := func(what string, good func(brokerGroupInfo) bool) brokerGroupInfo {
		t.Helper()
		late := time.NewTimer(20 * time.Second)
		defer late.Stop()
		look := time.NewTicker(50 * time.Millisecond)
		defer look.Stop()
		for {
			i := status()
			if good(i) {
				return i
			}
			select {
			case <-look.C:
			case <-late.C:
				t.Fatalf("not %s: %+v", what, i)
			}
		}
	}
	is := until("ok", func(i brokerGroupInfo) bool { return i.Condition == "ok" })
	if is.Master != "b1" || is.Term != 1 || len(is.InSync) != 1 || is.InSync[0] != "b1s1" || is.Brokers[1].Replica.Role != "slave" {
		t.Fatalf("%+v", is)
	}
	if out := sh.ok("", "get replication bg1 -o csv"); !strings.HasSuffix(out, "\nbg1,1,b1,b1s1,-\n") {
		t.Errorf("%s", out)
	}
	sh.warned("topic orders is on 2 broker groups", "", "topic create orders --broker-groups bg1,bg2 --partitions 1 --durability replicated")
	sh.warned("topic other is on 1 broker group:", "", "topic create other --broker-groups bg2 --partitions 1")
	client := shell{t, c.Brokers[1].Address()}
	client.ok("a\nb\nc\nd\n", "produce orders")
	client.ok("", "consume orders --group pay --from-beginning -n 4")

	sh.ok("", "broker-group transfer bg1")
	if is = until("handed over", func(i brokerGroupInfo) bool { return i.Condition == "ok" }); is.Master != "b1s1" || is.Term != 2 {
		t.Fatalf("%+v", is)
	}
	client.ok("e\nf\n", "produce orders")
	g.InSync(1)
	g.Broker("b1s1").Stop()
	sh.fails(exitError, "--off b1s1", "", "broker-group promote bg1 --yes")
	sh.fails(exitError, "--force", "", "broker-group promote bg1 --off b1s1 --yes")
	sh.ok("", "broker-group promote bg1 --off b1s1 --force --yes --reason burned")
	if is = until("promoted", func(i brokerGroupInfo) bool { return strings.HasPrefix(i.Condition, "degraded: ") }); is.Master != "b1" || !is.Forced || is.Term < 3 {
		t.Fatalf("%+v", is)
	}
	g.Broker("b1s1").StartAgain()
	until("ok again", func(i brokerGroupInfo) bool { return i.Condition == "ok" })

	sh.fails(exitError, "while that takes messages", "", "topic alter orders --broker-groups bg2")
	client.ok("g\nh\n", "produce orders")
	if out := sh.ok("", "broker-group drain bg1"); !strings.Contains(out, "draining") {
		t.Fatalf("%s", out)
	}
	client.ok("", "consume orders --group pay -n 4")
	if out := sh.ok("", "broker-group drain bg1 --wait"); !strings.HasSuffix(out, "nothing is left; next: jmq topic alter orders --broker-groups bg2\n") {
		t.Fatalf("%s", out)
	}
	sh.warned("topic orders is on 1 broker group:", "", "topic alter orders --broker-groups bg2")
	sh.ok("", "broker-group activate bg1")
}
