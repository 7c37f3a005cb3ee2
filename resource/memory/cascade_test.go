// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bytes"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// things returns ops that create n resources that owner owns, if it is given.
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

func count(t testing.TB, b resource.Backend, typ *pb.Type) int {
	t.Helper()
	all, _, err := b.List(t.Context(), resource.Eventual, resource.Query{Type: typ})
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestCascadeStep: a step takes its bound and no more, whatever it deletes, and says what it left.
func TestCascadeStep(t *testing.T) {
	s := New()
	defer s.Close()
	b := steps{s}
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
	if _, err := b.Commit(t.Context(), resource.RemoveOp(owners[0].Id, ""), resource.RemoveOp(owners[1].Id, ""), resource.RemoveOp(owners[2].Id, "")); err != nil {
		t.Fatal(err)
	}
	if got := before - count(t, b, testType); got != 3+resource.MaxCascade {
		t.Errorf("one step deleted %d", got)
	}
	if got := count(t, b, resource.TombstoneType); got != 2 {
		t.Errorf("%d tombstones, want those of two owners", got)
	}
	if err := resource.ReapAll(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if things, stones := count(t, b, testType), count(t, b, resource.TombstoneType); things+stones != 0 {
		t.Errorf("%d resources and %d tombstones are left", things, stones)
	}
}

// TestSameLogSameState: what is left after the same batches depends on them alone, also where they mark, bury and cascade.
func TestSameLogSameState(t *testing.T) {
	o := things(t, "o", 1, nil)[0].GetPut().GetResource()
	held := things(t, "a-held", 1, o.Id)[0].GetPut().GetResource()
	resource.AddFinalizer(held, "x")
	next := proto.CloneOf(o)
	next.Id.Uid = resource.NewUID()
	batches := [][]*pb.Op{
		{resource.PutOp(o, "")},
		append(things(t, "c", resource.MaxCascade, o.Id), resource.PutOp(held, "")),
		{resource.PutOp(next, resource.AnyVersion)}, // deletes o
		{resource.RemoveOp(next.Id, "")},
	}
	var snapshots [2][]byte
	for i := range snapshots {
		s := NewState()
		defer s.Close()
		for n, ops := range batches {
			own := make([]*pb.Op, len(ops))
			for j, op := range ops {
				own[j] = proto.CloneOf(op)
			}
			if _, err := s.Apply(uint64(10+n), own); err != nil {
				t.Fatal(err)
			}
		}
		var b bytes.Buffer
		if _, err := s.Snapshot().WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		snapshots[i] = b.Bytes()
		r, err := s.Read(t.Context(), held.Id)
		if err != nil {
			t.Fatal(err)
		}
		if since, ok := resource.Marked(r); !ok || !since.Equal(resource.TimeOf(next.Id.Uid).Truncate(time.Second)) {
			t.Errorf("marked %v since %v, want when its owner was replaced", ok, since)
		}
		all, _, err := s.List(t.Context(), resource.Query{Type: resource.TombstoneType})
		if err != nil || len(all) != 1 {
			t.Errorf("tombstones %v, %v; want one", all, err)
		}
	}
	if !bytes.Equal(snapshots[0], snapshots[1]) {
		t.Error("two states of the same log differ")
	}
}
