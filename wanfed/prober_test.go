// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// startProber runs a Prober of n with short intervals.
func startProber(t *testing.T, n *node) {
	t.Helper()
	p, err := NewProber(ProberConfig{Dialer: n.d, Interval: 200 * time.Millisecond, gap: time.Millisecond,
		timeout: time.Second, Logger: n.log.logger()})
	if err != nil {
		t.Fatal(err)
	}
	background(t, p.Run)
}

// pathStatus returns the status of one path to dc2.
func (n *node) pathStatus(addr string) PathStatus {
	for _, w := range n.d.PathsTo("dc2") {
		if w.Addr == addr {
			return w
		}
	}
	return PathStatus{}
}

// awaitHealth waits until the path to dc2 over addr has the health want.
func (n *node) awaitHealth(addr string, want PathHealth) {
	n.t.Helper()
	testutil.Eventually(n.t, 10*time.Second, func() bool { return n.pathStatus(addr).Health == want },
		"health %s of path %s", want, addr)
}

// A Prober detects that an unused path fails, that the path works again, and
// that a new path works.
func TestProber_DetectsFailureAndRecovery(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	n, far := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	unused := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": far.addr})
	used := w.gws["dc2"]
	n.book.Store(bookOf(used.addr, unused.addr))
	startProber(t, n)
	n.awaitHealth(used.addr, PathOK)
	n.awaitHealth(unused.addr, PathOK)
	if p := n.pathStatus(unused.addr); p.Probes == 0 || p.Attempts != 0 || p.SmoothedRTT <= 0 ||
		p.Remote != unused.addr || p.LastSuccess.IsZero() {
		t.Errorf("status of the probed path = %+v, want probes and a round trip, no dials", p)
	}

	unused.stop()
	n.awaitHealth(unused.addr, PathFailing)
	if p := n.pathStatus(unused.addr); !p.Probed || p.ProbeFailures == 0 || p.Failures != 0 || p.LastError == "" {
		t.Errorf("status of the failed path = %+v, want a failed probe, no failed dials", p)
	}
	n.book.Store(bookOf(unused.addr, used.addr)) // the failed path is listed first
	if got := n.d.PathsTo("dc2"); got[0].Addr != used.addr {
		t.Errorf("PathsTo() = %+v, want the failed path last", got)
	}
	recovered := n.d.paths.recovered.Wait("dc2")
	unused.restart()
	n.awaitHealth(unused.addr, PathOK)
	select {
	case <-recovered:
	case <-time.After(5 * time.Second):
		t.Error("recovered is not notified within 5 s, want a notification")
	}

	late := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": far.addr})
	n.book.Store(bookOf(unused.addr, used.addr, late.addr))
	n.awaitHealth(late.addr, PathOK)
}

// A Prober detects a gateway that accepts connections and stays silent, and a
// server that stalls after TLS. A server of Consul passes with a handshake.
func TestProber_ExercisesWholePath(t *testing.T) {
	testutil.Cluster(t)
	a := newAuthority(t)
	n := newNode(t, a, "srv1", "dc1")
	silent := newFakeGateway(t, listen(t), "dc2", nil)
	silent.freeze(true)
	hole := blackHole(t, a, "srv1", "dc2")
	c := newNode(t, a, "srv1", "dc2").asConsul()
	consul := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": c.addr})
	n.book.Store(bookOf(silent.addr, hole, consul.addr))
	startProber(t, n)
	n.awaitHealth(silent.addr, PathFailing)
	n.awaitHealth(hole, PathFailing)
	n.awaitHealth(consul.addr, PathOK)
	if p := n.pathStatus(consul.addr); p.SmoothedRTT <= 0 {
		t.Errorf("status of the Consul path = %+v, want a round trip", p)
	}
}

// failingNet is a network on which every dial fails. It counts the dials.
type failingNet struct {
	silent bool // a dial fails by a timeout, otherwise at once

	mu      sync.Mutex
	dials   []time.Time
	byAddr  map[string]int // dials
	running int            // unfinished dials
	most    int            // largest value of running
}

func (n *failingNet) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	n.dials = append(n.dials, time.Now())
	n.byAddr[addr]++
	n.running++
	n.most = max(n.most, n.running)
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.running--
	}()
	if n.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, errors.New("refused")
}

