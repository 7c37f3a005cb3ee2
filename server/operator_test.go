// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// savedSnapshot is a received snapshot. The manifest end has the size and the
// checksum of the data.
type savedSnapshot struct {
	manifest, end *pb.SnapshotManifest
	data          []byte
}

func saveSnapshot(ctx context.Context, c pb.OperatorServiceClient) (out savedSnapshot, err error) {
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

func restoreSnapshot(
	ctx context.Context, c pb.OperatorServiceClient, m *pb.SnapshotManifest, data []byte,
) (*pb.RestoreSnapshotResponse, error) {
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
			break // the response has the error
		}
	}
	return stream.CloseAndRecv()
}

// operatorCluster is a datacenter of three servers. Methods identify a server
// by its position after the first leader: 0 is the leader, 1 and 2 are
// followers.
type operatorCluster struct {
	ca     *tlstest.CA
	addrs  []string
	leader int             // index of the first leader in addrs
	ctx    context.Context // context of the test
}

// name returns the node name of server i.
func (c *operatorCluster) name(i int) string { return fmt.Sprintf("srv%d", (c.leader+i)%3+1) }

// addr returns the address of server i.
func (c *operatorCluster) addr(i int) string { return c.addrs[(c.leader+i)%3] }

// at returns a client of the operator service of server i.
func (c *operatorCluster) at(t *testing.T, i int) pb.OperatorServiceClient {
	t.Helper()
	return pb.NewOperatorServiceClient(connectAs(t, c.ca, c.addr(i), tlsutil.RoleOperator, "cli", "dc1"))
}

// writeState writes the federation state of dc at a follower.
func (c *operatorCluster) writeState(t *testing.T, dc string) {
	t.Helper()
	cc := connectAs(t, c.ca, c.addr(2), tlsutil.RoleServer, "srv1", dc)
	_, err := pb.NewFederationServiceClient(cc).Apply(c.ctx, &pb.ApplyFederationStateRequest{
		Op: pb.ApplyFederationStateRequest_OP_UPSERT, State: &pb.FederationState{Datacenter: dc},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// states returns the datacenters with a federation state at a follower.
func (c *operatorCluster) states(t *testing.T) string {
	t.Helper()
	cc := connectAs(t, c.ca, c.addr(1), tlsutil.RoleOperator, "cli", "dc1")
	resp, err := pb.NewFederationServiceClient(cc).List(c.ctx, &pb.ListFederationStatesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var dcs []string
	for _, s := range resp.States {
		dcs = append(dcs, s.Datacenter)
	}
	return strings.Join(dcs, " ")
}

func (c *operatorCluster) awaitStates(t *testing.T, want string) {
	t.Helper()
	testutil.Eventually(t, startTimeout, func() bool { return c.states(t) == want }, "federation states of %s", want)
}

// TestOperators calls the operator service at followers, which forward the
// calls to the leader. The subtests share one datacenter and depend on their
// order.
func TestOperators(t *testing.T) {
	testutil.Cluster(t)
	ca := tlstest.NewCA(t)
	addrs, leader := startThree(t, ca)
	ctx, cancel := context.WithTimeout(t.Context(), 3*startTimeout)
	defer cancel()
	c := &operatorCluster{ca: ca, addrs: addrs, leader: leader, ctx: ctx}
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, c *operatorCluster)
	}{
		{"list peers", testListPeers},
		{"refused changes", testRefusedChanges},
		{"transfer leadership", testTransferLeadership},
		{"forwarded to a follower", testForwardedToFollower},
		{"save and restore", testSaveAndRestore},
		{"remove servers", testRemoveServers},
	} {
		if !t.Run(tt.name, func(t *testing.T) { tt.run(t, c) }) {
			return
		}
	}
}

func testListPeers(t *testing.T, c *operatorCluster) {
	list, err := c.at(t, 1).ListPeers(c.ctx, &pb.ListPeersRequest{})
	if err != nil || len(list.Peers) != 3 {
		t.Fatalf("ListPeers() = %v, %v, want 3 peers", list, err)
	}
	for i, p := range list.Peers {
		want := &pb.RaftPeer{
			Node: fmt.Sprintf("srv%d", i+1), Address: c.addrs[i], Leader: i == c.leader, Voter: true, Member: "alive",
			Id: p.Id, LastContact: p.LastContact, LastIndex: p.LastIndex, Trailing: p.Trailing,
		}
		if !proto.Equal(p, want) || p.Id == "" || p.LastContact == nil || p.LastIndex == 0 {
			t.Errorf("ListPeers()[%d] = %v, want %v with an id, a contact and an index", i, p, want)
		}
	}
	here, err := c.at(t, 1).ListPeersHere(c.ctx, &pb.ListPeersRequest{})
	if err != nil || len(here.Peers) != 3 || here.Peers[(c.leader+2)%3].LastIndex != 0 {
		t.Errorf("ListPeersHere() at a follower = %v, %v, want 3 peers without the index of the other follower", here,
			err)
	}
}

func testRefusedChanges(t *testing.T, c *operatorCluster) {
	follower := c.at(t, 1)
	for _, tt := range []struct {
		node  string
		force bool
		code  codes.Code
		want  string
	}{
		{"srv9", true, codes.NotFound, `"srv9" is not in the Raft group of dc1; its servers are srv1, srv2, srv3`},
		{c.name(0), true, codes.FailedPrecondition, "transfer leadership first"},
		{c.name(2), false, codes.FailedPrecondition, "is alive; stop it first, or remove it all the same with --force"},
	} {
		_, err := follower.RemovePeer(c.ctx, &pb.RemovePeerRequest{Node: tt.node, Force: tt.force})
		if status.Code(err) != tt.code || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("RemovePeer(%s) = %v, want %v: %s", tt.node, err, tt.code, tt.want)
		}
	}
	_, err := follower.TransferLeader(c.ctx, &pb.TransferLeaderRequest{Node: "srv9"})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("TransferLeader(srv9) = %v, want %v", err, codes.FailedPrecondition)
	}
}

