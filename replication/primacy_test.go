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
	"github.com/wanfed/wanfed/resource/memory"
)

// TestPrimacyMoves: whoever is told first, the new primary takes over with all that the old one has acknowledged, and everybody follows it.
func TestPrimacyMoves(t *testing.T) {
	for _, order := range []string{"123", "231", "312", "321"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			d := &dcs{t: t}
			one, two, three := d.add("dc1", "dc1"), d.add("dc2", "dc1"), d.add("dc3", "dc1")
			fill(t, one.store, 100)
			untilSame(t, one.store, two.store)
			untilSame(t, one.store, three.store)
			for i, which := range order {
				if one.primacy.Writable() == nil {
					put(t, one.store, docType, fmt.Sprint("late", i), "1")
				}
				x := map[rune]*dc{'1': one, '2': two, '3': three}[which]
				x.restart("dc2")
				if x == two && order[0] == '2' {
					two.until("waiting", func() bool { return strings.Contains(two.primacy.PendingReason(), "dc1 still is") })
					if err := two.primacy.Writable(); err == nil || one.primacy.Writable() != nil {
						t.Errorf("before dc1 has handed over: dc2 %v, dc1 %v", err, one.primacy.Writable())
					}
				}
			}
			for _, x := range d.all {
				x.is("dc2")
			}
			if err := two.primacy.Writable(); err != nil {
				t.Error(err)
			}
			for name := range 3 {
				if _, err := two.store.Read(t.Context(), resource.Eventual, record(t, docType, fmt.Sprint("late", name), "1").Id); err == nil {
					put(t, two.store, docType, fmt.Sprint("late", name), "2") // it is dc2's own
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
					t.Errorf("%s is a copy yet", r.Id.Name)
				}
			}
		})
	}
}

// TestPrimacyLost: without an answer from the old primary, the new one takes over by itself; back again, that is told that it is a
// second one, and as a secondary loses what it had alone.
func TestPrimacyLost(t *testing.T) {
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
	one.until("known for a primary", func() bool { return two.primacy.ProbePrimary(t.Context(), "dc1") })
	if one.primacy.Writable() != nil || two.primacy.Writable() != nil {
		t.Error("two primaries, of which one does not write")
	}
	one.restart("dc2")
	one.is("dc2")
	untilSame(t, two.store, one.store)
	if _, err := one.store.Read(t.Context(), resource.Eventual, record(t, docType, "alone", "").Id); !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("what only the old primary had: %v", err)
	}
	if two.primacy.ProbePrimary(t.Context(), "dc1") {
		t.Error("a secondary can be followed")
	}
}

// TestLeadersChange: leaders that change do not wait anew for the old primary, each from the beginning; an answer of it ends that.
func TestLeadersChange(t *testing.T) {
	t.Parallel()
	d := &dcs{t: t}
	one, two := d.add("dc1", "dc1"), d.add("dc2", "dc1")
	put(t, one.store, docType, "a", "1")
	untilSame(t, one.store, two.store)
	waited := func() time.Duration { return two.primacy.record().GetUnanswered().AsDuration() }
	one.stop()
	two.restart("dc2")
	two.until("waiting", func() bool { return waited() >= silenceStep })
	one.start("dc1")
	two.until("answered", func() bool { return waited() == 0 })

	one.stop()
	for was := time.Duration(0); was+silenceStep < takeoverTimeout; was = waited() { // each sees a part of it only
		two.until("waiting longer", func() bool { return waited() >= was+silenceStep })
		two.relead()
	}
	two.is("dc2")
	if waited() != 0 {
		t.Error("the primary waits")
	}
	if err := two.primacy.Writable(); err != nil {
		t.Error(err)
	}

	// What was waited for once counts no more when it is to be the primary again.
	three := d.add("dc3", "dc2")
	untilSame(t, two.store, three.store)
	two.stop()
	three.restart("dc3")
	three.until("waiting", func() bool { return three.primacy.record().GetUnanswered() != nil })
	three.restart("dc3") // with its gateways, say: they have time to come back
	if m := (&pb.Primary{Unanswered: durationpb.New(takeoverTimeout)}); three.primacy.silence(m) >= silenceStep {
		t.Errorf("a process that has just been started has waited %v", three.primacy.silence(m))
	}
	three.restart("dc2")
	three.until("waiting no more", func() bool { return three.primacy.record().GetUnanswered() == nil })
}

