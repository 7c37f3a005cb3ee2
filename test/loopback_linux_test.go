// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// waitLimit is how long a test waits for one event. It holds on a busy machine.
const waitLimit = 20 * time.Second

// site is a datacenter of a loopback federation. It has one server process and
// one gateway process on loopback addresses.
type site struct {
	dc      string
	server  *subprocess.Server
	gateway *subprocess.Gateway
	admin   string // URL of the gateway's admin address
}

// loopback is a federation of processes on loopback addresses, for tests of
// requests that must be refused. It does not need root. Its CA signs any
// certificate.
type loopback struct {
	t   testing.TB
	ca  *tlstest.CA
	dir string
	bin string
	log string // level of the logs; debug: every refused connection is logged
	// bundle has CAs that the processes trust in addition to ca.
	bundle []byte
	issued []tlsutil.Files // of the processes
	// args are further flags of each server that is started.
	args []string
}

// files issues the certificate of a process.
func (l *loopback) files(role tlsutil.Role, node, dc string) tlsutil.Files {
	l.t.Helper()
	f := l.ca.Files(l.t, role, node, dc)
	l.issued = append(l.issued, f)
	if err := os.WriteFile(f.CA, slices.Concat(l.ca.Pair.Cert, l.bundle), 0o600); err != nil {
		l.t.Fatal(err)
	}
	return f
}

// newLoopback returns a federation without datacenters. It skips the test under
// "go test -short".
func newLoopback(t testing.TB) *loopback {
	t.Helper()
	return &loopback{t: t, ca: tlstest.NewCA(t), dir: t.TempDir(), bin: lab.Binary(t), log: "debug"}
}

// start starts a datacenter. primaryGateways are WAN addresses of gateways of
// the primary; the primary itself is started without them.
func (l *loopback) start(dc, primary string, primaryGateways ...string) *site {
	l.t.Helper()
	return l.startIn(dc, dc, primary, primaryGateways...)
}

