// SPDX-License-Identifier: MPL-2.0

package replication

import (
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

// The order in which the datacenters are reconfigured does not matter. The new
// primary has all writes that the former primary acknowledged.
func TestPromotion(t *testing.T) {
	for _, order := range [][]string{
		{"dc1", "dc2", "dc3"}, {"dc2", "dc3", "dc1"}, {"dc3", "dc1", "dc2"}, {"dc3", "dc2", "dc1"},
	} {
		t.Run(strings.Join(order, " "), func(t *testing.T) {
			t.Parallel()
			testPromotion(t, order)
		})
	}
}

func testPromotion(t *testing.T, order []string) {
	fed := &testFederation{t: t}
	dc1, dc2, dc3 := fed.add("dc1", "dc1"), fed.add("dc2", "dc1"), fed.add("dc3", "dc1")
	fill(t, dc1.store, 100)
	waitInSync(t, dc1.store, dc2.store)
	waitInSync(t, dc1.store, dc3.store)
	for i, name := range order {
		if dc1.manager.Writable() == nil {
			put(t, dc1.store, docType, fmt.Sprint("late", i), "1")
		}
		fed.byName[name].restart("dc2")
		if i == 0 && name == "dc2" {
			dc2.waitUntil("pending reason", func() bool {
				return strings.Contains(dc2.manager.PendingReason(), "dc1 still is")
			})
			if in1, in2 := dc1.manager.Writable(), dc2.manager.Writable(); in1 != nil || in2 == nil {
				t.Errorf("Writable() before the demotion = %v in dc1 and %v in dc2, want nil and an error", in1, in2)
			}
		}
	}
	for _, dc := range fed.byName {
		dc.waitPrimary("dc2")
	}
	if err := dc2.manager.Writable(); err != nil {
		t.Errorf("Writable() of the new primary = %v, want nil", err)
	}
	for i := range order {
		name := fmt.Sprint("late", i)
		if _, err := dc2.store.Read(t.Context(), resource.Eventual, resource.ID(docType, name)); err == nil {
			put(t, dc2.store, docType, name, "2")
		}
	}
	waitInSync(t, dc2.store, dc1.store)
	waitInSync(t, dc2.store, dc3.store)
	all, _, err := dc2.store.List(t.Context(), resource.Eventual, kindOf(docType).query())
	if err != nil || len(all) == 0 {
		t.Fatalf("List() in the new primary = %d resources, %v, want some and nil", len(all), err)
	}
	for _, r := range all {
		if r.PrimaryModifyIndex != 0 {
			t.Errorf("PrimaryModifyIndex of %s = %d, want 0", r.Id.Name, r.PrimaryModifyIndex)
		}
	}
}

// A new primary is promoted without a response of the former primary. The
// former primary then returns as a secondary and loses the writes that only it
// had.
func TestPromotion_FormerPrimaryLost(t *testing.T) {
	t.Parallel()
	fed := &testFederation{t: t}
	dc1, dc2 := fed.add("dc1", "dc1"), fed.add("dc2", "dc1")
	fill(t, dc1.store, 100)
	waitInSync(t, dc1.store, dc2.store)
	dc1.stop()
	put(t, dc1.store, docType, "alone", "1")
	dc2.restart("dc2")
	dc2.waitPrimary("dc2")
	put(t, dc2.store, docType, "new", "1")

	dc1.start("dc1")
	dc1.waitUntil("successful probe", func() bool { return dc2.manager.ProbePrimary(t.Context(), "dc1") })
	if in1, in2 := dc1.manager.Writable(), dc2.manager.Writable(); in1 != nil || in2 != nil {
		t.Errorf("Writable() in two primaries = %v and %v, want nil and nil", in1, in2)
	}
	dc1.restart("dc2")
	dc1.waitPrimary("dc2")
	waitInSync(t, dc2.store, dc1.store)
	_, err := dc1.store.Read(t.Context(), resource.Eventual, resource.ID(docType, "alone"))
	if !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("Read() of a resource that only the former primary had = %v, want ErrNotFound", err)
	}
	if dc2.manager.ProbePrimary(t.Context(), "dc1") {
		t.Error("ProbePrimary() of a secondary = true, want false")
	}
}

