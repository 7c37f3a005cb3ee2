// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

const testProto = "test/1"

// echoNode starts a server of dc2 that echoes testProto connections, and a
// gateway to it.
func echoNode(t testing.TB, a *authority, name string) (*node, *fakeGateway) {
	t.Helper()
	n := newNode(t, a, name, "dc2")
	n.mux.Handle(testProto, []tlsutil.Role{tlsutil.RoleServer}, false,
		func(ctx context.Context, c *tls.Conn, p tlsutil.Peer) {
			defer c.Close()
			buf := make([]byte, 64)
			for {
				m, err := c.Read(buf)
				if err != nil {
					return
				}
				if _, err := c.Write(buf[:m]); err != nil {
					return
				}
			}
		})
	n.start(listen(t))
	return n, newFakeGateway(t, listen(t), "dc2", map[string]string{name: n.addr})
}

// bookOf returns an address book with gateways of dc2.
func bookOf(addrs ...string) *AddressBook {
	var paths []Path
	for _, addr := range addrs {
		paths = append(paths, Path{Addr: addr, Via: "remote gateway"})
	}
	return &AddressBook{Paths: map[string][]Path{"dc2": paths}}
}

// roundTrip exchanges one byte with an echoNode.
func roundTrip(t testing.TB, c *tls.Conn) {
	t.Helper()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatalf("Write() = %v, want nil", err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatalf("Read() = %v, want nil", err)
	}
}

// closedPort returns an address without a listener.
func closedPort(t testing.TB) string {
	t.Helper()
	ln := listen(t)
	ln.Close()
	return ln.Addr().String()
}

func TestDial_ThroughGateway(t *testing.T) {
	a := newAuthority(t)
	_, gw := echoNode(t, a, "srv1")
	n := newNode(t, a, "srv1", "dc1")
	n.book.Store(bookOf(gw.addr))
	for _, target := range []Target{{DC: "dc2"}, {DC: "dc2", Node: "srv1"},
		{DC: "dc2", Node: "srv1", Addr: "192.0.2.1:1"}} {
		c, err := n.d.Dial(t.Context(), target, "other/1", testProto)
		if err != nil {
			t.Fatalf("Dial(%+v) = %v, want nil", target, err)
		}
		roundTrip(t, c)
		if got := c.ConnectionState().NegotiatedProtocol; got != testProto {
			t.Errorf("NegotiatedProtocol after Dial(%+v) = %q, want %q", target, got, testProto)
		}
		c.Close()
	}
	got := n.d.Paths()
	if len(got) != 1 || got[0].Addr != gw.addr || got[0].Attempts != 3 || got[0].Failures != 0 || got[0].RTT <= 0 ||
		got[0].LastSuccess.IsZero() {
		t.Errorf("Paths() = %+v, want 3 attempts, no failure, an RTT and a success", got)
	}
}

// TestDial_GatewayDown proves that a refused connection costs no AttemptDelay.
func TestDial_GatewayDown(t *testing.T) {
	a := newAuthority(t)
	_, gw := echoNode(t, a, "srv1")
	n := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) { c.AttemptDelay = time.Hour })
	dead := closedPort(t)
	n.book.Store(bookOf(dead, gw.addr))
	c, err := n.d.Dial(t.Context(), Target{DC: "dc2"}, testProto)
	if err != nil {
		t.Fatalf("Dial() = %v, want nil", err)
	}
	c.Close()
	paths := n.d.Paths()
	i := slices.IndexFunc(paths, func(p PathStatus) bool { return p.Addr == dead })
	if i < 0 || paths[i].Failures != 1 || !strings.Contains(paths[i].LastError, "refused") {
		t.Errorf("Paths() = %+v, want 1 failure of the dead gateway, \"refused\"", paths)
	}
	if order := n.d.paths.scorer("dc2").order(n.book.Load().Paths["dc2"]); order[0].Addr != gw.addr {
		t.Errorf("order() = %v, want the dead gateway last", order)
	}
}

