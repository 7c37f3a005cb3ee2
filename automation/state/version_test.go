// SPDX-License-Identifier: MPL-2.0

package state

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/resource"
)

// put stores a state.
func put(t testing.TB, s *Store, c Claim, data []byte) *pb.TaskStateVersion {
	t.Helper()
	v, err := s.Put(t.Context(), c, data, PutOptions{Run: "r1"})
	if err != nil {
		t.Fatalf("Put() = %v, want nil", err)
	}
	return v
}

// get returns a version of the state of task web.
func get(t testing.TB, s *Store, number uint64) []byte {
	t.Helper()
	data, _, err := s.Get(t.Context(), "web", number)
	if err != nil {
		t.Fatalf("Get(%d) = %v, want nil", number, err)
	}
	return data
}

// chunks returns the names of the stored chunks.
func (s *server) chunks(t testing.TB) map[string]bool {
	t.Helper()
	resp, err := s.List(t.Context(), &pb.ListRequest{Type: task.ChunkType})
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, r := range resp.Resources {
		names[r.Id.Name] = true
	}
	return names
}

func TestPut_Versions(t *testing.T) {
	srv := newServer(t)
	s := newStore(t, srv)
	c := mustClaim(t, s, 1)
	if _, _, err := s.Get(t.Context(), "web", 0); !errors.Is(err, ErrNoVersion) {
		t.Errorf("Get() before the first Put() = %v, want %v", err, ErrNoVersion)
	}
	for n := 1; n <= task.MaxVersions+3; n++ {
		v := put(t, s, c, tfstate(n, "a"))
		if v.Number != uint64(n) || v.Serial != uint64(n) || v.Run != "r1" || time.Since(v.StoredAt.AsTime()) > time.Minute {
			t.Errorf("Put() %d = %v, want its number, serial, run and time", n, v)
		}
		again := put(t, s, c, tfstate(n, "a"))
		if again.Number != v.Number {
			t.Errorf("Put() of equal content = version %d, want %d", again.Number, v.Number)
		}
	}
	st, err := s.Read(t.Context(), "web")
	if err != nil || len(st.Versions) != task.MaxVersions || st.Versions[0].Number != task.MaxVersions+3 {
		t.Fatalf("Read() = %d versions, %v, want the newest %d", len(st.GetVersions()), err, task.MaxVersions)
	}
	if n := len(srv.chunks(t)); n != task.MaxVersions {
		t.Errorf("%d chunks are stored, want %d", n, task.MaxVersions)
	}
	if got := get(t, s, 5); !bytes.Equal(got, tfstate(5, "a")) {
		t.Errorf("Get(5) = %s, want the state with serial 5", got)
	}
	if got := get(t, s, 0); !bytes.Equal(got, tfstate(task.MaxVersions+3, "a")) {
		t.Errorf("Get(0) = %s, want the newest state", got)
	}
	if _, _, err := s.Get(t.Context(), "web", 3); !errors.Is(err, ErrNoVersion) {
		t.Errorf("Get(3) = %v, want %v", err, ErrNoVersion)
	}
}

func TestPut_Replaced(t *testing.T) {
	srv := newServer(t)
	s := newStore(t, srv)
	old := mustClaim(t, s, 1)
	put(t, s, old, tfstate(1, "a"))
	mustClaim(t, s, 2)
	if _, err := s.Put(t.Context(), old, tfstate(2, "b"), PutOptions{}); !errors.Is(err, ErrReplaced) {
		t.Errorf("Put() = %v, want %v", err, ErrReplaced)
	}
	// The claim is taken over while the chunks are written.
	now := claimOf(2)
	srv.before = func(typ *pb.Type) error {
		if resource.SameType(typ, task.ChunkType) {
			srv.before = nil
			_, err := s.Claim(t.Context(), claimOf(3))
			return err
		}
		return nil
	}
	if _, err := s.Put(t.Context(), now, tfstate(2, "b"), PutOptions{}); !errors.Is(err, ErrReplaced) {
		t.Errorf("Put() = %v, want %v", err, ErrReplaced)
	}
	if got := get(t, s, 0); !bytes.Equal(got, tfstate(1, "a")) {
		t.Errorf("Get() = %s, want the state before", got)
	}
}

