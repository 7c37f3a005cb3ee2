// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/test/lab"
)

// takesOver bounds how long a secondary takes to become the primary when the
// former one does not answer: 20 s of waiting for it, of which each new leader
// waits a few seconds again, on a machine that stands still and changes
// leaders.
const takesOver = 90 * time.Second

// TestPrimaryLost kills the primary for good and makes dc2, of three servers,
// the primary, by nothing but primary_datacenter and restarts, dc3 first.
// Nothing that had been copied is lost, and writes go on. Then the old primary
// comes back: first as it was, which both sides tell, and harms nobody; then as
// a secondary, which ends with what the new primary has.
func TestPrimaryLost(t *testing.T) {
	parallelUnlessChaos(t)
	f := newPromotion(t, 1, 3, 1)
	dc1, dc2, dc3 := f.dc("dc1"), f.dc("dc2"), f.dc("dc3")

	// Documents, one of which owns another, and one that a finalizer holds.
	for i := range 40 {
		f.mustWrite(dc1, f.doc(fmt.Sprint("d", i), i))
	}
	owner := f.mustWrite(dc1, f.doc("owner", 1))
	child := f.doc("child", 1)
	child.Owner = owner.Id
	f.mustWrite(dc1, child)
	held := f.doc("held", 1)
	held.Metadata = map[string]string{resource.FinalizersKey: "test/hold"}
	f.mustWrite(dc1, held)
	f.same("before", dc1, dc2, dc3)
	want := f.records(dc1)

	// What the primary acknowledges while nobody can copy it is what is lost
	// with it.
	dc1.Gateways[0].Stop()
	f.mustWrite(dc1, f.doc("only-in-dc1", 1))
	dc1.Kill()

	f.restart(lab.One(dc3), "dc2")
	f.component(lab.One(dc3), "primary", "changing", "dc2")
	if got := f.records(dc3); !sameDocuments(want, got) {
		t.Errorf("dc3, configured before dc2 is the primary, has %d records, want %d", len(got), len(want))
	}
	for i, s := range dc2.Servers {
		if i == 1 {
			f.leading(dc2, "primary", "servers differ", "dc2 by srv1")
		}
		f.restart(s, "dc2")
	}
	began := time.Now()
	f.primary(takesOver, "dc2", dc2, dc3)
	t.Logf("dc2 and dc3 hold dc2 for the primary %v after the last restart", ms(time.Since(began)))
	for _, dc := range []*lab.Datacenter{dc2, dc3} {
		if got := f.records(dc); !sameDocuments(want, got) {
			t.Errorf("%s has %d records, want %d as they were", dc.Name, len(got), len(want))
		}
	}

	// It writes, for others too, and what finalizers and owners say counts
	// there now.
	f.mustWrite(dc2, f.doc("d1", 100))
	f.mustWrite(dc3, f.doc("from-dc3", 100))
	f.mustDelete(dc2, "held")
	f.mustDelete(dc2, "owner")
	f.same("written in the new primary", dc2, dc3)
	now := f.records(dc3)
	if _, there := now["child"]; there {
		t.Error("what a deleted record owned is still there")
	}
	if r := now["held"]; r == nil || r.Metadata[resource.DeletionKey] == "" {
		t.Errorf("a record with a finalizer was deleted: %v", r)
	}

	// The old primary is back as it was.
	for _, n := range dc1.Nodes() {
		if n.WAN == "" {
			n.StartServer("--remote-writes-from", "*")
		} else {
			n.StartGateway()
		}
	}
	f.component(lab.One(dc1), "primary", "two primaries", "dc2")
	f.leading(dc2, "primary", "two primaries", "dc1")
	f.component(lab.One(dc3), "primary", "two primaries", "dc1")
	f.await("dc1 tells that it is disputed", func(ctx context.Context) error {
		text, err := lab.One(dc1).Metrics(ctx)
		if err == nil && !strings.Contains(text, `wanfed_primary_disputed{dc="dc2",primary="dc2"} 1`) || !strings.Contains(text, "wanfed_primaries 2") {
			err = errors.New("no metric")
		}
		return err
	})
	logOf(lab.One(dc1).Process).await(t, `level=ERROR msg="two primaries: .* datacenter=dc2`)
	f.mustWrite(dc1, f.doc("d2", 200)) // what is written there is lost
	f.mustWrite(dc2, f.doc("d3", 300))
	f.same("two primaries", dc2, dc3)
	want = f.records(dc2)

	// And as a secondary, with the records that it had.
	f.restart(lab.One(dc1), "dc2", "--primary-gateway", dc2.Gateways[0].WANAddr())
	f.primary(takesOver, "dc2", dc1)
	f.same("the old primary is a secondary", dc1, dc2, dc3)
	if got := f.records(dc2); !sameDocuments(want, got) {
		t.Errorf("dc2 has %d records after dc1 is back, want %d", len(got), len(want))
	}
	logOf(lab.One(dc1).Process).await(t, `level=WARN msg="written here while .*names="\[.*Document only-in-dc1.*\]" replaced=\d+ of="\[.*Document d2`)
	f.mustWrite(dc1, f.doc("from-dc1", 1))
	f.same("written by way of the old primary", dc1, dc2, dc3)
	awaitWhole(t, f.l, failure, "dc1 is a secondary")
	for _, s := range f.l.Running() {
		f.component(s, "primary", "ok", "dc2")
	}
	if out, err := lab.One(dc3).CLI("resource", "read", "internal/v1/Primary", "primary"); err != nil || !strings.Contains(out, `"dc2"`) {
		t.Errorf("the record of whose records dc3 has: %v: %s", err, out)
	}

	// Gone for good, it is taken off the list.
	dc1.Kill()
	mustOperate(t, f.l, dc2.Servers[1], "federation", "delete", "dc1", "--force")
	f.await("dc3 knows no dc1 any more", func(ctx context.Context) error {
		states, err := statesOf(ctx, lab.One(dc3))
		if _, there := states["dc1"]; err == nil && there {
			err = errors.New("its state is there")
		}
		return err
	})
}

