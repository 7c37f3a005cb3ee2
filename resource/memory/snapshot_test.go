// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// snapshotOf returns an encoded snapshot of s.
func snapshotOf(t testing.TB, s *Store) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := s.Snapshot().WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("WriteTo() = %d, %v, want %d, nil", n, err, b.Len())
	}
	return b.Bytes()
}

func TestSnapshot(t *testing.T) {
	s := New()
	defer s.Close()
	put(t, s, "a", "b", "gone", "a")
	if _, err := s.Commit(t.Context(), resource.RemoveOp(&pb.ID{Type: testType, Name: "gone"}, "")); err != nil {
		t.Fatal(err)
	}
	sn := s.Snapshot()
	want, wantIndex, _ := s.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	put(t, s, "later") // not in the snapshot
	var b bytes.Buffer
	if _, err := sn.WriteTo(&b); err != nil {
		t.Fatal(err)
	}

	into := New()
	defer into.Close()
	if err := into.Restore(oneByteReader{&b}); err != nil {
		t.Fatal(err)
	}
	got, index, err := into.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	if err != nil || index != wantIndex || into.Index() != wantIndex || len(got) != len(want) {
		t.Fatalf("List() after Restore() has %d resources, index %d, %v, want %d, index %d", len(got), index, err,
			len(want), wantIndex)
	}
	for i := range want {
		if !proto.Equal(got[i], want[i]) {
			t.Errorf("restored resource = %v\nwant %v", got[i], want[i])
		}
	}
	put(t, into, "next")
	if r, _ := into.Read(t.Context(), resource.Strong,
		&pb.ID{Type: testType, Name: "next"}); r.GetModifyIndex() != wantIndex+1 {
		t.Errorf("index of the first write after Restore() = %d, want %d", r.GetModifyIndex(), wantIndex+1)
	}
}

// oneByteReader returns one byte at each Read.
type oneByteReader struct{ r io.Reader }

func (o oneByteReader) Read(p []byte) (int, error) { return o.r.Read(p[:min(1, len(p))]) }

// TestRestore_EndsWatches checks that a restore ends watches and waits, and
// lowers no index.
func TestRestore_EndsWatches(t *testing.T) {
	s := New()
	defer s.Close()
	put(t, s, "a")
	old := snapshotOf(t, s)
	put(t, s, "b", "c")
	_, before, _ := s.List(t.Context(), resource.Strong, resource.Query{Type: testType})

	idle, midSnapshot := open(t, s), open(t, s)
	drain(t, idle)
	waited, watched := make(chan error, 1), make(chan error, 1)
	go func() { waited <- s.Wait(t.Context(), resource.Query{Type: testType}, before) }()
	go func() { _, err := idle.Next(t.Context()); watched <- err }()
	if err := s.Restore(bytes.NewReader(old)); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Errorf("Wait() during Restore() = %v, want nil", err)
	}
	if err := <-watched; !errors.Is(err, resource.ErrWatchReset) {
		t.Errorf("Next() after Restore() = %v, want ErrWatchReset", err)
	}
	if n, err := drain(t, midSnapshot); n != 0 || !errors.Is(err, resource.ErrWatchReset) {
		t.Errorf("drain() of a watch within its snapshot = %d, %v, want 0, ErrWatchReset", n, err)
	}
	all, after, _ := s.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	if len(all) != 1 || after <= before {
		t.Errorf("List() after Restore() has %d resources, index %d, want 1, index above %d", len(all), after, before)
	}
	put(t, s, "d")
	if _, last, _ := s.List(t.Context(), resource.Strong, resource.Query{Type: testType}); last <= after {
		t.Errorf("index of the next write = %d, want more than %d", last, after)
	}

	// A restore of the current state must not change the index.
	same := snapshotOf(t, s)
	_, before, _ = s.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	if err := s.Restore(bytes.NewReader(same)); err != nil {
		t.Fatal(err)
	}
	if _, after, _ := s.List(t.Context(), resource.Strong, resource.Query{Type: testType}); after != before {
		t.Errorf("index after Restore() of the current state = %d, want %d", after, before)
	}
}

