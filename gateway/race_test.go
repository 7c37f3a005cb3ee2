// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// world has upstreams that answer a hello after a time, in fake time: pipes take the place of sockets, which cannot take part in
// that. An address that is not there never answers.
type world struct {
	mu   sync.Mutex
	took map[string]time.Duration
	log  []string // who was dialled
}

const ms = time.Millisecond

func (w *world) dialer() *Dialer {
	return &Dialer{Dial: w.dial, Timeout: 5 * time.Second, Stagger: 250 * ms, Memory: 8 * time.Second}
}

func (w *world) dial(_ context.Context, _, addr string) (net.Conn, error) {
	w.mu.Lock()
	w.log = append(w.log, addr)
	took, ok := w.took[addr]
	w.mu.Unlock()
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		server.Read(make([]byte, 100))
		if ok {
			time.Sleep(took)
			server.Write([]byte{22, 3, 3, 0, 1, addr[0]})
		}
		io.Copy(io.Discard, server)
	}()
	return client, nil
}

func (w *world) set(addr string, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took[addr] = took
}

// ask returns who answered, when, and who was asked until then.
func (w *world) ask(t *testing.T, d *Dialer, req request, to ...string) (string, time.Duration, []string) {
	t.Helper()
	w.mu.Lock()
	w.log = nil
	w.mu.Unlock()
	req.hello = []byte("hello")
	began := time.Now()
	won, _, err := d.target(t.Context(), &target{Route: Route{To: to, Ordered: true}}, req)
	if err != nil {
		t.Fatal(err)
	}
	if won.answer.b[5] != won.addr[0] {
		t.Errorf("%s won with the answer of %s", won.addr, won.answer.b[5:])
	}
	won.answer.free()
	won.conn.Close()
	took := time.Since(began)
	w.mu.Lock()
	defer w.mu.Unlock()
	return won.addr, took, w.log
}

// TestSlowServer has one that answers in 5 ms take 100 ms for a while: it must not be out of use longer than for the first pause.
func TestSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{took: map[string]time.Duration{"a": 5 * ms, "b": 5 * ms}}
		d := w.dialer()
		for range 20 {
			w.ask(t, d, request{}, "a", "b")
		}
		w.set("a", 100*ms)
		if who, took, _ := w.ask(t, d, request{}, "a", "b"); who != "b" || took < 55*ms || took > 61*ms {
			t.Errorf("%s answered after %v", who, took)
		}
		if who, _, log := w.ask(t, d, request{}, "a", "b"); who != "b" || !slices.Equal(log, []string{"b"}) {
			t.Errorf("%s answered, asked were %s", who, log)
		}
		time.Sleep(time.Second) // the next asks a beside b
		if who, _, log := w.ask(t, d, request{}, "a", "b"); who != "b" || len(log) != 2 {
			t.Errorf("%s answered, asked were %s", who, log)
		}
		time.Sleep(150 * ms)
		for range 3 { // it is given more time now
			if who, took, _ := w.ask(t, d, request{}, "a", "b"); who != "a" || took != 100*ms {
				t.Errorf("%s answered after %v", who, took)
			}
		}
		d.Wait()
	})
}

// TestHalfOpen has one of two be silent, then come back. Of 100 clients only the first may wait for it.
func TestHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{took: map[string]time.Duration{"b": 5 * ms}}
		d := w.dialer()
		waited, asked := 0, 0
		for i := range 100 {
			if i == 50 {
				w.set("a", 5*ms)
			}
			who, took, log := w.ask(t, d, request{}, "a", "b")
			if took > 5*ms {
				waited++
			}
			if asked += len(log); i == 99 && who != "a" {
				t.Error("a did not come back into use")
			}
			time.Sleep(200 * ms)
		}
		d.Wait()
		if waited != 1 || asked > 108 {
			t.Errorf("%d clients waited; %d connections were made for 100", waited, asked)
		}
	})
}

// TestNewsDuringRace gives the name a new address while those that were known are silent, or when they have failed.
func TestNewsDuringRace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{took: map[string]time.Duration{"c": 5 * ms}}
		d := w.dialer()
		began := time.Now()
		req := request{news: func() []string {
			if time.Since(began) < 600*ms {
				return nil
			}
			return []string{"b", "c"}
		}}
		if who, took, _ := w.ask(t, d, req, "a", "b"); who != "c" || took != 755*ms {
			t.Errorf("%s answered after %v", who, took)
		}
		d.Wait()
	})
	synctest.Test(t, func(t *testing.T) {
		f := &fakeNet{began: time.Now(), answer: map[string]time.Duration{"a": -3 * ms, "b": 1 * ms}}
		d := &Dialer{Dial: f.dial, Timeout: time.Second, Stagger: 250 * ms}
		won, failed, err := d.target(t.Context(), &target{Route: Route{To: []string{"a"}}}, request{news: func() []string { return []string{"b"} }})
		if err != nil || failed != 1 {
			t.Fatal(failed, err)
		}
		won.conn.Close()
		if diff := cmp.Diff([]string{"a@0s", "b@3ms"}, f.log); diff != "" {
			t.Error(diff)
		}
		d.Wait()
	})
}

// TestManyNews has a table that changes all the time: a race must not ask on and on.
func TestManyNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeNet{began: time.Now()}
		d := &Dialer{Dial: f.dial, Timeout: 5 * time.Second, Stagger: 10 * ms}
		next := byte('b')
		news := func() []string {
			next++
			return []string{string(next)}
		}
		if _, _, err := d.target(t.Context(), &target{Route: Route{To: []string{"a"}}}, request{news: news}); err == nil {
			t.Error("somebody answered")
		}
		d.Wait()
		if n := len(f.log); n != 1+maxNews {
			t.Errorf("%d addresses were asked", n)
		}
	})
}
