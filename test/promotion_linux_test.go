// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

// promotionLimit bounds the time until a secondary is promoted. On a machine
// that stalls, each new leader waits a few seconds again.
const promotionLimit = 90 * time.Second

// TestPrimaryLost kills the primary and promotes dc2, which has three servers,
// with the setting primary_datacenter, restarts, and the command of an
// operator. No replica is lost, and writes work. Then the old primary comes
// back with its old configuration: it learns that it is superseded, and accepts
// no writes. Finally it becomes a secondary and receives the resources of the
// new primary.
func TestPrimaryLost(t *testing.T) {
	parallelUnlessChaos(t)
	f := newPromotion(t, 1, 3, 1)
	want := f.writeBeforeLoss()
	f.losePrimary(want)
	f.useNewPrimary()
	want = f.returnOldPrimary()
	f.demoteOldPrimary(want)
	f.deleteOldPrimary()
}

// writeBeforeLoss writes documents in dc1, one with an owner and one with a
// finalizer. It returns the documents when all datacenters have them.
func (f promotion) writeBeforeLoss() map[string]*pb.Resource {
	f.t.Helper()
	dc1, dc2, dc3 := f.dc("dc1"), f.dc("dc2"), f.dc("dc3")
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
	return f.records(dc1)
}

// losePrimary kills dc1 after a write that no secondary has received, and
// promotes dc2. dc2 and dc3 must have the documents want.
func (f promotion) losePrimary(want map[string]*pb.Resource) {
	f.t.Helper()
	t, dc1, dc2, dc3 := f.t, f.dc("dc1"), f.dc("dc2"), f.dc("dc3")
	dc1.Gateways[0].Stop()
	f.mustWrite(dc1, f.doc("only-in-dc1", 1))
	dc1.Kill()

	f.restart(lab.One(dc3), "dc2")
	f.component(lab.One(dc3), "primary", "changing", "dc2")
	if got := f.records(dc3); !sameDocuments(want, got) {
		t.Errorf("dc3 before the promotion of dc2 has %d documents, want %d", len(got), len(want))
	}
	for i, s := range dc2.Servers {
		if i == 1 {
			f.leading(dc2, "primary", "servers differ", "dc2 by srv1")
		}
		f.restart(s, "dc2")
	}
	f.leading(dc2, "primary", "changing", "wanfed operator primary take-over --from dc1")
	began := time.Now()
	f.takeOver(dc2, "dc1")
	f.primary(promotionLimit, "dc2", dc2, dc3)
	t.Logf("dc2 is the primary of dc2 and dc3 %v after the take-over", ms(time.Since(began)))
	for _, dc := range []*lab.Datacenter{dc2, dc3} {
		if got := f.records(dc); !sameDocuments(want, got) {
			t.Errorf("%s has %d documents, want the same %d as before", dc.Name, len(got), len(want))
		}
	}
}

// useNewPrimary checks that the new primary accepts writes, also forwarded
// ones, and applies finalizers and owners.
func (f promotion) useNewPrimary() {
	f.t.Helper()
	t, dc2, dc3 := f.t, f.dc("dc2"), f.dc("dc3")
	f.mustWrite(dc2, f.doc("d1", 100))
	f.mustWrite(dc3, f.doc("from-dc3", 100))
	f.mustDelete(dc2, "held")
	f.mustDelete(dc2, "owner")
	f.same("written in the new primary", dc2, dc3)
	now := f.records(dc3)
	if _, there := now["child"]; there {
		t.Error("the child of a deleted document exists, want it deleted")
	}
	if r := now["held"]; r == nil || r.Metadata[resource.DeletionKey] == "" {
		t.Errorf("document with a finalizer = %v, want it marked for deletion", r)
	}
}

