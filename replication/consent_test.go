// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// A primary that another datacenter has replaced cannot consent to a move. The
// move waits until the last primary consents, and loses no write of it.
func TestPromotion_FormerWasReplaced(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		fed := &testFederation{t: t}
		dc1, dc2, dc3 := fed.add("dc1", "dc1"), fed.add("dc2", "dc1"), fed.add("dc3", "dc1")
		put(t, dc1.store, docType, "a", "1")
		waitInSync(t, dc1.store, dc2.store)
		waitInSync(t, dc1.store, dc3.store)
		fed.partition(dc2, dc3)
		dc1.restart("dc3")
		dc3.restart("dc3")
		dc1.waitUntil("the epoch of dc3", func() bool { return dc1.manager.KnownEpoch() == (Epoch{2, "dc3"}) })
		dc1.stop() // before it follows dc3
		put(t, dc3.store, docType, "in-dc3", "1")

		dc1.start("dc2")
		dc2.restart("dc2")
		time.Sleep(time.Minute)
		if dc2.manager.IsPrimary() {
			t.Fatal("dc2 became the primary with the consent of dc1, which is not the primary")
		}
		if got := dc2.manager.PendingReason(); !strings.Contains(got, "dc3") {
			t.Errorf("PendingReason() = %q, want dc3 in it", got)
		}
		fed.heal()
		dc3.restart("dc2")
		dc2.waitPrimary("dc2")
		if _, err := dc2.store.Read(t.Context(), resource.Eventual, resource.ID(docType, "in-dc3")); err != nil {
			t.Errorf("Read() of a write of dc3 in dc2 = %v, want nil", err)
		}
		dc1.waitPrimary("dc2")
		dc3.waitPrimary("dc2")
	})
}

// A superseded primary that has not followed the new one becomes the primary
// again with the consent of the new one.
func TestPromotion_BackToReplaced(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		fed := &testFederation{t: t}
		dc1, dc2 := fed.add("dc1", "dc1"), fed.add("dc2", "dc1")
		put(t, dc1.store, docType, "a", "1")
		waitInSync(t, dc1.store, dc2.store)
		dc1.restart("dc2")
		dc2.restart("dc2")
		dc1.waitUntil("the epoch of dc2", func() bool { return dc1.manager.KnownEpoch() == (Epoch{2, "dc2"}) })
		dc1.stop() // before it follows dc2
		put(t, dc2.store, docType, "in-dc2", "1")
		dc1.start("dc1")
		dc2.restart("dc1")
		dc1.waitUntil("success of Writable", func() bool { return dc1.manager.Writable() == nil })
		if _, err := dc1.store.Read(t.Context(), resource.Eventual, resource.ID(docType, "in-dc2")); err != nil {
			t.Errorf("Read() of a write of dc2 in dc1 = %v, want nil", err)
		}
		if epoch := dc1.manager.Epoch(); epoch != 3 {
			t.Errorf("Epoch() = %d, want 3", epoch)
		}
	})
}

// A demoted primary consents to another successor only after the earlier one has
// responded that it is not the primary.
func TestDemote_EarlierSuccessorDoesNotRespond(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		fed := &testFederation{t: t}
		dc1, dc2, dc3 := fed.add("dc1", "dc1"), fed.add("dc2", "dc1"), fed.add("dc3", "dc1")
		put(t, dc1.store, docType, "a", "1")
		waitInSync(t, dc1.store, dc2.store)
		waitInSync(t, dc1.store, dc3.store)
		dc3.stop()
		dc1.restart("dc3")
		dc1.waitUntil("demotion in favor of dc3", func() bool { return dc1.manager.stored().GetHandedTo() == "dc3" })
		dc1.restart("dc2")
		dc2.restart("dc2")
		time.Sleep(time.Minute)
		if dc2.manager.IsPrimary() || dc1.manager.stored().GetHandedTo() != "dc3" {
			t.Errorf("dc1 is demoted in favor of %q, want dc3 until it responds", dc1.manager.stored().GetHandedTo())
		}
		if got := dc1.manager.PendingReason(); !strings.Contains(got, "take-over --from dc3") {
			t.Errorf("PendingReason() = %q, want the take-over from dc3", got)
		}
		dc3.start("dc2")
		for _, dc := range []*datacenter{dc1, dc2, dc3} {
			dc.waitPrimary("dc2")
		}
	})
}