// startIn is start with another prefix of the names of the directories.
func (l *loopback) startIn(prefix, dc, primary string, primaryGateways ...string) *site {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	s := &site{dc: dc}
	var err error
	s.server, err = subprocess.StartServer(ctx, subprocess.ServerConfig{
		Program: []string{l.bin}, Dir: filepath.Join(l.dir, prefix+"-srv1"), DC: dc, Node: "srv1",
		TLS:       l.files(tlsutil.RoleServer, "srv1", dc),
		PrimaryDC: primary, PrimaryGateways: primaryGateways, LogLevel: l.log, Args: l.args,
		Port: unusedPort(l.t),
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.keep(s.server.Process)
	s.gateway, err = subprocess.StartGateway(ctx, subprocess.GatewayConfig{
		Program: []string{l.bin}, Dir: filepath.Join(l.dir, prefix+"-gw1"), DC: dc, Node: "gw1",
		TLS:     l.files(tlsutil.RoleGateway, "gw1", dc),
		Servers: []string{s.server.Addr}, WAN: loopbackAddr(unusedPort(l.t)), LogLevel: l.log,
		Args: []string{"--admin-addr", "127.0.0.1:0"},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.keep(s.gateway.Process)
	s.admin = logOf(s.gateway.Process).await(l.t, `msg="admin address".* addr=(\S+)`)[1]
	return s
}

// keep kills the process at the end of the test. If the test failed, it prints
// the end of the log of the process.
func (l *loopback) keep(p *subprocess.Process) {
	l.t.Cleanup(func() {
		p.Kill()
		if l.t.Failed() {
			l.t.Logf("end of the log of %s:\n%s", p.LogPath(), strings.Join(p.Tail(30), "\n"))
		}
	})
}

// unused is the port that unusedPort tries next. Test processes that run at the
// same time begin with different ports.
var unused = func() *atomic.Int32 {
	var n atomic.Int32
	n.Store(rand.Int32N(unusedPorts))
	return &n
}()

// Ports of unusedPort. The kernel does not choose them for other sockets, so a
// process that stopped can listen on its port again.
const firstUnusedPort, unusedPorts = 10_000, 22_000

// unusedPort returns a port of 127.0.0.1 that is free. It returns another port
// at each call.
func unusedPort(t testing.TB) int {
	t.Helper()
	for range unusedPorts {
		port := firstUnusedPort + int(uint32(unused.Add(1))%unusedPorts)
		if l, err := net.Listen("tcp", loopbackAddr(port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// loopbackAddr returns the address (host:port) of a port of 127.0.0.1.
func loopbackAddr(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// federated waits until every site lists an alive server and a healthy gateway
// of each site.
func (l *loopback) federated(sites ...*site) {
	l.t.Helper()
	testutil.Await(l.t, waitLimit, "federation", func(ctx context.Context) error {
		for _, s := range sites {
			st, err := s.status(ctx)
			if err != nil {
				return err
			}
			for _, other := range sites {
				i := slices.IndexFunc(st.Datacenters, func(d api.DatacenterStatus) bool { return d.Name == other.dc })
				if i < 0 || st.Datacenters[i].ServersAlive != 1 || st.Datacenters[i].GatewaysHealthy != 1 {
					return fmt.Errorf("%s lists %+v, want a server and a gateway of %s", s.dc, st.Datacenters, other.dc)
				}
			}
		}
		return nil
	})
}

func (s *site) status(ctx context.Context) (st api.Status, err error) {
	c, err := api.NewClient(api.ClientConfig{Addr: s.server.HTTP})
	if err != nil {
		return st, err
	}
	defer c.Close()
	return c.Status(ctx, api.QueryOptions{})
}

// states returns the federation states that the server stores.
func (s *site) states(ctx context.Context) ([]api.FederationState, error) {
	c, err := api.NewClient(api.ClientConfig{Addr: s.server.HTTP})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	states, _, err := c.FederationStates(ctx, api.QueryOptions{})
	return states, err
}

// metricLines returns the text of /metrics.
func metricLines(t testing.TB, base string) string {
	t.Helper()
	resp, err := http.Get(base + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// metric returns the value of one line of /metrics, or 0 without that line.
// series is the name and the labels, as the line has them.
func metric(t testing.TB, base, series string) float64 {
	t.Helper()
	for line := range strings.Lines(metricLines(t, base)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), series+" "); ok {
			n, err := strconv.ParseFloat(v, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	return 0
}

// logFile reads the log of a process, beginning at a byte offset.
type logFile struct {
	path string
	from int64
}

// logOf returns the whole log of a process.
func logOf(p *subprocess.Process) *logFile { return &logFile{path: p.LogPath()} }

// mark moves the beginning to the present end of the file.
func (f *logFile) mark(t testing.TB) *logFile {
	t.Helper()
	st, err := os.Stat(f.path)
	if err != nil {
		t.Fatal(err)
	}
	f.from = st.Size()
	return f
}

// lines returns the submatches of all lines that match.
func (f *logFile) lines(expr string) (matches [][]string, err error) {
	file, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(f.from, io.SeekStart); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(file)
	return regexp.MustCompile(`(?m)^.*`+expr+`.*$`).FindAllStringSubmatch(string(b), -1), err
}

// await waits for the first line that matches and returns its submatches.
func (f *logFile) await(t testing.TB, expr string) (match []string) {
	t.Helper()
	testutil.Await(t, waitLimit, "line "+expr, func(context.Context) error {
		matches, err := f.lines(expr)
		if err == nil && len(matches) == 0 {
			err = errors.New("no such line in " + f.path)
		}
		if err == nil {
			match = matches[0]
		}
		return err
	})
	return match
}

// client returns a TLS configuration with a new certificate for a peer.
func (l *loopback) client(t testing.TB, role tlsutil.Role, node, dc, sni string, alpn ...string) *tls.Config {
	t.Helper()
	return l.ca.Identity(t, role, node, dc).ClientConfig(sni, alpn...)
}

// signed returns a TLS configuration with a certificate that "wanfed tls" does
// not create. The configuration verifies the server as usual.
func (l *loopback) signed(t testing.TB, cert x509.Certificate, sni string, alpn ...string) *tls.Config {
	t.Helper()
	cfg := l.client(t, tlsutil.RoleServer, "any", "dc9", sni, alpn...)
	return with(t, cfg, l.ca.Sign(t, cert))
}

// with sets the certificate that cfg sends, and returns cfg.
func with(t testing.TB, cfg *tls.Config, p tlsutil.KeyPair) *tls.Config {
	t.Helper()
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	return cfg
}

// dial connects to addr and performs the TLS handshake.
func dial(ctx context.Context, addr string, cfg *tls.Config) (*tls.Conn, error) {
	c, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return c.(*tls.Conn), nil
}

// closedBy connects to addr, writes send, and reads until the peer closes the
// connection. It returns the bytes that it read. It reads because a TLS 1.3
// client receives the refusal of its certificate only after the handshake.
func closedBy(t testing.TB, addr string, cfg *tls.Config, send []byte) (got []byte, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	c, err := dial(ctx, addr, cfg)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return drained(t, c, send)
}

// drained writes send and reads until the peer closes the connection. The test
// fails if the peer does not close it within waitLimit.
func drained(t testing.TB, c net.Conn, send []byte) ([]byte, error) {
	t.Helper()
	c.SetDeadline(time.Now().Add(waitLimit))
	_, werr := c.Write(send) // may fail: the other end may have closed already
	got, err := io.ReadAll(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("connection to %v is open after %v, want it closed by the peer", c.RemoteAddr(), waitLimit)
	}
	return got, errors.Join(werr, err)
}

// call returns a gRPC client with a new certificate for a peer.
func (l *loopback) call(t testing.TB, addr, sni string, role tlsutil.Role, node, dc string) *grpc.ClientConn {
	t.Helper()
	cfg := l.client(t, role, node, dc, sni, "h2")
	cc, err := api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
		c, err := dial(ctx, addr, cfg)
		if err != nil {
			return nil, err // a typed nil would not be nil
		}
		return c, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}
