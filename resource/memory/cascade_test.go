// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"log/slog"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// things returns ops that create n resources with that owner, which may be nil.
func things(t testing.TB, prefix string, n int, owner *pb.ID) []*pb.Op {
	t.Helper()
	var ops []*pb.Op
	for i := range n {
		r, err := resource.New(testType, prefix+strconv.Itoa(i), &pb.Node{})
		if err != nil {
			t.Fatal(err)
		}
		r.Owner = owner
		ops = append(ops, resource.PutOp(r, ""))
	}
	return ops
}

// count returns the number of resources of a type.
func count(t testing.TB, b resource.Backend, typ *pb.Type) int {
	t.Helper()
	all, _, err := b.List(t.Context(), resource.Eventual, resource.Query{Type: typ})
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestCommit_CascadeLimit checks that a commit deletes at most MaxCascade owned
// resources, and stores tombstones for the owners of the remaining resources.
func TestCommit_CascadeLimit(t *testing.T) {
	b := New()
	defer b.Close()
	owners, err := b.Commit(t.Context(), things(t, "o", 3, nil)...)
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range owners {
		if _, err := b.Commit(t.Context(), things(t, "c"+strconv.Itoa(i)+"-", 400, o.Id)...); err != nil {
			t.Fatal(err)
		}
	}
	before := count(t, b, testType)
	if _, err := b.Commit(t.Context(), resource.RemoveOp(owners[0].Id, ""), resource.RemoveOp(owners[1].Id, ""),
		resource.RemoveOp(owners[2].Id, "")); err != nil {
		t.Fatal(err)
	}
	if got := before - count(t, b, testType); got != 3+resource.MaxCascade {
		t.Errorf("resources deleted by one commit = %d, want 3 owners and %d owned resources", got, resource.MaxCascade)
	}
	if got := count(t, b, resource.TombstoneType); got != 2 {
		t.Errorf("tombstones = %d, want 2", got)
	}
	for count(t, b, resource.TombstoneType) > 0 {
		if _, err := resource.ReapOnce(t.Context(), b, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
	}
	if things, stones := count(t, b, testType), count(t, b, resource.TombstoneType); things+stones != 0 {
		t.Errorf("%d resources and %d tombstones left after ReapOnce(), want none", things, stones)
	}
}

// TestApply_Deterministic checks that the same log leads to the same state,
// with deletion timestamps, deletions and cascades.
func TestApply_Deterministic(t *testing.T) {
	o := things(t, "o", 1, nil)[0].GetPut().GetResource()
	held := things(t, "a-held", 1, o.Id)[0].GetPut().GetResource()
	held.Metadata = map[string]string{resource.FinalizersKey: "x"}
	next := proto.CloneOf(o)
	next.Id.Uid = resource.NewUID()
	batches := [][]*pb.Op{
		{resource.PutOp(o, "")},
		append(things(t, "c", resource.MaxCascade, o.Id), resource.PutOp(held, "")),
		{resource.PutOp(next, resource.AnyVersion)}, // deletes o
		{resource.RemoveOp(next.Id, "")},
	}
	var states [2][]*pb.Resource
	for i := range states {
		s := NewState()
		defer s.Close()
		for n, ops := range batches {
			own := make([]*pb.Op, len(ops))
			for j, op := range ops {
				own[j] = proto.CloneOf(op)
			}
			if _, err := applyOps(s, uint64(10+n), own); err != nil {
				t.Fatal(err)
			}
		}
		r, err := s.Read(t.Context(), held.Id)
		if err != nil {
			t.Fatal(err)
		}
		if since, ok := resource.Terminating(r); !ok ||
			!since.Equal(resource.TimeOf(next.Id.Uid).Truncate(time.Second)) {
			t.Errorf("Terminating() = %v, %v, want %v, true", since, ok,
				resource.TimeOf(next.Id.Uid).Truncate(time.Second))
		}
		for typ, want := range map[*pb.Type]int{testType: 2, resource.TombstoneType: 1} {
			all, _, err := s.List(t.Context(), resource.Query{Type: typ})
			if err != nil || len(all) != want {
				t.Errorf("List() has %d of %s, %v, want %d", len(all), resource.TypeString(typ), err, want)
			}
		}
		for _, typ := range []*pb.Type{testType, resource.TombstoneType} {
			all, _, _ := s.List(t.Context(), resource.Query{Type: typ})
			states[i] = append(states[i], all...)
		}
	}
	if !slices.EqualFunc(states[0], states[1], func(a, b *pb.Resource) bool { return proto.Equal(a, b) }) {
		t.Errorf("second state of the log = %v\nwant %v", states[1], states[0])
	}
}
