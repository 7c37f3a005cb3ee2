// SPDX-License-Identifier: MPL-2.0

package state

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
)

// newBackend returns a Backend that listens on the loopback and does not run.
func newBackend(t testing.TB, s *Store, dir string) *Backend {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	b, err := NewBackend(BackendConfig{Store: s, Listener: ln, Dir: dir})
	if err != nil {
		t.Fatalf("NewBackend() = %v, want nil", err)
	}
	return b
}

// start runs b until the test ends.
func start(t testing.TB, b *Backend) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

// request returns a request of Terraform with the environment of a run.
func request(t testing.TB, env map[string]string, method, query string, body []byte) *http.Request {
	t.Helper()
	r, err := http.NewRequest(method, env["TF_HTTP_ADDRESS"]+query, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.SetBasicAuth(env["TF_HTTP_USERNAME"], env["TF_HTTP_PASSWORD"])
	return r
}

// do sends a request to a running Backend.
func do(t testing.TB, r *http.Request) (int, string) {
	t.Helper()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// lockJSON returns a lock as Terraform sends it.
func lockJSON(id string) []byte {
	return fmt.Appendf(nil, `{"ID":%q,"Operation":"OperationTypeApply","Info":"","Who":"root@host","Version":"1.11.4",`+
		`"Created":"2026-11-26T10:00:00Z","Path":""}`, id)
}

func TestBackend_Requests(t *testing.T) {
	s := newStore(t, newServer(t))
	c := mustClaim(t, s, 1)
	b := newBackend(t, s, t.TempDir())
	start(t, b)
	env, end := b.Open(t.Context(), c, "r1")
	operator := newBackend(t, s, t.TempDir())
	start(t, operator)
	person, endOperator := operator.Open(t.Context(), Claim{Task: "web"}, "")
	defer endOperator()
	state, next := tfstate(1, "a"), tfstate(2, "b")
	for i, step := range []struct {
		env           map[string]string
		method, query string
		body          []byte
		status        int
		want          string
	}{
		{env, "GET", "", nil, 404, "task web has no state"},
		{env, "UNLOCK", "", lockJSON("x"), 200, ""},
		{env, "POST", "?ID=x", state, 409, "not locked any more by lock x"},
		{env, "LOCK", "", lockJSON("x"), 200, ""},
		{env, "LOCK", "", lockJSON("x"), 200, ""},
		{env, "LOCK", "", lockJSON("y"), 423, `"ID":"x: the state of task web is locked by run r1`},
		{person, "LOCK", "", lockJSON("p"), 423, `"Who":"root@host"`},
		{person, "POST", "", state, 423, "locked by run r1"},
		{person, "POST", "?ID=p", state, 409, "locked by run r1"},
		{env, "POST", "?ID=x", state, 200, ""},
		{env, "POST", "?ID=x", state, 200, ""},
		{env, "GET", "", nil, 200, string(state)},
		{env, "UNLOCK", "", lockJSON("y"), 423, "locked by run r1"},
		{env, "UNLOCK", "", lockJSON("x"), 200, ""},
		{person, "LOCK", "", lockJSON("p"), 200, ""},
		{env, "LOCK", "", lockJSON("x"), 423, `"ID":"p: `},
		{person, "POST", "?ID=p", next, 200, ""},
		{person, "UNLOCK", "", lockJSON("p"), 200, ""},
		{env, "POST", "", []byte("{}"), 400, "invalid state"},
		{env, "LOCK", "", []byte("{}"), 400, "a lock with an ID"},
		{env, "LOCK", "", []byte(""), 400, "a lock with an ID"},
		{env, "LOCK", "", lockJSON(noise(maxLock)), 413, "more than 65536 bytes"},
		{env, "POST", "", make([]byte, MaxSize+1), 413, "more than 67108864 bytes"},
		{env, "DELETE", "", nil, 405, "must be GET, POST, LOCK or UNLOCK"},
		{env, "GET", "", nil, 200, string(next)},
	} {
		code, body := do(t, request(t, step.env, step.method, step.query, step.body))
		if code != step.status || !strings.Contains(body, step.want) {
			t.Errorf("step %d: %s %s = %d %.200s, want %d %.200s", i, step.method, step.query, code, body, step.status, step.want)
		}
	}
	st, err := s.Read(t.Context(), "web")
	if err != nil || len(st.Versions) != 2 || st.Versions[1].Run != "r1" || st.Versions[0].Run != "" {
		t.Errorf("Read() = %v, %v, want a version of r1 and one of an operator", st, err)
	}
	do(t, request(t, env, "LOCK", "", lockJSON("x")))
	end()
	do(t, request(t, person, "LOCK", "", lockJSON("p")))
	endOperator()
	if st, err = s.Read(t.Context(), "web"); err != nil || st.Lock.GetId() != "p" {
		t.Errorf("lock after the ends = %v, %v, want that of the operator", st.GetLock(), err)
	}
	if code, _ := do(t, request(t, env, "GET", "", nil)); code != 401 {
		t.Errorf("GET after the end of the run = %d, want 401", code)
	}
}

func TestBackend_Password(t *testing.T) {
	s := newStore(t, newServer(t))
	b := newBackend(t, s, t.TempDir())
	start(t, b)
	env, end := b.Open(t.Context(), mustClaim(t, s, 1), "r1")
	defer end()
	other, endOther := b.Open(t.Context(), Claim{Task: "db", Instance: "d", Epoch: 1}, "r2")
	defer endOther()
	for name, test := range map[string]struct {
		change func(r *http.Request)
		want   int
	}{
		"right":           {func(*http.Request) {}, 404},
		"none":            {func(r *http.Request) { r.Header.Del("Authorization") }, 401},
		"empty":           {func(r *http.Request) { r.SetBasicAuth("wanfed", "") }, 401},
		"prefix":          {func(r *http.Request) { r.SetBasicAuth("wanfed", env["TF_HTTP_PASSWORD"][:10]) }, 401},
		"of another task": {func(r *http.Request) { r.SetBasicAuth("wanfed", other["TF_HTTP_PASSWORD"]) }, 401},
		"unknown task":    {func(r *http.Request) { r.URL.Path = "/none" }, 401},
		"no task":         {func(r *http.Request) { r.URL.Path = "/" }, 401},
		"other name":      {func(r *http.Request) { r.Host = "evil.example" }, 403},
		"other port":      {func(r *http.Request) { r.Host = "127.0.0.1:1" }, 403},
		"localhost":       {func(r *http.Request) { r.Host = "localhost" + b.host[strings.Index(b.host, ":"):] }, 403},
	} {
		r := request(t, env, "GET", "", nil)
		test.change(r)
		if code, body := do(t, r); code != test.want {
			t.Errorf("%s: GET = %d %s, want %d", name, code, body, test.want)
		}
	}
	again, endAgain := b.Open(t.Context(), claimOf(1), "r3")
	defer endAgain()
	if again["TF_HTTP_PASSWORD"] == env["TF_HTTP_PASSWORD"] {
		t.Error("Open() of another run has the same password")
	}
	if code, _ := do(t, request(t, env, "GET", "", nil)); code != 401 {
		t.Errorf("GET of the run before = %d, want 401", code)
	}
	end() // of the run before: the present one keeps its access
	if code, _ := do(t, request(t, again, "GET", "", nil)); code != 404 {
		t.Errorf("GET of the present run = %d, want 404", code)
	}
}

func TestNewBackend_Invalid(t *testing.T) {
	ln, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	s := newStore(t, newServer(t))
	for want, cfg := range map[string]BackendConfig{
		"must be a TCP port of the loopback": {Store: s, Listener: ln, Dir: "d"},
		"are required":                       {Store: s, Listener: ln},
	} {
		if _, err := NewBackend(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewBackend() = %v, want %q", err, want)
		}
	}
}

// TestBackend_TruncatedBody checks that a state whose sender dies is not stored.
func TestBackend_TruncatedBody(t *testing.T) {
	s := newStore(t, newServer(t))
	b := newBackend(t, s, t.TempDir())
	start(t, b)
	env, end := b.Open(t.Context(), mustClaim(t, s, 1), "r1")
	r := request(t, env, "POST", "", tfstate(1, "a"))
	r.ContentLength += 10
	r.Body = io.NopCloser(io.MultiReader(r.Body, errReader{}))
	if resp, err := http.DefaultClient.Do(r); err == nil {
		t.Errorf("POST of a truncated body = %s, want no response", resp.Status)
	}
	end() // waits for the request
	if st, err := s.Read(t.Context(), "web"); err != nil || len(st.Versions) != 0 {
		t.Errorf("Read() = %v, %v, want no version", st, err)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("killed") }

// serve calls the handler of b.
func serve(ctx context.Context, b *Backend, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	b.serve(ctx, w, r)
	return w
}

// TestBackend_SenderKilled checks that a complete state is stored although its
// sender does not wait for the response.
func TestBackend_SenderKilled(t *testing.T) {
	s := newStore(t, newServer(t))
	b := newBackend(t, s, t.TempDir())
	env, end := b.Open(t.Context(), mustClaim(t, s, 1), "r1")
	defer end()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	serve(t.Context(), b, request(t, env, "POST", "", tfstate(1, "a")).WithContext(ctx))
	if got := get(t, s, 0); !bytes.Equal(got, tfstate(1, "a")) {
		t.Errorf("Get() = %s, want the state", got)
	}
}

// files returns the files of a directory with a suffix.
func files(t testing.TB, dir, suffix string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func TestBackend_Replaced(t *testing.T) {
	s := newStore(t, newServer(t))
	dir := t.TempDir()
	b := newBackend(t, s, dir)
	env, end := b.Open(t.Context(), mustClaim(t, s, 1), "r1")
	serve(t.Context(), b, request(t, env, "LOCK", "", lockJSON("x")))
	now := mustClaim(t, s, 2)
	w := serve(t.Context(), b, request(t, env, "POST", "?ID=x", tfstate(1, "a")))
	kept := files(t, dir, keptSuffix)
	if w.Code != 409 || len(kept) != 1 || !strings.Contains(w.Body.String(), kept[0]) ||
		!strings.Contains(w.Body.String(), "daemon2 has the task now") {
		t.Fatalf("POST = %d %s with files %q, want 409, the daemon and the file", w.Code, w.Body, kept)
	}
	name, data, err := OpenJournal(kept[0], s.cfg.KeyFile)
	if err != nil || name != "web" || !bytes.Equal(data, tfstate(1, "a")) {
		t.Errorf("OpenJournal() = %s, %s, %v, want the state", name, data, err)
	}
	w = serve(t.Context(), b, request(t, env, "LOCK", "", lockJSON("z")))
	var info lockInfo
	if err := json.Unmarshal(w.Body.Bytes(), &info); err != nil || w.Code != 409 || !strings.Contains(info.ID, "daemon2") {
		t.Errorf("LOCK = %d %s, want 409 and the daemon", w.Code, w.Body)
	}
	end()
	if st, err := s.Read(t.Context(), "web"); err != nil || st.Lock.GetId() != "x" || len(st.Versions) != 0 {
		t.Errorf("Read() = %v, %v, want the lock and no version", st, err)
	}
	// The lock of the replaced daemon does not hold back the present one.
	env, end = b.Open(t.Context(), now, "r2")
	defer end()
	if w = serve(t.Context(), b, request(t, env, "LOCK", "", lockJSON("y"))); w.Code != 200 {
		t.Errorf("LOCK of the present daemon = %d %s, want 200", w.Code, w.Body)
	}
}

// away makes the writes of s fail until the returned time.
func (s *server) away(d time.Duration) (until time.Time) {
	until = time.Now().Add(d)
	s.before = func(*pb.Type) error {
		if time.Now().Before(until) {
			return status.Error(codes.Unavailable, "connection refused")
		}
		return nil
	}
	return until
}

func TestBackend_ServersAway(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		srv := newServer(t)
		s := newStore(t, srv)
		dir := filepath.Join(t.TempDir(), "states")
		b := newBackend(t, s, dir)
		env, end := b.Open(t.Context(), mustClaim(t, s, 1), "r1")
		defer end()
		back := srv.away(40 * time.Second)
		go func() {
			time.Sleep(10 * time.Second)
			content, err := os.ReadFile(b.journalPath("web"))
			if err != nil || len(content) == 0 || bytes.Contains(content, []byte("secret")) {
				t.Errorf("the file has %d bytes, %v, want encrypted content", len(content), err)
			}
			if info, err := os.Stat(b.journalPath("web")); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("mode of the file = %v, %v, want 0600", info, err)
			}
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("mode of the directory = %v, %v, want 0700", info, err)
			}
		}()
		w := serve(t.Context(), b, request(t, env, "POST", "", tfstate(1, "secret")))
		if late := time.Since(back); w.Code != 200 || late < 0 || late > 2*maxPause {
			t.Errorf("POST = %d %s, %v after the servers were back, want 200 after at most %v", w.Code, w.Body, late, 2*maxPause)
		}
		if left := files(t, dir, ""); len(left) != 0 {
			t.Errorf("files after the state was stored = %q, want none", left)
		}
		if got := get(t, s, 0); !bytes.Equal(got, tfstate(1, "secret")) {
			t.Errorf("Get() = %s, want the state", got)
		}
	})
}

