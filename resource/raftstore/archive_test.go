// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
)

// saveData returns the present state of a leader as manifest and data.
func saveData(t testing.TB, s *Store) (Manifest, []byte) {
	t.Helper()
	saved, err := s.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := saved.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return manifestOf(saved.Index, saved.Term, b.Bytes()), b.Bytes()
}

func manifestOf(index, term uint64, data []byte) Manifest {
	sum := sha256.Sum256(data)
	return Manifest{
		Version: "1.2.3", Datacenter: "dc1", Node: "a", CreatedAt: time.Unix(1e9, 0).UTC(), Index: index, Term: term,
		Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:]),
	}
}

func mustHeader(t testing.TB, m Manifest) []byte {
	t.Helper()
	h, err := m.Header()
	if err != nil || len(h) != HeaderSize {
		t.Fatalf("Header() = %d bytes, %v, want %d", len(h), err, HeaderSize)
	}
	return h
}

func TestArchive(t *testing.T) {
	s := single(t)
	put(t, s, "x", "1")
	put(t, s, "y", "2")
	m, data := saveData(t, s)
	header := mustHeader(t, m)
	whole := append(header, data...)
	got, totals, err := ReadArchive(bytes.NewReader(whole))
	if err != nil || got != m || totals.Resources != 2 || totals.Index != m.Index {
		t.Fatalf("ReadArchive() = %+v, %+v, %v", got, totals, err)
	}
	if err := got.CheckDatacenter("dc2"); !errors.Is(err, resource.ErrInvalid) ||
		!strings.Contains(err.Error(), "of datacenter dc1, not of dc2") {
		t.Errorf("CheckDatacenter() of another datacenter = %v, want ErrInvalid", err)
	}

	change := func(b []byte, at int, to byte) []byte {
		b = bytes.Clone(b)
		b[at] = to
		return b
	}
	other := m
	other.Index++
	garbage := []byte(strings.Repeat("garbage ", 40))
	for _, tt := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "does not begin with"},
		{"garbage", bytes.Repeat(garbage, 10), "does not begin with"},
		{"newer", change(whole, len(archiveMagic), '2'), "its format is 2, and this version of wanfed knows 1: use a newer one"},
		{"no format", change(whole, len(archiveMagic), 'x'), "first line is damaged"},
		{"header cut off", whole[:500], "cut off within its header, after 500 bytes"},
		{"header cut off early", whole[:len(archiveMagic)+2], "cut off within its header"},
		{"manifest damaged", bytes.Replace(whole, []byte("dc1"), []byte("dc2"), 1), "its header is damaged"},
		{"padding damaged", change(whole, HeaderSize-2, 'x'), "its header is damaged"},
		{"no data", whole[:HeaderSize], "cut off, with 0 of"},
		{"cut off", whole[:len(whole)-1], fmt.Sprintf("cut off, with %d of %d bytes", len(data)-1, len(data))},
		{"longer", append(bytes.Clone(whole), 'x'), "something follows"},
		{"data damaged", change(whole, len(whole)-1, whole[len(whole)-1]^1), "it is damaged: the data's SHA-256"},
		{"data damaged within", change(whole, HeaderSize+40, whole[HeaderSize+40]^1), "it is damaged: the data's SHA-256"},
		{"garbage with a sum", append(mustHeader(t, manifestOf(3, 1, garbage)), garbage...), "it is not a snapshot, or a newer version of wanfed wrote it"},
		{"another index", append(mustHeader(t, other), data...), "not " + fmt.Sprint(other.Index) + " as in its manifest"},
	} {
		_, _, err := ReadArchive(bytes.NewReader(tt.file))
		if !errors.Is(err, resource.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("ReadArchive(%s) = %v, want %s", tt.name, err, tt.want)
		}
	}
	for name, bad := range map[string]func(*Manifest){
		"datacenter": func(m *Manifest) { m.Datacenter = "Not A Label" },
		"node":       func(m *Manifest) { m.Node = "" },
		"size":       func(m *Manifest) { m.Size = MaxArchiveSize + 1 },
		"index":      func(m *Manifest) { m.Index = 0 },
		"sha256":     func(m *Manifest) { m.SHA256 = "00" },
		"version":    func(m *Manifest) { m.Version = strings.Repeat("1", 200) },
	} {
		m := m
		bad(&m)
		if _, err := m.Header(); !errors.Is(err, resource.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("Header() with an invalid %s = %v, want ErrInvalid", name, err)
		}
	}
}

// TestArchiveFile: a file is complete or does not exist. It never replaces
// another file.
func TestArchiveFile(t *testing.T) {
	data := []byte("some data")
	m := manifestOf(3, 1, data)
	dir := t.TempDir()
	path := filepath.Join(dir, "s.snap")
	names := func() string {
		all, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, e := range all {
			out = append(out, e.Name())
		}
		return strings.Join(out, " ")
	}
	begin := func(text string) *ArchiveFile {
		a, err := CreateArchive(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(a, text); err != nil {
			t.Fatal(err)
		}
		return a
	}
	a := begin("some")
	if err := errors.Join(a.Abort(), a.Abort()); err != nil || names() != "" {
		t.Errorf("after Abort: files %s, %v, want none", names(), err)
	}
	if err := begin("some dat!").Commit(m); err == nil || !strings.Contains(err.Error(), "damaged on the way") ||
		names() != "" {
		t.Errorf("Commit() of other data = %v, files %s; want an error and no file", err, names())
	}
	a, late := begin("some data"), begin("some data")
	if err := a.Commit(m); err != nil {
		t.Fatal(err)
	}
	if err := late.Commit(m); !errors.Is(err, os.ErrExist) {
		t.Errorf("Commit() over an existing file = %v, want ErrExist", err)
	}
	if _, err := CreateArchive(path); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("CreateArchive() of an existing file = %v, want an error", err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode() != 0o600 || st.Size() != HeaderSize+m.Size || names() != "s.snap" {
		t.Errorf("Stat() = %v, %v, files %s; want mode 0600 and one file", st, err, names())
	}
	b, err := os.ReadFile(path)
	if got, herr := ParseHeader(b[:HeaderSize]); err != nil || herr != nil || got != m ||
		string(b[HeaderSize:]) != "some data" {
		t.Errorf("file = %+v, %q; %v, %v", got, b[HeaderSize:], err, herr)
	}
}

func FuzzReadArchive(f *testing.F) {
	state := memory.NewState() // a Raft group would slow down the fuzzing
	if _, err := state.Apply(5, []*pb.Op{resource.PutOp(thing(f, "x", "1"), "")}); err != nil {
		f.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := state.Snapshot().WriteTo(&b); err != nil {
		f.Fatal(err)
	}
	m := manifestOf(5, 1, b.Bytes())
	f.Add(append(mustHeader(f, m), b.Bytes()...))
	f.Add(mustHeader(f, m))
	f.Add([]byte(archiveMagic + "2\n"))
	f.Add([]byte(archiveMagic + "1\n{}\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		m, totals, err := ReadArchive(bytes.NewReader(in))
		if err != nil {
			if !errors.Is(err, resource.ErrInvalid) {
				t.Fatalf("ReadArchive() = %v, want nil or ErrInvalid", err)
			}
			return
		}
		if h, err := m.Header(); err != nil || !bytes.Equal(h, in[:HeaderSize]) && len(h) != HeaderSize {
			t.Fatalf("Header() = %q, %v, want the header that was read", h, err)
		}
		if int64(len(in)) != HeaderSize+m.Size || totals.Index != m.Index {
			t.Fatalf("ReadArchive() of %d bytes = %+v, want another size", len(in), m)
		}
	})
}
