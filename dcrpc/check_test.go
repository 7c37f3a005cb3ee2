// SPDX-License-Identifier: MPL-2.0

package dcrpc

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// busyService sends messages on its streams while sending is set.
type busyService struct {
	pb.UnimplementedServerServiceServer
	sending atomic.Bool
}

func (s *busyService) Exchange(stream pb.ServerService_ExchangeServer) error {
	for stream.Context().Err() == nil {
		if s.sending.Load() {
			if err := stream.Send(&pb.Answers{}); err != nil {
				return err
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// TestCheck_BusyPeer proves that a connection whose peer sends data is not
// replaced, although the peer does not respond to health checks in time, and that
// a connection with a silent peer is replaced.
func TestCheck_BusyPeer(t *testing.T) {
	ca, err := tlsutil.CreateCA(tlsutil.CARequest{})
	if err != nil {
		t.Fatal(err)
	}
	ln1, ln2, lnGateway := listenLocal(t), listenLocal(t), listenLocal(t)
	routes, err := gateway.NewTable([]gateway.Route{{Match: "*.dc2.wanfed", To: []string{ln2.Addr().String()}}})
	if err != nil {
		t.Fatal(err)
	}
	wan := gateway.NewListener("wan", lnGateway)
	wan.SetTable(routes)
	proxy, err := gateway.New(gateway.Config{})
	if err != nil {
		t.Fatal(err)
	}
	background(t, func(ctx context.Context) error { return proxy.Run(ctx, wan) })
	node := func(dc string, ln net.Listener, gateways map[string][]string) *wanfed.Node {
		n, err := wanfed.NewNode(wanfed.NodeConfig{
			Identity: newIdentity(t, ca, dc), Advertise: ln.Addr().String(), Gateways: gateways,
		})
		if err != nil {
			t.Fatal(err)
		}
		background(t, func(ctx context.Context) error { return n.Run(ctx, ln) })
		return n
	}
	client := node("dc1", ln1, map[string][]string{"dc2": {lnGateway.Addr().String()}})
	peer := node("dc2", ln2, nil)
	// With fixed windows, as in a server, no ping follows received data.
	service, server := &busyService{}, grpc.NewServer(
		grpc.StaticStreamWindowSize(api.InitialWindowSize), grpc.StaticConnWindowSize(api.InitialWindowSize))
	pb.RegisterServerServiceServer(server, service)
	healthpb.RegisterHealthServer(server, slowHealth{delay: time.Minute})
	grpcLn := peer.Tunnel.GRPCListener()
	background(t, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, server.Stop)()
		_ = server.Serve(grpcLn) // fails when the node or the server stops
		return nil
	})

	c := New(Config{DC: "dc1", PrimaryDC: "dc1", Tunnel: client.Tunnel, Dialer: client.Dialer, Book: client.AddressBook})
	background(t, c.Run)
	cc, err := c.conn(connKey{dc: "dc2"})
	if err != nil {
		t.Fatal(err)
	}
	service.sending.Store(true)
	stream, err := pb.NewServerServiceClient(cc).Exchange(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if c.check(cc); cc.dead.Load() {
		t.Error("check() replaced the connection of a busy peer, want it to stay")
	}
	service.sending.Store(false)
	testutil.Eventually(t, 30*time.Second, func() bool { // a keepalive may arrive during a check
		c.check(cc)
		return cc.dead.Load()
	}, "the connection of a silent peer is replaced")
}

func listenLocal(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// background runs f until the end of the test.
func background(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

// newIdentity returns the identity of a server of dc.
func newIdentity(t *testing.T, ca tlsutil.KeyPair, dc string) *tlsutil.Identity {
	t.Helper()
	cert, err := tlsutil.CreateCert(tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: "srv1", DC: dc, CA: ca})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := tlsutil.Files{
		CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"),
	}
	for path, b := range map[string][]byte{files.CA: ca.Cert, files.Cert: cert.Cert, files.Key: cert.Key} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	id, err := tlsutil.Load(files, tlsutil.DefaultDomain, nil)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
