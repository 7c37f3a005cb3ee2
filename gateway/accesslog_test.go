// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/gateway/internal/reactor"
	"github.com/wanfed/wanfed/internal/testutil"
)

// logged parses the access log of a proxy that has stopped.
func logged(t testing.TB, b *bytes.Buffer) []accessLine {
	t.Helper()
	var out []accessLine
	for line := range strings.Lines(b.String()) {
		var l accessLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("Unmarshal(%s) = %v, want nil", line, err)
		}
		out = append(out, l)
	}
	return out
}

// Connections end in four ways, and the access log has a line for each.
func testAccessLog(t *testing.T, e engineKind) {
	addr := tlsUpstream(t, named("srv1"))
	var b bytes.Buffer
	p := start(t, Config{portable: e == portable, AccessLog: &b}, Route{Match: "srv1.example", To: []string{addr}})
	idle := func() {
		t.Helper()
		testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 0 }, "no active connection")
	}
	began := time.Now()
	done, _ := p.connect(t, "srv1.example", 4)
	remote := done.LocalAddr().String()
	done.Write(make([]byte, 5000))
	io.ReadFull(done, make([]byte, 5000))
	done.CloseWrite()
	io.Copy(io.Discard, done)
	done.Close()
	idle()
	tls.Dial("tcp", p.addr, &tls.Config{ServerName: "srv9.example"})
	cut, _ := p.connect(t, "srv1.example", 4)
	cut.NetConn().(*net.TCPConn).SetLinger(0)
	cut.NetConn().Close()
	idle()
	stopped, _ := p.connect(t, "srv1.example", 4)
	p.stop()
	stopped.Close()

	lines := logged(t, &b)
	var ends []string
	for _, l := range lines {
		ends = append(ends, l.End)
	}
	if want := []string{"done", "unknown_sni", "cut", "stopped"}; !slices.Equal(ends, want) {
		t.Fatalf("ends = %q, want %q; log:\n%s", ends, want, b.String())
	}
	l := lines[0]
	if l.Listener != "lan" || l.Remote != remote || l.SNI != "srv1.example" || l.Upstream != addr {
		t.Errorf("line of a normal connection = %+v, want listener lan, remote %s, sni srv1.example, upstream %s", l,
			remote, addr)
	}
	if l.Up < 5000 || l.Up > 9000 || l.Down < 5000 || l.Down > 9000 {
		t.Errorf("bytes up, down = %d, %d; want 5000 to 9000 each", l.Up, l.Down)
	}
	if l.Hello <= 0 || l.Dial <= 0 || l.Duration < l.Hello+l.Dial-0.01 ||
		l.Time.Before(began.Add(-time.Second)) || l.Time.After(time.Now()) {
		t.Errorf("times of a normal connection = %+v, want a duration of at least hello and dial, after %v", l, began)
	}
	if l := lines[1]; l.SNI != "srv9.example" || l.Upstream != "" || l.Up != 0 {
		t.Errorf("line of a refused connection = %+v, want sni srv9.example, no upstream and no bytes", l)
	}
	st := p.listener.Stats()
	if h := st.Hellos; h[RouteExact].Count != 3 || h[RouteNone].Count != 1 || h[RouteExact].Sum <= 0 {
		t.Errorf("Hellos = %+v, want 3 exact and 1 none", h)
	}
	if d := st.Dials; d[RouteExact].Count != 3 || d[RouteNone].Count != 0 ||
		d[RouteExact].Buckets[len(HistogramBounds)-1] != 3 {
		t.Errorf("Dials = %+v, want 3 exact", d)
	}
}

// A server that closes after its last data answers later data of the client
// with a reset. Most connections end in this way, and the end in the log must
// be done.
func testResetAfterClose(t *testing.T, e engineKind) {
	hello := recorded(t)["go-1.26-no-pq"]
	addr, _ := rawUpstream(t, func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, len(hello)-1)) // rawUpstream has read one byte
		c.Write([]byte("last"))
		c.Close()
	})
	var b bytes.Buffer
	p := start(t, Config{portable: e == portable, AccessLog: &b},
		Route{Match: "srv1.server.dc1.wanfed", To: []string{addr}})
	const rounds = 20
	for range rounds {
		c := p.raw(t)
		c.Write(withNewRandom(hello))
		if got, err := io.ReadAll(c); string(got) != "last" || err != nil {
			t.Errorf("ReadAll() = %q, %v; want last", got, err)
		}
		c.Write([]byte("bye"))
		c.Close()
	}
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 0 }, "no active connection")
	p.stop()
	for _, l := range logged(t, &b) {
		if l.End != string(reactor.EndDone) {
			t.Errorf("end of line %+v = %s, want done", l, l.End)
		}
	}
	if n := len(logged(t, &b)); n != rounds {
		t.Errorf("lines = %d, want %d", n, rounds)
	}
}