// TestDial_GatewaySilent proves that a gateway without a response delays only
// the first dial, by AttemptDelay.
func TestDial_GatewaySilent(t *testing.T) {
	testutil.Cluster(t)
	a := newAuthority(t)
	_, gw := echoNode(t, a, "srv1")
	silent := newFakeGateway(t, listen(t), "dc2", nil)
	silent.freeze(true)
	// The delay is long enough for a slow machine. The second dial must not
	// reach the silent gateway.
	const attemptDelay = 2 * time.Second
	n := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) { c.AttemptDelay = attemptDelay })
	n.book.Store(bookOf(silent.addr, gw.addr))
	for i, least := range []time.Duration{attemptDelay, 0} {
		start := time.Now()
		c, err := n.d.Dial(t.Context(), Target{DC: "dc2"}, testProto)
		if err != nil {
			t.Fatalf("Dial() %d = %v, want nil", i, err)
		}
		c.Close()
		if took := time.Since(start); took < least || took >= n.d.cfg.AttemptTimeout {
			t.Errorf("Dial() %d took %v, want %v to %v", i, took, least, n.d.cfg.AttemptTimeout)
		}
	}
	if got := silent.count(); got != 1 {
		t.Errorf("dials of the silent gateway = %d, want 1", got)
	}
	for _, p := range n.d.Paths() {
		if p.Failures != 0 {
			t.Errorf("Paths() contains %+v, want Failures = 0: a slow path has not failed", p)
		}
		if want := map[bool]PathHealth{true: PathSlow, false: PathOK}[p.Addr == silent.addr]; p.Health != want {
			t.Errorf("Paths() contains %+v, want Health = %s", p, want)
		}
	}
}

// TestDial_Names dials DNS names. One name has no address, and the other name
// has three addresses, of which one has a listener.
func TestDial_Names(t *testing.T) {
	a := newAuthority(t)
	_, gw := echoNode(t, a, "srv1")
	_, port, _ := net.SplitHostPort(gw.addr)
	lookups := 0
	n := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) {
		c.lookupIP = func(ctx context.Context, _, host string) ([]net.IP, error) {
			lookups++
			if host != "gw.example" {
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
			return []net.IP{net.IPv4(127, 0, 0, 9), net.IPv6loopback, net.IPv4(127, 0, 0, 1)}, nil
		}
	})
	n.book.Store(bookOf("nowhere.example:"+port, "gw.example:"+port))
	for range 2 {
		c, err := n.d.Dial(t.Context(), Target{DC: "dc2"}, testProto)
		if err != nil {
			t.Fatalf("Dial() = %v, want nil", err)
		}
		if p := pathConnOf(c); p.addr != gw.addr || p.path.Addr != "gw.example:"+port {
			t.Errorf("Dial() used %s of path %s, want %s of gw.example:%s", p.addr, p.path.Addr, gw.addr, port)
		}
		c.Close()
	}
	// The first dial looked up both names. The second dial skips the name
	// without an address and uses the cached address of the other name.
	if remote := n.d.paths.get("dc2", "gw.example:"+port).Remote; remote != gw.addr || lookups != 2 {
		t.Errorf("Remote = %q after %d lookups, want %q after 2 lookups", remote, lookups, gw.addr)
	}
}

// TestDial_RefusedClass checks that a name is not dialed at addresses of the kinds
// that its path refuses.
func TestDial_RefusedClass(t *testing.T) {
	a := newAuthority(t)
	var ips []net.IP
	var dialed []string
	n := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) {
		c.lookupIP = func(context.Context, string, string) ([]net.IP, error) { return ips, nil }
		c.DialTCP = func(_ context.Context, addr string) (net.Conn, error) {
			dialed = append(dialed, addr)
			return nil, errors.New("no network")
		}
	})
	for _, c := range []struct {
		ips  []net.IP
		want []string
	}{
		{[]net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP("169.254.169.254"), net.IPv6loopback}, nil},
		{[]net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP("198.51.100.7")}, []string{"198.51.100.7:8443"}},
	} {
		book := bookOf("gw.example:8443")
		book.Paths["dc2"][0].Refuse = netaddr.Loopback | netaddr.LinkLocal
		n.book.Store(book)
		ips, dialed, n.d.names.cache = c.ips, nil, map[string]*lookupResult{}
		_, err := n.d.Dial(t.Context(), Target{DC: "dc2"}, testProto)
		if !slices.Equal(dialed, c.want) || err == nil {
			t.Errorf("Dial() = %v with dials of %v, want an error and %v", err, dialed, c.want)
		}
	}
}

