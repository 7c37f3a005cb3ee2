// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"crypto/tls"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"
)

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
	began := time.Now()
	for range rounds {
		runtime.GC()
	}
	if took := time.Since(began); took > rounds*calmly.wait/2 {
		t.Errorf("%d collections took %v", rounds, took)
	}
	close(stop)
	wg.Wait()
}
