// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// waitLimit is the time after which an expected event has failed.
const waitLimit = 20 * time.Second

// double is a test double of a server. Connection, TLS and gRPC are real. The
// test sets the responses. The real service needs a store with a leader, which
// the tests of package server have.
type double struct {
	pb.UnimplementedGatewayServiceServer
	addr   string
	events chan string // "register lan wan by peer" and "deregister by peer"; no test causes 1000
	stop   func()

	mu      sync.Mutex
	snap    *pb.GatewaySnapshot
	changed chan struct{}
	refuse  error         // the response of Register; nil: success
	every   time.Duration // the interval in the response; default 100 ms
}

func newDouble(t testing.TB, id *tlsutil.Identity, snap *pb.GatewaySnapshot) *double {
	t.Helper()
	return newDoubleAt(t, id, snap, "127.0.0.1:0")
}

func newDoubleAt(t testing.TB, id *tlsutil.Identity, snap *pb.GatewaySnapshot, addr string) *double {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	d := &double{addr: ln.Addr().String(), events: make(chan string, 1000), snap: snap, changed: make(chan struct{})}
	srv := grpc.NewServer(grpc.Creds(api.EstablishedTLS()))
	pb.RegisterGatewayServiceServer(srv, d)
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve(handshakes{ln, id.ServerConfig("h2")})
	}()
	d.stop = sync.OnceFunc(func() { srv.Stop(); <-done })
	t.Cleanup(d.stop)
	return d
}

// handshakes is a listener that completes the TLS handshake of a connection
// before gRPC accepts the connection.
type handshakes struct {
	net.Listener
	cfg *tls.Config
}

func (l handshakes) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c.SetDeadline(time.Now().Add(5 * time.Second))
		s := tls.Server(c, l.cfg)
		if s.Handshake() != nil {
			c.Close()
			continue
		}
		c.SetDeadline(time.Time{})
		return s, nil
	}
}

// caller returns the identity of the client of a call.
func caller(ctx context.Context) string {
	p, _ := peer.FromContext(ctx)
	id, err := tlsutil.PeerFromCert(p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0], "wanfed")
	if err != nil {
		return err.Error()
	}
	return id.String()
}

func (d *double) Register(ctx context.Context, r *pb.RegisterGatewayRequest) (*pb.RegisterGatewayResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse != nil {
		return nil, d.refuse
	}
	d.events <- "register " + r.Lan + " " + r.Wan + " by " + caller(ctx)
	return &pb.RegisterGatewayResponse{Interval: durationpb.New(cmp.Or(d.every, 100*time.Millisecond)),
		Ttl: durationpb.New(time.Second)}, nil
}

func (d *double) Deregister(ctx context.Context, _ *pb.DeregisterGatewayRequest) (
	*pb.DeregisterGatewayResponse, error) {
	d.events <- "deregister by " + caller(ctx)
	return &pb.DeregisterGatewayResponse{}, nil
}

func (d *double) Watch(_ *pb.WatchGatewayRequest, stream grpc.ServerStreamingServer[pb.GatewaySnapshot]) error {
	for {
		d.mu.Lock()
		snap, changed := d.snap, d.changed
		d.mu.Unlock()
		if snap == nil {
			return status.Error(codes.Unavailable, "no snapshot yet")
		}
		if err := stream.Send(snap); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (d *double) publish(snap *pb.GatewaySnapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.snap = snap
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *double) wait(t testing.TB, want string) {
	t.Helper()
	wait(t, d.events, want)
}

// wait reads events until one begins with want.
func wait(t testing.TB, events <-chan string, want string) {
	t.Helper()
	var seen []string
	for timeout := time.After(waitLimit); ; {
		select {
		case e := <-events:
			if strings.HasPrefix(e, want) {
				return
			}
			seen = append(seen, e)
		case <-timeout:
			t.Fatalf("events within %v = %q, want %q", waitLimit, seen, want)
		}
	}
}

// logEvents returns a logger and its lines, each beginning with the level.
func logEvents() (*slog.Logger, <-chan string) {
	w := make(logWriter, 10000)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})), w
}

type logWriter chan string

func (w logWriter) Write(b []byte) (int, error) {
	w <- string(b)
	return len(b), nil
}

// rig is a client with its dependencies.
type rig struct {
	*Client
	ca       *tlstest.CA
	id       *tlsutil.Identity // of gateway gw1 in dc1
	lan, wan *gateway.Listener
	dir      string
	logs     <-chan string
}

// newRig creates the dependencies of a client.
func newRig(t testing.TB) *rig {
	ca := tlstest.NewCA(t)
	return &rig{ca: ca, id: ca.Identity(t, tlsutil.RoleGateway, "gw1", "dc1"), dir: t.TempDir()}
}

func (r *rig) double(t testing.TB, node string, snap *pb.GatewaySnapshot) *double {
	t.Helper()
	return newDouble(t, r.ca.Identity(t, tlsutil.RoleServer, node, "dc1"), snap)
}

// start creates a client and runs it. stop ends and joins it.
func (r *rig) start(t testing.TB, servers ...string) (stop func()) {
	t.Helper()
	r.lan, r.wan = gateway.NewListener("lan"), gateway.NewListener("wan")
	log, events := logEvents()
	r.logs = events
	c, err := New(Config{
		Identity: r.id, Servers: servers, LAN: "127.0.0.1:8444", WAN: "gw1.example:8443", DataDir: r.dir,
		LANListener: r.lan, WANListener: r.wan, Logger: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Client = c
	ctx, cancel := context.WithCancel(context.Background())
	errc := make(chan error, 1)
	go func() { errc <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-errc; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// routed checks that both listeners have the routes to the servers of snap, and
// that only the LAN listener has the routes to its datacenters.
func (r *rig) routed(t testing.TB, snap *pb.GatewaySnapshot) {
	t.Helper()
	for _, s := range snap.Servers {
		for _, l := range []*gateway.Listener{r.lan, r.wan} {
			if to, ok := l.Table().Lookup(s.Node + ".server.dc1.wanfed"); !ok || to.To[0] != s.Address {
				t.Errorf("Lookup() of %s in listener %s = %v, want %s", s.Node, l.Name(), to.To, s.Address)
			}
		}
	}
	for _, dc := range snap.Datacenters {
		name := "srv9.server." + dc.Name + ".wanfed"
		if to, ok := r.lan.Table().Lookup(name); !ok || to.To[0] != dc.Gateways[0] {
			t.Errorf("Lookup(%s) in listener lan = %v, want %v", name, to.To, dc.Gateways)
		}
		if to, ok := r.wan.Table().Lookup(name); ok {
			t.Errorf("Lookup(%s) in listener wan = %v, want no route", name, to.To)
		}
	}
}
