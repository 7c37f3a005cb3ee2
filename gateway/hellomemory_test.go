// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"encoding/binary"
	"github.com/wanfed/wanfed/gateway/internal/tlsrecord"
	"io"
	"slices"
	"testing"
)

// testHelloMemory has clients stall with large hellos: together they may have so much memory and no more, and others are served.
func testHelloMemory(t *testing.T, e engineKind) {
	const limit = 512 << 10
	p := start(t, Config{engine: e}, Route{Match: "x.example", To: []string{tlsUpstream(t, named("srv1"))}})
	p.hellos.max.Store(limit)
	large := records(append([]byte{clientHello, 0, 0xf0, 0}, make([]byte, 0xf000)...), tlsrecord.MaxPayload)
	const crowd = 16
	for range crowd {
		c := p.raw(t)
		c.Write(large[:len(large)-1])
		defer c.Close()
	}
	until(t, func() bool {
		st := p.listener.Stats()
		return st.Accepted == crowd && st.Active+st.Refused[ReasonLimit] == crowd && st.Refused[ReasonLimit] > crowd/4
	})
	if n := p.hellos.held.Load(); n > limit || n < limit/4 {
		t.Errorf("unfinished hellos hold %d bytes", n)
	}
	if p.listener.Stats().Active < 2 {
		t.Error("no large hello has room")
	}
	for _, step := range []int{1 << 20, 100} { // the second is unfinished for a while
		c := p.raw(t)
		hello := helloFor(t, "x.example")
		for rest := hello; len(rest) > 0; {
			n := min(step, len(rest))
			c.Write(rest[:n])
			rest = rest[n:]
		}
		if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
			t.Error(err)
		}
		c.Close()
	}
	p.stop()
	if n := p.hellos.held.Load(); n != 0 {
		t.Errorf("%d bytes are held in the end", n)
	}
}

// testHelloMemoryDial has clients send large hellos, whole ones, to where nobody answers: while that is found out, they have no more
// memory together than unfinished ones, and give it back.
func testHelloMemoryDial(t *testing.T, e engineKind) {
	const limit = 512 << 10
	one, _ := rawUpstream(t, silent)
	two, _ := rawUpstream(t, silent)
	p := start(t, Config{engine: e}, Route{Match: "x.example", To: []string{one, two}})
	p.hellos.max.Store(limit)
	body := helloFor(t, "x.example")[recordHeader+messageHeader:]
	at := 2 + 32 + 1 + int(body[2+32])
	at += 2 + int(binary.BigEndian.Uint16(body[at:]))
	at += 1 + int(body[at])
	exts := append(slices.Clone(body[at+2:]), 0, 21, 0xe0, 0) // padding (RFC 7685)
	exts = append(exts, make([]byte, 0xe000)...)
	body = append(binary.BigEndian.AppendUint16(slices.Clone(body[:at]), uint16(len(exts))), exts...)
	large := records(append([]byte{clientHello, 0, byte(len(body) >> 8), byte(len(body))}, body...), tlsrecord.MaxPayload)
	const crowd = 16
	for range crowd {
		c := p.raw(t)
		c.Write(large)
		defer c.Close()
	}
	until(t, func() bool {
		st := p.listener.Stats()
		return st.Accepted == crowd && st.Active+st.Refused[ReasonLimit] == crowd && st.Refused[ReasonLimit] > crowd/4
	})
	if n := p.hellos.held.Load(); n > limit || n < limit/4 {
		t.Errorf("hellos hold %d bytes while addresses are asked", n)
	}
	p.stop()
	if n := p.hellos.held.Load(); n != 0 {
		t.Errorf("%d bytes are held in the end", n)
	}
}
