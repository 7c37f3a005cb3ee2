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

// saveData returns the current state of leader s as a manifest and data.
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
	return manifestOf(saved.Index(), saved.Term, b.Bytes()), b.Bytes()
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

// memoryArchive returns a snapshot of two resources, without a Raft group.
func memoryArchive(t testing.TB) (Manifest, []byte) {
	t.Helper()
	state := memory.NewState()
	defer state.Close()
	ops := []*pb.Op{resource.PutOp(thing(t, "x", "1"), ""), resource.PutOp(thing(t, "y", "2"), "")}
	e := &memory.Entry{Index: 5, Ops: ops}
	if state.Apply(e); e.Err != nil {
		t.Fatal(e.Err)
	}
	var b bytes.Buffer
	if _, err := state.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return manifestOf(5, 1, b.Bytes()), b.Bytes()
}

func TestReadArchive(t *testing.T) {
	s := single(t)
	put(t, s, "x", "1")
	put(t, s, "y", "2")
	m, data := saveData(t, s)
	got, totals, err := ReadArchive(bytes.NewReader(append(mustHeader(t, m), data...)))
	if err != nil || got != m || totals.Resources != 2 || totals.Index != m.Index {
		t.Fatalf("ReadArchive() = %+v, %+v, %v, want %+v, 2 resources and index %d", got, totals, err, m, m.Index)
	}
	want := "of datacenter dc1, not of dc2"
	if err := got.CheckDatacenter("dc2"); !errors.Is(err, resource.ErrInvalid) || !strings.Contains(err.Error(), want) {
		t.Errorf("CheckDatacenter(dc2) = %v, want ErrInvalid with %q", err, want)
	}
}

func TestReadArchive_Invalid(t *testing.T) {
	m, data := memoryArchive(t)
	whole := append(mustHeader(t, m), data...)
	change := func(at int, to byte) []byte {
		b := bytes.Clone(whole)
		b[at] = to
		return b
	}
	otherIndex := m
	otherIndex.Index++
	garbage := []byte(strings.Repeat("garbage ", 40))
	for _, tt := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "does not begin with"},
		{"garbage", bytes.Repeat(garbage, 10), "does not begin with"},
		{"newer", change(len(archiveMagic), '2'),
			"its format is 2, and this version of wanfed knows 1: use a newer one"},
		{"no format", change(len(archiveMagic), 'x'), "first line is damaged"},
		{"header cut off", whole[:500], "cut off within its header, after 500 bytes"},
		{"header cut off early", whole[:len(archiveMagic)+2], "cut off within its header"},
		{"manifest damaged", bytes.Replace(whole, []byte("dc1"), []byte("dc2"), 1), "its header is damaged"},
		{"padding damaged", change(HeaderSize-2, 'x'), "its header is damaged"},
		{"no padding", []byte(archiveMagic + "1\n{}\n" + strings.Repeat("x", HeaderSize-len(archiveMagic)-6) + "\n"),
			"its header is damaged"},
		{"no data", whole[:HeaderSize], "cut off, with 0 of"},
		{"cut off", whole[:len(whole)-1], fmt.Sprintf("cut off, with %d of %d bytes", len(data)-1, len(data))},
		{"longer", append(bytes.Clone(whole), 'x'), "something follows"},
		{"data damaged", change(len(whole)-1, whole[len(whole)-1]^1), "it is damaged: the data's SHA-256"},
		{"data damaged within", change(HeaderSize+40, whole[HeaderSize+40]^1), "it is damaged: the data's SHA-256"},
		{"garbage with a sum", append(mustHeader(t, manifestOf(3, 1, garbage)), garbage...),
			"it is not a snapshot, or a newer version of wanfed wrote it"},
		{"another index", append(mustHeader(t, otherIndex), data...),
			fmt.Sprintf("not %d as in its manifest", otherIndex.Index)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := ReadArchive(bytes.NewReader(tt.file))
			if !errors.Is(err, resource.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ReadArchive() = %v, want ErrInvalid with %q", err, tt.want)
			}
		})
	}
}

func TestHeader_InvalidManifest(t *testing.T) {
	for name, invalidate := range map[string]func(*Manifest){
		"datacenter": func(m *Manifest) { m.Datacenter = "Not A Label" },
		"node":       func(m *Manifest) { m.Node = "" },
		"size":       func(m *Manifest) { m.Size = MaxArchiveSize + 1 },
		"index":      func(m *Manifest) { m.Index = 0 },
		"sha256":     func(m *Manifest) { m.SHA256 = "00" },
		"version":    func(m *Manifest) { m.Version = strings.Repeat("1", 200) },
	} {
		t.Run(name, func(t *testing.T) {
			m := manifestOf(3, 1, []byte("some data"))
			invalidate(&m)
			if _, err := m.Header(); !errors.Is(err, resource.ErrInvalid) || !strings.Contains(err.Error(), name) {
				t.Errorf("Header() = %v, want ErrInvalid with %q", err, name)
			}
		})
	}
}

// TestArchiveFile checks that a snapshot file is complete or does not exist,
// and never replaces another file.
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
		t.Errorf("Abort() twice = %v, files %q, want nil and no file", err, names())
	}
	if err := begin("some dat!").Commit(m); err == nil || !strings.Contains(err.Error(), "damaged on the way") ||
		names() != "" {
		t.Errorf("Commit() of other data = %v, files %q, want \"damaged on the way\" and no file", err, names())
	}
	a, late := begin("some data"), begin("some data")
	if err := a.Commit(m); err != nil {
		t.Fatal(err)
	}
	if err := late.Commit(m); !errors.Is(err, os.ErrExist) {
		t.Errorf("Commit() over an existing file = %v, want ErrExist", err)
	}
	if _, err := CreateArchive(path); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("CreateArchive() of an existing file = %v, want an error with \"exists\"", err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode() != 0o600 || st.Size() != HeaderSize+m.Size || names() != "s.snap" {
		t.Errorf("Stat() = %v, %v, files %q, want mode 0600, %d bytes and one file", st, err, names(),
			HeaderSize+m.Size)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseHeader(b[:HeaderSize]); err != nil || got != m || string(b[HeaderSize:]) != "some data" {
		t.Errorf("ParseHeader() = %+v, %v with data %q, want %+v with data \"some data\"", got, err, b[HeaderSize:], m)
	}
}

func FuzzReadArchive(f *testing.F) {
	m, data := memoryArchive(f)
	f.Add(append(mustHeader(f, m), data...))
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
			t.Fatalf("ReadArchive() = %+v, index %d, want size %d and equal indexes", m, totals.Index,
				len(in)-HeaderSize)
		}
	})
}
