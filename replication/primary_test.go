// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/internal/testutil"
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

// A datacenter never becomes the primary only because the former primary does
// not respond. An operator makes it the primary. When the former primary
// returns, it learns of the new epoch and accepts no more writes, also after a
// restart. As a secondary, it saves the writes that only it had in a file and
// discards them.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	fed := &testFederation{t: t}
	dc1, dc2 := fed.add("dc1", "dc1"), fed.add("dc2", "dc1")
	fill(t, dc1.store, 100)
	waitInSync(t, dc1.store, dc2.store)
	dc2.waitPrimary("dc1")
	put(t, dc1.store, docType, "document-00001", "copied", "default", "default")
	put(t, dc1.store, docType, "parent", "copied")
	waitInSync(t, dc1.store, dc2.store)
	parent := put(t, dc1.store, docType, "parent", "copied twice")
	dc2.waitUntil("stored index", func() bool { return dc2.manager.stored().GetReached() >= parent.ModifyIndex })
	dc1.stop()
	put(t, dc1.store, docType, "alone", "1")
	put(t, dc1.store, docType, "document-00003", "only in dc1", "default", "default")
	child := newResource(t, docType, "child", "1")
	child.Owner = parent.Id
	commitOne(t, dc1.store, resource.PutOp(child, ""))
	dc2.restart("dc2")
	dc2.waitUntil("request for a take-over", func() bool {
		return strings.Contains(dc2.manager.PendingReason(), "wanfed operator primary take-over --from dc1")
	})
	if err := dc2.manager.Writable(); err == nil {
		t.Error("Writable() before the take-over = nil, want an error")
	}
	state, err := dc2.manager.TakeOver(t.Context(), &pb.TakeOverRequest{From: "dc1", Check: true})
	if err != nil || state.Unreachable == "" || state.Index == 0 || !state.Complete {
		t.Errorf("TakeOver() with Check = %v, %v, want an unreachable dc1, an index, and complete replicas", state, err)
	}
	dc2.takeOver("dc1")
	if epoch := dc2.manager.Epoch(); epoch != 100 {
		t.Errorf("Epoch() after the take-over = %d, want 100", epoch)
	}
	put(t, dc2.store, docType, "new", "1")
	put(t, dc2.store, docType, "document-00001", "written in dc2", "default", "default")
	remove(t, dc2.store, docType, "document-00002", "default", "default")
	remove(t, dc2.store, docType, "parent")

	dc1.start("dc1")
	dc1.waitUntil("superseded by dc2", func() bool {
		dc2.manager.ProbePrimary(t.Context(), "dc1")
		return dc1.manager.stored().GetSupersededBy().GetDatacenter() == "dc2"
	})
	dc2.stop()
	dc1.restart("dc1")
	dc1.waitUntil("pending reason", func() bool {
		return strings.Contains(dc1.manager.PendingReason(), "dc2 is, since epoch 100")
	})
	if err := dc1.manager.Writable(); !errors.Is(err, resource.ErrNoPrimary) {
		t.Errorf("Writable() in the former primary = %v, want ErrNoPrimary", err)
	}
	dc2.start("dc2")
	dc1.restart("dc2")
	dc1.waitPrimary("dc2")
	waitInSync(t, dc2.store, dc1.store)
	_, err = dc1.store.Read(t.Context(), resource.Eventual, resource.ID(docType, "alone"))
	if !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("Read() of a resource that only the former primary had = %v, want ErrNotFound", err)
	}
	// dc2 had the other resources, and has replaced or deleted them since.
	want := map[string]string{"alone": "1", "document-00003": "only in dc1", "child": "1"}
	if got := dc1.discarded(); !maps.Equal(got, want) {
		t.Errorf("discarded writes = %v, want %v", got, want)
	}
	if dc2.manager.ProbePrimary(t.Context(), "dc1") {
		t.Error("ProbePrimary() of a secondary = true, want false")
	}
}

// An operator makes a superseded primary the primary again.
func TestTakeOver_BySupersededPrimary(t *testing.T) {
	t.Parallel()
	fed := &testFederation{t: t}
	dc1 := fed.add("dc1", "dc1")
	dc1.waitPrimary("dc1")
	put(t, dc1.store, docType, "a", "1")
	dc1.manager.learn(Epoch{107, "dc2"}, nil)
	if err := dc1.manager.Writable(); !errors.Is(err, resource.ErrNoPrimary) {
		t.Errorf("Writable() after a report of a newer epoch = %v, want ErrNoPrimary", err)
	}
	dc1.waitUntil("stored epoch", func() bool { return dc1.manager.stored().GetSupersededBy() != nil })
	err := dc1.tryTakeOver(t.Context(), "dc3")
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("TakeOver() from another datacenter = %v, want FailedPrecondition", err)
	}
	dc1.takeOver("dc2")
	if err := dc1.manager.Writable(); err != nil || dc1.manager.Epoch() != 200 {
		t.Errorf("Writable() after the take-over = %v in epoch %d, want nil in epoch 200", err, dc1.manager.Epoch())
	}
	err = dc1.tryTakeOver(t.Context(), "dc2")
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("second TakeOver() = %v, want FailedPrecondition", err)
	}
}

