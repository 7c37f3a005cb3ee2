// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// TestApply_Batch checks that one Apply of several entries has the same
// results, and leads to the same state, as an Apply of each entry.
func TestApply_Batch(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	one, all := NewState(), NewState() // one applies one entry at a time
	defer one.Close()
	defer all.Close()
	var known []*pb.Resource
	index, refused := uint64(1), 0
	for range 300 {
		var together []*Entry
		for range 1 + rnd.IntN(20) {
			index++
			e := &Entry{Index: index}
			for range 1 + rnd.IntN(3)*rnd.IntN(2) {
				e.Ops = append(e.Ops, randomOp(t, rnd, known))
			}
			alone := Entry{Index: index, Ops: proto.CloneOf(&pb.Batch{Ops: e.Ops}).Ops}
			alone.Resources, alone.Err = applyOps(one, index, alone.Ops)
			if alone.Err != nil {
				refused++
			}
			for _, r := range alone.Resources {
				if r != nil {
					known = append(known, r)
				}
			}
			known = known[max(0, len(known)-30):]
			together = append(together, e)
			defer func() {
				if (alone.Err == nil) != (e.Err == nil) || alone.Err != nil && alone.Err.Error() != e.Err.Error() {
					t.Errorf("Apply() of entry %d = %v, want %v", e.Index, e.Err, alone.Err)
				}
				for i, r := range alone.Resources {
					if !proto.Equal(r, e.Resources[i]) {
						t.Errorf("Apply() of entry %d stores %v\nwant %v", e.Index, e.Resources[i], r)
					}
				}
			}()
		}
		all.Apply(together...)
	}
	if refused < 100 {
		t.Fatalf("failed entries = %d, want at least 100", refused)
	}
	a, b := new(bytes.Buffer), new(bytes.Buffer)
	if _, err := one.Snapshot().WriteTo(a); err != nil {
		t.Fatal(err)
	}
	if _, err := all.Snapshot().WriteTo(b); err != nil {
		t.Fatal(err)
	}
	ra, erra := readSnapshot(a)
	rb, errb := readSnapshot(b)
	if err := errors.Join(erra, errb); err != nil {
		t.Fatal(err)
	}
	checkEqual(t, rb, ra)
}

// checkEqual checks that two snapshots have the same index, resources and
// deletions.
func checkEqual(t *testing.T, got, want *Snapshot) {
	t.Helper()
	if got.index != want.index || got.tables.owned.Len() != want.tables.owned.Len() {
		t.Fatalf("index = %d with %d owned resources, want %d with %d",
			got.index, got.tables.owned.Len(), want.index, want.tables.owned.Len())
	}
	equal := func(a, b *pb.Resource) bool { return proto.Equal(a, b) }
	if got, want := got.tables.resources.Items(), want.tables.resources.Items(); !slices.EqualFunc(got, want, equal) {
		t.Errorf("resources = %v, want %v", got, want)
	}
	sameDeletion := func(a, b *deletion) bool { return a.index == b.index && proto.Equal(a.id, b.id) }
	if got, want := got.tables.oldest.Values(), want.tables.oldest.Values(); !slices.EqualFunc(
		got, want, sameDeletion) {
		t.Errorf("deletions = %v, want %v", got, want)
	}
}

// randomOp returns a random op on one of few names. The op may be refused.
// known are stored resources.
func randomOp(t *testing.T, rnd *rand.Rand, known []*pb.Resource) *pb.Op {
	r := thing(t, "n"+strconv.Itoa(rnd.IntN(12)))
	expect := resource.AnyVersion
	if len(known) > 0 {
		k := known[rnd.IntN(len(known))]
		switch rnd.IntN(6) {
		case 0:
			return resource.RemoveOp(k.Id, k.Version)
		case 1:
			return resource.RemoveOp(resource.ID(testType, r.Id.Name), "")
		case 2:
			r.Owner = k.Id
		case 3:
			r, expect = proto.CloneOf(k), k.Version
		case 4:
			r, expect = proto.CloneOf(k), ""
			r.PrimaryModifyIndex = uint64(1 + rnd.IntN(5))
			return resource.ReplicaOp(r)
		}
	}
	return resource.PutOp(r, []string{expect, ""}[rnd.IntN(2)])
}