// newProberOn returns a Prober of id with the default configuration on network.
func newProberOn(t *testing.T, id *tlsutil.Identity, book *SharedAddressBook, network *failingNet) *Prober {
	t.Helper()
	d, err := NewDialer(DialerConfig{Identity: id, AddressBook: book, DialTCP: network.dial})
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewProber(ProberConfig{Dialer: d})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The number of probes, and of concurrent probes, is bounded for any number of
// datacenters. All paths are probed equally often.
func TestProber_RateLimit(t *testing.T) {
	id := newAuthority(t).server("srv1", "dc1")
	for _, tt := range []struct {
		name     string
		dcs      int
		silent   bool
		min, max int // probes in 5 minutes
	}{
		{"1000 datacenters", 1000, false, 595, 601},
		{"1000 silent datacenters", 1000, true, 235, 245},
		// 8 paths that never work: after 0, 3, 9, 21, 45, 93 and 189 s, plus
		// jitter
		{"two datacenters", 2, false, 48, 56},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T) {
				network := &failingNet{silent: tt.silent, byAddr: map[string]int{}}
				paths := map[string][]Path{}
				for dc := range tt.dcs {
					for i := range 4 {
						name := fmt.Sprintf("dc%d", dc+2)
						paths[name] = append(paths[name],
							Path{Addr: fmt.Sprintf("10.%d.%d.%d:1", dc/200, dc%200, i), Local: i < 2})
					}
				}
				book := &SharedAddressBook{}
				book.Store(&AddressBook{Paths: paths})
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				if err := newProberOn(t, id, book, network).Run(ctx); err != nil {
					t.Fatalf("Run() = %v, want nil", err)
				}
				if n := len(network.dials); n < tt.min || n > tt.max || network.most > maxProbes ||
					network.running != 0 {
					t.Errorf("%d probes, up to %d at once, %d at the end; want %d to %d, up to %d, 0",
						n, network.most, network.running, tt.min, tt.max, maxProbes)
				}
				for i := range network.dials[1:] {
					if gap := network.dials[i+1].Sub(network.dials[i]); gap < 500*time.Millisecond {
						t.Fatalf("two probes start within %v, want at least 500 ms", gap)
					}
				}
				counts := slices.Sorted(maps.Values(network.byAddr))
				least, most := counts[0], counts[len(counts)-1]
				if most-least > 1 && tt.dcs > 2 || len(counts) != min(4*tt.dcs, len(network.dials)) {
					t.Errorf("%d paths were probed %d to %d times, want %d paths equally often",
						len(counts), least, most, min(4*tt.dcs, len(network.dials)))
				}
			})
		})
	}
}