// A take-over needs all servers of the datacenter to be configured with it.
func TestTakeOver_NotConfigured(t *testing.T) {
	t.Parallel()
	fed := &testFederation{t: t}
	dc1, dc2 := fed.add("dc1", "dc1"), fed.add("dc2", "dc1")
	waitInSync(t, dc1.store, dc2.store)
	err := dc2.tryTakeOver(t.Context(), "dc1")
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "primary_datacenter") {
		t.Errorf("TakeOver() in a secondary = %v, want FailedPrecondition with primary_datacenter", err)
	}
}

// A demotion is not canceled while the datacenter in favor of which it was made
// does not respond, because that datacenter may be the primary.
func TestCancelDemotion_SuccessorDoesNotRespond(t *testing.T) {
	t.Parallel()
	fed := &testFederation{t: t}
	dc1, dc2 := fed.add("dc1", "dc1"), fed.add("dc2", "dc1")
	put(t, dc1.store, docType, "a", "1")
	waitInSync(t, dc1.store, dc2.store)
	dc2.stop()
	dc1.restart("dc2")
	dc1.waitUntil("demotion in favor of dc2", func() bool { return dc1.manager.stored().GetHandedTo() == "dc2" })
	dc1.restart("dc1")
	dc1.waitUntil("pending reason", func() bool {
		return strings.Contains(dc1.manager.PendingReason(), "take-over --from dc2")
	})
	if err := dc1.manager.Writable(); err == nil {
		t.Error("Writable() while dc2 does not respond = nil, want an error")
	}
	dc2.start("dc1")
	dc1.waitUntil("success of Writable", func() bool { return dc1.manager.Writable() == nil })
	if epoch := dc1.manager.Epoch(); epoch != 3 { // dc2 could have begun 2
		t.Errorf("Epoch() after the canceled demotion = %d, want 3", epoch)
	}
}

// A primary with a lease accepts writes only while other datacenters call it.
func TestLease(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		store := resourcetest.NewStore()
		p := newPrimaryManager(t, PrimaryManagerConfig{
			DC: "dc1", ConfiguredPrimary: "dc1", Backend: store, Registry: registry(t), Remote: fakeRemote{},
			Lease: 10 * time.Second,
		})
		setPrimary(t, p, &pb.Primary{Datacenter: "dc1", Complete: true, Epoch: 1})
		writable := func(when string, want bool) {
			t.Helper()
			if err := p.Writable(); (err == nil) != want || err != nil && !errors.Is(err, resource.ErrNoPrimary) {
				t.Errorf("Writable() %s = %v, want success %v", when, err, want)
			}
		}
		writable("without another datacenter", true)
		if _, _, err := federation.Upsert(t.Context(), store, &pb.FederationState{Datacenter: "dc2"}); err != nil {
			t.Fatal(err)
		}
		writable("before the first call", false)
		p.RecordContact()
		writable("after a call", true)
		time.Sleep(9 * time.Second)
		writable("before the end of the lease", true)
		time.Sleep(time.Second)
		writable("after the end of the lease", false)
		p.RecordContact()
		writable("after another call", true)
	})
}

