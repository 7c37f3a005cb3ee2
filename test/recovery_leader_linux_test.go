// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
)

// TestLeaderKilled_FollowerWrites makes sequential writes at followers, by gRPC
// and by HTTP, while the leader is killed and restarted. Writes that were not
// sent to the leader wait for the next leader. Only a write that was in flight
// to the leader may fail, so each writer may have one failure.
func TestLeaderKilled_FollowerWrites(t *testing.T) {
	parallelUnlessChaos(t)
	l := lab.New(t)
	dc := l.Add(3, 1)
	dc.Start()
	awaitWhole(t, l, 30*time.Second, "start")
	leader := leaderOf(t, dc)
	f := &documentWriters{t: t, l: l}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := &sequentialWriters{t: t, done: make(chan struct{}), failed: map[string][]error{}}
	for _, s := range slices.DeleteFunc(slices.Clone(dc.Servers), func(s *lab.Node) bool { return s == leader }) {
		c := f.operator(s)
		w.start("gRPC at "+s.Name, func(n int) error {
			_, err := c.Write(ctx, &pb.WriteRequest{Resource: f.doc("d-"+s.Name, n)})
			return err
		})
		client := f.httpClient(s)
		w.start("HTTP at "+s.Name, func(n int) error { return putHTTP(ctx, client, "k-"+s.Name, n) })
	}
	kill := make(chan struct{})
	go func() { w.going.Wait(); close(kill) }()
	select {
	case <-kill:
	case <-ctx.Done():
		t.Fatal("some writer made fewer than 20 writes within a minute")
	}
	leader.Kill()
	testutil.Await(t, 20*time.Second, "another leader", func(ctx context.Context) error {
		for _, s := range dc.Servers {
			var addr string
			if s == leader {
				continue
			}
			if err := s.Get(ctx, "/v1/status/leader", &addr); err != nil || addr == "" || addr == leader.ServerAddr() {
				return fmt.Errorf("%s reports leader %q, %v", s.Name, addr, err)
			}
		}
		return nil
	})
	leader.StartServer()
	awaitWhole(t, l, 30*time.Second, "restart")
	close(w.done)
	w.running.Wait()
	for name, errs := range w.failed {
		if len(errs) > 1 {
			t.Errorf("%s: %d writes failed, want at most 1; first error: %v; last error: %v", name, len(errs), errs[0],
				errs[len(errs)-1])
		} else {
			t.Logf("%s: %v", name, errs[0])
		}
	}
}

// sequentialWriters writes until done is closed. Each writer has one write in
// flight.
type sequentialWriters struct {
	t       *testing.T
	done    chan struct{}
	running sync.WaitGroup
	going   sync.WaitGroup // ends when each writer has made 20 writes

	mu     sync.Mutex
	failed map[string][]error // by name of the writer
}

// start starts a writer that calls do with increasing numbers.
func (w *sequentialWriters) start(name string, do func(n int) error) {
	w.going.Add(1)
	w.running.Go(func() {
		n := 0
		defer func() { w.t.Logf("%s: %d writes", name, n) }()
		for ; ; n++ {
			if n == 20 {
				w.going.Done()
			}
			select {
			case <-w.done:
				return
			default:
			}
			if err := do(n); err != nil {
				w.mu.Lock()
				w.failed[name] = append(w.failed[name], err)
				w.mu.Unlock()
			}
		}
	})
}

// putHTTP writes a number to a key with the HTTP API.
func putHTTP(ctx context.Context, client *http.Client, key string, n int) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "https://127.0.0.1:8500/v1/kv/"+key,
		strings.NewReader(fmt.Sprint(n)))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d: %s, %v", resp.StatusCode, body, err)
	}
	return nil
}

// httpClient returns a client of the HTTP API of s, with the certificate of an
// operator.
func (f *documentWriters) httpClient(s *lab.Node) *http.Client {
	f.t.Helper()
	config := operatorConfig(f.identity(s), s)
	config.NextProtos = nil
	tr := &http.Transport{DialContext: lab.DialIn(s.NS), TLSClientConfig: config}
	f.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}