func testTransferLeadership(t *testing.T, c *operatorCluster) {
	follower := c.at(t, 2)
	for _, to := range []string{c.name(2), c.name(1), c.name(1), c.name(0)} { // the third target is already the leader
		got, err := follower.TransferLeader(c.ctx, &pb.TransferLeaderRequest{Node: to})
		if err != nil || got.Leader != to {
			t.Fatalf("TransferLeader(%s) = %v, %v, want %s", to, got, err, to)
		}
	}
}

// testForwardedToFollower proves that a forwarded call fails at once and
// without effect at a server that is not the leader. The forwarding server must
// find the new leader.
func testForwardedToFollower(t *testing.T, c *operatorCluster) {
	ctx := metadata.AppendToOutgoingContext(c.ctx, api.OnBehalfKey, "cli/dc1/cli")
	follower := pb.NewOperatorServiceClient(connectAs(t, c.ca, c.addr(1), tlsutil.RoleServer, c.name(2), "dc1"))
	for name, call := range map[string]func() error{
		"TransferLeader": func() error {
			_, err := follower.TransferLeader(ctx, &pb.TransferLeaderRequest{Node: c.name(2)})
			return err
		},
		"SaveSnapshot": func() error {
			_, err := saveSnapshot(ctx, follower)
			return err
		},
	} {
		const leaderTimeout = 7 * time.Second
		start := time.Now()
		err := call()
		took := time.Since(start)
		notDone := errors.Is(resource.FromStatus(err), resource.ErrNotLeader)
		if !notDone || !strings.Contains(err.Error(), c.name(0)+" is") || took >= leaderTimeout {
			t.Errorf("%s() = %v after %v, want %v with the name of the leader within %v",
				name, err, took, resource.ErrNotLeader, leaderTimeout)
		}
	}
}