// A report of a newer epoch has no effect without a proof. The certificate of any
// server can report. Any server that has the proof can present it.
func TestReport(t *testing.T) {
	t.Parallel()
	fed := &testFederation{t: t}
	dc1, dc2, dc3 := fed.add("dc1", "dc1"), fed.add("dc2", "dc1"), fed.add("dc3", "dc1")
	put(t, dc1.store, docType, "a", "1")
	waitInSync(t, dc1.store, dc2.store)
	waitInSync(t, dc1.store, dc3.store)
	reports := []Epoch{{2, "dc3"}, {3, "dc2"}, {9, "dc1"}, {9, "dc9"}, {math.MaxUint64, "dc3"}}
	for _, e := range reports {
		for _, dc := range []*datacenter{dc1, dc2} {
			if !dc.manager.Report(e, "dc3") {
				t.Errorf("Report(%v) in %s = false, want true", e, dc.name)
			}
			dc.manager.proveReported(t.Context())
			if got := dc.manager.KnownEpoch(); got != (Epoch{1, "dc1"}) {
				t.Errorf("KnownEpoch() in %s after a report of %v = %v, want 1:dc1", dc.name, e, got)
			}
		}
		if err := dc1.manager.Writable(); err != nil {
			t.Errorf("Writable() after a report of %v = %v, want nil", e, err)
		}
	}
	fed.partition(dc1, dc2) // dc1 learns of the take-over through dc3
	fed.partition(dc1, dc3)
	dc2.restart("dc2")
	dc2.takeOver("dc1")
	dc3.waitUntil("superseded by dc2", func() bool {
		dc2.manager.ProbePrimary(t.Context(), "dc3")
		return dc3.manager.stored().GetSupersededBy().GetDatacenter() == "dc2"
	})
	dc1.manager.Report(Epoch{100, "dc2"}, "dc3")
	dc1.manager.proveReported(t.Context())
	if err := dc1.manager.Writable(); err != nil {
		t.Errorf("Writable() while neither dc2 nor dc3 can be reached = %v, want nil", err)
	}
	fed.heal()
	fed.partition(dc1, dc2)
	dc1.manager.Report(Epoch{100, "dc2"}, "dc3")
	dc1.waitUntil("superseded by dc2", func() bool { return dc1.manager.SupersededBy() == Epoch{100, "dc2"} })
	if err := dc1.manager.Writable(); !errors.Is(err, resource.ErrNoPrimary) {
		t.Errorf("Writable() after dc3 has presented the proof = %v, want ErrNoPrimary", err)
	}
}

func TestEpoch(t *testing.T) {
	for _, tt := range []struct {
		e, other Epoch
		want     bool
	}{
		{Epoch{1, "dc1"}, Epoch{}, true},
		{Epoch{2, "dc1"}, Epoch{1, "dc2"}, true},
		{Epoch{1, "dc2"}, Epoch{1, "dc1"}, false}, // a new datacenter that is configured with itself
		{Epoch{2, "dc2"}, Epoch{2, "dc1"}, true},
		{Epoch{2, "dc1"}, Epoch{2, "dc2"}, false},
		{Epoch{2, "dc1"}, Epoch{2, "dc1"}, false},
		{Epoch{}, Epoch{1, "dc1"}, false},
	} {
		if got := tt.e.Supersedes(tt.other); got != tt.want {
			t.Errorf("%v.Supersedes(%v) = %v, want %v", tt.e, tt.other, got, tt.want)
		}
	}
	for _, s := range []string{"", "2", "2:", ":dc1", "0:dc1", "-1:dc1", "2:DC 1", "18446744073709551616:dc1"} {
		if e, err := ParseEpoch(s); err == nil {
			t.Errorf("ParseEpoch(%q) = %v, want an error", s, e)
		}
	}
	if e, err := ParseEpoch(Epoch{12, "dc-3"}.String()); err != nil || e != (Epoch{12, "dc-3"}) {
		t.Errorf("ParseEpoch() of a text of String = %v, %v, want the same epoch", e, err)
	}
	p := primaryManager(t, resourcetest.NewStore())
	p.learn(Epoch{maxEpochStep + 1, "dc2"}, nil)
	if e := p.KnownEpoch(); e != (Epoch{}) {
		t.Errorf("KnownEpoch() after an epoch with a number too high = %v, want none", e)
	}
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
	setPrimary(t, dc3.manager, &pb.Primary{Datacenter: "dc1", Complete: true})
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
	n, err := dc2.manager.adoptReplicas(t.Context(), 2)
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
	if r := read("owner"); r.GetPrimaryModifyIndex() != 0 || r.GetPrimaryEpoch() != 2 ||
		r.GetId().GetUid() != owner.Id.Uid || r.GetGeneration() != owner.Generation {
		t.Errorf("adopted resource = %v, want uid and generation of %v in epoch 2, without PrimaryModifyIndex", r, owner)
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
	if n, err := dc2.manager.adoptReplicas(t.Context(), 2); n != 0 || err != nil {
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
			setPrimary(t, p, &pb.Primary{Datacenter: tt.stored})
		}
		err := p.checkFollow()
		if status.Code(err) != tt.code || err != nil && !strings.Contains(err.Error(), tt.text) {
			t.Errorf("checkFollow() with configured %q and stored %q = %v, want %v %q",
				tt.configured, tt.stored, err, tt.code, tt.text)
		}
	}
}
