// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// watchStream is the response to a watch.
type watchStream struct {
	*testing.T
	in *bufio.Reader
}

// open opens a watch.
func (f *fixture) open(ctx context.Context, srv *httptest.Server, path string) *watchStream {
	f.Helper()
	req, err := http.NewRequestWithContext(ctx, "GET", srv.URL+path, nil)
	if err != nil {
		f.Fatal(err)
	}
	resp, err := srv.Client().Do(req)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		f.Fatalf("GET %s = %s %v, want 200 and text/event-stream", path, resp.Status, resp.Header)
	}
	return &watchStream{f.T, bufio.NewReader(resp.Body)}
}

// next checks the next event, whose data must contain text.
func (s *watchStream) next(event, text string) {
	s.Helper()
	var lines []string
	for {
		line, err := s.in.ReadString('\n')
		if err != nil {
			s.Fatalf("read of the next event = %v after %q, want %s", err, lines, event)
		}
		if line == "\n" {
			break
		}
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
	if len(lines) != 2 || lines[0] != "event: "+event || !strings.HasPrefix(lines[1], "data: ") ||
		!strings.Contains(lines[1], text) {
		s.Errorf("event = %q, want %s with %s", lines, event, text)
	}
}

// TestWatch checks the events of a watch until a restore and until the server
// stops.
func TestWatch(t *testing.T) {
	f := newFixture(t)
	f.one("PUT", web1, `{"data":{"address":"10.0.0.1"}}`)
	stopping, stop := context.WithCancel(context.Background())
	srv := httptest.NewUnstartedServer(f)
	srv.Config.BaseContext = func(net.Listener) context.Context { return stopping }
	srv.Start()
	defer srv.Close()
	defer stop()

	nodes := f.open(t.Context(), srv, "/api/catalog/v1/Node?watch")
	nodes.next("upsert", `"name":"web1"`)
	nodes.next("end-of-snapshot", `{"index":2}`)
	f.one("PUT", web1, `{"data":{"address":"10.0.0.2"}}`)
	nodes.next("upsert", `"data":{"address":"10.0.0.2"}`)
	f.one("PUT", "/api/kv/v1/key/k", `{"data":{}}`) // another type
	f.do(204, "DELETE", web1, "")
	nodes.next("delete", `"name":"web1"`)

	// A restore ends all watches.
	var b strings.Builder
	if err := f.store.WriteSnapshot(&b); err != nil {
		t.Fatal(err)
	}
	keys := f.open(t.Context(), srv, "/api/kv/v1/key?watch&prefix=k")
	keys.next("upsert", `"name":"k"`)
	keys.next("end-of-snapshot", `{"index":4}`)
	if err := f.store.Restore(strings.NewReader(b.String())); err != nil {
		t.Fatal(err)
	}
	keys.next("end", "watch was reset: watch again")
	if rest, err := io.ReadAll(keys.in); err != nil || len(rest) > 0 {
		t.Errorf("read after the end = %q, %v, want EOF", rest, err)
	}
	nodes.next("end", "watch was reset: watch again")

	// A watch ends when the server stops.
	nodes = f.open(t.Context(), srv, "/api/catalog/v1/Node?watch")
	nodes.next("end-of-snapshot", `{"index":5}`) // of the deletion
	stop()
	nodes.next("end", "this server is stopping")
	if _, err := nodes.in.ReadByte(); err != io.EOF {
		t.Errorf("read after the end = %v, want EOF", err)
	}
}

// TestWatch_StalledClient checks that a watch ends when a write to its client
// times out. slowWriter replaces the connection.
func TestWatch_StalledClient(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.one("PUT", web1, `{"data":{"address":"10.0.0.1"}}`)
		w := &slowWriter{header: http.Header{}, until: "end-of-snapshot"}
		began := time.Now()
		r := httptest.NewRequest("GET", "/api/catalog/v1/Node?watch", nil).WithContext(t.Context())
		f.ServeHTTP(w, r) // the client reads the snapshot, but not the heartbeat
		if d := time.Since(began); d != heartbeatInterval+watchTimeout {
			t.Errorf("watch ended after %v, want %v", d, heartbeatInterval+watchTimeout)
		}
		if got := w.body.String(); strings.Count(got, "event: ") != 2 || strings.Contains(got, "heartbeat") {
			t.Errorf("stream = %q, want 2 events and no heartbeat", got)
		}
	})
}

