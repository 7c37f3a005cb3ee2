// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"encoding/binary"
	"io"
	"slices"
	"testing"

	"github.com/wanfed/wanfed/gateway/internal/tlsrecord"
	"github.com/wanfed/wanfed/internal/testutil"
)

// Clients stop in the middle of large ClientHellos. Together, the ClientHellos
// must not exceed the limit of memory, and other clients must be served.
func testHelloMemory(t *testing.T, e engineKind) {
	const limit = 512 << 10
	p := start(t, Config{portable: e == portable},
		Route{Match: "x.example", To: []string{tlsUpstream(t, named("srv1"))}})
	p.hellos.max.Store(limit)
	large := records(append([]byte{clientHello, 0, 0xf0, 0}, make([]byte, 0xf000)...), tlsrecord.MaxPayload)
	const clients = 16
	for range clients {
		c := p.raw(t)
		c.Write(large[:len(large)-1])
		defer c.Close()
	}
	checkHeld(t, p, clients, limit)
	if n := p.listener.Stats().Active; n < 2 {
		t.Errorf("active connections with large ClientHellos = %d, want at least 2", n)
	}
	for _, step := range []int{1 << 20, 100} { // bytes per write
		c := p.raw(t)
		hello := helloFor(t, "x.example")
		for rest := hello; len(rest) > 0; {
			n := min(step, len(rest))
			c.Write(rest[:n])
			rest = rest[n:]
		}
		if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
			t.Errorf("read of the answer to a small ClientHello = %v, want nil", err)
		}
		c.Close()
	}
	p.stop()
	if n := p.hellos.held.Load(); n != 0 {
		t.Errorf("memory of ClientHellos after Run = %d bytes, want 0", n)
	}
}

// checkHeld waits until some of the connections are refused for the limit of
// memory and the others wait. Then it checks the memory of the ClientHellos.
func checkHeld(t *testing.T, p *running, clients, limit int64) {
	t.Helper()
	testutil.Eventually(t, waitLimit, func() bool {
		st := p.listener.Stats()
		total, refused := uint64(clients), st.Refused[ReasonLimit]
		return st.Accepted == total && st.Active+refused == total && refused > total/4
	}, "some connections refused and the others waiting")
	if n := p.hellos.held.Load(); n > limit || n < limit/4 {
		t.Errorf("memory of ClientHellos = %d bytes, want %d to %d", n, limit/4, limit)
	}
}

// Clients send large, complete ClientHellos to upstreams that do not answer.
// The limit of memory applies to them, and the memory is released.
func testHelloMemoryWhileDialing(t *testing.T, e engineKind) {
	const limit = 512 << 10
	one, _ := rawUpstream(t, silent)
	two, _ := rawUpstream(t, silent)
	p := start(t, Config{portable: e == portable}, Route{Match: "x.example", To: []string{one, two}})
	p.hellos.max.Store(limit)
	body := helloFor(t, "x.example")[recordHeader+messageHeader:]
	at := 2 + 32 + 1 + int(body[2+32])
	at += 2 + int(binary.BigEndian.Uint16(body[at:]))
	at += 1 + int(body[at])
	exts := append(slices.Clone(body[at+2:]), 0, 21, 0xe0, 0) // padding (RFC 7685)
	exts = append(exts, make([]byte, 0xe000)...)
	body = append(binary.BigEndian.AppendUint16(slices.Clone(body[:at]), uint16(len(exts))), exts...)
	large := records(append([]byte{clientHello, 0, byte(len(body) >> 8), byte(len(body))}, body...),
		tlsrecord.MaxPayload)
	const clients = 16
	for i := range clients {
		c := p.raw(t)
		large[recordHeader+messageHeader+2] = byte(i) // another random, as a client sends it
		c.Write(large)
		defer c.Close()
	}
	checkHeld(t, p, clients, limit)
	p.stop()
	if n := p.hellos.held.Load(); n != 0 {
		t.Errorf("memory of ClientHellos after Run = %d bytes, want 0", n)
	}
}
