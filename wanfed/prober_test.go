// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
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

func (n *node) awaitHealth(addr string, want PathHealth) {
	n.t.Helper()
	testutil.Eventually(n.t, 10*time.Second, func() bool { return n.pathStatus(addr).Health == want }, "%s",
		fmt.Sprintf("%s is %s", addr, want))
}

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
	n.book.Store(bookOf(unused.addr, used.addr)) // it is the first now
	if got := n.d.PathsTo("dc2"); got[0].Addr != used.addr {
		t.Errorf("PathsTo() = %+v, want the failed path last", got)
	}
	recovered := n.d.paths.recovered.Wait("dc2")
	unused.restart()
	n.awaitHealth(unused.addr, PathOK)
	select {
	case <-recovered:
	case <-time.After(5 * time.Second):
		t.Error("no notification that the path recovered")
	}

	late := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": far.addr})
	n.book.Store(bookOf(unused.addr, used.addr, late.addr))
	n.awaitHealth(late.addr, PathOK)
}

// A gateway that accepts and stays silent, and one whose servers are stuck
// after TLS, are detected too.
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
	n.awaitHealth(consul.addr, PathOK) // a handshake is enough
	if p := n.pathStatus(consul.addr); p.SmoothedRTT <= 0 {
		t.Errorf("status = %+v, want a round trip", p)
	}
}

// failingNet is a network on which every dial fails, at once or by a timeout.
// It counts dials.
type failingNet struct {
	silent bool

	mu      sync.Mutex
	at      []time.Time
	by      map[string]int
	running int
	most    int
}

func (p *failingNet) dial(ctx context.Context, addr string) (net.Conn, error) {
	p.mu.Lock()
	p.at = append(p.at, time.Now())
	p.by[addr]++
	p.running++
	p.most = max(p.most, p.running)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.running--
	}()
	if p.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, errors.New("refused")
}

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
		{"two datacenters", 2, false, 48, 56}, // 8 paths that never work: after 0, 3, 9, 21, 45, 93 and 189 s, plus jitter
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := &failingNet{silent: tt.silent, by: map[string]int{}}
				book := &SharedAddressBook{}
				routes := &AddressBook{Paths: map[string][]Path{}}
				for dc := range tt.dcs {
					for i := range 4 {
						name := fmt.Sprintf("dc%d", dc+2)
						routes.Paths[name] = append(routes.Paths[name],
							Path{Addr: fmt.Sprintf("10.%d.%d.%d:1", dc/200, dc%200, i), Local: i < 2})
					}
				}
				book.Store(routes)
				d, err := NewDialer(DialerConfig{Identity: id, AddressBook: book, DialTCP: net.dial})
				if err != nil {
					t.Fatal(err)
				}
				p, err := NewProber(ProberConfig{Dialer: d})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				if err := p.Run(ctx); err != nil {
					t.Fatal(err)
				}
				if n := len(net.at); n < tt.min || n > tt.max || net.most > maxProbes || net.running != 0 {
					t.Errorf("%d probes, up to %d at once; want %d to %d, up to %d", n, net.most, tt.min, tt.max, maxProbes)
				}
				for i := range net.at[1:] {
					if gap := net.at[i+1].Sub(net.at[i]); gap < 500*time.Millisecond {
						t.Fatalf("two probes within %v", gap)
					}
				}
				least, most := 1<<30, 0
				for _, n := range net.by {
					least, most = min(least, n), max(most, n)
				}
				if most-least > 1 && tt.dcs > 2 || len(net.by) != min(4*tt.dcs, len(net.at)) {
					t.Errorf("%d of %d paths were probed, each %d to %d times", len(net.by), 4*tt.dcs, least, most)
				}
			})
		})
	}
}