func TestPut_LostResponse(t *testing.T) {
	srv := newServer(t)
	s := newStore(t, srv)
	c := mustClaim(t, s, 1)
	put(t, s, c, tfstate(1, "a"))
	srv.before = func(typ *pb.Type) error {
		srv.lost.Store(resource.SameType(typ, task.StateType))
		return nil
	}
	checks := 0
	v, err := s.Put(t.Context(), c, tfstate(2, "a"), PutOptions{Check: func(st *pb.TaskState) error {
		if checks++; find(st, 0).Serial != 1 {
			return errors.New("checked after its own write")
		}
		return nil
	}})
	if err != nil || v.Number != 2 || checks != 1 {
		t.Errorf("Put() = %v, %v after %d checks, want version 2 after 1 check", v, err, checks)
	}
}

func TestPut_Conflict(t *testing.T) {
	srv := newServer(t)
	s := newStore(t, srv)
	c := mustClaim(t, s, 1)
	srv.before = func(typ *pb.Type) error {
		if resource.SameType(typ, task.ChunkType) {
			srv.before = nil
			put(t, s, Claim{Task: "web"}, tfstate(1, "operator"))
		}
		return nil
	}
	if v := put(t, s, c, tfstate(2, "daemon")); v.Number != 2 {
		t.Errorf("Put() after a conflict = version %d, want 2", v.Number)
	}
	if got := get(t, s, 0); !bytes.Equal(got, tfstate(2, "daemon")) {
		t.Errorf("Get() = %s, want the state of the daemon", got)
	}
	if n := len(srv.chunks(t)); n != 2 {
		t.Errorf("%d chunks are stored, want 2: that of the failed attempt is deleted", n)
	}
}

func TestGet_Chunks(t *testing.T) {
	srv := newServer(t)
	s := newStore(t, srv)
	c := mustClaim(t, s, 1)
	v := put(t, s, c, tfstate(1, noise(2<<20)))
	if len(v.Chunks) < 2 {
		t.Fatalf("Put() = %d chunks, want several", len(v.Chunks))
	}
	id := resource.ID(task.ChunkType, v.Chunks[1])
	const remedy = "wanfed task state restore web"
	check := func(want string) {
		t.Helper()
		data, _, err := s.Get(t.Context(), "web", 0)
		if data != nil || err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), remedy) {
			t.Errorf("Get() = %d bytes, %v, want %q and the remedy", len(data), err, want)
		}
	}
	if err := s.writeChunk(t.Context(), "web", v.Chunks[1], []byte("other")); err != nil {
		t.Fatal(err)
	}
	check("version 1 of the state of task web, encrypted with key k1: chunk 2 of 2 is damaged")
	if _, err := srv.Delete(t.Context(), &pb.DeleteRequest{Id: id}); err != nil {
		t.Fatal(err)
	}
	check("chunk 2 of 2 is missing")
}