// returnOldPrimary starts dc1 with its old configuration. It must learn that it
// is superseded, also after a restart. It returns the documents of dc2.
func (f promotion) returnOldPrimary() map[string]*pb.Resource {
	f.t.Helper()
	dc1, dc2, dc3 := f.dc("dc1"), f.dc("dc2"), f.dc("dc3")
	for _, n := range dc1.Nodes() {
		if n.WAN == "" {
			n.StartServer("--allow-remote-writes-from", "*")
		} else {
			n.StartGateway()
		}
	}
	f.component(lab.One(dc1), "primary", "superseded", "dc2 is, since epoch 100")
	f.refused(dc1, "superseded")
	f.await("the metrics of a superseded primary at dc1", func(ctx context.Context) error {
		text, err := lab.One(dc1).Metrics(ctx)
		if err == nil && !strings.Contains(text, "wanfed_primary_superseded 1") ||
			!strings.Contains(text, "wanfed_primary_epoch 1") {
			err = errors.New("the metrics are missing")
		}
		return err
	})
	for _, n := range dc1.Nodes() {
		n.Kill()
	}
	lab.One(dc1).StartServer("--allow-remote-writes-from", "*") // without a gateway
	f.component(lab.One(dc1), "primary", "superseded", "dc2 is, since epoch 100")
	f.refused(dc1, "after a restart")
	dc1.Gateways[0].StartGateway()
	f.mustWrite(dc2, f.doc("d3", 300))
	f.same("a superseded primary", dc2, dc3)
	return f.records(dc2)
}

// takeOver makes dc the primary in place of from, with the command of an
// operator.
func (f promotion) takeOver(dc *lab.Datacenter, from string) {
	f.t.Helper()
	out := mustOperate(f.t, f.l, dc.Servers[0], "operator", "primary", "take-over", "--from", from, "--yes")
	if !strings.Contains(out, dc.Name+" is the primary") {
		f.t.Errorf("take-over of %s = %q, want that it is the primary", dc.Name, out)
	}
}

// refused fails the test unless dc, which is superseded, refuses a write with
// UNAVAILABLE and the name of the new primary.
func (f promotion) refused(dc *lab.Datacenter, when string) {
	f.t.Helper()
	err := f.writeOnce(dc, f.doc("refused", 1))
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), `set primary_datacenter = "dc2"`) {
		f.t.Errorf("write in %s, %s = %v, want Unavailable with the new primary", dc.Name, when, err)
	}
}

// demoteOldPrimary restarts dc1 as a secondary, with its old data. It must
// receive the documents want of dc2.
func (f promotion) demoteOldPrimary(want map[string]*pb.Resource) {
	f.t.Helper()
	t, dc1, dc2, dc3 := f.t, f.dc("dc1"), f.dc("dc2"), f.dc("dc3")
	f.restart(lab.One(dc1), "dc2", "--primary-gateway", dc2.Gateways[0].WANAddr())
	f.primary(promotionLimit, "dc2", dc1)
	f.same("the old primary is a secondary", dc1, dc2, dc3)
	if got := f.records(dc2); !sameDocuments(want, got) {
		t.Errorf("dc2 has %d documents after dc1 came back, want %d", len(got), len(want))
	}
	line := logOf(lab.One(dc1).Process).await(t,
		`level=WARN msg="discarding acknowledged writes .* file=(\S+) count=1 `+
			`names="\[Document only-in-dc1\]"`)
	f.component(lab.One(dc1), "discarded writes", "saved", "wanfed resource apply --dry-run -f "+line[1])
	id, err := f.l.PKI.Issue(tlsutil.RoleOperator, "dc2", "operator")
	if err != nil {
		t.Fatal(err)
	}
	out, err := dc2.Servers[0].CLI("resource", "apply", "-f", line[1], "--http-addr", "https://127.0.0.1:8500",
		"--ca-file", id.CA, "--cert-file", id.Cert, "--key-file", id.Key)
	if err != nil || !strings.Contains(out, "created    config/v1/Document only-in-dc1") {
		t.Errorf("wanfed resource apply -f %s = %v, want only-in-dc1 created: %s", line[1], err, out)
	}
	f.mustWrite(dc1, f.doc("from-dc1", 1))
	f.same("written through the old primary", dc1, dc2, dc3)
	awaitWhole(t, f.l, failure, "dc1 is a secondary")
	for _, s := range f.l.Running() {
		f.component(s, "primary", "ok", "dc2")
	}
	if out, err := lab.One(dc3).CLI("resource", "read", "internal/v1/Primary", "primary"); err != nil ||
		!strings.Contains(out, `"dc2"`) {
		t.Errorf("primary of dc3 = %s, %v, want dc2", out, err)
	}
}

