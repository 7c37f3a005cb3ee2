// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"io"
	"testing"
)

// Two gateways have the address of each other for one name. A connection ends
// after one round, and another upstream still gets it.
func testLoop(t *testing.T, e engineKind) {
	cfg := Config{portable: e == portable, MaxConns: 200}
	a := start(t, cfg)
	b := start(t, cfg,
		Route{Match: "loop.example", To: []string{a.addr}}, Route{Match: "ok.example", To: []string{a.addr}})
	real := tlsUpstream(t, named("real"))
	a.listener.SetTable(mustTable(t,
		Route{Match: "loop.example", To: []string{b.addr}}, Route{Match: "ok.example", To: []string{b.addr, real}}))

	hello := helloFor(t, "loop.example")
	c := a.raw(t)
	c.Write(hello)
	if _, err := io.ReadAll(c); err != nil {
		t.Errorf("ReadAll() = %v, want the end", err)
	}
	if st := a.listener.Stats(); st.Accepted != 2 || st.Refused[ReasonLoop] != 1 {
		t.Errorf("Stats() = %d accepted, %d refused as a loop; want 2 and 1", st.Accepted, st.Refused[ReasonLoop])
	}
	if st := b.listener.Stats(); st.Accepted != 1 {
		t.Errorf("Stats() of the other gateway = %d accepted, want 1", st.Accepted)
	}
	if _, name := a.connect(t, "ok.example", 4); name != "real" {
		t.Errorf("upstream of ok.example = %q, want real", name)
	}
	// The same ClientHello is not a loop after the first connection has ended.
	again := a.raw(t)
	again.Write(hello)
	if _, err := io.ReadAll(again); err != nil {
		t.Errorf("ReadAll() = %v, want the end", err)
	}
	a.stop()
	if n := len(a.forwarded.sums); n != 0 {
		t.Errorf("ClientHellos after the stop = %d, want 0", n)
	}
}