// TestBackend_ServersAwayLong checks that a state is stored although no server
// responded within the time for which Terraform waits.
func TestBackend_ServersAwayLong(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		srv := newServer(t)
		s := newStore(t, srv)
		b := newBackend(t, s, t.TempDir())
		env, end := b.Open(t.Context(), mustClaim(t, s, 1), "r1")
		defer end()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go b.deliverAll(ctx)
		start := time.Now()
		back := srv.away(5 * time.Minute)
		w := serve(ctx, b, request(t, env, "POST", "", tfstate(1, "a")))
		if d := time.Since(start); w.Code != 503 || d < holdTime || d > holdTime+maxPause {
			t.Errorf("POST = %d %s after %v, want 503 after %v", w.Code, w.Body, d, holdTime)
		}
		time.Sleep(time.Until(back) + 2*maxPause)
		synctest.Wait()
		if got := get(t, s, 0); !bytes.Equal(got, tfstate(1, "a")) {
			t.Errorf("Get() = %s, want the state", got)
		}
		if left := files(t, b.cfg.Dir, ""); len(left) != 0 {
			t.Errorf("files after the state was stored = %q, want none", left)
		}
	})
}

// TestBackend_Interrupted reads the state while no server responds. A response
// arrives soon after the interruption of the run, so Terraform can write its state
// to a file before it is killed.
func TestBackend_Interrupted(t *testing.T) {
	for _, method := range []string{"GET", "LOCK"} {
		testutil.Bubble(t, func(t *testing.T) {
			srv := newServer(t)
			s := newStore(t, srv)
			b := newBackend(t, s, t.TempDir())
			run, interrupt := context.WithCancel(t.Context())
			env, end := b.Open(run, mustClaim(t, s, 1), "r1")
			defer end()
			defer srv.unreadable.Store(false)
			srv.unreadable.Store(true)
			start := time.Now()
			const after = 10 * time.Second
			time.AfterFunc(after, interrupt)
			w := serve(t.Context(), b, request(t, env, method, "", lockJSON("x")))
			if d := time.Since(start); w.Code != 503 || d != after+interruptedTime {
				t.Errorf("%s = %d %s after %v, want 503 after %v", method, w.Code, w.Body, d, after+interruptedTime)
			}
		})
	}
}