// deleteOldPrimary kills dc1 and deletes its federation state, as for a
// datacenter that is lost permanently.
func (f promotion) deleteOldPrimary() {
	f.t.Helper()
	dc1, dc2, dc3 := f.dc("dc1"), f.dc("dc2"), f.dc("dc3")
	dc1.Kill()
	mustOperate(f.t, f.l, dc2.Servers[1], "federation", "delete", "dc1", "--force")
	f.await("dc3 without the state of dc1", func(ctx context.Context) error {
		states, err := statesOf(ctx, lab.One(dc3))
		if _, there := states["dc1"]; err == nil && there {
			err = errors.New("the state still exists")
		}
		return err
	})
}

// TestPrimaryMove_GatewaysLost loses the gateway of the old primary in the
// middle of a planned move. The new primary is not promoted, because the old
// one has not consented and no operator has called take-over. When the gateway
// is back, the move continues. No acknowledged write is lost.
func TestPrimaryMove_GatewaysLost(t *testing.T) {
	parallelUnlessChaos(t)
	f := newPromotion(t, 1, 1)
	dc1, dc2 := f.dc("dc1"), f.dc("dc2")
	f.mustWrite(dc1, f.doc("before", 1))
	f.same("before", dc1, dc2)
	f.restart(lab.One(dc2), "dc2")
	f.leading(dc2, "primary", "changing", "dc1 still is")
	dc1.Gateways[0].Stop()
	f.leading(dc2, "primary", "changing", "if dc1 is lost, run in dc2: wanfed operator primary take-over --from dc1")
	f.mustWrite(dc1, f.doc("during", 1))
	if err := f.writeOnce(dc2, f.doc("in-dc2", 1)); err == nil {
		t.Error("write in dc2, which is not the primary, succeeded, want an error")
	}
	dc1.Gateways[0].StartGateway()
	f.leading(dc2, "primary", "changing", "dc1 still is")
	f.mustWrite(dc1, f.doc("after", 1))
	f.restart(lab.One(dc1), "dc2")
	f.primary(promotionLimit, "dc2", dc1, dc2)
	f.same("moved", dc1, dc2)
	now := f.records(dc2)
	for _, name := range []string{"before", "during", "after"} {
		if now[name] == nil {
			t.Errorf("document %s is lost, want it in the new primary", name)
		}
	}
	for _, dc := range []*lab.Datacenter{dc1, dc2} {
		f.component(lab.One(dc), "primary", "ok", "epoch 2")
	}
}

// TestPrimaryLease isolates a primary of three servers, which then refuses writes
// after the lease. When the path is back, it accepts them again.
func TestPrimaryLease(t *testing.T) {
	parallelUnlessChaos(t)
	f := newPromotion(t, 3, 1)
	dc1 := f.dc("dc1")
	for _, s := range dc1.Servers {
		f.restart(s, "dc1", "--primary-lease", "10s")
	}
	f.mustWrite(dc1, f.doc("before", 1))
	dc1.Gateways[0].Stop()
	f.await("refused writes after the lease", func(context.Context) error {
		err := f.writeOnce(dc1, f.doc("isolated", 1))
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "primary_lease") {
			return fmt.Errorf("write in dc1 = %w, want Unavailable with primary_lease", err)
		}
		return nil
	})
	f.leading(dc1, "primary", "isolated", "primary_lease")
	dc1.Gateways[0].StartGateway()
	f.mustWrite(dc1, f.doc("after", 1))
}

// TestPrimaryMoves moves the primary from dc1 to dc2 and back while all
// datacenters write, in the most difficult order: the new primary first, the
// old one last. No acknowledged write is lost, even if servers are killed.
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

// movePrimary moves the primary to dc2 and back to dc1. Servers are ended with
// end, and restarted with the new configuration.
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
			if i == 0 { // the old primary still has its old configuration
				f.leading(f.dc(name), "primary", "changing", move[2]+" still is")
			}
		}
		began := time.Now()
		f.primary(promotionLimit, move[0], all...)
		t.Logf("%s is the primary everywhere %v after the last restart", move[0], ms(time.Since(began)))
		acked := stop()
		f.same("moved to "+move[0], all...)
		now := f.records(f.dc(move[0]))
		for name, generation := range acked {
			if r := now[name]; r == nil || r.Generation != generation {
				t.Errorf("moved to %s: document %s = %v, want the acknowledged generation %s", move[0], name, r,
					generation)
			}
		}
		t.Logf("moved to %s: %d documents acknowledged during the move", move[0], len(acked))
		awaitWhole(t, f.l, failure, "moved to "+move[0])
	}
}