func TestSetAccessLogSample(t *testing.T) {
	l := newAccessLog(io.Discard, 3)
	p := &Proxy{access: l}
	count := func() (n int) {
		for range 12 {
			if l.begin(NewListener("lan"), netip.AddrPort{}, time.Time{}) != nil {
				n++
			}
		}
		return n
	}
	if n := count(); n != 4 {
		t.Errorf("logged connections of 12 with sample 3 = %d, want 4", n)
	}
	for sample, want := range map[int]int{0: 0, 1: 12} {
		p.SetAccessLogSample(sample)
		if n := count(); n != want {
			t.Errorf("logged connections of 12 with sample %d = %d, want %d", sample, n, want)
		}
	}
}

// blockedWriter blocks each write until proceed is closed, and then fails.
type blockedWriter struct{ proceed, tried chan struct{} }

func (s blockedWriter) Write([]byte) (int, error) {
	s.tried <- struct{}{}
	<-s.proceed
	return 0, errors.New("disk full")
}

func TestAccessLog_DropsLinesOfSlowWriter(t *testing.T) {
	s := blockedWriter{make(chan struct{}), make(chan struct{}, 2*accessQueue)}
	l := newAccessLog(s, 1)
	stop := l.start()
	logOne := func() { l.begin(NewListener("lan"), netip.AddrPort{}, time.Time{}).close() }
	logOne()
	<-s.tried // the writer has taken the line
	for range accessQueue + 7 {
		logOne()
	}
	if n := l.dropped.Load(); n != 7 {
		t.Errorf("dropped while the writer is blocked = %d, want 7", n)
	}
	close(s.proceed)
	stop()
	if n := l.dropped.Load(); n != 7+1+accessQueue {
		t.Errorf("dropped after the writer has failed = %d, want all %d", n, 7+1+accessQueue)
	}
}

func TestHistogram(t *testing.T) {
	var h histogram
	for _, d := range []time.Duration{0, 500 * time.Microsecond, 500*time.Microsecond + 1, 10 * time.Second,
		time.Minute} {
		h.observe(d)
	}
	got := h.read()
	if got.Count != 5 || got.Sum != 70*time.Second+time.Millisecond+1 || got.Buckets[0] != 2 || got.Buckets[1] != 3 ||
		got.Buckets[len(got.Buckets)-1] != 4 {
		t.Errorf("read() = %+v, want 5 durations: 2 up to 500 µs, 3 up to 1 ms and 4 up to 10 s", got)
	}
}

// One client sends its ClientHello late, and the upstreams answer late.
func testHistograms(t *testing.T, e engineKind) {
	const late = 30 * time.Millisecond
	slow := func(c *net.TCPConn) { <-time.After(late); alert(c) }
	one, _ := rawUpstream(t, slow)
	two, _ := rawUpstream(t, slow)
	p := start(t, Config{portable: e == portable}, Route{Match: "late.example", To: []string{one}},
		Route{Match: "*.late.example", To: []string{one, two}})
	for _, sni := range []string{"late.example", "a.late.example", "other.example"} {
		c, hello := p.raw(t), helloFor(t, sni)
		c.Write(hello[:100])
		if sni == "late.example" {
			testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 1 },
				"one active connection")
			<-time.After(late)
		}
		c.Write(hello[100:])
		if _, err := io.ReadFull(c, make([]byte, 7)); err != nil {
			t.Errorf("read of the alert for %s = %v, want nil", sni, err)
		}
		c.Close()
	}
	p.stop()
	st := p.listener.Stats()
	for _, tt := range []struct {
		what string
		h    Histogram
		n    uint64
		late bool // all durations are at least late
	}{
		{"ClientHello of an exact route", st.Hellos[RouteExact], 1, true},
		{"ClientHello of a wildcard", st.Hellos[RouteWildcard], 1, false},
		{"ClientHello without a route", st.Hellos[RouteNone], 1, false},
		{"dial of an exact route", st.Dials[RouteExact], 1, false}, // an open connection is enough
		{"dial of a wildcard", st.Dials[RouteWildcard], 1, true},
		{"dial without a route", st.Dials[RouteNone], 0, false},
	} {
		last := len(HistogramBounds) - 1
		below := tt.h.Buckets[slices.Index(HistogramBounds[:], 25*time.Millisecond)]
		if tt.h.Count != tt.n || tt.h.Buckets[last] != tt.n || tt.late && (below != 0 || tt.h.Sum < late) {
			t.Errorf("histogram of %s = %+v, want count %d, late %v", tt.what, tt.h, tt.n, tt.late)
		}
	}
}