// A new address is probed at once.
func TestProber_NewAddress(t *testing.T) {
	id := newAuthority(t).server("srv1", "dc1")
	testutil.Bubble(t, func(t *testing.T) {
		network, book := &failingNet{byAddr: map[string]int{}}, &SharedAddressBook{}
		book.Store(bookOf("10.0.0.1:1", "10.0.0.2:1"))
		p := newProberOn(t, id, book, network)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		time.Sleep(10*time.Minute + time.Millisecond) // in the bubble
		synctest.Wait()
		before := len(network.dials)
		book.Store(bookOf("10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"))
		synctest.Wait()
		if n := len(network.dials); n != before+1 || network.byAddr["10.0.0.3:1"] != 1 {
			t.Errorf("%d probes before the new address, %d after it, by address %v; want one more, of 10.0.0.3",
				before, n, network.byAddr)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

func TestNewProber_InvalidConfig(t *testing.T) {
	if _, err := NewProber(ProberConfig{}); err == nil {
		t.Error("NewProber() without a Dialer succeeds, want an error")
	}
	if _, err := NewProber(ProberConfig{Dialer: &Dialer{}, Interval: -1}); err == nil {
		t.Error("NewProber() with a negative Interval succeeds, want an error")
	}
}

// A connection over a fallback path migrates when a probe of the preferred path
// succeeds. It does not wait for migrateInterval.
func TestMigrate_AfterProbe(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"}, func(tm *limits) { tm.migrateInterval = time.Hour })
	n, far := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	own := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": far.addr})
	own.stop()
	localPath := Path{Addr: own.addr, Via: "local gateway", Local: true}
	n.book.Store(&AddressBook{Paths: map[string][]Path{"dc2": {localPath,
		{Addr: w.gws["dc2"].addr, Via: "remote gateway"}}}})
	n.d.paths.recordSuccess("dc2", localPath, own.addr, time.Millisecond, nil) // the path has worked before
	t1, t2 := n.tun.Transport(PoolWAN), far.tun.Transport(PoolWAN)
	send(t, t1, "srv1.dc2", "x")
	receive(t, t2)
	over := func(addr string) func() bool {
		return func() bool { l := n.tun.Stats().Links; return len(l) == 1 && l[0].Path.Addr == addr }
	}
	testutil.Eventually(t, 5*time.Second, over(w.gws["dc2"].addr), "the link over the fallback")
	startProber(t, n)
	own.restart()
	testutil.Eventually(t, 5*time.Second, over(own.addr), "the link over the local gateway")
	testutil.Eventually(t, 5*time.Second, func() bool { return n.pathStatus(own.addr).SmoothedRTT > 0 },
		"a round trip from echoes")
}

// slowConn delays each Read.
type slowConn struct {
	net.Conn
	delay time.Duration
}

func (c slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	<-time.After(c.delay)
	return n, err
}

// In ModeAuto a connection over the local gateway migrates to a much faster
// remote gateway, and does not migrate back.
func TestMigrate_AutoModeToFasterPath(t *testing.T) {
	testutil.Cluster(t)
	w := newWorld(t, 1, []string{"dc2"})
	far, remote := w.nodes["srv1.dc2"], w.gws["dc2"].addr
	own := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": far.addr})
	n := newNode(t, w.a, "srv1", "dc1", func(c *DialerConfig) {
		c.Mode, c.AttemptDelay = ModeAuto, 5*time.Second
		c.DialTCP = func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := dialTCP(ctx, addr)
			if err == nil && addr == own.addr {
				conn = slowConn{conn, 50 * time.Millisecond}
			}
			return conn, err
		}
	})
	n.book.Store(&AddressBook{Paths: map[string][]Path{"dc2": {{Addr: own.addr, Via: "local gateway", Local: true},
		{Addr: remote, Via: "remote gateway"}}}})
	n.start(listen(t), func(tm *limits) { tm.migrateInterval = 50 * time.Millisecond })
	t1, t2 := n.tun.Transport(PoolWAN), far.tun.Transport(PoolWAN)
	over := func(addr string) func() bool {
		return func() bool { l := n.tun.Stats().Links; return len(l) == 1 && l[0].Path.Addr == addr }
	}
	send(t, t1, "srv1.dc2", "x")
	receive(t, t2)
	if !over(own.addr)() {
		t.Errorf("links %+v, want the local gateway: without measurements it wins a tie", n.tun.Stats().Links)
	}
	startProber(t, n)
	testutil.Eventually(t, 10*time.Second, over(remote), "the link over the remote gateway")
	if paths := n.d.PathsTo("dc2"); paths[0].Addr != remote || paths[1].SmoothedRTT < 40*time.Millisecond {
		t.Errorf("PathsTo() = %+v, want the remote gateway first, 40 ms or more over the local one", paths)
	}
	if s := n.log.String(); strings.Count(s, "migrates to a better path") != 1 {
		t.Errorf("log = %s\nwant one line about a migration", s)
	}
}

func TestProbeWait(t *testing.T) {
	const every = 20 * time.Second
	worked := beforeNow(time.Hour)
	for _, tt := range []struct {
		name    string
		history pathHistory
		jitter  float64
		want    time.Duration
	}{
		{"works", pathHistory{lastSuccess: beforeNow(1)}, 0, every},
		{"with jitter", pathHistory{lastSuccess: beforeNow(1)}, 1, 25 * time.Second},
		{"failed once", pathHistory{lastSuccess: worked, lastFailure: beforeNow(1), failedProbes: 1}, 0,
			3 * time.Second},
		{"failed twice", pathHistory{lastSuccess: worked, lastFailure: beforeNow(1), failedProbes: 2}, 0,
			6 * time.Second},
		{"failed often", pathHistory{lastSuccess: worked, lastFailure: beforeNow(1), failedProbes: 99}, 0, every},
		{"a dial failed, or lost to a later one", pathHistory{lastSuccess: worked, lastFailure: beforeNow(1)}, 0,
			3 * time.Second},
		{"never worked", pathHistory{lastFailure: beforeNow(1), failedProbes: 1}, 0, 3 * time.Second},
		{"never worked, failed five times", pathHistory{lastFailure: beforeNow(1), failedProbes: 5}, 0,
			48 * time.Second},
		{"never worked, failed often", pathHistory{lastFailure: beforeNow(1), failedProbes: 99}, 0, 5 * time.Minute},
		{"works again", pathHistory{lastSuccess: beforeNow(1), lastFailure: worked}, 0, every},
	} {
		if got := tt.history.probeWait(every, maxProbeWait, tt.jitter); got != tt.want {
			t.Errorf("%s: probeWait() = %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestProbeInterval(t *testing.T) {
	for paths, want := range map[int]time.Duration{
		0: ProbeInterval, 16: ProbeInterval, 48: time.Minute, 1600: 2000 * time.Second, 1 << 14: 20480 * time.Second,
	} {
		if got := probeInterval(ProbeInterval, paths); got != want {
			t.Errorf("probeInterval(%v, %d) = %v, want %v", ProbeInterval, paths, got, want)
		}
	}
}

// TestPathStatus_ProbeInterval checks that the interval in a status is that of the
// path: a path that has never worked is probed rarely.
func TestPathStatus_ProbeInterval(t *testing.T) {
	const every = time.Minute
	longest := func(d time.Duration) time.Duration { return d + d/4 } // with jitter
	for _, tt := range []struct {
		name    string
		history pathHistory
		want    time.Duration
	}{
		{"works", pathHistory{lastSuccess: beforeNow(1)}, longest(every)},
		{"failed", pathHistory{lastSuccess: beforeNow(2), lastFailure: beforeNow(1)}, longest(every)},
		{"never worked", pathHistory{lastFailure: beforeNow(1)}, longest(maxProbeWait)},
		{"never used", pathHistory{}, longest(every)},
	} {
		if got := (&pathState{pathHistory: tt.history}).status(every).ProbeInterval; got != tt.want {
			t.Errorf("%s: status().ProbeInterval = %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestPlanProbe(t *testing.T) {
	type known = map[string]pathHistory // by address
	const every = 20 * time.Second
	good := func(d time.Duration) pathHistory { return pathHistory{lastSuccess: beforeNow(d)} }
	failed := func(d time.Duration, probes int) pathHistory {
		return pathHistory{lastSuccess: beforeNow(time.Hour), lastFailure: beforeNow(d), failedProbes: probes}
	}
	for _, tt := range []struct {
		name         string
		book         string // see parsePaths
		known        known
		busy         string // addresses that are being probed
		preferUrgent bool
		want         string // path that is probed now; empty: none
		wait         time.Duration
	}{
		{"new path", "a b", known{"a": good(0)}, "", true, "b", 0},
		{"new path that is being probed", "a b", known{"a": good(0)}, "b", true, "", every},
		{"none is due", "a b",
			known{"a": good(5 * time.Second), "b": good(time.Second)}, "", true, "", 15 * time.Second},
		{"longest due", "a b c",
			known{"a": good(30 * time.Second), "b": good(40 * time.Second), "c": good(0)}, "", true, "b", 0},
		{"urgent first", "a b",
			known{"a": good(time.Hour), "b": failed(3*time.Second, 1)}, "", true, "b", 0},
		{"urgent last when not preferred", "a b",
			known{"a": good(time.Hour), "b": failed(3*time.Second, 1)}, "", false, "a", 0},
		{"not urgent after many failures", "a b",
			known{"a": good(time.Hour), "b": failed(time.Minute, 4)}, "", true, "a", 0},
		{"never worked is not urgent", "a b",
			known{"a": good(time.Hour), "b": {lastFailure: beforeNow(time.Minute), failedProbes: 1}}, "", true, "a", 0},
		{"a known path that was never used is not urgent", "a b",
			known{"a": good(time.Hour), "b": {}}, "", false, "b", 0},
		{"only an urgent path is due", "a b",
			known{"a": good(0), "b": failed(3*time.Second, 1)}, "", false, "b", 0},
		{"only a path that is not urgent is due", "a b", known{"a": good(0)}, "", true, "b", 0},
		{"cached path while another works", "a br", known{"a": good(0)}, "", true, "", every},
		{"cached path while none works", "a br", known{"a": failed(0, 1)}, "", true, "b", 0},
		{"no paths", "", nil, "", true, "", time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			book := &SharedAddressBook{}
			book.Store(&AddressBook{Paths: map[string][]Path{"dc2": parsePaths(tt.book), "dc1": parsePaths("z")}})
			p := newPathTable(book, "dc1", ModeLocal)
			for addr, h := range tt.known {
				p.update("dc2", Path{Addr: addr}, func(s *pathState) { s.pathHistory = h })
			}
			busy := map[pathKey]bool{}
			for _, addr := range tt.busy {
				busy[pathKey{"dc2", string(addr)}] = true
			}
			got := p.planProbe(every, busy, tt.preferUrgent, scoreNow)
			if tt.want != "" && (got.path.Addr != tt.want || got.wait > 0) {
				t.Errorf("planProbe() = %+v, want %q now", got, tt.want)
			}
			if tt.want == "" && got.wait != tt.wait {
				t.Errorf("planProbe() = %+v, want a wait of %v", got, tt.wait)
			}
		})
	}
}

// TestPlanProbe_Down checks when a path that worked is probed, if no path to its
// datacenter works. In a large outage the probes are rare.
func TestPlanProbe_Down(t *testing.T) {
	for _, tt := range []struct {
		down, works int // datacenters
		want        time.Duration
	}{
		{1, 0, 2 * time.Second}, {1, 50, 2 * time.Second}, {8, 0, 10 * time.Second}, {50, 0, 20 * time.Second},
	} {
		book, paths := &SharedAddressBook{}, map[string][]Path{}
		for i := range tt.down + tt.works {
			paths[fmt.Sprintf("dc%d", i+2)] = parsePaths("a")
		}
		book.Store(&AddressBook{Paths: paths})
		p := newPathTable(book, "dc1", ModeLocal)
		for i := range tt.down + tt.works {
			p.update(fmt.Sprintf("dc%d", i+2), Path{Addr: "a"}, func(s *pathState) {
				if s.lastSuccess = scoreNow; i < tt.down {
					s.lastSuccess, s.lastFailure, s.LastErrorAt, s.failedProbes = beforeNow(time.Hour), scoreNow, scoreNow, 9
				}
			})
		}
		interval := 20 * time.Second
		if got := p.planProbe(interval, nil, true, scoreNow); got.wait != min(tt.want, interval) {
			t.Errorf("planProbe() with %d of %d datacenters down = a wait of %v, want %v", tt.down, tt.down+tt.works,
				got.wait, tt.want)
		}
	}
}

// TestPlanProbe_Suspected checks that a path with a late echo is due at once,
// and once.
func TestPlanProbe_Suspected(t *testing.T) {
	book := &SharedAddressBook{}
	book.Store(&AddressBook{Paths: map[string][]Path{"dc2": parsePaths("a")}})
	p := newPathTable(book, "dc1", ModeLocal)
	p.update("dc2", Path{Addr: "a"}, func(s *pathState) { s.lastSuccess = beforeNow(3 * time.Second) })
	p.suspect("dc2", Path{Addr: "a"}, scoreNow)
	if got := p.planProbe(20*time.Second, nil, false, scoreNow); got.path.Addr != "a" || got.wait > 0 || !got.urgent {
		t.Errorf("planProbe() = %+v, want an urgent probe of a", got)
	}
	p.update("dc2", Path{Addr: "a"}, func(s *pathState) { s.lastProbe = scoreNow })
	if got := p.planProbe(20*time.Second, nil, false, scoreNow); got.wait <= 0 {
		t.Errorf("planProbe() after the probe = %+v, want no probe", got)
	}
}

func TestFailureClass(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want FailureClass
	}{
		{&stageError{stage: stageResolve, err: errors.New("no such host")}, FailureResolve},
		{&stageError{stage: stageConnect, err: syscall.ECONNREFUSED}, FailureRefused},
		{&stageError{stage: stageConnect, err: syscall.EHOSTUNREACH}, FailureNoRoute},
		{&stageError{stage: stageConnect, err: context.DeadlineExceeded}, FailureTimeout},
		{fmt.Errorf("%w (%w)", errNoEcho, context.DeadlineExceeded), FailureTimeout},
		{fmt.Errorf("%w for 10s", errEchoTimeout), FailureTimeout},
		{&stageError{stage: stageHandshake, err: io.EOF}, FailureClosed},
		{&stageError{stage: stageHandshake, err: syscall.ECONNRESET}, FailureClosed},
		{&stageError{stage: stageHandshake, err: &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}},
			FailureOtherCA},
		{&stageError{stage: stageHandshake, err: &tls.CertificateVerificationError{
			Err: x509.CertificateInvalidError{},
		}}, FailureCertificate},
		{errors.New("anything"), FailureOther},
	} {
		if got := failureClass(tt.err); got != tt.want {
			t.Errorf("failureClass(%v) = %q, want %q", tt.err, got, tt.want)
		}
		if got := failureClass(tt.err); got != FailureOther && !slices.Contains(FailureClasses, got) {
			t.Errorf("FailureClasses lacks %q", got)
		}
	}
}

// A probe that succeeded, but took long, delays the next one.
func TestProber_PauseAfterSlowProbe(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0:                ProbeGap,
		slowProbe:        ProbeGap,
		time.Second:      ProbeGap + slowProbeFactor*(time.Second-slowProbe),
		10 * time.Second: ProbeGap + maxLate,
	} {
		testutil.Bubble(t, func(t *testing.T) {
			p := newProberOn(t, newAuthority(t).server("srv1", "dc1"), &SharedAddressBook{}, &failingNet{})
			start := time.Now()
			p.pause(t.Context(), took)
			if got := time.Since(start); got != want {
				t.Errorf("pause after a probe of %v = %v, want %v", took, got, want)
			}
		})
	}
}