// TestRestore_Invalid checks that a truncated or invalid snapshot changes
// nothing.
func TestRestore_Invalid(t *testing.T) {
	s := New()
	defer s.Close()
	put(t, s, "a", "b")
	good := snapshotOf(t, s)
	into := New()
	defer into.Close()
	put(t, into, "present")
	w := open(t, into)
	drain(t, w)
	for n := range good {
		if err := into.Restore(bytes.NewReader(good[:n])); err == nil {
			t.Fatalf("Restore() of the first %d of %d bytes = nil, want an error", n, len(good))
		}
	}
	for name, bad := range map[string][]byte{
		"more after the end": append(bytes.Clone(good), 'x'),
		"another format":     []byte("PK\x03\x04 something else entirely, longer than the magic"),
		"unknown kind":       append([]byte(snapshotMagic+"I\x01\x05"), 'Z', 0),
		"huge record":        append([]byte(snapshotMagic+"I\x01\x05R"), 0xff, 0xff, 0xff, 0xff, 0xff, 0x01),
		"index above store":  append([]byte(snapshotMagic+"I\x01\x05T"), 0x01, 0x09),
		"no index":           []byte(snapshotMagic + "E\x01\x00"),
		"wrong count":        []byte(snapshotMagic + "I\x01\x05E\x01\x07"),
	} {
		if err := into.Restore(bytes.NewReader(bad)); err == nil ||
			!strings.HasPrefix(err.Error(), "restore snapshot: ") {
			t.Errorf("Restore(%s) = %v, want an error that begins with \"restore snapshot: \"", name, err)
		}
	}
	if all, _, _ := into.List(t.Context(), resource.Strong, resource.Query{Type: testType}); len(all) != 1 ||
		all[0].Id.Name != "present" {
		t.Errorf("List() after an invalid snapshot = %v, want only \"present\"", all)
	}
	if n, err := drain(t, w); n != 0 || err != nil {
		t.Errorf("drain() after an invalid snapshot = %d, %v, want 0, nil", n, err)
	}
}

// stored returns resources of all forms that a snapshot may contain, by name.
func stored(t testing.TB) map[string]*pb.Resource {
	t.Helper()
	plain := func() *pb.Resource {
		r := thing(t, "plain")
		r.Id.Uid, r.Generation, r.Version, r.CreateIndex, r.ModifyIndex = resource.NewUID(),
			resource.NewGeneration(), "7", 5, 7
		return r
	}
	all := map[string]*pb.Resource{"plain": plain()}
	with := func(name string, change func(r *pb.Resource)) {
		r := plain()
		change(r)
		all[name] = r
	}
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 1)
	with("no data", func(r *pb.Resource) { r.Data = nil })
	with("empty data", func(r *pb.Resource) { r.Data = &anypb.Any{} })
	with("data without a value", func(r *pb.Resource) { r.Data.Value = nil })
	with("tenancy", func(r *pb.Resource) { r.Id.Tenancy = &pb.Tenancy{Partition: "p", Namespace: "n"} })
	with("half a tenancy", func(r *pb.Resource) { r.Id.Tenancy = &pb.Tenancy{Namespace: "n"} })
	with("no tenancy", func(r *pb.Resource) { r.Id.Tenancy = nil })
	with("own identifiers", func(r *pb.Resource) { r.Id.Uid, r.Generation, r.Version = "u", "g", "v1" })
	with("no optional field", func(r *pb.Resource) { r.Generation, r.Version = "", "" })
	with("small letters", func(r *pb.Resource) { r.Id.Uid = strings.ToLower(r.Id.Uid) })
	with("above 128 bits", func(r *pb.Resource) { r.Id.Uid = "8" + r.Id.Uid[1:] })
	with("zero uid", func(r *pb.Resource) {
		r.Id.Uid, r.Generation = strings.Repeat("0", 26),
			"7"+strings.Repeat("Z", 25)
	})
	with("replica", func(r *pb.Resource) { r.PrimaryModifyIndex = 1 << 60 })
	with("highest", func(r *pb.Resource) { r.ModifyIndex, r.CreateIndex = 1<<64-1, 1<<64-1 })
	with("owner", func(r *pb.Resource) { r.Owner = &pb.ID{Type: testType, Name: "o", Uid: "o1"} })
	with("metadata", func(r *pb.Resource) { r.Metadata = map[string]string{"a": "b", "": ""} })
	with("status", func(r *pb.Resource) {
		r.Status = map[string]*pb.Status{"x": {ObservedGeneration: "g", Conditions: []*pb.Condition{{Type: "c"}}}}
	})
	with("unknown", func(r *pb.Resource) { r.ProtoReflect().SetUnknown(unknown) })
	with("unknown in id", func(r *pb.Resource) { r.Id.ProtoReflect().SetUnknown(unknown) })
	with("unknown in type", func(r *pb.Resource) { r.Id.Type.ProtoReflect().SetUnknown(unknown) })
	with("unknown in tenancy", func(r *pb.Resource) {
		r.Id.Tenancy = &pb.Tenancy{Partition: "p", Namespace: "n"}
		r.Id.Tenancy.ProtoReflect().SetUnknown(unknown)
	})
	with("unknown in data", func(r *pb.Resource) { r.Data.ProtoReflect().SetUnknown(unknown) })
	with("unknown in owner", func(r *pb.Resource) {
		r.Owner = &pb.ID{Type: testType, Name: "o", Uid: "o1"}
		r.Owner.ProtoReflect().SetUnknown(unknown)
	})
	return all
}

