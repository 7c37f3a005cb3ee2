// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// In whatever order the datacenters are reconfigured, the new primary takes over
// with all records that the former one has acknowledged, and the others follow it.
func TestPromotion(t *testing.T) {
	for _, order := range []string{"123", "231", "312", "321"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			d := &dcs{t: t}
			one, two, three := d.add("dc1", "dc1"), d.add("dc2", "dc1"), d.add("dc3", "dc1")
			fill(t, one.store, 100)
			untilSame(t, one.store, two.store)
			untilSame(t, one.store, three.store)
			for i, which := range order {
				if one.manager.Writable() == nil {
					put(t, one.store, docType, fmt.Sprint("late", i), "1")
				}
				x := map[rune]*dc{'1': one, '2': two, '3': three}[which]
				x.restart("dc2")
				if x == two && order[0] == '2' {
					two.until("waiting", func() bool { return strings.Contains(two.manager.PendingReason(), "dc1 still is") })
					if err := two.manager.Writable(); err == nil || one.manager.Writable() != nil {
						t.Errorf("before the demotion: Writable() = %v in dc2 and %v in dc1, want an error and nil", err, one.manager.Writable())
					}
				}
			}
			for _, x := range d.all {
				x.is("dc2")
			}
			if err := two.manager.Writable(); err != nil {
				t.Error(err)
			}
			for name := range 3 {
				if _, err := two.store.Read(t.Context(), resource.Eventual, record(t, docType, fmt.Sprint("late", name), "1").Id); err == nil {
					put(t, two.store, docType, fmt.Sprint("late", name), "2") // dc2 owns it now
				}
			}
			untilSame(t, two.store, one.store)
			untilSame(t, two.store, three.store)
			all, _, err := two.store.List(t.Context(), resource.Eventual, kindOf(docType).query())
			if err != nil || len(all) == 0 {
				t.Fatal(len(all), err)
			}
			for _, r := range all {
				if r.PrimaryModifyIndex != 0 {
					t.Errorf("%s is a replica, want an own resource", r.Id.Name)
				}
			}
		})
	}
}

// Without a response of the former primary, the new one takes over by itself. When
// the former one returns as a secondary, it loses the records that it had alone.
func TestPromotion_FormerPrimaryLost(t *testing.T) {
	t.Parallel()
	d := &dcs{t: t}
	one, two := d.add("dc1", "dc1"), d.add("dc2", "dc1")
	fill(t, one.store, 100)
	untilSame(t, one.store, two.store)
	one.stop()
	put(t, one.store, docType, "alone", "1")
	two.restart("dc2")
	two.is("dc2")
	put(t, two.store, docType, "new", "1")

	one.start("dc1")
	one.until("seen as a primary", func() bool { return two.manager.ProbePrimary(t.Context(), "dc1") })
	if one.manager.Writable() != nil || two.manager.Writable() != nil {
		t.Error("Writable() fails in one of two primaries, want nil in both")
	}
	one.restart("dc2")
	one.is("dc2")
	untilSame(t, two.store, one.store)
	if _, err := one.store.Read(t.Context(), resource.Eventual, record(t, docType, "alone", "").Id); !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("Read() of a record that only the former primary had = %v, want ErrNotFound", err)
	}
	if two.manager.ProbePrimary(t.Context(), "dc1") {
		t.Error("ProbePrimary() of a secondary = true, want false")
	}
}

// A new leader continues the takeover timeout of the leader before it. A response of
// the former primary resets it.
func TestPromotion_LeaderChanges(t *testing.T) {
	t.Parallel()
	d := &dcs{t: t}
	one, two := d.add("dc1", "dc1"), d.add("dc2", "dc1")
	put(t, one.store, docType, "a", "1")
	untilSame(t, one.store, two.store)
	waited := func() time.Duration { return two.manager.stored().GetUnanswered().AsDuration() }
	one.stop()
	two.restart("dc2")
	two.until("waiting", func() bool { return waited() >= silenceStep })
	one.start("dc1")
	two.until("answered", func() bool { return waited() == 0 })

	one.stop()
	for was := time.Duration(0); was+silenceStep < takeoverTimeout; was = waited() { // each leader sees only a part
		two.until("waiting longer", func() bool { return waited() >= was+silenceStep })
		two.relead()
	}
	two.is("dc2")
	if waited() != 0 {
		t.Errorf("recorded silence after the promotion = %v, want 0", waited())
	}
	if err := two.manager.Writable(); err != nil {
		t.Error(err)
	}

	// A cancelled promotion does not shorten the next one.
	three := d.add("dc3", "dc2")
	untilSame(t, two.store, three.store)
	two.stop()
	three.restart("dc3")
	three.until("waiting", func() bool { return three.manager.stored().GetUnanswered() != nil })
	three.restart("dc3") // for example with its gateways, which need time to start
	if m := (&pb.Primary{Unanswered: durationpb.New(takeoverTimeout)}); three.manager.silence(m) >= silenceStep {
		t.Errorf("silence() after a restart = %v, want less than one step", three.manager.silence(m))
	}
	three.restart("dc2")
	three.until("waiting no more", func() bool { return three.manager.stored().GetUnanswered() == nil })
}