// A consent that was withdrawn cannot make the successor the primary. It cannot
// be withdrawn after the promotion, or by a server of a third datacenter.
func TestWithdrawn(t *testing.T) {
	newManager := func(st *pb.Primary) *PrimaryManager {
		p := newPrimaryManager(t, PrimaryManagerConfig{DC: "dc2", ConfiguredPrimary: "dc2",
			Backend: resourcetest.NewStore(), Registry: registry(t), Remote: fakeRemote{}})
		setPrimary(t, p, st)
		return p
	}
	refusal := status.Error(codes.FailedPrecondition, "not the primary")
	withdraw := func(p *PrimaryManager, dc string, epoch uint64) error {
		return p.confirmWithdrawn(serverOf(t.Context(), dc), p.cfg.Backend, epoch, refusal)
	}
	replica := &pb.Primary{Datacenter: "dc1", Complete: true, Epoch: 3}
	p := newManager(replica)
	for _, test := range []struct {
		dc    string
		epoch uint64
	}{{"dc1", 4}, {"dc2", 3}, {"dc3", 3}, {"dc3", 1}} {
		if err := withdraw(p, test.dc, test.epoch); err != refusal || p.stored().GetWithdrawn() != 0 {
			t.Errorf("confirmWithdrawn(%d) for a server of %s = %v, want the refusal without an effect, "+
				"because only dc1 was the primary until epoch 3", test.epoch, test.dc, err)
		}
	}
	if err := p.confirmWithdrawn(t.Context(), p.cfg.Backend, 3, refusal); err != refusal {
		t.Errorf("confirmWithdrawn(3) without a caller = %v, want the refusal", err)
	}
	for range 2 {
		err := withdraw(p, "dc1", 3)
		if status.Code(err) != codes.FailedPrecondition || !confirmsWithdrawn(err, 3) || confirmsWithdrawn(err, 4) {
			t.Errorf("confirmWithdrawn(3) = %v, want the refusal with the withdrawal of 3", err)
		}
	}
	proof := &pb.EpochProof{Epoch: &pb.PrimaryEpoch{Number: 4, Datacenter: "dc2"}, Former: "dc1"}
	if err := p.promote(t.Context(), "dc1", proof); !errors.Is(err, errOutdated) || p.IsPrimary() {
		t.Errorf("promote() with a withdrawn consent = %v, want errOutdated", err)
	}
	if got := p.nextTakeOver(); got != (Epoch{100, "dc2"}) {
		t.Errorf("nextTakeOver() = %v, want 100:dc2", got)
	}

	p = newManager(replica)
	p.learn(Epoch{5, "dc3"}, nil)
	for dc, epoch := range map[string]uint64{"dc1": 4, "dc3": 6} {
		if err := withdraw(p, dc, epoch); err != refusal {
			t.Errorf("confirmWithdrawn(%d) for %s = %v, want the refusal", epoch, dc, err)
		}
	}
	for _, e := range []Epoch{{3, "dc1"}, {5, "dc3"}} {
		if err := withdraw(p, e.Datacenter, e.Number); !confirmsWithdrawn(err, e.Number) {
			t.Errorf("confirmWithdrawn(%v) = %v, want the withdrawal, because dc3 replaced dc1", e, err)
		}
	}

	p = newManager(&pb.Primary{Datacenter: "dc2", Complete: true, Epoch: 4})
	if err := p.storeWithdrawn(t.Context(), p.cfg.Backend, 3); !errors.Is(err, resource.ErrConflict) {
		t.Errorf("storeWithdrawn(3) after the promotion = %v, want ErrConflict", err)
	}
}