// slowWriter accepts writes until the body contains a text. Later writes time
// out.
type slowWriter struct {
	header   http.Header
	body     strings.Builder
	until    string
	deadline time.Time
}

func (w *slowWriter) Header() http.Header { return w.header }
func (w *slowWriter) WriteHeader(int)     {}
func (w *slowWriter) Flush()              {}

func (w *slowWriter) SetWriteDeadline(t time.Time) error {
	w.deadline = t
	return nil
}

func (w *slowWriter) Write(b []byte) (int, error) {
	if strings.Contains(w.body.String(), w.until) {
		time.Sleep(time.Until(w.deadline))
		return 0, context.DeadlineExceeded
	}
	return w.body.Write(b)
}

// TestWatch_Heartbeats checks the comments of a watch without events.
func TestWatch_Heartbeats(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, cancel := context.WithTimeout(t.Context(), 2*heartbeatInterval+time.Second)
		defer cancel()
		w := &slowWriter{header: http.Header{}, until: "text that no event has"}
		f.ServeHTTP(w, httptest.NewRequest("GET", "/api/catalog/v1/Node?watch", nil).WithContext(ctx))
		if got := w.body.String(); strings.Count(got, ": heartbeat\n\n") != 2 ||
			!strings.HasSuffix(got, "use another server\"}\n\n") {
			t.Errorf("stream = %q, want 2 heartbeats and an end", got)
		}
	})
}

// TestServiceClient checks that resource.Service.Client returns errors and ends
// streams like a client with a connection.
func TestServiceClient(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := f.svc.Client().Read(ctx, &pb.ReadRequest{Id: resource.ID(nodeType, "a")}); StatusOf(err) != 403 {
		t.Errorf("Read() without a peer = %v, want PermissionDenied", err)
	}
	stream, err := f.svc.Client().WatchList(ctx, &pb.WatchListRequest{Type: nodeType})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); StatusOf(err) != 403 {
		t.Errorf("Recv() without a peer = %v, want PermissionDenied", err)
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Errorf("Recv() after the error = %v, want EOF", err)
	}
	cancel()
	// A stream without Recv ends with its context; TestMain checks that.
	if _, err := f.svc.Client().WatchList(ctx, &pb.WatchListRequest{Type: nodeType}); err != nil {
		t.Fatal(err)
	}
}

// TestWrite_Election checks that a write waits for a leader, for a bounded
// time.
func TestWrite_Election(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFixture(t)
		writes := 20
		f.client = func(string) (pb.ResourceServiceClient, error) {
			return leaderlessClient{f.svc.Client(), &writes}, nil
		}
		began := time.Now()
		f.one("PUT", web1, `{"data":{"address":"x"}}`)
		if d := time.Since(began); d != 20*leaderInterval {
			t.Errorf("PUT with 20 attempts took %v, want %v", d, 20*leaderInterval)
		}
		writes = 1 << 20
		began = time.Now()
		f.fails(503, "commit: this server is not the leader", "PUT", web1, `{"data":{"address":"x"}}`)
		if d := time.Since(began); d != leaderTimeout {
			t.Errorf("PUT without a leader failed after %v, want %v", d, leaderTimeout)
		}
	})
}

// TestWatch_IdleHasNoDeadline: HTTP/2 resets a stream whose write deadline has
// passed, although nothing is written. The writer replaces the connection.
func TestWatch_IdleHasNoDeadline(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.one("PUT", web1, `{"data":{"address":"10.0.0.1"}}`)
		ctx, cancel := context.WithCancel(t.Context())
		w := &slowWriter{header: http.Header{}, until: "text that no event has"}
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.ServeHTTP(w, httptest.NewRequest("GET", "/api/catalog/v1/Node?watch", nil).WithContext(ctx))
		}()
		time.Sleep(heartbeatInterval - time.Second) // longer than watchTimeout
		synctest.Wait()
		if !w.deadline.IsZero() {
			t.Errorf("write deadline of an idle watch = %v, want none", w.deadline)
		}
		cancel()
		<-done
	})
}
