// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"fmt"
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
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// longHeartbeat prevents an election when the machine pauses for a second.
const longHeartbeat = 5 * time.Second

// startThree runs a datacenter of three servers, and waits until each server
// knows the leader. The argument leader is an index of addrs.
func startThree(t *testing.T, ca *tlstest.CA) (addrs []string, leader int) {
	t.Helper()
	addrs, _, leader = startThreeHTTP(t, ca)
	return addrs, leader
}

// startThreeHTTP is startThree, and also returns the URLs of the HTTP API.
func startThreeHTTP(t *testing.T, ca *tlstest.CA) (addrs, urls []string, leader int) {
	t.Helper()
	dir := t.TempDir()
	join := []string{"127.0.0.1:1"} // no server; the later servers join the first server
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
			BootstrapExpect: 3, RetryJoin: join, heartbeat: longHeartbeat,
		})
		parts = append(parts, p)
		if i == 0 {
			join = []string{a.Server}
		}
		addrs, urls = append(addrs, a.Server), append(urls, a.HTTP)
	}
	testutil.Eventually(t, startTimeout, func() bool {
		addr := leaderAt(t, urls[0])
		leader = slices.Index(addrs, addr)
		return leader >= 0 && leaderAt(t, urls[1]) == addr && leaderAt(t, urls[2]) == addr
	}, "one leader that all servers know")
	return addrs, urls, leader
}

// leaderAt returns the address of the leader that the server at url knows, or
// "".
func leaderAt(t testing.TB, url string) string {
	t.Helper()
	c, err := api.NewClient(api.ClientConfig{Addr: url})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	leader, err := c.Leader(ctx, api.QueryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return leader
}

// connectAs returns a gRPC client of the server of dc1 at addr, with a new
// certificate.
func connectAs(t *testing.T, ca *tlstest.CA, addr string, role tlsutil.Role, node, dc string) *grpc.ClientConn {
	t.Helper()
	cc, closeAll, err := api.DialServer(t.Context(), ca.Identity(t, role, node, dc), addr, "", "dc1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeAll)
	return cc
}

// TestForwardedCalls_KeepTheirCaller proves that a follower forwards a call
// with the identity in the caller's certificate. The metadata of the caller has
// no effect.
func TestForwardedCalls_KeepTheirCaller(t *testing.T) {
	testutil.Cluster(t)
	ca := tlstest.NewCA(t)
	addrs, leader := startThree(t, ca)
	follower := addrs[(leader+1)%3]
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	const upsert, del = pb.ApplyFederationStateRequest_OP_UPSERT, pb.ApplyFederationStateRequest_OP_DELETE
	// apply writes a state. If claim is not empty, the metadata names claim as
	// the caller.
	apply := func(cc *grpc.ClientConn, op pb.ApplyFederationStateRequest_Op, dc, claim string) error {
		ctx := ctx
		if claim != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, api.OnBehalfKey, claim)
		}
		_, err := pb.NewFederationServiceClient(cc).Apply(ctx, &pb.ApplyFederationStateRequest{
			Op: op, State: &pb.FederationState{Datacenter: dc},
		})
		return err
	}
	t.Run("false claims", func(t *testing.T) {
		for _, p := range []tlsutil.Peer{
			{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc3"},
			{Role: tlsutil.RoleGateway, Node: "gw1", DC: "dc1"},
			{Role: tlsutil.RoleClient, Node: "client", DC: "dc1"},
		} {
			cc := connectAs(t, ca, follower, p.Role, p.Node, p.DC)
			for _, claim := range []string{"", "server/dc2/srv1", "server/dc1/srv1", "cli/dc1/cli", "invalid"} {
				for _, op := range []pb.ApplyFederationStateRequest_Op{upsert, del} {
					if err := apply(cc, op, "dc2", claim); status.Code(err) != codes.PermissionDenied {
						t.Errorf("Apply(%v) by %v with the claim %q = %v, want %v", op, p, claim, err,
							codes.PermissionDenied)
					}
				}
			}
		}
	})
	t.Run("true callers", func(t *testing.T) {
		server := connectAs(t, ca, follower, tlsutil.RoleServer, "srv1", "dc3")
		if err := apply(server, upsert, "dc3", "server/dc2/srv1"); err != nil {
			t.Errorf("Apply(dc3) by a server of dc3 = %v, want nil", err)
		}
		operator := connectAs(t, ca, follower, tlsutil.RoleOperator, "cli", "dc1")
		if err := apply(operator, del, "dc3", ""); err != nil {
			t.Errorf("Apply(OP_DELETE) by an operator = %v, want nil", err)
		}
	})
	t.Run("gateway", func(t *testing.T) {
		gw := connectAs(t, ca, follower, tlsutil.RoleGateway, "gw7", "dc1")
		claim := metadata.AppendToOutgoingContext(ctx, api.OnBehalfKey, "gateway/dc1/gw8")
		_, err := pb.NewGatewayServiceClient(gw).Register(claim,
			&pb.RegisterGatewayRequest{Lan: "192.0.2.1:1", Wan: "192.0.2.1:2"})
		if err != nil {
			t.Fatal(err)
		}
		operator := connectAs(t, ca, addrs[leader], tlsutil.RoleOperator, "cli", "dc1")
		list, err := pb.NewResourceServiceClient(operator).List(ctx,
			&pb.ListRequest{Type: &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Node"}})
		if err != nil || len(list.Resources) != 1 || list.Resources[0].Id.Name != "gw7" {
			t.Errorf("List() = %v, %v, want the node gw7", list.GetResources(), err)
		}
	})
}