func TestProber_NewAddress(t *testing.T) {
	id := newAuthority(t).server("srv1", "dc1")
	synctest.Test(t, func(t *testing.T) {
		net := &failingNet{by: map[string]int{}}
		book := &SharedAddressBook{}
		book.Store(bookOf("10.0.0.1:1", "10.0.0.2:1"))
		d, err := NewDialer(DialerConfig{Identity: id, AddressBook: book, DialTCP: net.dial})
		if err != nil {
			t.Fatal(err)
		}
		p, err := NewProber(ProberConfig{Dialer: d})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		time.Sleep(10*time.Minute + time.Millisecond) // in the bubble
		synctest.Wait()
		before := len(net.at)
		book.Store(bookOf("10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"))
		synctest.Wait()
		if len(net.at) != before+1 || net.by["10.0.0.3:1"] != 1 {
			t.Errorf("%d probes before, %d after; %v", before, len(net.at), net.by)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
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

func TestResolver(t *testing.T) {
	ip := func(n byte) []net.IP { return []net.IP{net.IPv4(198, 51, 100, n)} }
	synctest.Test(t, func(t *testing.T) {
		calls, slow := 0, false
		var answer []net.IP
		var fault error
		r := newResolver(func(ctx context.Context, _ string) ([]net.IP, error) {
			calls++
			if slow {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return answer, fault
		}, 5*time.Second)
		check := func(what string, want []net.IP, lookups int, takes time.Duration) {
			t.Helper()
			calls = 0
			begin := time.Now()
			got, err := r.lookup(t.Context(), "gw.example")
			if !slices.EqualFunc(got, want, net.IP.Equal) || (err == nil) != (want != nil) || calls != lookups ||
				time.Since(begin) != takes {
				t.Errorf("%s: %v, %v, %d lookups, after %v", what, got, err, calls, time.Since(begin))
			}
		}
		check("no address", nil, 1, 0)
		slow = true
		check("timeout without a cached result", nil, 1, 5*time.Second)
		slow, answer = false, ip(1)
		check("first result", ip(1), 1, 0)
		answer = ip(2)
		check("cached", ip(1), 0, 0)
		time.Sleep(lookupTTL)
		check("later", ip(2), 1, 0)
		time.Sleep(time.Hour)
		slow = true
		check("outage", ip(2), 1, staleLookupTimeout)
		check("cached after the outage", ip(2), 0, 0)
		time.Sleep(lookupTTL)
		slow, fault = false, errors.New("no such host")
		check("the name does not exist any more", ip(2), 1, 0)
		time.Sleep(lookupTTL)
		fault, answer = nil, ip(3)
		check("the name exists again", ip(3), 1, 0)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		slow = true
		if got, err := r.lookup(ctx, "other.example"); got != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("lookup() with a cancelled context = %v, %v", got, err)
		}
		slow = false
		for i := range maxCachedNames + 10 {
			time.Sleep(time.Nanosecond)
			if _, err := r.lookup(t.Context(), fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		if len(r.cache) != maxCachedNames || r.cache["gw.example"] != nil {
			t.Errorf("%d names in the cache", len(r.cache))
		}
	})
}

// A connection over a fallback path migrates when a probe succeeds on the
// preferred one. It does not wait for migrateInterval.
func TestMigrate_AfterProbe(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"}, func(tm *limits) { tm.migrateInterval = time.Hour })
	n, far := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	own := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": far.addr})
	own.stop()
	localPath := Path{Addr: own.addr, Via: "local gateway", Local: true}
	n.book.Store(&AddressBook{Paths: map[string][]Path{"dc2": {localPath,
		{Addr: w.gws["dc2"].addr, Via: "remote gateway"}}}})
	n.d.paths.recordSuccess("dc2", localPath, own.addr, time.Millisecond, nil) // earlier
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

// In automatic mode a connection over the local gateway migrates to a much
// faster remote one, and stays there.
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
		t.Errorf("log: %s", s)
	}
}

func TestProbeWait(t *testing.T) {
	const every = 20 * time.Second
	worked := beforeNow(time.Hour)
	for _, tt := range []struct {
		name   string
		e      pathHistory
		jitter float64
		want   time.Duration
	}{
		{"works", pathHistory{lastSuccess: beforeNow(1)}, 0, every},
		{"with jitter", pathHistory{lastSuccess: beforeNow(1)}, 1, 25 * time.Second},
		{"failed once", pathHistory{lastSuccess: worked, lastFailure: beforeNow(1), failedProbes: 1}, 0, 3 * time.Second},
		{"failed twice", pathHistory{lastSuccess: worked, lastFailure: beforeNow(1), failedProbes: 2}, 0, 6 * time.Second},
		{"failed often", pathHistory{lastSuccess: worked, lastFailure: beforeNow(1), failedProbes: 99}, 0, every},
		{"a dial failed, or lost to a later one", pathHistory{lastSuccess: worked, lastFailure: beforeNow(1)}, 0,
			3 * time.Second},
		{"never worked", pathHistory{lastFailure: beforeNow(1), failedProbes: 1}, 0, 3 * time.Second},
		{"never worked, failed five times", pathHistory{lastFailure: beforeNow(1), failedProbes: 5}, 0, 48 * time.Second},
		{"never worked, failed often", pathHistory{lastFailure: beforeNow(1), failedProbes: 99}, 0, 5 * time.Minute},
		{"works again", pathHistory{lastSuccess: beforeNow(1), lastFailure: worked}, 0, every},
	} {
		if got := tt.e.probeWait(every, tt.jitter); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestPlanProbe(t *testing.T) {
	const every = 20 * time.Second
	good := func(d time.Duration) pathHistory { return pathHistory{lastSuccess: beforeNow(d)} }
	failed := func(d time.Duration, fails int) pathHistory {
		return pathHistory{lastSuccess: beforeNow(time.Hour), lastFailure: beforeNow(d), failedProbes: fails}
	}
	for _, tt := range []struct {
		name         string
		book         string
		ev           map[string]pathHistory
		busy         string
		preferUrgent bool
		want         string // "": none
		wait         time.Duration
	}{
		{"new path", "a b", map[string]pathHistory{"a": good(0)}, "", true, "b", 0},
		{"new path that is being probed", "a b", map[string]pathHistory{"a": good(0)}, "b", true, "", every},
		{"none is due", "a b", map[string]pathHistory{"a": good(5 * time.Second), "b": good(time.Second)}, "", true, "",
			15 * time.Second},
		{"longest due", "a b c",
			map[string]pathHistory{"a": good(30 * time.Second), "b": good(40 * time.Second), "c": good(0)}, "", true, "b", 0},
		{"urgent first", "a b", map[string]pathHistory{"a": good(time.Hour), "b": failed(3*time.Second, 1)}, "", true, "b",
			0},
		{"urgent last when not preferred", "a b",
			map[string]pathHistory{"a": good(time.Hour), "b": failed(3*time.Second, 1)}, "", false, "a", 0},
		{"not urgent after many failures", "a b", map[string]pathHistory{"a": good(time.Hour), "b": failed(time.Minute, 4)},
			"", true, "a", 0},
		{"never worked is not urgent", "a b",
			map[string]pathHistory{"a": good(time.Hour),
				"b": {lastFailure: beforeNow(time.Minute), failedProbes: 1}}, "", true, "a", 0},
		{"only an urgent one is due", "a b", map[string]pathHistory{"a": good(0)}, "", false, "b", 0},
		{"cached path while another works", "a br", map[string]pathHistory{"a": good(0)}, "", true, "", every},
		{"cached path while none works", "a br", map[string]pathHistory{"a": failed(0, 1)}, "", true, "b", 0},
		{"no paths", "", nil, "", true, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			book := &SharedAddressBook{}
			book.Store(&AddressBook{Paths: map[string][]Path{"dc2": parsePaths(tt.book), "dc1": parsePaths("z")}})
			p := newPathTable(book, "dc1", ModeLocal)
			for addr, e := range tt.ev {
				p.update("dc2", Path{Addr: addr}, func(s *pathState) { s.pathHistory = e })
			}
			busy := map[pathKey]bool{}
			for _, r := range tt.busy {
				busy[pathKey{"dc2", string(r)}] = true
			}
			got := p.planProbe(every, busy, tt.preferUrgent, scoreNow)
			if got.path.Addr != tt.want || got.found != (tt.want != "") || got.wait != tt.wait {
				t.Errorf("%+v, want %q, wait %v", got, tt.want, tt.wait)
			}
		})
	}
}
