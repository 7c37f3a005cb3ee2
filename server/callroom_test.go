// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
	"github.com/wanfed/wanfed/wanfed"
)

// until asks again and again until ok.
func until(t testing.TB, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(10 * time.Second); !ok(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("it does not come about")
		}
	}
}

// A peer that opens calls and never says what it asks has no more than its share, whatever it may call and over however many
// connections, and others are answered; when it goes, it has all again.
func TestCallsOfOnePeerAreBounded(t *testing.T) {
	ca := tlstest.NewCA(t)
	g := newTargetOf(t, ca)
	defer g.part.end(t)
	connect := func(id *tlsutil.Identity) *grpc.ClientConn {
		cc, err := api.Connect(func(ctx context.Context) (net.Conn, error) {
			return (&tls.Dialer{Config: id.ClientConfig("server.dc1.wanfed", wanfed.ProtoGRPC)}).DialContext(ctx, "tcp", g.addrs.Server)
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cc.Close() })
		return cc
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	alive := func(cc *grpc.ClientConn) error {
		_, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
		return err
	}
	mad := ca.Identity(t, tlsutil.RoleGateway, "gw1", "dc1")
	one, two := connect(mad), connect(mad)
	if err := alive(two); err != nil {
		t.Fatal(err)
	}
	silent := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	for range maxPeerCalls + 16 {
		if _, err := one.NewStream(ctx, silent, pb.OperatorService_RemovePeer_FullMethodName); err != nil {
			t.Fatal(err)
		}
	}
	until(t, func() bool { return status.Code(alive(two)) == codes.ResourceExhausted })
	if err := alive(connect(ca.Identity(t, tlsutil.RoleGateway, "gw2", "dc1"))); err != nil {
		t.Errorf("another peer: %v", err)
	}
	one.Close()
	until(t, func() bool { return alive(two) == nil })
}
