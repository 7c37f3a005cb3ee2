// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/document"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// forgedPrimary answers at the addresses of dc3 as a primary in a newer epoch, with
// the certificate of a server of dc3. It implements pb.ReplicationServiceServer.
type forgedPrimary struct {
	pb.UnimplementedReplicationServiceServer
	begin  *pb.FollowResponse
	probes atomic.Int32
}

func (f *forgedPrimary) Follow(stream grpc.BidiStreamingServer[pb.FollowRequest, pb.FollowResponse]) error {
	f.probes.Add(1)
	return stream.Send(f.begin)
}

// serve accepts connections of other servers at the returned address, until the test
// ends.
func (f *forgedPrimary) serve(t *testing.T, id *tlsutil.Identity) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dialer, err := wanfed.NewDialer(wanfed.DialerConfig{Identity: id, AddressBook: &wanfed.SharedAddressBook{}})
	if err != nil {
		t.Fatal(err)
	}
	mux, err := wanfed.NewMux(wanfed.MuxConfig{Identity: id})
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := wanfed.NewTunnel(wanfed.TunnelConfig{
		Identity: id, Dialer: dialer, Mux: mux, Advertise: ln.Addr().String(),
	})
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(api.EstablishedTLS()))
	pb.RegisterReplicationServiceServer(server, f)
	grpc_health_v1.RegisterHealthServer(server, healthpb.NewServer())
	streams := tunnel.GRPCListener()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = mux.Run(ctx, ln) })
	wg.Go(func() { _ = tunnel.Run(ctx) })
	wg.Go(func() { _ = server.Serve(streams) })
	t.Cleanup(func() { server.Stop(); cancel(); wg.Wait() })
	return ln.Addr().String()
}

// TestEpoch_DivertedPaths uses one certificate of a server of dc3 to announce an
// address for dc3, to report a newer epoch of dc3, and to confirm it at that address,
// with every signature that the certificate can make. The writes of dc1 and dc2 go on.
func TestEpoch_DivertedPaths(t *testing.T) {
	t.Parallel()
	l := newLoopback(t)
	dc1 := l.start("dc1", "dc1")
	dc2 := l.start("dc2", "dc1", dc1.gateway.WAN)
	l.federated(dc1, dc2)
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitLimit)
	defer cancel()

	id, err := tlsutil.Load(l.files(tlsutil.RoleServer, "srv1", "dc3"), tlsutil.DefaultDomain,
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	epoch := replication.Epoch{Number: 300, Datacenter: "dc3"}
	begin := &pb.FollowBegin{GroupId: "3b3c9b5e-6a7f-4c1d-9e8f-0a1b2c3d4e5f"}
	for _, former := range []string{"dc1", "dc3", ""} {
		proof, err := replication.SignEpoch(id, epoch, former)
		if err != nil {
			t.Fatal(err)
		}
		begin.Proofs = append(begin.Proofs, proof)
	}
	attacker := &forgedPrimary{begin: &pb.FollowResponse{
		Begin: begin, Known: &pb.PrimaryEpoch{Number: epoch.Number, Datacenter: epoch.Datacenter},
	}}
	addr := attacker.serve(t, id)
	if _, err := pb.NewFederationServiceClient(
		l.call(t, dc1.server.Addr, "server.dc1.wanfed", tlsutil.RoleServer, "srv1", "dc3"),
	).Apply(ctx, &pb.ApplyFederationStateRequest{
		Op: pb.ApplyFederationStateRequest_OP_UPSERT, State: stateWith("dc3", addr, addr),
	}); err != nil {
		t.Fatal(err)
	}

	sites := []*site{dc1, dc2}
	reached := map[string]int32{}
	for _, s := range sites {
		before := attacker.probes.Load()
		report := pb.NewServerServiceClient(
			l.call(t, s.server.Addr, "server."+s.dc+".wanfed", tlsutil.RoleServer, "srv1", "dc3"))
		testutil.Await(t, waitLimit, "five probes of "+s.dc, func(ctx context.Context) error {
			sent := metadata.AppendToOutgoingContext(ctx, api.EpochKey, epoch.String())
			if _, err := report.Reachability(sent, &pb.ReachabilityRequest{}); err != nil {
				return err
			}
			if reached[s.dc] = attacker.probes.Load() - before; reached[s.dc] < 5 {
				return errors.New("the attacker received no probe")
			}
			return nil
		})
		logOf(s.server.Process).await(t, `msg="a reported epoch of the primary is not proven: .*primary=dc3`)
	}
	t.Logf("probes that the attacker has answered: %v", reached)
	data, err := anypb.New(&pb.Document{Content: structpb.NewStringValue("x")})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sites {
		operator := pb.NewResourceServiceClient(
			l.call(t, s.server.Addr, "server."+s.dc+".wanfed", tlsutil.RoleOperator, "cli", s.dc))
		if s == dc1 { // operators write in their own datacenter
			for i := range 20 {
				resp, err := operator.Write(ctx, &pb.WriteRequest{Resource: &pb.Resource{
					Id: &pb.ID{Type: document.Type, Name: fmt.Sprintf("d%d", i)}, Data: data,
				}})
				if err != nil || resp.Resource.PrimaryEpoch != 1 {
					t.Errorf("Write() in %s = %v, %v, want a resource of epoch 1", s.dc, resp, err)
				}
			}
		}
		testutil.Await(t, waitLimit, "the last write in "+s.dc, func(ctx context.Context) error {
			_, err := operator.Read(ctx, &pb.ReadRequest{Id: &pb.ID{Type: document.Type, Name: "d19"}})
			return err
		})
		st, err := s.status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range st.Components {
			if c.Name == "primary" && c.State == "superseded" {
				t.Errorf("status of %s = %+v, want the primary dc1", s.dc, c)
			}
		}
		superseded := metric(t, s.server.HTTP, "wanfed_primary_superseded")
		number := metric(t, s.server.HTTP, "wanfed_primary_epoch")
		if superseded != 0 || number != 1 {
			t.Errorf("metrics of %s: superseded %v, epoch %v, want 0 and 1", s.dc, superseded, number)
		}
	}
}