func TestKeys_Rotation(t *testing.T) {
	s := newStore(t, newServer(t))
	c := mustClaim(t, s, 1)
	old := put(t, s, c, tfstate(1, "a"))
	if _, err := GenerateKey(s.cfg.KeyFile); err != nil {
		t.Fatal(err)
	}
	if _, err := UseNewestKey(s.cfg.KeyFile); err != nil {
		t.Fatal(err)
	}
	if again := put(t, s, c, tfstate(1, "a")); again.Number != 1 {
		t.Errorf("Put() of equal content after a rotation = version %d, want 1", again.Number)
	}
	v := put(t, s, c, tfstate(2, "b"))
	if v.Key == old.Key {
		t.Errorf("Put() after a rotation used key %s, want the new one", v.Key)
	}
	if !bytes.Equal(get(t, s, 1), tfstate(1, "a")) || !bytes.Equal(get(t, s, 2), tfstate(2, "b")) {
		t.Error("Get() after a rotation = other states, want those that were stored")
	}
	content, err := os.ReadFile(s.cfg.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	if err := os.WriteFile(s.cfg.KeyFile, []byte(strings.Join(lines[:len(lines)-1], "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "version 1 of the state of task web, encrypted with key k1: the key file does not have this key"
	if _, _, err := s.Get(t.Context(), "web", 1); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Get(1) without its key = %v, want %q", err, want)
	}
	get(t, s, 2)
}

func TestRestore_NextSerial(t *testing.T) {
	s := newStore(t, newServer(t))
	c := mustClaim(t, s, 1)
	for n := 1; n <= 5; n++ {
		put(t, s, c, tfstate(n, strings.Repeat("<&>", n)))
	}
	v, err := s.Restore(t.Context(), Claim{Task: "web"}, 3)
	if err != nil || v.Number != 6 || v.Serial != 6 || v.Lineage != "l1" {
		t.Fatalf("Restore(3) = %v, %v, want version 6 with serial 6", v, err)
	}
	var got, want map[string]any
	if err := errors.Join(json.Unmarshal(get(t, s, 0), &got), json.Unmarshal(tfstate(6, "<&><&><&>"), &want)); err != nil {
		t.Fatal(err)
	}
	if !equalJSON(t, got, want) {
		t.Errorf("Get() after Restore(3) = %v, want %v", got, want)
	}
	if _, err := s.Restore(t.Context(), c, 9); !errors.Is(err, ErrNoVersion) {
		t.Errorf("Restore(9) = %v, want %v", err, ErrNoVersion)
	}
	lock(t, s, c, "x", "r1")
	if _, err := s.Restore(t.Context(), Claim{Task: "web"}, 3); !isLocked(err) {
		t.Errorf("Restore() of a locked state = %v, want a LockedError", err)
	}
}

func equalJSON(t *testing.T, a, b any) bool {
	t.Helper()
	x, err := json.Marshal(a)
	y, yerr := json.Marshal(b)
	if err != nil || yerr != nil {
		t.Fatal(err, yerr)
	}
	return bytes.Equal(x, y)
}

func isLocked(err error) bool {
	_, ok := errors.AsType[*LockedError](err)
	return ok
}

func TestImport_Lineage(t *testing.T) {
	s := newStore(t, newServer(t))
	operator := Claim{Task: "web"}
	imports := func(data []byte, o ImportOptions) error {
		_, err := s.Import(t.Context(), operator, data, o)
		return err
	}
	if err := imports(tfstate(5, "a"), ImportOptions{}); err != nil {
		t.Errorf("Import() of the first state = %v, want nil", err)
	}
	if err := imports(tfstate(5, "a"), ImportOptions{}); err != nil {
		t.Errorf("Import() of equal content = %v, want nil", err)
	}
	foreign := bytes.Replace(tfstate(9, "b"), []byte("l1"), []byte("l2"), 1)
	for want, data := range map[string][]byte{
		"has serial 4, and version 1 has serial 5":     tfstate(4, "a"),
		"has serial 5, and version 1 has serial 5":     tfstate(5, "b"),
		"has lineage l2, and version 1 has lineage l1": foreign,
		"invalid state of Terraform":                   []byte("{}"),
	} {
		if err := imports(data, ImportOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Import() = %v, want %q", err, want)
		}
	}
	if err := imports(tfstate(6, "c"), ImportOptions{}); err != nil {
		t.Errorf("Import() of a newer serial = %v, want nil", err)
	}
	if err := imports(foreign, ImportOptions{Force: true}); err != nil || !bytes.Equal(get(t, s, 0), foreign) {
		t.Errorf("Import() with force = %v, want nil and the state", err)
	}
}

// Terraform has not set the lineage of a new state if it could not store it. The
// same file may be imported twice.
func TestImport_NoLineage(t *testing.T) {
	s := newStore(t, newServer(t))
	c := mustClaim(t, s, 1)
	data := bytes.Replace(tfstate(0, "a"), []byte("l1"), nil, 1)
	for range 2 {
		if v, err := s.Import(t.Context(), c, data, ImportOptions{}); err != nil || v.Number != 1 || v.Lineage == "" {
			t.Errorf("Import() without a lineage = %v, %v, want version 1 with a lineage", v, err)
		}
	}
	other := bytes.Replace(tfstate(0, "b"), []byte("l1"), nil, 1)
	if v, err := s.Import(t.Context(), c, other, ImportOptions{}); err == nil {
		t.Errorf("Import() of another state without a lineage = %v, want an error", v)
	}
}

// A run could not store its state. Later runs may have stored theirs.
func TestImport_OfRun(t *testing.T) {
	s := newStore(t, newServer(t))
	c := mustClaim(t, s, 1)
	store := func(run string, data []byte) {
		t.Helper()
		_, err := s.Update(t.Context(), c, func(st *pb.TaskState) error {
			st.Runs = slices.Insert(st.Runs, 0, run)
			return nil
		})
		if err == nil && data != nil {
			_, err = s.Put(t.Context(), c, data, PutOptions{Run: run})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	store("z", tfstate(1, "a")) // ids of runs do not show their order: clocks differ
	store("y", nil)
	store("x", nil) // a plan
	imports := func(run string, data []byte) (*pb.TaskStateVersion, error) {
		return s.Import(t.Context(), c, data, ImportOptions{Run: run})
	}
	if v, err := imports("y", tfstate(3, "b")); err != nil || v.Number != 2 || v.Run != "y" {
		t.Errorf("Import() of a run without a later version = %v, %v, want version 2", v, err)
	}
	store("w", tfstate(4, "c"))
	if v, err := imports("y", tfstate(3, "b")); err != nil || v.Number != 2 {
		t.Errorf("Import() of a state that is stored = %v, %v, want version 2", v, err)
	}
	for _, run := range []string{"x", "v"} {
		// Attempts to store a state have incremented the serial.
		if v, err := imports(run, tfstate(9, "d")); !errors.Is(err, ErrSuperseded) {
			t.Errorf("Import() of run %s, before run w = %v, %v, want ErrSuperseded", run, v, err)
		}
	}
	put(t, s, c, tfstate(5, "e")) // an operator's command
	if v, err := imports("w", tfstate(4, "f")); !errors.Is(err, ErrObsolete) {
		t.Errorf("Import() of a run before an operator's command = %v, %v, want ErrObsolete", v, err)
	}
	if got := get(t, s, 0); !bytes.Equal(got, tfstate(5, "e")) {
		t.Errorf("newest version = %s, want that of the operator", got)
	}
}

func TestImport_Locked(t *testing.T) {
	s := newStore(t, newServer(t))
	c := mustClaim(t, s, 1)
	put(t, s, c, tfstate(1, "a"))
	lock(t, s, c, "x", "r1")
	if _, err := s.Import(t.Context(), Claim{Task: "web"}, tfstate(2, "a"), ImportOptions{}); !isLocked(err) {
		t.Errorf("Import() of an operator while a run has the lock = %v, want a LockedError", err)
	}
	if _, err := s.Import(t.Context(), c, tfstate(2, "a"), ImportOptions{Run: "r1"}); err != nil {
		t.Errorf("Import() of the daemon after the run = %v, want nil", err)
	}
}

func TestCollect_Unused(t *testing.T) {
	srv := newServer(t)
	s := newStore(t, srv)
	c := mustClaim(t, s, 1)
	other := Claim{Task: "web2", Instance: "d", Epoch: 1}
	put(t, s, other, tfstate(1, "other"))
	for n := range 3 {
		put(t, s, c, tfstate(n+1, "a"))
	}
	want := len(srv.chunks(t))
	// A daemon that dies after it has written its chunks.
	ctx, cancel := context.WithCancel(t.Context())
	srv.before = func(typ *pb.Type) error {
		if resource.SameType(typ, task.StateType) {
			cancel()
			return status.Error(codes.Unavailable, "gone")
		}
		return nil
	}
	if _, err := s.Put(ctx, c, tfstate(4, "a"), PutOptions{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("Put() = %v, want %v", err, context.Canceled)
	}
	srv.before = nil
	if n := len(srv.chunks(t)); n != want+1 {
		t.Fatalf("%d chunks are stored, want %d", n, want+1)
	}
	for _, want := range []int{1, 0} {
		if n, err := s.Collect(t.Context(), c); n != want || err != nil {
			t.Errorf("Collect() = %d, %v, want %d", n, err, want)
		}
	}
	for n := range 3 {
		get(t, s, uint64(n+1))
	}
	if n := len(srv.chunks(t)); n != want {
		t.Errorf("%d chunks are stored after Collect(), want %d", n, want)
	}
	if _, err := s.Collect(t.Context(), Claim{Task: "none"}); err != nil {
		t.Errorf("Collect() of a task without a state = %v, want nil", err)
	}
}

// TestCollect_DuringPut checks each order of the steps of a Put and a Collect:
// the version that Put returns is readable.
func TestCollect_DuringPut(t *testing.T) {
	for step := 1; step <= 4; step++ {
		srv := newServer(t)
		s := newStore(t, srv)
		c := mustClaim(t, s, 1)
		data := tfstate(1, noise(2<<20))
		collects := 0
		collect := func() {
			collects++
			saved := srv.before
			srv.before = nil
			if _, err := s.Collect(t.Context(), c); err != nil {
				t.Errorf("Collect() = %v, want nil", err)
			}
			srv.before = saved
		}
		// Collect runs before the write number step of Put.
		writes := 0
		srv.before = func(*pb.Type) error {
			if writes++; writes == step {
				collect()
			}
			return nil
		}
		put(t, s, c, data)
		srv.before = nil
		if got := get(t, s, 0); !bytes.Equal(got, data) {
			t.Errorf("step %d: Get() = %d bytes, want the state", step, len(got))
		}
	}
	// Put stores its chunks again, and commits, between two steps of Collect.
	for step := 1; step <= 3; step++ {
		srv := newServer(t)
		s := newStore(t, srv)
		c := mustClaim(t, s, 1)
		data := tfstate(1, noise(2<<20))
		ctx, cancel := context.WithCancel(t.Context())
		p := putting{store: s, keys: mustKeys(t, line("k1", 1)), claim: c, data: data}
		if _, err := p.put(ctx, &pb.TaskState{}); err != nil { // the chunks, without the state
			t.Fatal(err)
		}
		cancel()
		writes := 0
		srv.before = func(*pb.Type) error {
			if writes++; writes != step {
				return nil
			}
			srv.before = nil
			_, err := s.Update(t.Context(), c, func(st *pb.TaskState) error {
				_, err := p.put(t.Context(), st)
				return err
			})
			return err
		}
		if _, err := s.Collect(t.Context(), c); err != nil {
			t.Errorf("Collect() = %v, want nil", err)
		}
		if srv.before != nil {
			t.Fatalf("Collect() made %d writes, want %d", writes, step)
		}
		if got := get(t, s, 0); !bytes.Equal(got, data) {
			t.Errorf("step %d of Collect(): Get() = %d bytes, want the state", step, len(got))
		}
	}
}

// lock locks the state for a run.
func lock(t testing.TB, s *Store, c Claim, id, run string) {
	t.Helper()
	if err := s.Lock(t.Context(), c, &pb.TaskStateLock{Id: id, Run: run, Who: "root@host", Operation: "apply"}); err != nil {
		t.Fatalf("Lock(%s) = %v, want nil", id, err)
	}
}
