// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/testutil"
)

const watchTarget = "http://localhost" + api.StatusPath + "?watch"

// changingCluster is a Cluster whose status changes.
type changingCluster struct {
	*fakeCluster
	mu sync.Mutex
	st api.Status
}

func (c *changingCluster) Status(ctx context.Context) (api.Status, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.st, ctx.Err()
}

// change sets the state and the age of the federation state of dc2.
func (c *changingCluster) change(state api.Health, age float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.st.Datacenters = []api.DatacenterStatus{{Name: "dc2", State: state, RecordAge: &age}}
}

// events is a response whose writes are server-sent events.
type events struct {
	header http.Header
	got    chan string
}

func (e *events) Header() http.Header         { return e.header }
func (e *events) WriteHeader(int)             {}
func (e *events) Flush()                      {}
func (e *events) Write(b []byte) (int, error) { e.got <- string(b); return len(b), nil }

// status returns the next event, which must be a status, and the time since start.
func (e *events) status(t *testing.T, start time.Time) (api.Status, time.Duration) {
	t.Helper()
	text, ok := strings.CutPrefix(<-e.got, "event: status\ndata: ")
	var st api.Status
	if err := json.Unmarshal([]byte(text), &st); !ok || err != nil || !strings.HasSuffix(text, "\n\n") {
		t.Fatalf("event = %q, %v, want a status", text, err)
	}
	return st, time.Since(start)
}

func TestWatchStatus(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		cluster := &changingCluster{fakeCluster: newFakeCluster()}
		cluster.change(api.HealthOK, 1)
		h := newHandler(t, cluster)
		ctx, cancel := context.WithCancel(t.Context())
		e := &events{http.Header{}, make(chan string)}
		done := make(chan struct{})
		start := time.Now()
		go func() {
			defer close(done)
			h.ServeHTTP(e, httptest.NewRequest("GET", watchTarget, nil).WithContext(ctx))
		}()
		if st, at := e.status(t, start); at != 0 || st.Datacenters[0].State != api.HealthOK || st.Components == nil {
			t.Errorf("first event = %+v after %v, want dc2 ok at once", st, at)
		}
		if got := e.header.Get("Content-Type"); got != "text/event-stream" {
			t.Errorf("content type = %q, want text/event-stream", got)
		}
		time.Sleep(time.Second)
		cluster.change(api.HealthUnreachable, 2)
		if st, at := e.status(t, start); at > time.Second+statusInterval || st.Datacenters[0].State != api.HealthUnreachable {
			t.Errorf("second event = %+v after %v, want dc2 unreachable within %v of the change", st, at, statusInterval)
		}
		changed := time.Now()
		cluster.change(api.HealthUnreachable, 3) // only an age changes
		if st, at := e.status(t, changed); at != statusRefresh || *st.Datacenters[0].RecordAge != 3 {
			t.Errorf("third event = %+v after %v, want the age after %v", st, at, statusRefresh)
		}
		cancel()
		if got := <-e.got; !strings.HasPrefix(got, "event: end\ndata: {\"error\":\"this server is stopping") {
			t.Errorf("last event = %q, want the end", got)
		}
		<-done
	})
}

func TestWatchStatus_Refused(t *testing.T) {
	h := newHandler(t, newFakeCluster())
	for target, method := range map[string]string{watchTarget + "=2": "GET", watchTarget: "HEAD"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, target, nil))
		if w.Code != http.StatusBadRequest {
			t.Errorf("%s %s = %d, want 400", method, target, w.Code)
		}
	}
}

// TestWatchStatus_Limit checks that the watches of one peer are bounded.
func TestWatchStatus_Limit(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		cluster := &changingCluster{fakeCluster: newFakeCluster()}
		h := newHandler(t, cluster)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range maxWatches {
			wg.Go(func() {
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", watchTarget, nil).WithContext(ctx))
			})
		}
		synctest.Wait()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", watchTarget, nil))
		if w.Code != http.StatusServiceUnavailable {
			t.Errorf("watch %d = %d %s, want 503", maxWatches+1, w.Code, w.Body)
		}
		cancel()
		wg.Wait()
	})
}