// TestServersDiffer: as long as living servers of a datacenter are configured with different primaries, nothing changes.
func TestServersDiffer(t *testing.T) {
	t.Parallel()
	d := &dcs{t: t}
	one, two := d.add("dc1", "dc1"), d.add("dc2", "dc1")
	put(t, one.store, docType, "a", "1")
	untilSame(t, one.store, two.store)
	one.others(map[string]string{"srv2": "dc1"})
	one.restart("dc2") // srv1 alone was told, and leads
	if err := one.primacy.Writable(); err != nil {
		t.Errorf("writing while one of two servers was told: %v", err)
	}
	two.others(map[string]string{"srv2": "dc2"})
	put(t, one.store, docType, "a", "2")
	untilSame(t, one.store, two.store)
	if one.primacy.PrimaryDC() != "dc1" || two.primacy.PrimaryDC() != "dc1" {
		t.Errorf("the primary is %s and %s", one.primacy.PrimaryDC(), two.primacy.PrimaryDC())
	}
	one.others(map[string]string{"srv2": "dc2"})
	one.until("handed over", func() bool { return one.primacy.record().GetHandedTo() == "dc2" })
	if err := one.primacy.Writable(); err == nil || !strings.Contains(err.Error(), "has handed its records over to dc2") {
		t.Errorf("writing after that: %v", err)
	}
	one.others(map[string]string{"srv2": "dc1"}) // somebody changes his mind
	put(t, one.store, docType, "a", "3")
	untilSame(t, one.store, two.store)
	one.restart("dc1")
	one.until("a primary again", func() bool { return one.primacy.Writable() == nil })
}

// TestSameIndexes: two primaries may have given one record's states the same index. The first comparison with another primary trusts none.
func TestSameIndexes(t *testing.T) {
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
	if err := three.primacy.writeRecord(t.Context(), &pb.Primary{Datacenter: "dc1", Complete: true}); err != nil {
		t.Fatal(err)
	}
	three.start("dc2")
	three.is("dc2")
	untilSame(t, two.store, three.store)
}

// TestAdopt: copies become own records: with their uid, generation and status, with finalizers that hold them and owners that they
// go with. What a deleted owner had left goes.
func TestAdopt(t *testing.T) {
	d := &dcs{t: t}
	x := d.add("dc2", "dc2")
	x.is("dc2")
	copyOf := func(name string, owner *pb.ID, metadata map[string]string) *pb.Resource {
		r := record(t, docType, name, "1")
		r.PrimaryModifyIndex, r.Owner, r.Metadata = 7, owner, metadata
		return commit1(t, x.store, resource.ReplicaOp(r))
	}
	owner := copyOf("owner", nil, nil)
	copyOf("child", owner.Id, nil)
	copyOf("orphan", record(t, docType, "gone", "").Id, nil)
	copyOf("of-another", record(t, localType, "gone", "").Id, nil)
	held := copyOf("held", nil, map[string]string{resource.FinalizersKey: "test/hold"})
	n, err := x.primacy.adoptReplicas(t.Context())
	if err != nil || n != 5 {
		t.Fatalf("adopt() = %d, %v", n, err)
	}
	read := func(name string) *pb.Resource {
		r, err := x.store.Read(t.Context(), resource.Eventual, resource.ID(docType, name))
		if err != nil && !errors.Is(err, resource.ErrNotFound) {
			t.Fatal(err)
		}
		return r
	}
	if r := read("owner"); r.GetPrimaryModifyIndex() != 0 || r.GetId().GetUid() != owner.Id.Uid || r.GetGeneration() != owner.Generation {
		t.Errorf("adopted %v", r)
	}
	if read("orphan") != nil || read("of-another") == nil {
		t.Error("an orphan stays, or one whose owner is elsewhere goes")
	}
	for _, id := range []*pb.ID{owner.Id, held.Id} {
		if _, err := x.store.Commit(t.Context(), resource.RemoveOp(id, resource.AnyVersion)); err != nil {
			t.Fatal(err)
		}
	}
	if read("child") != nil || read("held").GetMetadata()[resource.DeletionKey] == "" {
		t.Errorf("after the deletion: %v, %v", read("child"), read("held"))
	}
	if n, err := x.primacy.adoptReplicas(t.Context()); n != 0 || err != nil {
		t.Errorf("a second adopt() = %d, %v", n, err)
	}
}

// TestRefuses: who cannot be followed says why, and with which code.
func TestRefuses(t *testing.T) {
	store := memory.New()
	ask := func(configured string, m *pb.Primary) error {
		p := &PrimaryManager{cfg: PrimaryManagerConfig{DC: "dc2", ConfiguredPrimary: configured, Backend: store}}
		if m != nil {
			if err := p.writeRecord(context.Background(), m); err != nil {
				t.Fatal(err)
			}
		}
		return p.CheckFollow()
	}
	if err := ask("dc2", nil); err != nil {
		t.Error(err)
	}
	if err := ask("dc1", nil); status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
	if err := ask("dc2", &pb.Primary{Datacenter: "dc1"}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "takes over from dc1") {
		t.Error(err)
	}
	if err := ask("dc1", &pb.Primary{Datacenter: "dc2"}); err != nil {
		t.Error(err)
	}
}
