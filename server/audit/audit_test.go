// SPDX-License-Identifier: MPL-2.0

package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// trail is a running Log with its engine.
type trail struct {
	*Log
	engine *policy.Engine
	stop   func() // ends Run, once
}

func start(t testing.TB, cfg Config) *trail {
	t.Helper()
	if cfg.File == "" {
		cfg.File = filepath.Join(t.TempDir(), "audit.log")
	}
	cfg.DC, cfg.Node, cfg.Logger = "dc1", "srv1", slog.New(slog.DiscardHandler)
	cfg.Keep = max(cfg.Keep, 1)
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	t.Cleanup(stop)
	return &trail{l, policy.New(policy.Config{DC: "dc1", Recorder: l}), stop}
}

// write makes a call with a reserved record, and returns its error.
func (l *trail) write(name string) error {
	call := &policy.Call{Method: "PUT /v1/kv/" + name, Caller: policy.Caller{Peer: tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc1", Node: "op"}}}
	ctx := policy.WithCall(context.Background(), call)
	if err := l.engine.Reserve(ctx); err != nil {
		return err
	}
	return l.engine.Record(ctx, call, nil)
}

// deny makes a call that is refused because of its caller.
func (l *trail) deny(name string) {
	call := &policy.Call{Method: "GET /v1/kv/" + name}
	if err := l.engine.Record(context.Background(), call, resource.ErrDenied); err != nil {
		panic(err)
	}
}

// read returns the lines of files. Each must be complete.
func read(t testing.TB, files ...string) (out []Line) {
	t.Helper()
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for text := range strings.Lines(string(b)) {
			var l Line
			if err := json.Unmarshal([]byte(text), &l); err != nil || !strings.HasSuffix(text, "\n") {
				t.Fatalf("line %q of %s is not complete: %v", text, file, err)
			}
			out = append(out, l)
		}
	}
	return out
}

func TestRecord_Line(t *testing.T) {
	l := start(t, Config{WhenFull: Refuse})
	op := tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc2", Node: "joe"}
	via := tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc2", Node: "srv2"}
	for _, tt := range []struct {
		call    *policy.Call
		err     error
		outcome string
		reason  string
	}{
		{&policy.Call{Caller: policy.Caller{Peer: op, Via: via}, Forwarder: via, Method: "m", Target: "srv3", Addr: "192.0.2.1:1"}, nil, OK, ""},
		{&policy.Call{}, fmt.Errorf("%w: operators of dc2 may not", resource.ErrDenied), Denied, "operators of dc2 may not"},
		{&policy.Call{}, status.Error(codes.PermissionDenied, "not allowed: no"), Denied, "no"},
		// The text of another error may have a value.
		{&policy.Call{}, fmt.Errorf("%w data: secret", resource.ErrInvalid), Failed, "INVALID"},
		{&policy.Call{}, resource.StatusError(fmt.Errorf("%w: secret", resource.ErrConflict)), Failed, "CONFLICT"},
		{&policy.Call{}, status.Error(codes.FailedPrecondition, "secret"), Failed, "FailedPrecondition"},
		{&policy.Call{}, errors.New("secret"), Failed, "Unknown"},
	} {
		if err := l.engine.Record(t.Context(), tt.call, tt.err); err != nil {
			t.Fatal(err)
		}
		l.await(t, func() bool { return len(l.queueCopy()) == 0 })
		lines := read(t, l.cfg.File)
		got := lines[len(lines)-1]
		if got.Outcome != tt.outcome || got.Reason != tt.reason {
			t.Errorf("line for %v = %s %q, want %s %q", tt.err, got.Outcome, got.Reason, tt.outcome, tt.reason)
		}
	}
	first := read(t, l.cfg.File)[0]
	if *first.Caller != (Peer{"operator", "dc2", "joe"}) || *first.Via != (Peer{"server", "dc2", "srv2"}) || first.Target != "srv3" ||
		first.Address != "192.0.2.1:1" || first.Forwarder == nil || first.Datacenter != "dc1" || first.Node != "srv1" {
		t.Errorf("first line = %+v, want the caller, its servers, the target and the address", first)
	}
	if info, err := os.Stat(l.cfg.File); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file = %v, %v, want 0600", info.Mode(), err)
	}
}

func (l *Log) queueCopy() []entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]entry(nil), l.queue...)
}

