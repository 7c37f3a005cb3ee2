// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// FuzzApply checks that no log entry makes the state machine panic, and that a
// rejected entry changes nothing.
func FuzzApply(f *testing.F) {
	r := thing(f, "x", "1")
	child := thing(f, "y", "1")
	child.Owner = r.Id
	held := thing(f, "z", "1")
	held.Owner = r.Id
	resourcetest.AddFinalizer(held, "x")
	marked := resource.MarkTerminating(held, time.Now())
	free := proto.CloneOf(marked)
	resourcetest.RemoveFinalizer(free, "x")
	v2 := proto.CloneOf(r)
	v2.Id.Type.GroupVersion = "v2"
	for _, ops := range [][]*pb.Op{
		nil,
		{{}},
		{resource.PutOp(r, ""), resource.PutOp(child, ""), resource.RemoveOp(r.Id, "")},
		{resource.ReplicaOp(r), resource.PutOp(r, resource.AnyVersion)},
		{resource.PutOp(r, "12")},
		{resource.PutOp(r, ""), resource.PutOp(held, ""), resource.RemoveOp(held.Id, ""), resource.PutOp(free, "5")},
		{resource.PutOp(r, ""), resource.PutOp(held, ""), resource.RemoveOp(r.Id, "")},
		{resource.PutOp(marked, "")},
		{resource.ExpectOp(resource.Query{Type: testType, Name: "x"}, nil), resource.PutOp(r, ""),
			resource.ExpectOp(resource.Query{Type: testType, Prefix: "x"}, []*pb.Resource{r})},
		{resource.OverwriteOp(r, false), resource.OverwriteOp(child, true), resource.OverwriteOp(v2, true)},
		{resource.PutOp(r, ""), resource.PutOp(held, ""), resource.RemoveOp(held.Id, ""),
			resource.OverwriteOp(free, false), resource.OverwriteOp(marked, true)},
		{resource.ReplicaOp(marked), resource.RemoveReplicaOp(marked.Id)},
		{resource.PutOp(r, ""), resource.PutOp(v2, "5"), resource.RemoveOp(r.Id, "")},
	} {
		b, err := proto.Marshal(&pb.Batch{Ops: ops})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("garbage"))
	f.Fuzz(func(t *testing.T, entry []byte) {
		var failed error
		m := &machine{state: memory.NewState(), restored: func() {}, fail: func(err error) { failed = err }}
		defer m.state.Close()
		res := m.Apply(&raft.Log{Index: 5, Data: entry}).(result)
		if res.err != nil && m.state.Index() != 1 {
			t.Errorf("Index() after Apply() = %v is %d, want 1", res.err, m.state.Index())
		}
		if _, err := m.Snapshot(); (err != nil) != (failed != nil) {
			t.Errorf("Snapshot() = %v, fail() was called with %v, want an error for both or for neither", err, failed)
		}
	})
}
