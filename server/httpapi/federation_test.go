// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/testutil"
)

func TestBlockingQuery(t *testing.T) {
	for _, tt := range []struct {
		name       string
		target     string
		min, max   time.Duration // until the response
		changeAt   time.Duration // time of a change; 0: no change
		changeTo   uint64
		wantIndex  string
		wantStatus int
	}{
		{name: "no index", target: "/v1/internal/federation-states", wantIndex: "22"},
		{name: "index 0", target: "/v1/internal/federation-states?index=0&wait=1m", wantIndex: "22"},
		{name: "older index", target: "/v1/internal/federation-states?index=21&wait=1m", wantIndex: "22"},
		{name: "index of a store before a restore", target: "/v1/internal/federation-states?index=23&wait=1m",
			wantIndex: "22"},
		{name: "wait", target: "/v1/internal/federation-states?index=22&wait=16s", min: 16 * time.Second,
			max: 17 * time.Second, wantIndex: "22"},
		{name: "default wait", target: "/v1/internal/federation-states/mesh-gateways?index=22", min: api.DefaultWait,
			max: api.MaxBlockTime(api.DefaultWait), wantIndex: "22"},
		{name: "longest wait", target: "/v1/internal/federation-state/dc2?index=22&wait=99h", min: api.MaxWait,
			max: api.MaxBlockTime(api.MaxWait), wantIndex: "22"},
		{name: "absent state", target: "/v1/internal/federation-state/dc9?index=22&wait=16s", min: 16 * time.Second,
			max: 17 * time.Second, wantIndex: "22", wantStatus: 404},
		{name: "change", target: "/v1/internal/federation-states?index=22&wait=1m", min: 3 * time.Second,
			max:      3 * time.Second,
			changeAt: 3 * time.Second, changeTo: 23, wantIndex: "23"},
		{name: "other endpoints do not block", target: "/v1/status/leader?index=22&wait=1m"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T) {
				cluster := newFakeCluster()
				h := newHandler(t, cluster)
				if tt.changeAt > 0 {
					defer time.AfterFunc(tt.changeAt, func() { cluster.set(tt.changeTo, state("dc7")) }).Stop()
				}
				start := time.Now()
				w := get(t.Context(), h, tt.target)
				if took := time.Since(start); took < tt.min || took > tt.max {
					t.Errorf("response after %v, want %v to %v", took, tt.min, tt.max)
				}
				if got := w.Header().Get(api.HeaderIndex); got != tt.wantIndex {
					t.Errorf("index = %s, want %s", got, tt.wantIndex)
				}
				if want := max(tt.wantStatus, 200); w.Code != want && tt.wantStatus != 0 {
					t.Errorf("status = %d, want %d", w.Code, want)
				}
				if tt.changeAt > 0 && !strings.Contains(w.Body.String(), "dc7") {
					t.Errorf("body = %s, want the state of dc7", w.Body)
				}
			})
		})
	}
}

func TestBlockingQuery_EndsWithContext(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		h := newHandler(t, newFakeCluster())
		ctx, cancel := context.WithCancel(t.Context())
		var w *httptest.ResponseRecorder
		go func() { w = get(ctx, h, "/v1/internal/federation-states?index=22") }()
		synctest.Wait()
		start := time.Now()
		cancel()
		synctest.Wait()
		if w == nil || time.Since(start) != 0 {
			t.Fatal("the request still blocks after its context ended, want an immediate response")
		}
		if w.Code != 503 || !strings.Contains(w.Body.String(), "this server is stopping") {
			t.Errorf("response = %d %s, want 503: this server is stopping", w.Code, w.Body)
		}
	})
}

func TestBlockingQuery_WaitFails(t *testing.T) {
	cluster := newFakeCluster()
	cluster.waitErr = errors.New("store is closed")
	w := get(t.Context(), newHandler(t, cluster), "/v1/internal/federation-states?index=22")
	if w.Code != 500 || w.Body.String() != "store is closed" {
		t.Errorf("response = %d %s, want 500 store is closed", w.Code, w.Body)
	}
}