// pending returns a store and a directory with a pending state of epoch 1.
func pending(t *testing.T) (srv *server, s *Store, dir string) {
	srv = newServer(t)
	s = newStore(t, srv)
	dir = t.TempDir()
	c := mustClaim(t, s, 1)
	put(t, s, c, tfstate(1, "a"))
	b := newBackend(t, s, dir)
	if err := b.writeJournal(upload{claim: c, run: "r1", data: tfstate(2, "b")}); err != nil {
		t.Fatal(err)
	}
	return srv, s, dir
}

func TestReplay_NextStart(t *testing.T) {
	_, s, dir := pending(t)
	b := newBackend(t, s, dir)
	for range 2 {
		if err := b.Replay(t.Context()); err != nil {
			t.Errorf("Replay() = %v, want nil", err)
		}
	}
	st, err := s.Read(t.Context(), "web")
	if err != nil || !bytes.Equal(get(t, s, 0), tfstate(2, "b")) || st.Versions[0].Run != "r1" || len(files(t, dir, "")) != 0 {
		t.Errorf("after Replay(): %v, %v, files %q, want the state of run r1 and no files", st, err, files(t, dir, ""))
	}
}

// TestReplay_BeforeNextRun checks that the next run does not read the state
// before the pending one.
func TestReplay_BeforeNextRun(t *testing.T) {
	_, s, dir := pending(t)
	b := newBackend(t, s, dir)
	env, end := b.Open(t.Context(), claimOf(1), "r2")
	defer end()
	if w := serve(t.Context(), b, request(t, env, "GET", "", nil)); w.Body.String() != string(tfstate(2, "b")) {
		t.Errorf("GET = %d %s, want the pending state", w.Code, w.Body)
	}
}

