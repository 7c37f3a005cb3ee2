// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// stateWith returns the snapshot of a store with resources of type Thing and
// Other. Each of things is "name=data".
func stateWith(t *testing.T, kinds map[string][]string) []byte {
	t.Helper()
	s := NewState()
	index := uint64(1)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		for _, thing := range kinds[kind] {
			name, data, _ := strings.Cut(thing, "=")
			r, err := resource.New(&pb.Type{Group: "test", GroupVersion: "v1", Kind: kind}, name, &pb.Group{Id: data})
			if err != nil {
				t.Fatal(err)
			}
			r.Id.Uid, r.Generation = "uid-"+name, "generation-"+data
			index++
			s.Apply(&Entry{Index: index, Ops: []*pb.Op{resource.PutOp(r, "")}})
		}
	}
	var b bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestCompareSnapshots(t *testing.T) {
	current := stateWith(t, map[string][]string{"Thing": {"a=1", "b=1", "d=1"}, "Zoo": {"z=1"}})
	next := stateWith(t, map[string][]string{"Thing": {"a=1", "b=2", "c=1", "e=1"}, "Zebra": {"x=1"}})
	got, err := CompareSnapshots(bytes.NewReader(current), bytes.NewReader(next))
	if err != nil {
		t.Fatal(err)
	}
	want := []TypeChange{
		{Type: "test/v1/Thing", Created: 2, Changed: 1, Deleted: 1, Unchanged: 1},
		{Type: "test/v1/Zebra", Created: 1},
		{Type: "test/v1/Zoo", Deleted: 1},
	}
	if !slices.Equal(got, want) {
		t.Errorf("CompareSnapshots() = %+v, want %+v", got, want)
	}
}

func TestCompareSnapshots_Damaged(t *testing.T) {
	whole := stateWith(t, map[string][]string{"Thing": {"a=1", "b=1"}})
	for _, tt := range []struct{ current, next []byte }{{whole[:len(whole)-3], whole}, {whole, whole[:len(whole)-3]}} {
		if got, err := CompareSnapshots(bytes.NewReader(tt.current), bytes.NewReader(tt.next)); err == nil {
			t.Errorf("CompareSnapshots() of a damaged snapshot = %v, want an error", got)
		}
	}
}
