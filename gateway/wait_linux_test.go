// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"net"
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
	e := &epollEngine{Proxy: new(Proxy), start: time.Now()}
	w, err := openWorker(e, 1, []boundSocket{{l, NewListener("lan")}})
	defer w.close()
	if err != nil {
		t.Fatal(err)
	}
	w.lively, w.heard = true, time.Now()
	time.AfterFunc(20*maxBlocking, func() { w.post(message{kind: mailShed}) })
	var events [maxEvents]unix.EpollEvent
	for waits := 1; ; waits++ {
		n, err := w.wait(events[:])
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			if limit := 5; waits > limit {
				t.Errorf("%d waits in %v without an event, want %d at most", waits, 20*maxBlocking, limit)
			}
			return
		}
	}
}