func TestReplay_Kept(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, s *Store, dir string)
		want   string
	}{
		"replaced": {func(t *testing.T, s *Store, _ string) { mustClaim(t, s, 2) }, "daemon2 has the task now"},
		"newer state": {func(t *testing.T, s *Store, _ string) { put(t, s, claimOf(1), tfstate(2, "c")) },
			"version 2 with serial 2 was stored since"},
		"locked by an operator": {func(t *testing.T, s *Store, _ string) { lock(t, s, claimOf(1), "x", "") },
			"locked by a command of root@host"},
		"damaged": {func(t *testing.T, _ *Store, dir string) {
			if err := os.Truncate(filepath.Join(dir, "web"+journalSuffix), 100); err != nil {
				t.Fatal(err)
			}
		}, "it is damaged"},
	} {
		_, s, dir := pending(t)
		test.change(t, s, dir)
		b := newBackend(t, s, dir)
		err := b.Replay(t.Context())
		kept := files(t, dir, keptSuffix)
		if err == nil || len(kept) != 1 || !strings.Contains(err.Error(), kept[0]) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: Replay() = %v with files %q, want %q and the file", name, err, kept, test.want)
		}
		if err := b.Replay(t.Context()); err != nil {
			t.Errorf("%s: second Replay() = %v, want nil", name, err)
		}
	}
}

