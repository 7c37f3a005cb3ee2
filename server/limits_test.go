// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"crypto/tls"
	"fmt"
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
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
	"github.com/wanfed/wanfed/wanfed"
)

// Limits of one peer: see the documentation of package rpc.
const (
	maxGatewayCalls    = 1024
	maxUnreadResponses = 32
)

// connectTo returns a gRPC client of the server with the certificate of id.
func (g *target) connectTo(t *testing.T, id *tlsutil.Identity, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	cc, err := api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
		d := tls.Dialer{Config: id.ClientConfig("server.dc1.wanfed", wanfed.ProtoGRPC)}
		return d.DialContext(ctx, "tcp", g.addrs.Server)
	}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

func checkHealth(ctx context.Context, cc *grpc.ClientConn) error {
	_, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	return err
}

func TestLimits_HeadersOfCallsAndRequests(t *testing.T) {
	ca := tlstest.NewCA(t)
	g := newTargetOf(t, ca)
	defer g.part.end(t)
	defer http.DefaultClient.CloseIdleConnections()
	cc := g.connectTo(t, ca.Identity(t, tlsutil.RoleGateway, "gw1", "dc1"))
	for size, want := range map[int]bool{rpc.MaxHeaders / 2: true, 2 * rpc.MaxHeaders: false} {
		ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
		defer cancel()
		long := strings.Repeat("x", size)
		err := checkHealth(metadata.AppendToOutgoingContext(ctx, "long", long), cc)
		if (err == nil) != want {
			t.Errorf("Check() with headers of %d bytes = %v, want success = %v", size, err, want)
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
		if (resp.StatusCode == http.StatusOK) != want {
			t.Errorf("GET with headers of %d bytes = %s, want success = %v", size, resp.Status, want)
		}
	}
}

// TestLimits_OpenCallsOfOnePeer proves that the limit of open calls of a peer
// includes denied methods and all connections of the peer, and does not affect
// other peers. The calls of a closed connection no longer count.
func TestLimits_OpenCallsOfOnePeer(t *testing.T) {
	testutil.Cluster(t)
	ca := tlstest.NewCA(t)
	g := newTargetOf(t, ca)
	defer g.part.end(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*startTimeout)
	defer cancel()
	id := ca.Identity(t, tlsutil.RoleGateway, "gw1", "dc1")
	busy, idle := g.connectTo(t, id), g.connectTo(t, id)
	if err := checkHealth(ctx, idle); err != nil {
		t.Fatal(err)
	}
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	open := func(n int) {
		t.Helper()
		for range n {
			if _, err := busy.NewStream(ctx, both, pb.OperatorService_RemovePeer_FullMethodName); err != nil {
				t.Fatal(err)
			}
		}
	}
	open(maxGatewayCalls + 16)
	testutil.Eventually(t, startTimeout, func() bool {
		if err := checkHealth(ctx, idle); status.Code(err) == codes.ResourceExhausted {
			return true
		}
		open(1) // replaces a call that was rejected because a finished call still counted
		return false
	}, "ResourceExhausted on the second connection")
	if err := checkHealth(ctx, g.connectTo(t, ca.Identity(t, tlsutil.RoleGateway, "gw2", "dc1"))); err != nil {
		t.Errorf("Check() of another peer = %v, want nil", err)
	}
	busy.Close()
	testutil.Eventually(t, startTimeout, func() bool { return checkHealth(ctx, idle) == nil },
		"a successful call after the first connection was closed")
}

// TestLimits_FederationStates proves that the server refuses the federation states
// of a datacenter that writes too many, also those that are not permitted, before
// it reads them. It is the attack program "apply". Another datacenter still writes.
func TestLimits_FederationStates(t *testing.T) {
	testutil.Cluster(t)
	ca := tlstest.NewCA(t)
	g := newTargetOf(t, ca)
	defer g.part.end(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	connect := func(dc string) *grpc.ClientConn {
		return g.connectTo(t, ca.Identity(t, tlsutil.RoleServer, "srv1", dc))
	}
	apply := func(cc *grpc.ClientConn, dc string, gateways int) error {
		s := &pb.FederationState{Datacenter: dc}
		for i := range gateways {
			s.MeshGateways = append(s.MeshGateways, &pb.MeshGateway{Node: &pb.Node{Node: fmt.Sprint("gw", i), Datacenter: dc,
				Address: strings.Repeat("x", 1<<10)}})
		}
		_, err := pb.NewFederationServiceClient(cc).Apply(ctx, &pb.ApplyFederationStateRequest{
			Op: pb.ApplyFederationStateRequest_OP_UPSERT, State: s,
		}, grpc.WaitForReady(true), grpc.MaxCallSendMsgSize(4*api.MaxMessageSize))
		return err
	}
	const burst, size = 4 << 20, 1 << 20 // bytes
	dc3 := connect("dc3")
	for range burst / size {
		if err := apply(dc3, "dc1", size>>10); status.Code(err) != codes.PermissionDenied {
			t.Fatalf("Apply(dc1) by a server of dc3 = %v, want PermissionDenied", err)
		}
	}
	// A request above MaxMessageSize fails when it is read.
	err := apply(dc3, "dc3", 2*api.MaxMessageSize>>10)
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "servers of dc3 write too many") {
		t.Errorf("Apply() after 4 MiB = %v, want ResourceExhausted because of the rate", err)
	}
	if err := apply(connect("dc2"), "dc2", 0); err != nil {
		t.Errorf("Apply() by a server of dc2 = %v, want nil", err)
	}
}

// TestLimits_UnreadResponsesOfOnePeer proves that the server computes a bounded
// number of large responses for a peer that does not read, and still serves
// other peers. The slots are released when the calls are cancelled, and when
// their connection is closed.
func TestLimits_UnreadResponsesOfOnePeer(t *testing.T) {
	testutil.Cluster(t)
	ca := tlstest.NewCA(t)
	g := newTargetOf(t, ca)
	defer g.part.end(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	connect := func(node string) *grpc.ClientConn {
		id := ca.Identity(t, tlsutil.RoleOperator, node, "dc1")
		return g.connectTo(t, id, grpc.WithStaticStreamWindowSize(64<<10)) // smaller than the response
	}
	request := &pb.ListRequest{Type: kv.EntryType}
	list := func(cc *grpc.ClientConn, timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		got, err := pb.NewResourceServiceClient(cc).List(ctx, request, grpc.WaitForReady(true))
		if err == nil && len(got.GetResources()) != 1 {
			err = fmt.Errorf("%d entries, want 1", len(got.GetResources()))
		}
		return err
	}
	other := connect("other")
	r, err := resource.New(kv.EntryType, "large", &pb.KVEntry{Value: make([]byte, kv.MaxValue)})
	if err != nil {
		t.Fatal(err)
	}
	r.Id.Uid = ""
	write := &pb.WriteRequest{Resource: r}
	if _, err := pb.NewResourceServiceClient(other).Write(ctx, write, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		end  func(cc *grpc.ClientConn, cancel context.CancelFunc)
	}{
		{"calls cancelled", func(_ *grpc.ClientConn, cancel context.CancelFunc) { cancel() }},
		{"connection closed", func(cc *grpc.ClientConn, _ context.CancelFunc) { cc.Close() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			unread, samePeer := connect("unread"), connect("unread")
			calls, cancel := context.WithCancel(ctx)
			defer cancel()
			for range 2 * maxUnreadResponses {
				s, err := unread.NewStream(calls, &grpc.StreamDesc{ServerStreams: true},
					pb.ResourceService_List_FullMethodName)
				if err == nil {
					err = s.SendMsg(request)
				}
				if err == nil {
					err = s.CloseSend()
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			for range 3 {
				testutil.Eventually(t, startTimeout, func() bool { return list(samePeer, 300*time.Millisecond) != nil },
					"a timeout of List() while the slots are held")
			}
			if err := list(other, startTimeout); err != nil {
				t.Errorf("List() of another peer = %v, want nil", err)
			}
			tt.end(unread, cancel)
			testutil.Eventually(t, startTimeout, func() bool { return list(samePeer, time.Second) == nil },
				"a successful List() after the slots were released")
		})
	}
}
