// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"testing"
	"time"
)

// yamuxHeader is the header of a yamux frame.
func yamuxHeader(kind byte, flags uint16, stream, n uint32) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0, kind}, flags)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, stream), n)
}

func TestFloodClosesTheSession(t *testing.T) {
	for _, tt := range []struct {
		name string
		read bool
		next func(i uint32) []byte
	}{
		{"pings", false, func(i uint32) []byte { return yamuxHeader(yamuxTypePing, pingRequest, 0, i) }},
		{"silent streams", true, func(i uint32) []byte { return yamuxHeader(1, 1, 2*i+1, 0) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newAuthority(t)
			n := newNode(t, a, "srv1", "dc1").start(listen(t))
			c := rawConn(t, n, a.server("srv1", "dc2"), ProtoStream)
			c.SetDeadline(time.Now().Add(time.Minute))
			var read sync.WaitGroup
			if tt.read {
				read.Go(func() { io.Copy(io.Discard, c) })
			}
			var err error
			for i := uint32(0); err == nil; { // how many it takes is a matter of who runs first
				var flood []byte
				for range 1000 {
					flood = append(flood, tt.next(i)...)
					i++
				}
				_, err = c.Write(flood)
			}
			if isTimeout(err) {
				t.Error("the session stays open")
			}
			read.Wait()
			eventually(t, "fault counted", 5*time.Second, func() bool { return n.tun.Stats().Closed[string(faultFlood)] == 1 })
		})
	}
}

func TestGuard(t *testing.T) {
	asks, says := yamuxHeader(yamuxTypePing, pingRequest, 0, 1), yamuxHeader(yamuxTypePing, pingResponse, 0, 1)
	body := append(yamuxHeader(yamuxTypeData, 0, 1, maxPings*2*yamuxHeaderLen), bytes.Repeat(asks, maxPings*2)...)
	for _, step := range []int{1, 5, yamuxHeaderLen, 1000} {
		g := &pingGuard{}
		feed := func(b []byte) (err error) {
			for ; err == nil && len(b) > 0; b = b[min(step, len(b)):] {
				err = g.received(b[:min(step, len(b))])
			}
			return err
		}
		for range 10 * maxPings { // each is answered
			if err := feed(asks); err != nil {
				t.Fatal(err)
			}
			g.sent(says)
		}
		g.sent(asks)
		if err := errors.Join(feed(body), feed(yamuxHeader(1, 1, 1, 1<<31)), feed(bytes.Repeat(says, 10*maxPings))); err != nil {
			t.Errorf("what asks for nothing: %v", err)
		}
		if err := feed(bytes.Repeat(asks, maxPings)); err != nil {
			t.Errorf("%d pings: %v", maxPings, err)
		}
		if err := feed(asks); sessionFault(err) != faultFlood {
			t.Errorf("one more: %v", err)
		}
	}
}

// However the bytes come, the guard sees the same frames.
func FuzzGuard(f *testing.F) {
	asks := yamuxHeader(yamuxTypePing, pingRequest, 0, 1)
	f.Add(bytes.Repeat(asks, maxPings+1), 7)
	f.Add(append(append(yamuxHeader(yamuxTypeData, 1, 1, 30), bytes.Repeat(asks, 2)...), asks...), 13)
	f.Add(yamuxHeader(yamuxTypeData, 1, 1, 1<<32-1), 1)
	f.Fuzz(func(t *testing.T, b []byte, step int) {
		whole, parts := &pingGuard{}, &pingGuard{}
		err := whole.received(b)
		step = max(1, min(step, 1<<16))
		var perr error
		for rest := b; perr == nil && len(rest) > 0; rest = rest[min(step, len(rest)):] {
			perr = parts.received(rest[:min(step, len(rest))])
		}
		if (err == nil) != (perr == nil) || err == nil && (whole.n != parts.n || whole.body != parts.body) || whole.unanswered.Load() != parts.unanswered.Load() {
			t.Errorf("%v, %d, %d, %d pings; in pieces of %d: %v, %d, %d, %d pings",
				err, whole.n, whole.body, whole.unanswered.Load(), step, perr, parts.n, parts.body, parts.unanswered.Load())
		}
	})
}
