// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"crypto/tls"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
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
	for limit := time.After(starting); !ok(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("it does not come about")
		}
	}
}

func TestMostCalls(t *testing.T) {
	r := newCallRoom("dc1", tlsutil.DefaultDomain, nil)
	for p, want := range map[tlsutil.Peer]int{
		{Role: tlsutil.RoleServer, Node: "srv2", DC: "dc1"}:  math.MaxInt,
		{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc2"}:  maxManyCalls,
		{Role: tlsutil.RoleOperator, Node: "joe", DC: "dc1"}: maxManyCalls,
		{Role: tlsutil.RoleClient, Node: "web1", DC: "dc1"}:  maxPeerCalls,
		{Role: tlsutil.RoleGateway, Node: "gw1", DC: "dc1"}:  maxPeerCalls,
	} {
		if got := r.most(p); got != want {
			t.Errorf("%v: %d calls, want %d", p, got, want)
		}
	}
}

// Headers take no more memory than any call or request needs.
func TestHeadersAreBounded(t *testing.T) {
	ca := tlstest.NewCA(t)
	g := newTargetOf(t, ca)
	defer g.part.end(t)
	id := ca.Identity(t, tlsutil.RoleGateway, "gw1", "dc1")
	cc, err := api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
		return (&tls.Dialer{Config: id.ClientConfig("server.dc1.wanfed", wanfed.ProtoGRPC)}).DialContext(ctx, "tcp", g.addrs.Server)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	for size, ok := range map[int]bool{maxHeaders / 2: true, 2 * maxHeaders: false} {
		ctx, cancel := context.WithTimeout(t.Context(), starting)
		defer cancel()
		long := strings.Repeat("x", size)
		_, err := healthpb.NewHealthClient(cc).Check(metadata.AppendToOutgoingContext(ctx, "long", long), &healthpb.HealthCheckRequest{})
		if (err == nil) != ok {
			t.Errorf("call with %d bytes: %v", size, err)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.addrs.HTTP+"/v1/status/leader?x="+long, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if (resp.StatusCode == http.StatusOK) != ok {
			t.Errorf("request with %d bytes: %s", size, resp.Status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// A peer that opens calls and never says what it asks has no more than its share, whatever it may call and over however many
// connections, and others are answered; when it goes, it has all again.
func TestCallsOfOnePeerAreBounded(t *testing.T) {
	ca := tlstest.NewCA(t)
	g := newTargetOf(t, ca)
	defer g.part.end(t)
	connect := func(id *tlsutil.Identity) *grpc.ClientConn {
		cc, err := api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
			return (&tls.Dialer{Config: id.ClientConfig("server.dc1.wanfed", wanfed.ProtoGRPC)}).DialContext(ctx, "tcp", g.addrs.Server)
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cc.Close() })
		return cc
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*starting)
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
	open := func(n int) {
		t.Helper()
		for range n {
			if _, err := one.NewStream(ctx, silent, pb.OperatorService_RemovePeer_FullMethodName); err != nil {
				t.Fatal(err)
			}
		}
	}
	open(maxPeerCalls + 16)
	until(t, func() bool {
		if err := alive(two); status.Code(err) == codes.ResourceExhausted {
			return true
		}
		open(1) // one was refused because a call that had been answered was not counted as ended yet
		return false
	})
	if err := alive(connect(ca.Identity(t, tlsutil.RoleGateway, "gw2", "dc1"))); err != nil {
		t.Errorf("another peer: %v", err)
	}
	one.Close()
	until(t, func() bool { return alive(two) == nil })
}