func (l *trail) await(t testing.TB, cond func() bool) {
	t.Helper()
	testutil.Eventually(t, 10*time.Second, cond, "the audit log has all lines")
}

// TestRecord_Concurrent proves that each acknowledged write has one line, in the
// order of the times, over several rotations.
func TestRecord_Concurrent(t *testing.T) {
	const callers, each = 8, 50
	l := start(t, Config{WhenFull: Refuse, MaxSize: 8 << 10, Keep: 100})
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				if err := l.write(fmt.Sprintf("%d-%d", c, i)); err != nil {
					t.Errorf("write() = %v, want nil", err)
				}
			}
		})
	}
	wg.Wait()
	l.stop()
	files, err := rotated(l.cfg.File)
	if err != nil || len(files) < 3 {
		t.Fatalf("rotated files = %v, %v, want 3 or more", files, err)
	}
	lines, seen := read(t, append(files, l.cfg.File)...), map[string]bool{}
	for i, line := range lines {
		if seen[line.Method] || i > 0 && line.Time.Before(lines[i-1].Time) {
			t.Errorf("line %d = %+v, want one line for each write, in order", i, line)
		}
		seen[line.Method] = true
	}
	if len(lines) != callers*each {
		t.Errorf("lines = %d, want %d", len(lines), callers*each)
	}
}

// TestRotate_Keep proves that the newest rotated files stay, and files of other
// programs too.
func TestRotate_Keep(t *testing.T) {
	l := start(t, Config{WhenFull: Refuse, MaxSize: 1, Keep: 2})
	other := l.cfg.File + ".1.gz"
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		if err := l.write(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	l.stop()
	files, err := rotated(l.cfg.File)
	if err != nil || len(files) != 2 {
		t.Fatalf("rotated files = %v, %v, want 2", files, err)
	}
	lines := read(t, append(files, l.cfg.File)...)
	if len(lines) != 3 || lines[0].Method != "PUT /v1/kv/3" || lines[2].Method != "PUT /v1/kv/5" {
		t.Errorf("lines = %+v, want the newest 3", lines)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("file of another program = %v, want nil", err)
	}
}

// TestReopen proves that another program may rotate the file.
func TestReopen(t *testing.T) {
	l := start(t, Config{WhenFull: Refuse})
	if err := l.write("a"); err != nil {
		t.Fatal(err)
	}
	old := l.cfg.File + ".1"
	if err := os.Rename(l.cfg.File, old); err != nil {
		t.Fatal(err)
	}
	l.Reopen()
	l.await(t, func() bool { _, err := os.Stat(l.cfg.File); return err == nil })
	if err := l.write("b"); err != nil {
		t.Fatal(err)
	}
	if before, after := read(t, old), read(t, l.cfg.File); len(before) != 1 || len(after) != 1 || after[0].Method != "PUT /v1/kv/b" {
		t.Errorf("lines = %+v and %+v, want a and b", before, after)
	}
}

// TestOpen_CrashInLine proves that a line that a crash has cut off does not
// damage the next line.
func TestOpen_CrashInLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte("{\"time\":1}\n{\"tim"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := start(t, Config{WhenFull: Refuse, File: path})
	if err := l.write("a"); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	lines := strings.Split(string(b), "\n")
	if err != nil || len(lines) != 4 || lines[1] != `{"tim` || !strings.Contains(lines[2], "kv/a") || lines[3] != "" {
		t.Errorf("file = %q, %v, want the cut line and then the new one", b, err)
	}
}

// full starts a Log whose file is on a full disk. The returned function frees
// the disk.
func full(t testing.TB, whenFull string) (l *trail, free func()) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	if err := os.Symlink("/dev/full", path); err != nil {
		t.Fatal(err)
	}
	l = start(t, Config{WhenFull: whenFull, File: path})
	return l, func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		l.Reopen()
	}
}