// A new leader continues the takeover timeout of the last leader. A response of
// the former primary resets the timeout.
func TestPromotion_LeaderChanges(t *testing.T) {
	t.Parallel()
	fed := &testFederation{t: t}
	dc1, dc2 := fed.add("dc1", "dc1"), fed.add("dc2", "dc1")
	put(t, dc1.store, docType, "a", "1")
	waitInSync(t, dc1.store, dc2.store)
	silence := func() time.Duration { return dc2.manager.stored().GetUnanswered().AsDuration() }
	dc1.stop()
	dc2.restart("dc2")
	dc2.waitUntil("stored silence", func() bool { return silence() >= silenceStep })
	dc1.start("dc1")
	dc2.waitUntil("no stored silence", func() bool { return silence() == 0 })

	dc1.stop()
	// Each leader waits for a part of the timeout.
	for last := time.Duration(0); last+silenceStep < takeoverTimeout; last = silence() {
		dc2.waitUntil("longer stored silence", func() bool { return silence() >= last+silenceStep })
		dc2.relead()
	}
	dc2.waitPrimary("dc2")
	if silence() != 0 {
		t.Errorf("stored silence after the promotion = %v, want 0", silence())
	}
	if err := dc2.manager.Writable(); err != nil {
		t.Errorf("Writable() after the promotion = %v, want nil", err)
	}

	// A canceled promotion does not shorten the next one.
	dc3 := fed.add("dc3", "dc2")
	waitInSync(t, dc2.store, dc3.store)
	dc2.stop()
	dc3.restart("dc3")
	dc3.waitUntil("stored silence", func() bool { return dc3.manager.stored().GetUnanswered() != nil })
	dc3.restart("dc3")
	if st := (&pb.Primary{Unanswered: durationpb.New(takeoverTimeout)}); dc3.manager.silence(st) >= silenceStep {
		t.Errorf("silence() after a restart = %v, want less than %v", dc3.manager.silence(st), silenceStep)
	}
	dc3.restart("dc2")
	dc3.waitUntil("no stored silence", func() bool { return dc3.manager.stored().GetUnanswered() == nil })
}

// The primary does not change while alive servers of a datacenter are
// configured with different primaries.
func TestDesired_ServersDiffer(t *testing.T) {
	t.Parallel()
	fed := &testFederation{t: t}
	dc1, dc2 := fed.add("dc1", "dc1"), fed.add("dc2", "dc1")
	put(t, dc1.store, docType, "a", "1")
	waitInSync(t, dc1.store, dc2.store)
	dc1.configureOthers(map[string]string{"srv2": "dc1"})
	dc1.restart("dc2") // only srv1, the leader, is reconfigured
	if err := dc1.manager.Writable(); err != nil {
		t.Errorf("Writable() while the servers differ = %v, want nil", err)
	}
	dc2.configureOthers(map[string]string{"srv2": "dc2"})
	put(t, dc1.store, docType, "a", "2")
	waitInSync(t, dc1.store, dc2.store)
	if dc1.manager.PrimaryDC() != "dc1" || dc2.manager.PrimaryDC() != "dc1" {
		t.Errorf("PrimaryDC() = %s in dc1 and %s in dc2, want dc1", dc1.manager.PrimaryDC(), dc2.manager.PrimaryDC())
	}
	dc1.configureOthers(map[string]string{"srv2": "dc2"})
	dc1.waitUntil("demotion in favor of dc2", func() bool { return dc1.manager.stored().GetHandedTo() == "dc2" })
	if err := dc1.manager.Writable(); err == nil || !strings.Contains(err.Error(), "is demoted in favor of dc2") {
		t.Errorf("Writable() after the demotion = %v, want an error with dc2", err)
	}
	dc1.configureOthers(map[string]string{"srv2": "dc1"}) // cancels the change
	put(t, dc1.store, docType, "a", "3")
	waitInSync(t, dc1.store, dc2.store)
	dc1.restart("dc1")
	dc1.waitUntil("success of Writable", func() bool { return dc1.manager.Writable() == nil })
}

// Two primaries may use the same index for different states of a resource. The
// first comparison with another primary ignores all indexes.
func TestFollow_SameIndexOfAnotherPrimary(t *testing.T) {
	t.Parallel()
	fed := &testFederation{t: t}
	dc2, dc3 := fed.add("dc2", "dc2"), fed.add("dc3", "dc9")
	dc2.waitPrimary("dc2")
	r := newResource(t, docType, "a", "new")
	r = commitOne(t, dc2.store, resource.PutOp(r, ""))
	old := newResource(t, docType, "a", "old")
	old.Id.Uid, old.PrimaryModifyIndex = r.Id.Uid, r.ModifyIndex
	commitOne(t, dc3.store, resource.ReplicaOp(old))
	dc3.stop()
	if err := dc3.manager.store(t.Context(), &pb.Primary{Datacenter: "dc1", Complete: true}); err != nil {
		t.Fatal(err)
	}
	dc3.start("dc2")
	dc3.waitPrimary("dc2")
	waitInSync(t, dc2.store, dc3.store)
}

