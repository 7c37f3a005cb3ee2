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
	"github.com/wanfed/wanfed/resource"
)

// opened is a watch of a client.
type opened struct {
	*testing.T
	resp *http.Response
	in   *bufio.Reader
}

func (g *rig) open(ctx context.Context, srv *httptest.Server, path string) *opened {
	g.Helper()
	req, err := http.NewRequestWithContext(ctx, "GET", srv.URL+path, nil)
	if err != nil {
		g.Fatal(err)
	}
	resp, err := srv.Client().Do(req)
	if err != nil {
		g.Fatal(err)
	}
	g.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		g.Fatalf("response to a watch = %s %v", resp.Status, resp.Header)
	}
	return &opened{g.T, resp, bufio.NewReader(resp.Body)}
}

// next checks the next event, whose data must contain text.
func (o *opened) next(event, text string) {
	o.Helper()
	var lines []string
	for {
		line, err := o.in.ReadString('\n')
		if err != nil {
			o.Fatalf("read of the next event = %v after %q", err, lines)
		}
		if line == "\n" {
			break
		}
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
	if len(lines) != 2 || lines[0] != "event: "+event || !strings.HasPrefix(lines[1], "data: ") || !strings.Contains(lines[1], text) {
		o.Errorf("event = %q, want %s with %s", lines, event, text)
	}
}

func TestWatch(t *testing.T) {
	g := newRig(t)
	g.one("PUT", web1, `{"data":{"address":"10.0.0.1"}}`)
	stopping, stop := context.WithCancel(context.Background())
	srv := httptest.NewUnstartedServer(g)
	srv.Config.BaseContext = func(net.Listener) context.Context { return stopping }
	srv.Start()
	defer srv.Close()
	defer stop()

	o := g.open(t.Context(), srv, "/api/catalog/v1/Node?watch")
	o.next("upsert", `"name":"web1"`)
	o.next("end-of-snapshot", "{}")
	g.one("PUT", web1, `{"data":{"address":"10.0.0.2"}}`)
	o.next("upsert", `"data":{"address":"10.0.0.2"}`)
	g.one("PUT", "/api/kv/v1/key/k", `{"data":{}}`) // another type
	g.do(204, "DELETE", web1, "")
	o.next("delete", `"name":"web1"`)

	// A restore ends the watch, and the last event has the remedy.
	var b strings.Builder
	if err := g.store.WriteSnapshot(&b); err != nil {
		t.Fatal(err)
	}
	other := g.open(t.Context(), srv, "/api/kv/v1/key?watch&prefix=k")
	other.next("upsert", `"name":"k"`)
	other.next("end-of-snapshot", "{}")
	if err := g.store.Restore(strings.NewReader(b.String())); err != nil {
		t.Fatal(err)
	}
	other.next("end", "watch was reset: watch again")
	if rest, err := io.ReadAll(other.in); err != nil || len(rest) > 0 {
		t.Errorf("read after the end = %q, %v, want EOF", rest, err)
	}
	o.next("end", "watch was reset: watch again")

	// The stop of the server ends it too.
	o = g.open(t.Context(), srv, "/api/catalog/v1/Node?watch")
	o.next("end-of-snapshot", "{}")
	stop()
	o.next("end", "this server is stopping")
	if _, err := o.in.ReadByte(); err != io.EOF {
		t.Errorf("read after the end = %v", err)
	}
}

// TestWatch_StalledClient checks that a watch ends when its client disconnects or
// does not read.
func TestWatch_StalledClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.one("PUT", web1, `{"data":{"address":"10.0.0.1"}}`)
		w := &slowWriter{header: http.Header{}, until: "end-of-snapshot"}
		began := time.Now()
		r := httptest.NewRequest("GET", "/api/catalog/v1/Node?watch", nil).WithContext(t.Context())
		g.ServeHTTP(w, r) // the client reads the snapshot, but not the heartbeat
		if d := time.Since(began); d != heartbeatInterval+watchTimeout {
			t.Errorf("watch ended after %v, want heartbeatInterval and watchTimeout", d)
		}
		if got := w.body.String(); strings.Count(got, "event: ") != 2 || strings.Contains(got, "heartbeat") {
			t.Errorf("stream = %q", got)
		}
	})
}

// slowWriter accepts writes until one contains a text. Later writes time out.
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

func TestWatch_Heartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		ctx, cancel := context.WithTimeout(t.Context(), 2*heartbeatInterval+time.Second)
		defer cancel()
		w := &slowWriter{header: http.Header{}, until: "nothing of the kind"}
		g.ServeHTTP(w, httptest.NewRequest("GET", "/api/catalog/v1/Node?watch", nil).WithContext(ctx))
		if got := w.body.String(); strings.Count(got, ": heartbeat\n\n") != 2 || !strings.HasSuffix(got, "use another server\"}\n\n") {
			t.Errorf("stream = %q", got)
		}
	})
}

// TestServiceClient checks that a client in the same process has the same stream
// rules as one with a connection.
func TestServiceClient(t *testing.T) {
	g := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := g.svc.Client().Read(ctx, &pb.ReadRequest{Id: resource.ID(nodeType, "a")}); StatusOf(err) != 403 {
		t.Errorf("call without a peer = %v, want PermissionDenied", err)
	}
	stream, err := g.svc.Client().WatchList(ctx, &pb.WatchListRequest{Type: nodeType})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); StatusOf(err) != 403 {
		t.Errorf("call without a peer = %v, want PermissionDenied", err)
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Errorf("read after the end = %v", err)
	}
	cancel()
	// A stream without Recv ends with its context; TestMain checks that.
	if _, err := g.svc.Client().WatchList(ctx, &pb.WatchListRequest{Type: nodeType}); err != nil {
		t.Fatal(err)
	}
}

// TestWrite_Election checks that a call waits for a leader for a limited time.
func TestWrite_Election(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		calls := 20
		g.client = func(string) (pb.ResourceServiceClient, error) { return electing{g.svc.Client(), &calls}, nil }
		began := time.Now()
		g.one("PUT", web1, `{"data":{"address":"x"}}`)
		if d := time.Since(began); d != 20*leaderInterval {
			t.Errorf("write took %v, want 20 tries", d)
		}
		calls = 1 << 20
		began = time.Now()
		g.fails(503, "commit: this server is not the leader", "PUT", web1, `{"data":{"address":"x"}}`)
		if d := time.Since(began); d != leaderTimeout {
			t.Errorf("write failed after %v, want leaderTimeout", d)
		}
	})
}