// TestRestore_AllForms restores resources of all forms in the encoding of
// protobuf, which all versions of wanfed write.
func TestRestore_AllForms(t *testing.T) {
	all := stored(t)
	var in bytes.Buffer
	e := newRecordWriter(&in)
	e.number(recordIndex, 1<<64-1)
	e.message(recordType, 7, testType)
	n := 0
	for name, r := range all {
		r.Id.Name = name
		e.resource(r)
		n++
		if n%2 == 0 { // a second record of a resource replaces the first
			e.resource(r)
			n++
		}
	}
	if _, err := e.end(); err != nil {
		t.Fatal(err)
	}
	s := New()
	defer s.Close()
	if err := s.Restore(&in); err != nil {
		t.Fatal(err)
	}
	again := New()
	defer again.Close()
	if err := again.Restore(bytes.NewReader(snapshotOf(t, s))); err != nil {
		t.Fatal(err)
	}
	for name, want := range all {
		for restores, from := range []*Store{s, again} {
			if got, err := from.Read(t.Context(), resource.Strong, want.Id); err != nil || !proto.Equal(got, want) {
				t.Errorf("Read(%s) after %d restores = %v, %v\nwant %v", name, restores+1, got, err, want)
			}
		}
	}
}

func FuzzRestore(f *testing.F) {
	s := New()
	f.Cleanup(func() { s.Close() })
	f.Add(snapshotOf(f, s))
	put(f, s, "a", "b")
	f.Add(snapshotOf(f, s))
	f.Add([]byte(snapshotMagic))
	f.Fuzz(func(t *testing.T, in []byte) {
		s := New()
		defer s.Close()
		totals, scanned := ScanSnapshot(bytes.NewReader(in))
		restored := s.Restore(bytes.NewReader(in))
		if scanned == nil && restored != nil {
			t.Fatalf("Restore() = %v, want nil as ScanSnapshot()", restored)
		}
		if restored != nil {
			return
		}
		if scanned == nil {
			if _, err := s.Rebase(io.Discard, bytes.NewReader(in), max(totals.Index, totals.Index+1)); err != nil &&
				totals.Index+1 > 0 {
				t.Fatalf("Rebase() = %v, want nil as ScanSnapshot()", err)
			}
		}
		// A restored state can be saved, restored again and changed.
		out := snapshotOf(t, s)
		if err := s.Restore(bytes.NewReader(out)); err != nil {
			t.Fatalf("Restore() of a snapshot of the restored state = %v, want nil", err)
		}
		put(t, s, "x")
	})
}