// Replicas become own resources with the same uid, generation and status.
// Finalizers and owners take effect. Resources whose owner was deleted are
// deleted.
func TestAdoptReplicas(t *testing.T) {
	fed := &testFederation{t: t}
	dc2 := fed.add("dc2", "dc2")
	dc2.waitPrimary("dc2")
	replica := func(name string, owner *pb.ID, metadata map[string]string) *pb.Resource {
		r := newResource(t, docType, name, "1")
		r.PrimaryModifyIndex, r.Owner, r.Metadata = 7, owner, metadata
		return commitOne(t, dc2.store, resource.ReplicaOp(r))
	}
	owner := replica("owner", nil, nil)
	replica("child", owner.Id, nil)
	replica("orphan", newResource(t, docType, "gone", "").Id, nil)
	replica("local-owner", newResource(t, localType, "gone", "").Id, nil)
	held := replica("held", nil, map[string]string{resource.FinalizersKey: "test/hold"})
	n, err := dc2.manager.adoptReplicas(t.Context())
	if err != nil || n != 5 {
		t.Fatalf("adoptReplicas() = %d, %v, want 5", n, err)
	}
	read := func(name string) *pb.Resource {
		r, err := dc2.store.Read(t.Context(), resource.Eventual, resource.ID(docType, name))
		if err != nil && !errors.Is(err, resource.ErrNotFound) {
			t.Fatal(err)
		}
		return r
	}
	if r := read("owner"); r.GetPrimaryModifyIndex() != 0 ||
		r.GetId().GetUid() != owner.Id.Uid || r.GetGeneration() != owner.Generation {
		t.Errorf("adopted resource = %v, want uid and generation of %v without PrimaryModifyIndex", r, owner)
	}
	if r := read("orphan"); r != nil {
		t.Errorf("resource whose owner was deleted = %v, want none", r)
	}
	if read("local-owner") == nil {
		t.Error("resource whose owner has a local type was deleted, want it kept")
	}
	for _, id := range []*pb.ID{owner.Id, held.Id} {
		if _, err := dc2.store.Commit(t.Context(), resource.RemoveOp(id, resource.AnyVersion)); err != nil {
			t.Fatal(err)
		}
	}
	if r := read("child"); r != nil {
		t.Errorf("resource after the deletion of its owner = %v, want none", r)
	}
	if r := read("held"); r.GetMetadata()[resource.DeletionKey] == "" {
		t.Errorf("deleted resource with a finalizer = %v, want metadata %s", r, resource.DeletionKey)
	}
	if n, err := dc2.manager.adoptReplicas(t.Context()); n != 0 || err != nil {
		t.Errorf("second adoptReplicas() = %d, %v, want 0", n, err)
	}
}

func TestCheckFollow(t *testing.T) {
	store := resourcetest.NewStore()
	for _, tt := range []struct {
		configured, stored string // primaries of dc2; stored "": none yet
		code               codes.Code
		text               string // in the error
	}{
		{"dc2", "", codes.OK, ""},
		{"dc1", "", codes.FailedPrecondition, "its primary is dc1"},
		{"dc2", "dc1", codes.FailedPrecondition, "takes over from dc1"},
		{"dc1", "dc2", codes.OK, ""},
	} {
		p := &PrimaryManager{cfg: PrimaryManagerConfig{DC: "dc2", ConfiguredPrimary: tt.configured, Backend: store}}
		if tt.stored != "" {
			if err := p.store(t.Context(), &pb.Primary{Datacenter: tt.stored}); err != nil {
				t.Fatal(err)
			}
		}
		err := p.checkFollow()
		if status.Code(err) != tt.code || err != nil && !strings.Contains(err.Error(), tt.text) {
			t.Errorf("checkFollow() with configured %q and stored %q = %v, want %v %q",
				tt.configured, tt.stored, err, tt.code, tt.text)
		}
	}
}
