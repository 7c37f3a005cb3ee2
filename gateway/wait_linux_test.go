// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"crypto/tls"
	"io"
	"net"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestQuietWorker: a worker without events soon waits with the scheduler's knowledge, which then leaves it alone.
func TestQuietWorker(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e := &epollEngine{Proxy: new(Proxy), start: time.Now(), patience: calmly}
	w, err := openWorker(e, 1, []Listener{{Listener: l, Side: new(Side)}})
	defer w.close()
	if err != nil {
		t.Fatal(err)
	}
	w.lively, w.heard = true, time.Now()
	time.AfterFunc(20*calmly.wait, func() { w.post(message{kind: mailShed}) })
	var events [maxEvents]unix.EpollEvent
	for waits := 1; ; waits++ {
		n, err := w.wait(events[:])
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			if limit := 3 * int(calmly.wait/(10*time.Millisecond)); waits > limit {
				t.Errorf("%d waits in %v without an event, want %d at most", waits, 20*calmly.wait, limit)
			}
			return
		}
	}
}

// TestCalmWorkers has workers wait without the scheduler's knowledge while it stops the world again and again: that must not
// wait for them.
func TestCalmWorkers(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	addr := upstream(t, named("srv1"))
	p := start(t, Config{Engine: EngineEpoll, Workers: 2}, Route{Match: "x.example", To: []string{addr}})
	var conns []*tls.Conn
	for range 4 {
		c, _ := p.connect(t, "x.example", 4)
		conns = append(conns, c)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() {
			for b := make([]byte, 4); ; {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := c.Write([]byte("ping")); err != nil {
					t.Error(err)
					return
				}
				if _, err := io.ReadFull(c, b); err != nil || string(b) != "ping" {
					t.Errorf("%q, %v", b, err)
					return
				}
				<-time.After(time.Millisecond)
			}
		})
	}
	const rounds = 20
	var took []time.Duration
	for range rounds {
		before := stopping()
		runtime.GC() // takes long itself on a busy machine
		took = append(took, stopping()-before)
	}
	slices.Sort(took)
	var sum time.Duration
	for _, d := range took[:rounds-1] { // in one the machine may have stood still
		sum += d
	}
	if sum > (rounds-1)*calmly.wait/2 {
		t.Errorf("it took %v to stop the world for %d collections, and once %v", sum, rounds-1, took[rounds-1])
	}
	close(stop)
	wg.Wait()
}

// stopping is how long it took in all until the world stood still for collections: up to a fifth less than it was.
func stopping() time.Duration {
	all := []metrics.Sample{{Name: "/sched/pauses/stopping/gc:seconds"}}
	metrics.Read(all)
	h := all[0].Value.Float64Histogram()
	var sum float64
	for n, count := range h.Counts {
		if count > 0 {
			sum += float64(count) * max(h.Buckets[n], 0)
		}
	}
	return time.Duration(sum * float64(time.Second))
}
