// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

func snapshotOf(t testing.TB, s *Store) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := s.state.Snapshot().WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("WriteTo wrote %d of %d bytes, %v", n, b.Len(), err)
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
	sn := s.state.Snapshot()
	want, wantIndex, _ := s.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	put(t, s, "later") // not in the snapshot
	var b bytes.Buffer
	if _, err := sn.WriteTo(&b); err != nil {
		t.Fatal(err)
	}

	into := New()
	defer into.Close()
	if err := into.Restore(iotestOneByte{&b}); err != nil {
		t.Fatal(err)
	}
	got, index, err := into.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	if err != nil || index != wantIndex || into.state.Index() != wantIndex || len(got) != len(want) {
		t.Fatalf("restored %d resources at %d, %v; want %d at %d", len(got), index, err, len(want), wantIndex)
	}
	for i := range want {
		if !proto.Equal(got[i], want[i]) {
			t.Errorf("got  %v\nwant %v", got[i], want[i])
		}
	}
	put(t, into, "next")
	if r, _ := into.Read(t.Context(), resource.Strong, &pb.ID{Type: testType, Name: "next"}); r.GetModifyIndex() != wantIndex+1 {
		t.Errorf("the write after the restore has index %d, want %d", r.GetModifyIndex(), wantIndex+1)
	}
}

// iotestOneByte makes every Read short, as a network does.
type iotestOneByte struct{ r io.Reader }

func (o iotestOneByte) Read(p []byte) (int, error) { return o.r.Read(p[:min(1, len(p))]) }

// TestRestoreResets: whoever watches or waits learns of a restore, and no index falls.
func TestRestoreResets(t *testing.T) {
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
		t.Errorf("Wait: %v", err)
	}
	if err := <-watched; !errors.Is(err, resource.ErrWatchReset) {
		t.Errorf("Next: %v, want ErrWatchReset", err)
	}
	if n, err := drain(t, midSnapshot); n != 0 || !errors.Is(err, resource.ErrWatchReset) {
		t.Errorf("the watch that was reading its snapshot: %d events, %v", n, err)
	}
	all, after, _ := s.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	if len(all) != 1 || after <= before {
		t.Errorf("after the restore: %d resources, index %d after %d", len(all), after, before)
	}
	put(t, s, "d")
	if _, last, _ := s.List(t.Context(), resource.Strong, resource.Query{Type: testType}); last <= after {
		t.Errorf("index %d after %d", last, after)
	}

	// The same state again: indexes stay what they are.
	same := snapshotOf(t, s)
	_, before, _ = s.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	if err := s.Restore(bytes.NewReader(same)); err != nil {
		t.Fatal(err)
	}
	if _, after, _ := s.List(t.Context(), resource.Strong, resource.Query{Type: testType}); after != before {
		t.Errorf("a restore of the same state moved the index from %d to %d", before, after)
	}
}

// TestRestoreRefuses: a snapshot that is torn, or not one, changes nothing.
func TestRestoreRefuses(t *testing.T) {
	s := New()
	defer s.Close()
	put(t, s, "a", "b")
	good := snapshotOf(t, s)
	into := New()
	defer into.Close()
	put(t, into, "mine")
	w := open(t, into)
	drain(t, w)
	for n := range good {
		if err := into.Restore(bytes.NewReader(good[:n])); err == nil {
			t.Fatalf("the first %d of %d bytes were restored", n, len(good))
		}
	}
	for what, bad := range map[string][]byte{
		"more after the end": append(bytes.Clone(good), 'x'),
		"foreign":            []byte("PK\x03\x04 something else entirely, longer than the magic"),
		"unknown kind":       append([]byte(snapshotMagic+"I\x01\x05"), 'Z', 0),
		"huge record":        append([]byte(snapshotMagic+"I\x01\x05R"), 0xff, 0xff, 0xff, 0xff, 0xff, 0x01),
		"index above store":  append([]byte(snapshotMagic+"I\x01\x05T"), 0x01, 0x09),
		"no index":           []byte(snapshotMagic + "E\x01\x00"),
		"wrong count":        []byte(snapshotMagic + "I\x01\x05E\x01\x07"),
	} {
		if err := into.Restore(bytes.NewReader(bad)); err == nil || !strings.HasPrefix(err.Error(), "restore snapshot: ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if all, _, _ := into.List(t.Context(), resource.Strong, resource.Query{Type: testType}); len(all) != 1 || all[0].Id.Name != "mine" {
		t.Errorf("a refused snapshot left %v", all)
	}
	if n, err := drain(t, w); n != 0 || err != nil {
		t.Errorf("the watch got %d events, %v", n, err)
	}
}

// stored returns resources of all forms that a snapshot may contain, by name.
func stored(t testing.TB) map[string]*pb.Resource {
	t.Helper()
	plain := func() *pb.Resource {
		r := thing(t, "plain")
		r.Id.Uid, r.Generation, r.Version, r.CreateIndex, r.ModifyIndex = resource.NewUID(), resource.NewGeneration(), "7", 5, 7
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
	with("own words", func(r *pb.Resource) { r.Id.Uid, r.Generation, r.Version = "u", "g", "v1" })
	with("nothing optional", func(r *pb.Resource) { r.Generation, r.Version = "", "" })
	with("small letters", func(r *pb.Resource) { r.Id.Uid = strings.ToLower(r.Id.Uid) })
	with("above 128 bits", func(r *pb.Resource) { r.Id.Uid = "8" + r.Id.Uid[1:] })
	with("zero uid", func(r *pb.Resource) { r.Id.Uid, r.Generation = strings.Repeat("0", 26), "7"+strings.Repeat("Z", 25) })
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

// TestRestore_AllForms restores resources in protobuf's own encoding, which all
// versions of wanfed write.
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
		if n%2 == 0 { // the second of two records counts
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
		for what, from := range map[string]*Store{"restored": s, "saved and restored": again} {
			if got, err := from.Read(t.Context(), resource.Strong, want.Id); err != nil || !proto.Equal(got, want) {
				t.Errorf("%s: %s: %v, %v\nwant %v", name, what, got, err, want)
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
			t.Fatalf("Scan accepts what Restore does not: %v", restored)
		}
		if restored != nil {
			return
		}
		if scanned == nil {
			if err := s.state.Rebase(io.Discard, bytes.NewReader(in), max(totals.Index, totals.Index+1)); err != nil && totals.Index+1 > 0 {
				t.Fatalf("Rebase does not take what Scan accepts: %v", err)
			}
		}
		// What was accepted is a state that can be written, read again and worked with.
		out := snapshotOf(t, s)
		if err := s.Restore(bytes.NewReader(out)); err != nil {
			t.Fatalf("a snapshot of a restored state: %v", err)
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
		if err := s.WriteSnapshot(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}