func BenchmarkSnapshot(b *testing.B) {
	s := New()
	defer s.Close()
	for i := range 10000 {
		put(b, s, "n"+strconv.Itoa(i))
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Snapshot().WriteTo(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}

func TestScanSnapshot(t *testing.T) {
	s := New()
	defer s.Close()
	put(t, s, "a", "b", "c")
	data := snapshotOf(t, s)
	got, err := ScanSnapshot(oneByteReader{bytes.NewReader(data)})
	if err != nil || got.Index != s.Index() || got.Resources != 3 || len(got.Types) != 1 {
		t.Fatalf("ScanSnapshot() = %+v, %v, want 3 resources of one type", got, err)
	}
	typ := got.Types[0]
	if typ.Type != resource.TypeString(testType) || typ.Resources != 3 || typ.Bytes <= 0 ||
		typ.Bytes >= int64(len(data)) {
		t.Errorf("type in ScanSnapshot() = %+v, want %s, 3 resources, less than %d bytes",
			typ, resource.TypeString(testType), len(data))
	}
	if _, err := ScanSnapshot(bytes.NewReader(data[:len(data)-1])); err == nil {
		t.Error("ScanSnapshot() of a truncated snapshot = nil, want an error")
	}

	// For a duplicate resource, the number in the end record would be wrong.
	var twice bytes.Buffer
	e := newRecordWriter(&twice)
	e.number(recordIndex, 9)
	r := &pb.Resource{Id: &pb.ID{Type: testType, Name: "a", Uid: "u"}}
	e.resource(r)
	e.resource(r)
	if _, err := e.end(); err != nil {
		t.Fatal(err)
	}
	if _, err := ScanSnapshot(&twice); err == nil || !strings.Contains(err.Error(), "duplicate") {
		t.Errorf("ScanSnapshot() of a duplicate resource = %v, want an error with \"duplicate\"", err)
	}
}

// TestRebase checks that a rebased snapshot has the old resources at the new
// index, and that types without resources have the new index too.
func TestRebase(t *testing.T) {
	s := New()
	defer s.Close()
	put(t, s, "a", "b")
	old := snapshotOf(t, s)
	want, _, _ := s.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	other := &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Other"}
	if _, err := s.Commit(t.Context(), resource.PutOp(&pb.Resource{Id: &pb.ID{Type: other, Name: "x", Uid: "u"}},
		"")); err != nil {
		t.Fatal(err)
	}
	const index = 1_000_000
	var b bytes.Buffer
	if size, err := s.Rebase(&b, bytes.NewReader(old), index); err != nil || size != int64(b.Len()) {
		t.Fatalf("Rebase() = %d, %v, want %d, nil", size, err, b.Len())
	}
	// The first write of this type is after Rebase.
	late := &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Late"}
	if _, err := s.Commit(t.Context(), resource.PutOp(&pb.Resource{Id: &pb.ID{Type: late, Name: "x", Uid: "u2"}},
		"")); err != nil {
		t.Fatal(err)
	}
	for _, into := range []*Store{s, New()} { // a store with resources, and an empty store
		defer into.Close()
		if err := into.Restore(bytes.NewReader(b.Bytes())); err != nil {
			t.Fatal(err)
		}
		got, at, err := into.List(t.Context(), resource.Strong, resource.Query{Type: testType})
		if err != nil || at != index || len(got) != len(want) {
			t.Fatalf("List() has %d resources, index %d, %v, want %d, index %d", len(got), at, err, len(want), index)
		}
		for i, w := range want {
			w := proto.CloneOf(w)
			w.Version, w.ModifyIndex = "1000000", index
			if !proto.Equal(got[i], w) {
				t.Errorf("rebased resource = %v\nwant %v", got[i], w)
			}
		}
		if into.Index() != index {
			t.Errorf("Index() = %d, want %d", into.Index(), index)
		}
		if _, at, err := into.List(t.Context(), resource.Strong, resource.Query{Type: late}); err != nil || into == s &&
			at != index {
			t.Errorf("List() of the later type has index %d, %v, want %d for the store that has the type", at,
				err, index)
		}
		if gone, at, err := into.List(t.Context(), resource.Strong, resource.Query{Type: other}); err != nil ||
			len(gone) > 0 || at != index {
			t.Errorf("List() of the other type has %d resources, index %d, %v, want none, index %d", len(gone), at,
				err, index)
		}
	}
	if _, err := s.Rebase(io.Discard, bytes.NewReader(old), 2); err == nil {
		t.Error("Rebase() to an index in the snapshot = nil, want an error")
	}
	if _, err := s.Rebase(io.Discard, bytes.NewReader(old[:len(old)/2]), index); err == nil {
		t.Error("Rebase() of a truncated snapshot = nil, want an error")
	}
	again, err := ScanSnapshot(bytes.NewReader(b.Bytes()))
	if err != nil || !slices.Equal([]int{again.Resources, int(again.Index)}, []int{2, index}) {
		t.Errorf("ScanSnapshot() of the rebased snapshot = %+v, %v, want 2 resources at %d", again, err, index)
	}
}
