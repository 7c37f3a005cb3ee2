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

// TestApplyAll checks that entries applied together have the same results, and
// lead to the same state, as entries applied one by one.
func TestApplyAll(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	one, all := NewState(), NewState()
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
				e.Ops = append(e.Ops, anyOp(t, rnd, known))
			}
			alone := Entry{Index: index, Ops: proto.CloneOf(&pb.Batch{Ops: e.Ops}).Ops}
			alone.Resources, alone.Err = one.Apply(index, alone.Ops)
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
					t.Errorf("ApplyAll() of entry %d = %v, want %v as with Apply()", e.Index, e.Err, alone.Err)
				}
				for i, r := range alone.Resources {
					if !proto.Equal(r, e.Resources[i]) {
						t.Errorf("ApplyAll() of entry %d:\ngot  %v\nwant %v", e.Index, e.Resources[i], r)
					}
				}
			}()
		}
		all.ApplyAll(together)
	}
	if refused < 100 {
		t.Fatalf("%d entries failed, want more", refused)
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
	same(t, ra, rb)
}

func same(t *testing.T, a, b *Snapshot) {
	t.Helper()
	if a.index != b.index || a.tables.owned.Len() != b.tables.owned.Len() {
		t.Fatalf("index %d, %d owned resources; want %d, %d", b.index, b.tables.owned.Len(), a.index, a.tables.owned.Len())
	}
	equal := func(a, b *pb.Resource) bool { return proto.Equal(a, b) }
	if got, want := b.tables.resources.Items(), a.tables.resources.Items(); !slices.EqualFunc(got, want, equal) {
		t.Errorf("resources = %v, want %v", got, want)
	}
	sameDeletion := func(a, b *deletion) bool { return a.index == b.index && proto.Equal(a.id, b.id) }
	if got, want := b.tables.oldest.Values(), a.tables.oldest.Values(); !slices.EqualFunc(got, want, sameDeletion) {
		t.Errorf("deletions = %v, want %v", got, want)
	}
}

// anyOp returns a random op on one of few names. It may fail.
func anyOp(t *testing.T, rnd *rand.Rand, known []*pb.Resource) *pb.Op {
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