// While alive servers of a datacenter are configured with different primaries,
// nothing changes.
func TestDesired_ServersDiffer(t *testing.T) {
	t.Parallel()
	d := &dcs{t: t}
	one, two := d.add("dc1", "dc1"), d.add("dc2", "dc1")
	put(t, one.store, docType, "a", "1")
	untilSame(t, one.store, two.store)
	one.others(map[string]string{"srv2": "dc1"})
	one.restart("dc2") // only srv1, the leader, is reconfigured
	if err := one.manager.Writable(); err != nil {
		t.Errorf("Writable() while the servers differ = %v, want nil", err)
	}
	two.others(map[string]string{"srv2": "dc2"})
	put(t, one.store, docType, "a", "2")
	untilSame(t, one.store, two.store)
	if one.manager.PrimaryDC() != "dc1" || two.manager.PrimaryDC() != "dc1" {
		t.Errorf("PrimaryDC() = %s and %s, want dc1", one.manager.PrimaryDC(), two.manager.PrimaryDC())
	}
	one.others(map[string]string{"srv2": "dc2"})
	one.until("demoted", func() bool { return one.manager.stored().GetHandedTo() == "dc2" })
	if err := one.manager.Writable(); err == nil || !strings.Contains(err.Error(), "is demoted in favor of dc2") {
		t.Errorf("Writable() after the demotion = %v, want an error", err)
	}
	one.others(map[string]string{"srv2": "dc1"}) // the change is cancelled
	put(t, one.store, docType, "a", "3")
	untilSame(t, one.store, two.store)
	one.restart("dc1")
	one.until("a primary again", func() bool { return one.manager.Writable() == nil })
}

// Two primaries may use the same index for different states of a record. The first
// comparison with another primary ignores all indexes.
func TestFollow_SameIndexOfAnotherPrimary(t *testing.T) {
	t.Parallel()
	d := &dcs{t: t}
	two, three := d.add("dc2", "dc2"), d.add("dc3", "dc9")
	two.is("dc2")
	r := record(t, docType, "a", "new")
	r = commit1(t, two.store, resource.PutOp(r, ""))
	old := record(t, docType, "a", "old")
	old.Id.Uid, old.PrimaryModifyIndex = r.Id.Uid, r.ModifyIndex
	commit1(t, three.store, resource.ReplicaOp(old))
	three.stop()
	if err := three.manager.store(t.Context(), &pb.Primary{Datacenter: "dc1", Complete: true}); err != nil {
		t.Fatal(err)
	}
	three.start("dc2")
	three.is("dc2")
	untilSame(t, two.store, three.store)
}

// Replicas become own resources with the same uid, generation and status. Finalizers
// and owners become effective. Resources of a deleted owner are deleted.
func TestAdoptReplicas(t *testing.T) {
	d := &dcs{t: t}
	x := d.add("dc2", "dc2")
	x.is("dc2")
	replica := func(name string, owner *pb.ID, metadata map[string]string) *pb.Resource {
		r := record(t, docType, name, "1")
		r.PrimaryModifyIndex, r.Owner, r.Metadata = 7, owner, metadata
		return commit1(t, x.store, resource.ReplicaOp(r))
	}
	owner := replica("owner", nil, nil)
	replica("child", owner.Id, nil)
	replica("orphan", record(t, docType, "gone", "").Id, nil)
	replica("of-another", record(t, localType, "gone", "").Id, nil)
	held := replica("held", nil, map[string]string{resource.FinalizersKey: "test/hold"})
	n, err := x.manager.adoptReplicas(t.Context())
	if err != nil || n != 5 {
		t.Fatalf("adoptReplicas() = %d, %v, want 5", n, err)
	}
	read := func(name string) *pb.Resource {
		r, err := x.store.Read(t.Context(), resource.Eventual, resource.ID(docType, name))
		if err != nil && !errors.Is(err, resource.ErrNotFound) {
			t.Fatal(err)
		}
		return r
	}
	if r := read("owner"); r.GetPrimaryModifyIndex() != 0 || r.GetId().GetUid() != owner.Id.Uid || r.GetGeneration() != owner.Generation {
		t.Errorf("adopted resource = %v, want the same uid and generation, without a primary index", r)
	}
	if read("orphan") != nil || read("of-another") == nil {
		t.Error("want the orphan deleted, and the resource with an owner of a local type kept")
	}
	for _, id := range []*pb.ID{owner.Id, held.Id} {
		if _, err := x.store.Commit(t.Context(), resource.RemoveOp(id, resource.AnyVersion)); err != nil {
			t.Fatal(err)
		}
	}
	if read("child") != nil || read("held").GetMetadata()[resource.DeletionKey] == "" {
		t.Errorf("after the deletion: %v and %v, want the child deleted and the other one marked", read("child"), read("held"))
	}
	if n, err := x.manager.adoptReplicas(t.Context()); n != 0 || err != nil {
		t.Errorf("second adoptReplicas() = %d, %v, want 0", n, err)
	}
}

func TestCheckFollow(t *testing.T) {
	store := resourcetest.NewStore()
	check := func(configured string, m *pb.Primary) error {
		p := &PrimaryManager{cfg: PrimaryManagerConfig{DC: "dc2", ConfiguredPrimary: configured, Backend: store}}
		if m != nil {
			if err := p.store(context.Background(), m); err != nil {
				t.Fatal(err)
			}
		}
		return p.CheckFollow()
	}
	if err := check("dc2", nil); err != nil {
		t.Errorf("CheckFollow() = %v", err)
	}
	if err := check("dc1", nil); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("CheckFollow() = %v", err)
	}
	if err := check("dc2", &pb.Primary{Datacenter: "dc1"}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "takes over from dc1") {
		t.Errorf("CheckFollow() = %v", err)
	}
	if err := check("dc1", &pb.Primary{Datacenter: "dc2"}); err != nil {
		t.Errorf("CheckFollow() = %v", err)
	}
}