// TestBackend_EndWaits checks that the end of a run waits for the state that its
// killed processes have sent.
func TestBackend_EndWaits(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		srv := newServer(t)
		s := newStore(t, srv)
		b := newBackend(t, s, t.TempDir())
		env, end := b.Open(t.Context(), mustClaim(t, s, 1), "r1")
		srv.away(30 * time.Second)
		go serve(t.Context(), b, request(t, env, "POST", "", tfstate(1, "a")))
		synctest.Wait()
		end()
		if got := get(t, s, 0); !bytes.Equal(got, tfstate(1, "a")) {
			t.Errorf("Get() after the end of the run = %s, want the state", got)
		}
	})
}

// TestBackend_StopWhileHeld checks that a Backend which stops leaves the state
// in its file.
func TestBackend_StopWhileHeld(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		srv := newServer(t)
		s := newStore(t, srv)
		b := newBackend(t, s, t.TempDir())
		env, end := b.Open(t.Context(), mustClaim(t, s, 1), "r1")
		srv.away(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel) // before the file is written anyway
		if w := serve(ctx, b, request(t, env, "POST", "", tfstate(1, "a"))); w.Code != 503 {
			t.Errorf("POST = %d, want 503", w.Code)
		}
		if n := len(files(t, b.cfg.Dir, journalSuffix)); n != 1 {
			t.Errorf("%d files, want 1", n)
		}
		start := time.Now()
		end()
		if d := time.Since(start); d > closeTimeout {
			t.Errorf("the end took %v, want at most %v", d, closeTimeout)
		}
	})
}

// FuzzBackend sends requests without the right password: the state stays.
func FuzzBackend(f *testing.F) {
	s := newStore(f, newServer(f))
	c := claimOf(1)
	if _, err := s.Claim(context.Background(), c); err != nil {
		f.Fatal(err)
	}
	b := newBackend(f, s, f.TempDir())
	env, _ := b.Open(context.Background(), c, "r1")
	f.Add("POST", "/web", "ID=x", "Basic d2FuZmVkOg==", []byte(tfstate(1, "a")), false)
	f.Add("LOCK", "/web", "", "", lockJSON("x"), true)
	f.Add("UNLOCK", "/web", "", "Basic", lockJSON("x"), true)
	f.Fuzz(func(t *testing.T, method, path, query, auth string, body []byte, right bool) {
		r, err := http.NewRequest(method, "http://"+b.host, bytes.NewReader(body))
		if err != nil {
			return
		}
		r.URL.Path, r.URL.RawQuery = path, query
		if r.Header.Set("Authorization", auth); right {
			r.URL.Path = "/web"
			r.SetBasicAuth("wanfed", env["TF_HTTP_PASSWORD"])
		}
		w := serve(t.Context(), b, r)
		if !right && w.Code != 401 {
			t.Errorf("%s %s = %d, want 401", method, path, w.Code)
		}
		if right && w.Code == 500 {
			t.Errorf("%s = 500 %s", method, w.Body)
		}
	})
}

// FuzzJournal reads a damaged file. The result is the state or an error.
func FuzzJournal(f *testing.F) {
	s := newStore(f, newServer(f))
	b := newBackend(f, s, f.TempDir())
	u := upload{claim: claimOf(1), run: "r1", lock: "x", data: tfstate(2, "b")}
	if err := b.writeJournal(u); err != nil {
		f.Fatal(err)
	}
	content, err := os.ReadFile(b.journalPath("web"))
	if err != nil {
		f.Fatal(err)
	}
	keys := mustKeys(f, line("k1", 1))
	f.Add(content)
	f.Add(content[:50])
	f.Fuzz(func(t *testing.T, content []byte) {
		got, err := decodeJournal(content, keys)
		if err == nil && !bytes.Equal(got.data, u.data) {
			t.Errorf("decodeJournal() = %s, want the state or an error", got.data)
		}
	})
}
