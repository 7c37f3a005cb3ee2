// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"io"
	"testing"
)

// testHelloMemory has clients stall with large hellos: together they may have so much memory and no more, and others are served.
func testHelloMemory(t *testing.T, e Engine) {
	const limit = 512 << 10
	p := start(t, Config{Engine: e}, Route{Match: "x.example", To: []string{upstream(t, named("srv1"))}})
	p.hellos.max.Store(limit)
	large := records(append([]byte{clientHello, 0, 0xf0, 0}, make([]byte, 0xf000)...), maxRecord)
	const crowd = 16
	for range crowd {
		c := p.raw(t)
		c.Write(large[:len(large)-1])
		defer c.Close()
	}
	until(t, func() bool {
		st := p.side.Stats()
		return st.Accepted == crowd && st.Active+st.Refused[ReasonLimit] == crowd && st.Refused[ReasonLimit] > crowd/4
	})
	if n := p.hellos.held.Load(); n > limit || n < limit/4 {
		t.Errorf("unfinished hellos hold %d bytes", n)
	}
	if p.side.Stats().Active < 2 {
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