// testSaveAndRestore saves and restores a snapshot through a follower.
func testSaveAndRestore(t *testing.T, c *operatorCluster) {
	follower := c.at(t, 1)
	c.writeState(t, "dc3")
	saved, err := saveSnapshot(c.ctx, follower)
	if err != nil || saved.end.GetSize() != int64(len(saved.data)) || saved.end.GetDatacenter() != "dc1" ||
		saved.manifest.GetIndex() != saved.end.GetIndex() {
		t.Fatalf("SaveSnapshot() = %v, %v with %d bytes, want a snapshot of dc1 of that size", saved.end, err,
			len(saved.data))
	}
	c.writeState(t, "dc4")
	testRefusedRestores(t, c, saved)

	abandoned, abandon := context.WithCancel(c.ctx)
	stream, err := follower.RestoreSnapshot(abandoned)
	if err == nil {
		err = stream.Send(&pb.SnapshotPart{Part: &pb.SnapshotPart_Manifest{Manifest: saved.end}})
	}
	if abandon(); err != nil {
		t.Errorf("RestoreSnapshot() and Send() before the cancellation = %v, want nil", err)
	}
	got, err := restoreSnapshot(c.ctx, follower, saved.end, saved.data)
	for status.Code(err) == codes.FailedPrecondition { // until the abandoned restore has ended
		got, err = restoreSnapshot(c.ctx, follower, saved.end, saved.data)
	}
	// The resources are the state of dc3, the primary datacenter and the group
	// id.
	if err != nil || got.Resources != 3 || got.Index <= saved.end.Index {
		t.Fatalf("RestoreSnapshot() = %v, %v, want 3 resources above index %d", got, err, saved.end.Index)
	}
	c.awaitStates(t, "dc3")
	c.writeState(t, "dc4")
	c.awaitStates(t, "dc3 dc4")
}

func testRefusedRestores(t *testing.T, c *operatorCluster, saved savedSnapshot) {
	t.Helper()
	follower := c.at(t, 1)
	ofDC2 := proto.CloneOf(saved.end)
	ofDC2.Datacenter = "dc2"
	damaged := bytes.Clone(saved.data)
	damaged[len(damaged)/2] ^= 1
	for _, tt := range []struct {
		manifest *pb.SnapshotManifest
		data     []byte
		want     string
	}{
		{ofDC2, saved.data, "of datacenter dc2, not of dc1"},
		{&pb.SnapshotManifest{}, saved.data, "of datacenter , not"},
		{saved.end, damaged, "it is damaged"},
	} {
		_, err := restoreSnapshot(c.ctx, follower, tt.manifest, tt.data)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("RestoreSnapshot() = %v, want %v: %s", err, codes.InvalidArgument, tt.want)
		}
	}
	stream, err := follower.RestoreSnapshot(c.ctx)
	if err == nil {
		err = stream.Send(&pb.SnapshotPart{Part: &pb.SnapshotPart_Data{Data: []byte("x")}})
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.CloseAndRecv()
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "its manifest") {
		t.Errorf("RestoreSnapshot() without a manifest = %v, want %v: its manifest", err, codes.InvalidArgument)
	}
}

// testRemoveServers proves that a running server is removed with force, and is
// not added again while it runs. The only voter cannot be removed.
func testRemoveServers(t *testing.T, c *operatorCluster) {
	follower := c.at(t, 1)
	resp, err := follower.RemovePeer(c.ctx, &pb.RemovePeerRequest{Node: c.name(2), Force: true})
	if err != nil || !resp.Running {
		t.Fatalf("RemovePeer(%s) = %v, %v, want a running server", c.name(2), resp, err)
	}
	list, err := follower.ListPeers(c.ctx, &pb.ListPeersRequest{})
	if err != nil || len(list.Peers) != 2 {
		t.Errorf("ListPeers() = %v, %v, want 2 peers", list, err)
	}
	if _, err := follower.RemovePeer(c.ctx, &pb.RemovePeerRequest{Node: c.name(1), Force: true}); err != nil {
		t.Errorf("RemovePeer(%s) = %v, want nil", c.name(1), err)
	}
	_, err = c.at(t, 0).RemovePeer(c.ctx, &pb.RemovePeerRequest{Node: c.name(0), Force: true})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "the only voter") {
		t.Errorf("RemovePeer(%s) = %v, want %v: the only voter", c.name(0), err, codes.FailedPrecondition)
	}
}