// TestDial_MovedName resolves the name of a gateway to a new address without a
// listener. The dialer then dials the new address first, and after that the
// last address that worked. The dialer also uses the last address if the lookup
// fails.
func TestDial_MovedName(t *testing.T) {
	a := newAuthority(t)
	_, gw := echoNode(t, a, "srv1")
	_, port, _ := net.SplitHostPort(gw.addr)
	ips, lookupErr := []net.IP{net.IPv4(127, 0, 0, 1)}, error(nil)
	n := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) {
		c.lookupIP = func(context.Context, string, string) ([]net.IP, error) { return ips, lookupErr }
	})
	n.book.Store(bookOf("gw.example:" + port))
	dial := func(when string) {
		t.Helper()
		c, err := n.d.Dial(t.Context(), Target{DC: "dc2"}, testProto)
		if err != nil {
			t.Fatalf("Dial() %s = %v, want nil", when, err)
		}
		if p := pathConnOf(c); p.addr != gw.addr {
			t.Errorf("Dial() %s used %s, want %s", when, p.addr, gw.addr)
		}
		c.Close()
	}
	dial("at first")
	n.d.names.cache = map[string]*lookupResult{} // the cached lookup has expired
	ips = []net.IP{net.IPv4(127, 0, 0, 9)}
	dial("after a move to an address without a listener")
	if got := n.d.names.cache["gw.example"].ips; !slices.EqualFunc(got, ips, net.IP.Equal) {
		t.Errorf("cached addresses of gw.example = %v, want %v", got, ips)
	}
	n.d.names.cache["gw.example"] = &lookupResult{ips: []net.IP{net.IPv4(127, 0, 0, 1)}}
	lookupErr = errors.New("no resolver")
	dial("after a failed lookup")
}

func TestSortAddrs(t *testing.T) {
	ips := []net.IP{net.IPv4(1, 1, 1, 1), net.IPv4(2, 2, 2, 2), net.ParseIP("2001:db8::1")}
	for lastUsed, want := range map[string]string{
		"":          "[2001:db8::1]:1 1.1.1.1:1 2.2.2.2:1", // the families alternate
		"2.2.2.2:1": "2.2.2.2:1 [2001:db8::1]:1 1.1.1.1:1",
		"9.9.9.9:1": "[2001:db8::1]:1 1.1.1.1:1 2.2.2.2:1 9.9.9.9:1",
	} {
		if got := strings.Join(sortAddrs(ips, "1", lastUsed), " "); got != want {
			t.Errorf("sortAddrs(%q) = %s, want %s", lastUsed, got, want)
		}
	}
}

// TestDial_Context proves that Dial returns at the deadline of its context.
func TestDial_Context(t *testing.T) {
	a := newAuthority(t)
	silent := newFakeGateway(t, listen(t), "dc2", nil)
	silent.freeze(true)
	n := newNode(t, a, "srv1", "dc1")
	n.book.Store(bookOf(silent.addr))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := n.d.Dial(ctx, Target{DC: "dc2"}, testProto)
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) >= n.d.cfg.AttemptTimeout {
		t.Errorf("Dial() = %v after %v, want %v in less than %v", err, time.Since(start),
			context.DeadlineExceeded, n.d.cfg.AttemptTimeout)
	}
}

func TestDial_AnyLocalServer(t *testing.T) {
	a := newAuthority(t)
	srv, _ := echoNode(t, a, "srv2")
	n := newNode(t, a, "srv1", "dc2") // first by name, but the dialing server is always last
	n.book.Store(&AddressBook{Servers: map[string]string{"srv1": closedPort(t), "srv2": srv.addr}})
	c, err := n.d.Dial(t.Context(), Target{DC: "dc2"}, testProto)
	if err != nil {
		t.Fatalf("Dial() = %v, want nil", err)
	}
	defer c.Close()
	roundTrip(t, c)
	if got := n.d.Paths(); len(got) != 1 || got[0].Via != viaServer || got[0].Addr != srv.addr {
		t.Errorf("Paths() = %+v, want one path, %s via %q", got, srv.addr, viaServer)
	}
}

func TestNewDialer_InvalidConfig(t *testing.T) {
	_, err := NewDialer(DialerConfig{AttemptDelay: -1})
	for _, want := range []string{"Identity", "Book", "negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewDialer() = %v, want an error that contains %q", err, want)
		}
	}
}
