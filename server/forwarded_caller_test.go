// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// steady is the heartbeat of servers whose leader stays though the machine stands still for a second.
const steady = 5 * time.Second

// startThree runs a datacenter of three servers and waits until each knows the leader.
func startThree(t *testing.T, ca *tlstest.CA) (addrs []string, leader int) {
	t.Helper()
	addrs, _, leader = startThreeHTTP(t, ca)
	return addrs, leader
}

// startThreeHTTP is startThree that says the URLs too.
func startThreeHTTP(t *testing.T, ca *tlstest.CA) (addrs, urls []string, leader int) {
	t.Helper()
	dir := t.TempDir()
	join := []string{"127.0.0.1:1"} // nobody: the others find the first
	var parts []*part
	t.Cleanup(func() {
		for _, p := range parts {
			p.stop()
		}
		for _, p := range parts {
			p.end(t)
		}
	})
	for i := range 3 {
		node := fmt.Sprintf("srv%d", i+1)
		f := ca.Files(t, tlsutil.RoleServer, node, "dc1")
		p, a := startServer(t, Config{
			DC: "dc1", Node: node, DataDir: filepath.Join(dir, node), CAFile: f.CA, CertFile: f.Cert, KeyFile: f.Key,
			BootstrapExpect: 3, RetryJoin: join, heartbeat: steady,
		})
		parts = append(parts, p)
		if i == 0 {
			join = []string{a.Server}
		}
		addrs, urls = append(addrs, a.Server), append(urls, a.HTTP)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(starting)
	for {
		known := map[string]int{}
		for _, url := range urls {
			known[leaderAt(t, url)]++
		}
		for addr, n := range known {
			if addr != "" && n == 3 {
				return addrs, urls, slices.Index(addrs, addr)
			}
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("leaders, as the servers know them: %v", known)
		}
	}
}

func leaderAt(t testing.TB, url string) string {
	t.Helper()
	c, err := api.NewClient(api.ClientConfig{Addr: url})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), starting)
	defer cancel()
	leader, err := c.Leader(ctx, api.QueryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return leader
}

// connectAs connects to a server of dc1 with a certificate of its own.
func connectAs(t *testing.T, ca *tlstest.CA, addr string, role tlsutil.Role, node, dc string) *grpc.ClientConn {
	t.Helper()
	id := ca.Identity(t, role, node, dc)
	cc, err := api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
		return (&tls.Dialer{Config: id.ClientConfig("server.dc1.wanfed", "h2")}).DialContext(ctx, "tcp", addr)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

// TestForwardedCallsKeepTheirCaller: whichever server is called, the leader decides by the certificate of who called, and by
// nothing that the caller says of itself.
func TestForwardedCallsKeepTheirCaller(t *testing.T) {
	ca := tlstest.NewCA(t)
	addrs, leader := startThree(t, ca)
	follower := addrs[(leader+1)%3]
	connect := func(t *testing.T, addr string, role tlsutil.Role, node, dc string) *grpc.ClientConn {
		t.Helper()
		return connectAs(t, ca, addr, role, node, dc)
	}
	ctx, cancel := context.WithTimeout(t.Context(), starting)
	defer cancel()
	apply := func(cc *grpc.ClientConn, op pb.ApplyFederationStateRequest_Op, dc, as string) error {
		ctx := ctx
		if as != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, api.OnBehalfKey, as)
		}
		_, err := pb.NewFederationServiceClient(cc).Apply(ctx, &pb.ApplyFederationStateRequest{Op: op, State: &pb.FederationState{Datacenter: dc}})
		return err
	}
	const upsert, del = pb.ApplyFederationStateRequest_OP_UPSERT, pb.ApplyFederationStateRequest_OP_DELETE
	forged := []string{"", "server/dc2/srv1", "server/dc1/srv1", "cli/dc1/cli", "nonsense"}
	for _, peer := range []tlsutil.Peer{
		{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc3"}, {Role: tlsutil.RoleGateway, Node: "gw1", DC: "dc1"}, {Role: tlsutil.RoleClient, Node: "client", DC: "dc1"},
	} {
		cc := connect(t, follower, peer.Role, peer.Node, peer.DC)
		for _, as := range forged {
			for _, op := range []pb.ApplyFederationStateRequest_Op{upsert, del} {
				if err := apply(cc, op, "dc2", as); status.Code(err) != codes.PermissionDenied {
					t.Errorf("%v, which says it is %q, gets for %v: %v", peer, as, op, err)
				}
			}
		}
	}
	if err := apply(connect(t, follower, tlsutil.RoleServer, "srv1", "dc3"), upsert, "dc3", "server/dc2/srv1"); err != nil {
		t.Errorf("a server of dc3 writes its own state at a follower: %v", err)
	}
	if err := apply(connect(t, follower, tlsutil.RoleOperator, "cli", "dc2"), del, "dc3", ""); err != nil {
		t.Errorf("an operator deletes a state at a follower: %v", err)
	}

	// A gateway is registered under its certificate's name, also where that is not the caller of the leader.
	gw := connect(t, follower, tlsutil.RoleGateway, "gw7", "dc1")
	if _, err := pb.NewGatewayServiceClient(gw).Register(metadata.AppendToOutgoingContext(ctx, api.OnBehalfKey, "gateway/dc1/gw8"),
		&pb.RegisterGatewayRequest{Lan: "192.0.2.1:1", Wan: "192.0.2.1:2"}); err != nil {
		t.Fatal(err)
	}
	list, err := pb.NewResourceServiceClient(connect(t, addrs[leader], tlsutil.RoleOperator, "cli", "dc1")).List(ctx,
		&pb.ListRequest{Type: &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Node"}})
	if err != nil || len(list.Resources) != 1 || list.Resources[0].Id.Name != "gw7" {
		t.Errorf("registered: %v, %v", list.GetResources(), err)
	}
}
