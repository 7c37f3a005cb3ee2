// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

func TestScan(t *testing.T) {
	s := New()
	defer s.Close()
	put(t, s, "a", "b", "c")
	data := snapshotOf(t, s)
	got, err := ScanSnapshot(iotestOneByte{bytes.NewReader(data)})
	if err != nil || got.Index != s.state.Index() || got.Resources != 3 || len(got.Types) != 1 {
		t.Fatalf("scanned %+v, %v", got, err)
	}
	typ := got.Types[0]
	if typ.Type != resource.TypeString(testType) || typ.Resources != 3 || typ.Bytes <= 0 || typ.Bytes >= int64(len(data)) {
		t.Errorf("type %+v of %d bytes in all", typ, len(data))
	}
	if _, err := ScanSnapshot(bytes.NewReader(data[:len(data)-1])); err == nil {
		t.Error("a torn snapshot was scanned")
	}

	// The same resource twice: Restore would have one, though the end says two.
	var twice bytes.Buffer
	e := newRecordWriter(&twice)
	e.number(recordIndex, 9)
	r := &pb.Resource{Id: &pb.ID{Type: testType, Name: "a", Uid: "u"}}
	e.resource(r)
	e.resource(r)
	if _, err := e.end(); err != nil {
		t.Fatal(err)
	}
	if _, err := ScanSnapshot(&twice); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a resource that is there twice: %v", err)
	}
}

// TestRebase: what was in the snapshot is there again, as written at the new index; and types of which nothing is left change.
func TestRebase(t *testing.T) {
	s := New()
	defer s.Close()
	put(t, s, "a", "b")
	old := snapshotOf(t, s)
	want, _, _ := s.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	other := &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Other"}
	if _, err := s.Commit(t.Context(), resource.PutOp(&pb.Resource{Id: &pb.ID{Type: other, Name: "x", Uid: "u"}}, "")); err != nil {
		t.Fatal(err)
	}
	const index = 1_000_000
	var b bytes.Buffer
	if err := s.state.Rebase(&b, bytes.NewReader(old), index); err != nil {
		t.Fatal(err)
	}
	// A type that came meanwhile.
	late := &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Late"}
	if _, err := s.Commit(t.Context(), resource.PutOp(&pb.Resource{Id: &pb.ID{Type: late, Name: "x", Uid: "u2"}}, "")); err != nil {
		t.Fatal(err)
	}
	for _, into := range []*Store{s, New()} { // one with a past, and one without
		defer into.Close()
		if err := into.Restore(bytes.NewReader(b.Bytes())); err != nil {
			t.Fatal(err)
		}
		got, at, err := into.List(t.Context(), resource.Strong, resource.Query{Type: testType})
		if err != nil || at != index || len(got) != len(want) {
			t.Fatalf("%d resources at %d, %v; want %d at %d", len(got), at, err, len(want), index)
		}
		for i, w := range want {
			w := proto.CloneOf(w)
			w.Version, w.ModifyIndex = "1000000", index
			if !proto.Equal(got[i], w) {
				t.Errorf("got  %v\nwant %v", got[i], w)
			}
		}
		if into.state.Index() != index {
			t.Errorf("the store's index is %d, not %d", into.state.Index(), index)
		}
		if _, at, err := into.List(t.Context(), resource.Strong, resource.Query{Type: late}); err != nil || into == s && at != index {
			t.Errorf("the late type is at %d, %v", at, err)
		}
		if gone, at, err := into.List(t.Context(), resource.Strong, resource.Query{Type: other}); err != nil || len(gone) > 0 || at != index {
			t.Errorf("%d others at %d, %v; want none, at %d", len(gone), at, err, index)
		}
	}
	if err := s.state.Rebase(io.Discard, bytes.NewReader(old), 2); err == nil {
		t.Error("rebased to an index that was written at")
	}
	if err := s.state.Rebase(io.Discard, bytes.NewReader(old[:len(old)/2]), index); err == nil {
		t.Error("rebased a torn snapshot")
	}
	again, err := ScanSnapshot(bytes.NewReader(b.Bytes()))
	if err != nil || !slices.Equal([]int{again.Resources, int(again.Index)}, []int{2, index}) {
		t.Errorf("scanned %+v, %v", again, err)
	}
}
