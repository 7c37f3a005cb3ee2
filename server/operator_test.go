// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// callAs connects to a server of dc1 with a certificate.
func callAs(t *testing.T, ca *tlstest.CA, addr string, role tlsutil.Role, node, dc string) *grpc.ClientConn {
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

// savedPart is a snapshot as it came.
type savedParts struct {
	manifest, end *pb.SnapshotManifest
	data          []byte
}

func save(ctx context.Context, c pb.OperatorServiceClient) (out savedParts, err error) {
	stream, err := c.SaveSnapshot(ctx, &pb.SaveSnapshotRequest{})
	for err == nil {
		var p *pb.SnapshotPart
		if p, err = stream.Recv(); err == nil {
			out.data = append(out.data, p.GetData()...)
			if m := p.GetManifest(); m != nil {
				out.manifest = m
			}
			if m := p.GetEnd(); m != nil {
				out.end = m
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return out, err
}

func restore(ctx context.Context, c pb.OperatorServiceClient, m *pb.SnapshotManifest, data []byte) (*pb.RestoreSnapshotResponse, error) {
	stream, err := c.RestoreSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	parts := []*pb.SnapshotPart{{Part: &pb.SnapshotPart_Manifest{Manifest: m}}}
	for chunk := range slices.Chunk(data, 100) {
		parts = append(parts, &pb.SnapshotPart{Part: &pb.SnapshotPart_Data{Data: chunk}})
	}
	for _, p := range parts {
		if err := stream.Send(p); err != nil {
			break // the answer says why
		}
	}
	return stream.CloseAndRecv()
}

// TestOperators: what operators ask of a datacenter of three servers, each by a server that must hand it on.
func TestOperators(t *testing.T) {
	ca := tlstest.NewCA(t)
	addrs, leader := startThree(t, ca)
	ctx, cancel := context.WithTimeout(t.Context(), 3*starting)
	defer cancel()
	at := func(i int) pb.OperatorServiceClient {
		return pb.NewOperatorServiceClient(callAs(t, ca, addrs[(leader+i)%3], tlsutil.RoleOperator, "cli", "dc1"))
	}
	follower, other := at(1), at(2)
	name := func(i int) string { return fmt.Sprintf("srv%d", (leader+i)%3+1) }

	list, err := follower.ListPeers(ctx, &pb.ListPeersRequest{})
	if err != nil || len(list.Peers) != 3 {
		t.Fatalf("peers %v, %v", list, err)
	}
	for i, p := range list.Peers {
		if p.Node != fmt.Sprintf("srv%d", i+1) || p.Id == "" || p.Address != addrs[i] || p.Leader != (i == leader) ||
			!p.Voter || p.Member != "alive" || p.LastContact == nil || p.LastIndex == 0 {
			t.Errorf("peer %v", p)
		}
	}
	here, err := follower.ListPeersHere(ctx, &pb.ListPeersRequest{})
	if err != nil || len(here.Peers) != 3 || here.Peers[(leader+2)%3].LastIndex != 0 {
		t.Errorf("peers as a follower sees them: %v, %v", here, err)
	}

	for _, tt := range []struct {
		node  string
		force bool
		code  codes.Code
		want  string
	}{
		{"srv9", true, codes.NotFound, `"srv9" is not in the Raft group of dc1; its servers are srv1, srv2, srv3`},
		{name(0), true, codes.FailedPrecondition, "transfer leadership first"},
		{name(2), false, codes.FailedPrecondition, "is alive; stop it first, or remove it all the same with --force"},
	} {
		_, err := follower.RemovePeer(ctx, &pb.RemovePeerRequest{Node: tt.node, Force: tt.force})
		if status.Code(err) != tt.code || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("remove %s: %v; want %s", tt.node, err, tt.want)
		}
	}
	if _, err := follower.TransferLeader(ctx, &pb.TransferLeaderRequest{Node: "srv9"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("leadership to a stranger: %v", err)
	}
	for _, to := range []string{name(2), name(1), name(1), name(0)} { // also to the one that leads already
		got, err := other.TransferLeader(ctx, &pb.TransferLeaderRequest{Node: to})
		if err != nil || got.Leader != to {
			t.Fatalf("leadership to %s: %v, %v", to, got, err)
		}
	}

	// What is forwarded to a server that does not lead comes back at once, undone: who forwards is behind, and asks again.
	behind := metadata.AppendToOutgoingContext(ctx, api.OnBehalfKey, "cli/dc1/cli")
	stale := pb.NewOperatorServiceClient(callAs(t, ca, addrs[(leader+1)%3], tlsutil.RoleServer, name(2), "dc1"))
	for what, forward := range map[string]func() error{
		"a call": func() error {
			_, err := stale.TransferLeader(behind, &pb.TransferLeaderRequest{Node: name(2)})
			return err
		},
		"a stream": func() error {
			_, err := save(behind, stale)
			return err
		},
	} {
		began := time.Now()
		err := forward()
		if took := time.Since(began); !errors.Is(resource.FromStatus(err), resource.ErrNotLeader) || !strings.Contains(err.Error(), name(0)+" is") || took >= 7*time.Second {
			t.Errorf("%s forwarded to a follower: %v, after %v", what, err, took)
		}
	}

	// Snapshots, through a follower both ways.
	states := func() string {
		resp, err := pb.NewFederationServiceClient(callAs(t, ca, addrs[(leader+1)%3], tlsutil.RoleOperator, "cli", "dc1")).List(ctx, &pb.ListFederationStatesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var dcs []string
		for _, s := range resp.States {
			dcs = append(dcs, s.Datacenter)
		}
		return strings.Join(dcs, " ")
	}
	write := func(dc string) {
		cc := callAs(t, ca, addrs[(leader+2)%3], tlsutil.RoleServer, "srv1", dc)
		if _, err := pb.NewFederationServiceClient(cc).Apply(ctx, &pb.ApplyFederationStateRequest{
			Op: pb.ApplyFederationStateRequest_OP_UPSERT, State: &pb.FederationState{Datacenter: dc},
		}); err != nil {
			t.Fatal(err)
		}
	}
	write("dc3")
	saved, err := save(ctx, follower)
	if err != nil || saved.end.GetSize() != int64(len(saved.data)) || saved.end.GetDatacenter() != "dc1" || saved.manifest.GetIndex() != saved.end.GetIndex() {
		t.Fatalf("saved %v, %v; %d bytes", saved.end, err, len(saved.data))
	}
	write("dc4")
	foreign := proto.CloneOf(saved.end)
	foreign.Datacenter = "dc2"
	for what, m := range map[string]*pb.SnapshotManifest{"of datacenter dc2, not of dc1": foreign, "of datacenter , not": {}} {
		if _, err := restore(ctx, follower, m, saved.data); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), what) {
			t.Errorf("restored: %v; want %s", err, what)
		}
	}
	if stream, err := follower.RestoreSnapshot(ctx); err != nil || stream.Send(&pb.SnapshotPart{Part: &pb.SnapshotPart_Data{Data: []byte("x")}}) != nil {
		t.Error("a restore without a manifest does not even begin")
	} else if _, err := stream.CloseAndRecv(); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "its manifest") {
		t.Errorf("a restore without a manifest: %v", err)
	}
	bad := bytes.Clone(saved.data)
	bad[len(bad)/2] ^= 1
	if _, err := restore(ctx, follower, saved.end, bad); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "it is damaged") {
		t.Errorf("restored damaged data: %v", err)
	}
	gone, leave := context.WithCancel(ctx)
	if stream, err := follower.RestoreSnapshot(gone); err != nil || stream.Send(&pb.SnapshotPart{Part: &pb.SnapshotPart_Manifest{Manifest: saved.end}}) != nil {
		t.Error("a restore that is given up does not even begin")
	}
	leave()
	got, err := restore(ctx, follower, saved.end, saved.data)
	for status.Code(err) == codes.FailedPrecondition { // the one that was given up is not over yet
		got, err = restore(ctx, follower, saved.end, saved.data)
	}
	if err != nil || got.Resources != 2 || got.Index <= saved.end.Index { // the state, and which datacenter is the primary
		t.Fatalf("restored %v, %v", got, err)
	}
	awaitStates(t, states, "dc3")
	write("dc4")
	awaitStates(t, states, "dc3 dc4")

	// A server that runs is removed by force, and not added again while it runs.
	resp, err := follower.RemovePeer(ctx, &pb.RemovePeerRequest{Node: name(2), Force: true})
	if err != nil || !resp.Running {
		t.Fatalf("removed %v, %v", resp, err)
	}
	list, err = follower.ListPeers(ctx, &pb.ListPeersRequest{})
	if err != nil || len(list.Peers) != 2 {
		t.Errorf("peers %v, %v", list, err)
	}
	if _, err := follower.RemovePeer(ctx, &pb.RemovePeerRequest{Node: name(1), Force: true}); err != nil {
		t.Errorf("remove all but one: %v", err)
	}
	if _, err := at(0).RemovePeer(ctx, &pb.RemovePeerRequest{Node: name(0), Force: true}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "the only voter") {
		t.Errorf("remove the last: %v", err)
	}
}

func awaitStates(t *testing.T, states func() string, want string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(starting); states() != want; {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("states %s, want %s", states(), want)
		}
	}
}