// TestPrimaryMoves moves the primary by plan from dc1 to dc2 and back, with all
// alive and writing, in the order that is least likely to be right: the new
// primary first, the old one last. No acknowledged write is lost, also if
// servers are not stopped but killed.
func TestPrimaryMoves(t *testing.T) {
	for _, end := range []struct {
		how string
		end func(*lab.Node)
	}{{"stopped", (*lab.Node).Stop}, {"killed", (*lab.Node).Kill}} {
		t.Run(end.how, func(t *testing.T) {
			if end.how == "killed" {
				onlyChaos(t)
			}
			parallelUnlessChaos(t)
			movePrimary(t, end.end)
		})
	}
}

func movePrimary(t *testing.T, end func(*lab.Node)) {
	f := newPromotion(t, 1, 3, 1)
	all := f.l.Datacenters()
	for i := range 20 {
		f.mustWrite(all[0], f.doc(fmt.Sprint("d", i), i))
	}
	f.same("before", all...)
	for _, move := range [][3]string{{"dc2", "dc3", "dc1"}, {"dc1", "dc3", "dc2"}} {
		stop := f.keepWriting(all...)
		for i, name := range move {
			for _, s := range f.dc(name).Servers {
				end(s)
				f.start(s, move[0])
			}
			if i == 0 { // the old one is the primary as long as it is not told otherwise
				f.leading(f.dc(name), "primary", "changing", move[2]+" still is")
			}
		}
		began := time.Now()
		f.primary(takesOver, move[0], all...)
		t.Logf("all hold %s for the primary %v after the last restart", move[0], ms(time.Since(began)))
		acked := stop()
		f.same("moved to "+move[0], all...)
		now := f.records(f.dc(move[0]))
		for name, generation := range acked {
			if r := now[name]; r == nil || r.Generation != generation {
				t.Errorf("moved to %s: an acknowledged write of %s is lost: %v", move[0], name, r)
			}
		}
		t.Logf("moved to %s: %d documents acknowledged meanwhile", move[0], len(acked))
		awaitWhole(t, f.l, failure, "moved to "+move[0])
	}
}