// TestRefuse_FullDisk proves that writes are refused while the disk is full, that
// a write that met the full disk is not acknowledged, and that its line and the
// lines of denied calls follow.
func TestRefuse_FullDisk(t *testing.T) {
	t.Parallel()
	l, free := full(t, Refuse)
	if err := l.write("met"); !errors.Is(err, resource.ErrUnknownOutcome) {
		t.Errorf("write() that meets a full disk = %v, want ErrUnknownOutcome", err)
	}
	err := l.write("refused")
	if !errors.Is(err, resource.ErrReadOnly) || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "free space") {
		t.Errorf("write() on a full disk = %v, want ErrReadOnly and ENOSPC with a remedy", err)
	}
	for i := range 3 {
		l.deny(fmt.Sprint(i))
	}
	free()
	l.await(t, func() bool { return l.Stats().Err == nil && len(l.queueCopy()) == 0 })
	if err := l.write("after"); err != nil {
		t.Errorf("write() on a repaired disk = %v, want nil", err)
	}
	var got []string
	for _, line := range read(t, l.cfg.File) {
		got = append(got, line.Method)
	}
	if want := "[PUT /v1/kv/met GET /v1/kv/0 GET /v1/kv/1 GET /v1/kv/2 PUT /v1/kv/after]"; fmt.Sprint(got) != want {
		t.Errorf("lines = %v, want %s", got, want)
	}
	if st := l.Stats(); st.Refused != 1 || st.Written != 5 || st.Dropped != 0 {
		t.Errorf("Stats() = %+v, want 1 refused, 5 written", st)
	}
}

// TestRefuse_FullQueue proves that the queue is bounded: denied calls use at most
// half of it and then are counted, and writes are refused when it is full.
func TestRefuse_FullQueue(t *testing.T) {
	t.Parallel()
	l, free := full(t, Refuse)
	for i := range maxLines {
		l.deny(fmt.Sprint(i))
	}
	if got := len(l.queueCopy()); got > maxLines/2+1 {
		t.Errorf("queued lines of denied calls = %d, want %d at most", got, maxLines/2)
	}
	free()
	l.await(t, func() bool { return l.Stats().Err == nil && len(l.queueCopy()) == 0 })
	dropped, lines := uint64(0), 0
	for _, line := range read(t, l.cfg.File) {
		if line.Outcome == Dropped {
			dropped += line.Count
		} else {
			lines++
		}
	}
	if dropped != l.Stats().Dropped || dropped == 0 || lines+int(dropped) != maxLines {
		t.Errorf("lines = %d and %d dropped, want %d together, and %d dropped", lines, dropped, maxLines, l.Stats().Dropped)
	}
	reserved := 0
	for ; reserved <= maxLines && l.Reserve() == nil; reserved++ {
	}
	if reserved != maxLines {
		t.Errorf("reservations without an entry = %d, want %d", reserved, maxLines)
	}
}

// TestDrop_FullDisk proves that no write is refused or waits with Drop.
func TestDrop_FullDisk(t *testing.T) {
	t.Parallel()
	l, free := full(t, Drop)
	begin := time.Now()
	for i := range maxLines + 100 {
		if err := l.write(fmt.Sprint(i)); err != nil {
			t.Fatalf("write() = %v, want nil", err)
		}
	}
	if took := time.Since(begin); took > writeWait {
		t.Errorf("%d writes took %v, want less than %v", maxLines+100, took, writeWait)
	}
	free()
	l.await(t, func() bool { return l.Stats().Err == nil && len(l.queueCopy()) == 0 })
	if st := l.Stats(); st.Dropped < 99 || st.Refused != 0 {
		t.Errorf("Stats() = %+v, want 99 dropped or more, and none refused", st)
	}
}

// TestRun_Stop proves that the lines of the queue are written before Run ends.
func TestRun_Stop(t *testing.T) {
	l := start(t, Config{WhenFull: Drop})
	var n atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				l.deny("x")
				n.Add(1)
			}
		})
	}
	wg.Wait()
	l.stop()
	if got := len(read(t, l.cfg.File)); got != int(n.Load()) {
		t.Errorf("lines after Run = %d, want %d", got, n.Load())
	}
}

// BenchmarkRecord measures a call with a line: the write and, with Refuse, the
// wait until it is on the disk.
func BenchmarkRecord(b *testing.B) {
	for _, whenFull := range []string{Drop, Refuse} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/callers=%d", whenFull, callers), func(b *testing.B) {
				l := start(b, Config{WhenFull: whenFull, File: filepath.Join(b.TempDir(), "audit.log")})
				b.SetParallelism(callers)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if err := l.write("app/x"); err != nil {
							b.Error(err)
						}
					}
				})
				l.stop()
				b.ReportMetric(float64(l.Stats().Dropped), "dropped")
			})
		}
	}
}
