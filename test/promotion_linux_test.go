// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/document"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/test/lab"
)

// takesOver bounds how long a secondary takes to become the primary when the former one does not answer: 10 s of waiting for it.
const takesOver = 30 * time.Second

// TestPrimaryLost kills the primary for good and makes dc2, of three servers, the primary, by nothing but primary_datacenter and
// restarts, dc3 first. Nothing that had been copied is lost, and writes go on. Then the old primary comes back: first as it was, which
// both sides tell, and harms nobody; then as a secondary, which ends with what the new primary has.
func TestPrimaryLost(t *testing.T) {
	alongside(t)
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

	// What the primary acknowledges while nobody can copy it is what is lost with it.
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
			f.component(leaderOf(t, dc2), "primary", "servers differ", "dc2 by srv1")
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

	// It writes, for others too, and what finalizers and owners say counts there now.
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
	f.component(leaderOf(t, dc2), "primary", "two primaries", "dc1")
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

// TestPrimaryMoves moves the primary by plan from dc1 to dc2 and back, with all alive and writing, in the order that is least
// likely to be right: the new primary first, the old one last. No acknowledged write is lost, also if servers are not stopped but killed.
func TestPrimaryMoves(t *testing.T) {
	for _, end := range []struct {
		how string
		end func(*lab.Node)
	}{{"stopped", (*lab.Node).Stop}, {"killed", (*lab.Node).Kill}} {
		t.Run(end.how, func(t *testing.T) {
			if end.how == "killed" {
				onlyChaos(t)
			}
			alongside(t)
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
				f.component(leaderOf(t, f.dc(name)), "primary", "changing", move[2]+" still is")
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

// promotion is a federation whose primary changes.
type promotion struct {
	*sharers
	operators map[*lab.Node]pb.ResourceServiceClient
}

func (f promotion) at(s *lab.Node) pb.ResourceServiceClient {
	f.t.Helper()
	if f.operators[s] == nil {
		f.operators[s] = f.operator(s)
	}
	return f.operators[s]
}

// newPromotion starts datacenters of so many servers, and a gateway each.
func newPromotion(t *testing.T, servers ...int) promotion {
	t.Helper()
	l := lab.New(t)
	for _, n := range servers {
		l.Add(n, 1)
	}
	for _, dc := range l.Datacenters() {
		for _, s := range dc.Servers {
			s.StartServer("--remote-writes-from", "*")
		}
		dc.Gateways[0].StartGateway()
	}
	awaitWhole(t, l, 30*time.Second, "start")
	return promotion{&sharers{t: t, l: l}, map[*lab.Node]pb.ResourceServiceClient{}}
}

func (f promotion) dc(name string) *lab.Datacenter {
	i := slices.IndexFunc(f.l.Datacenters(), func(d *lab.Datacenter) bool { return d.Name == name })
	return f.l.Datacenters()[i]
}

// restart restarts a server with another primary_datacenter.
func (f promotion) restart(s *lab.Node, primary string, args ...string) {
	f.t.Helper()
	s.Stop()
	f.start(s, primary, args...)
}

// start starts a server again.
func (f promotion) start(s *lab.Node, primary string, args ...string) {
	f.t.Helper()
	if s.DC().Name == "dc1" && len(args) == 0 {
		args = []string{"--primary-gateway", f.dc("dc2").Gateways[0].WANAddr()}
	}
	s.StartServer(append([]string{"--remote-writes-from", "*", "--primary-datacenter", primary}, args...)...)
}

func (f promotion) await(what string, check func(ctx context.Context) error) {
	f.t.Helper()
	lab.Eventually(f.t, takesOver, what, check)
}

// component waits until one of the parts that a server's status lists is as said.
func (f promotion) component(s *lab.Node, name, state, says string) {
	f.t.Helper()
	f.await(fmt.Sprintf("%s: %s is %s, %q", s.WANName(), name, state, says), func(ctx context.Context) error {
		var st api.Status
		if err := s.Get(ctx, api.StatusPath, &st); err != nil {
			return err
		}
		for _, c := range st.Components {
			if c.Name == name && c.State == state && strings.Contains(c.Detail, says) {
				return nil
			}
		}
		return fmt.Errorf("status: %+v", st.Components)
	})
}

// primary waits until every server of some datacenters holds one for the primary.
func (f promotion) primary(limit time.Duration, primary string, dcs ...*lab.Datacenter) {
	f.t.Helper()
	for _, dc := range dcs {
		for _, s := range dc.Servers {
			lab.Eventually(f.t, limit, s.WANName()+" has the primary "+primary, func(ctx context.Context) error {
				var st api.Status
				if err := s.Get(ctx, api.StatusPath, &st); err != nil {
					return err
				}
				if st.PrimaryDatacenter != primary {
					return fmt.Errorf("%s has %s: %+v", s.WANName(), st.PrimaryDatacenter, st.Components)
				}
				return nil
			})
		}
	}
}

func (f promotion) mustWrite(dc *lab.Datacenter, r *pb.Resource) *pb.Resource {
	f.t.Helper()
	out, err := f.write(f.at(dc.Servers[0]), r)
	if err != nil {
		f.t.Fatalf("write %s in %s: %v", r.Id.Name, dc.Name, err)
	}
	return out
}

func (f promotion) mustDelete(dc *lab.Datacenter, name string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 10*time.Second)
	defer cancel()
	if _, err := f.at(dc.Servers[0]).Delete(ctx, &pb.DeleteRequest{Id: &pb.ID{Type: document.Type, Name: name}}); err != nil {
		f.t.Fatalf("delete %s in %s: %v", name, dc.Name, err)
	}
}

// records lists the documents of a datacenter.
func (f promotion) records(dc *lab.Datacenter) map[string]*pb.Resource {
	f.t.Helper()
	out, err := f.list(f.t.Context(), dc)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

func (f promotion) list(ctx context.Context, dc *lab.Datacenter) (map[string]*pb.Resource, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	got, err := f.at(dc.Servers[0]).List(resource.WithConsistency(ctx, resource.Strong), &pb.ListRequest{Type: document.Type})
	out := map[string]*pb.Resource{}
	for _, r := range got.GetResources() {
		out[r.Id.Name] = r
	}
	return out, err
}

// sameDocuments says whether two datacenters have the same, but for what is each one's own.
func sameDocuments(a, b map[string]*pb.Resource) bool {
	for name, r := range a {
		if b[name].GetId().GetUid() != r.Id.Uid || b[name].GetGeneration() != r.Generation || b[name].GetOwner().GetUid() != r.GetOwner().GetUid() {
			return false
		}
	}
	return len(a) == len(b)
}

// same waits until some datacenters have the same documents.
func (f promotion) same(what string, dcs ...*lab.Datacenter) {
	f.t.Helper()
	f.await(what+": the same documents", func(ctx context.Context) error {
		first, err := f.list(ctx, dcs[0])
		if err != nil {
			return err
		}
		for _, dc := range dcs[1:] {
			got, err := f.list(ctx, dc)
			if err != nil {
				return err
			}
			if !sameDocuments(first, got) {
				return fmt.Errorf("%s has %d, and %s %d or others", dcs[0].Name, len(first), dc.Name, len(got))
			}
		}
		return nil
	})
}

// keepWriting writes in each datacenter, one document after the other, whatever comes back. stop returns the generations of those
// that were acknowledged.
func (f promotion) keepWriting(dcs ...*lab.Datacenter) (stop func() map[string]string) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	acked := map[string]string{}
	for _, dc := range dcs {
		at := make([]pb.ResourceServiceClient, len(dc.Servers))
		for i, s := range dc.Servers {
			at[i] = f.at(s)
		}
		wg.Go(func() {
			done, failed, said := 0, map[codes.Code]int{}, map[codes.Code]string{}
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("w-%s-%d", dc.Name, i)
				tctx, tcancel := context.WithTimeout(ctx, 3*time.Second)
				out, err := at[i%len(at)].Write(tctx, &pb.WriteRequest{Resource: f.doc(name, i)})
				tcancel()
				if err == nil {
					mu.Lock()
					acked[name] = out.Resource.Generation
					mu.Unlock()
					done++
				} else if ctx.Err() == nil {
					failed[status.Code(err)]++
					said[status.Code(err)] = status.Convert(err).Message()
				}
				select {
				case <-time.After(20 * time.Millisecond):
				case <-ctx.Done():
				}
			}
			f.t.Logf("written in %s: %d, not: %v; said last: %v", dc.Name, done, failed, said)
		})
	}
	return func() map[string]string {
		cancel()
		wg.Wait()
		return acked
	}
}
