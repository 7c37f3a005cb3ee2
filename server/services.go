// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/lease"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/revocation"
	"github.com/wanfed/wanfed/server/httpapi"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/session"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/trust"
)

// gatewayService serves the gateways of this datacenter. The certificate of a
// gateway has its name.
type gatewayService struct {
	pb.UnimplementedGatewayServiceServer
	gateways *catalog.Gateways
	book     *federation.AddressBookUpdater
	identity *tlsutil.Identity // has the revocation lists and the trusted CAs
	// report notes the report of a gateway about its certificate.
	report func(p tlsutil.Peer, c *pb.CertificateInUse)
}

// Register implements pb.GatewayServiceServer.
func (s *gatewayService) Register(ctx context.Context,
	req *pb.RegisterGatewayRequest) (*pb.RegisterGatewayResponse, error) {
	gateway, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	s.report(gateway, req.Certificate)
	err = s.gateways.Register(ctx, catalog.GatewayRegistration{
		Node: gateway.Node, LAN: req.Lan, WAN: req.Wan, Meta: req.Meta, Unreachable: req.Unreachable,
	})
	if errors.Is(err, catalog.ErrNameTaken) {
		return nil, status.Error(codes.AlreadyExists, err.Error())
	}
	// An error without a code of the store means that the registration is invalid.
	if err = resource.StatusError(err); status.Code(err) == codes.Internal {
		err = status.Error(codes.InvalidArgument, status.Convert(err).Message())
	}
	if err != nil {
		return nil, err
	}
	return &pb.RegisterGatewayResponse{
		Interval: durationpb.New(catalog.HeartbeatInterval), Ttl: durationpb.New(catalog.HeartbeatTTL),
	}, nil
}

// Deregister implements pb.GatewayServiceServer.
func (s *gatewayService) Deregister(
	ctx context.Context, req *pb.DeregisterGatewayRequest,
) (*pb.DeregisterGatewayResponse, error) {
	gateway, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	reg := catalog.GatewayRegistration{Node: gateway.Node, LAN: req.Lan, WAN: req.Wan}
	if err := s.gateways.Deregister(ctx, reg); err != nil {
		return nil, resource.StatusError(err)
	}
	return &pb.DeregisterGatewayResponse{}, nil
}

// Watch implements pb.GatewayServiceServer.
func (s *gatewayService) Watch(_ *pb.WatchGatewayRequest, stream grpc.ServerStreamingServer[pb.GatewaySnapshot]) error {
	for {
		lists, trusted := s.identity.RevocationsChanged(), s.identity.TrustChanged()
		snap, changed := s.book.Snapshot()
		if snap != nil {
			if err := stream.Send(trust.AddTo(revocation.AddTo(snap, s.identity), s.identity)); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-lists:
		case <-trusted:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

// checkService receives check results from followers and operators. It runs at
// the leader.
type checkService struct {
	pb.UnimplementedCheckServiceServer
	resources *resource.Service
	monitor   *catalog.TTLMonitor
}

// Report implements pb.CheckServiceServer.
func (s *checkService) Report(ctx context.Context, req *pb.CheckReportRequest) (*pb.CheckReportResponse, error) {
	err := s.resources.Allow(ctx, resource.VerbWrite, catalog.CheckType, catalog.CheckName(req.GetNode(), req.GetCheckId()))
	if p, _ := rpc.Peer(ctx); err == nil && req.GetProbed() && p.Role != tlsutil.RoleServer {
		err = fmt.Errorf("%w: %v may not report the result of a probe: only servers run probes", resource.ErrDenied, p)
	}
	if err == nil {
		err = s.monitor.Update(ctx, catalog.CheckUpdate{
			Node: req.GetNode(), CheckID: req.GetCheckId(), Status: req.GetStatus(), Output: req.GetOutput(), Probed: req.GetProbed(),
		})
	}
	if err != nil {
		return nil, resource.StatusError(err)
	}
	return &pb.CheckReportResponse{}, nil
}

// reportCheck sends a check result to the monitor of the leader.
func (c *components) reportCheck(ctx context.Context, u catalog.CheckUpdate) error {
	if c.store.IsLeader() {
		return c.checks.Update(ctx, u)
	}
	ctx, cc, err := c.leaderConn(ctx)
	if err != nil {
		return err
	}
	_, err = pb.NewCheckServiceClient(cc).Report(ctx, &pb.CheckReportRequest{
		Node: u.Node, CheckId: u.CheckID, Status: u.Status, Output: u.Output, Probed: u.Probed,
	})
	return resource.FromStatus(err)
}

// reportProbe sends the result of a check that this server has run to the monitor
// of the leader.
func (c *components) reportProbe(ctx context.Context, u catalog.CheckUpdate) error {
	return c.reportCheck(c.asServer(ctx), u)
}

// asServer returns a context whose caller is this server.
func (c *components) asServer(ctx context.Context) context.Context {
	self := tlsutil.Peer{Role: tlsutil.RoleServer, DC: c.cfg.DC, Node: c.cfg.Node}
	return policy.WithCaller(ctx, policy.Caller{Peer: self})
}

// leaderConn returns a connection to the leader, which is another server, and a
// context that has the identity of the caller of ctx.
func (c *components) leaderConn(ctx context.Context) (context.Context, grpc.ClientConnInterface, error) {
	leader, ok := c.store.Leader()
	if !ok || leader == c.cfg.Node {
		return nil, nil, resource.ErrNotLeader
	}
	return c.serverConn(ctx, leader)
}

// serverConn returns a connection to another server of this datacenter, and a
// context that has the identity of the caller of ctx.
func (c *components) serverConn(ctx context.Context, node string) (context.Context, grpc.ClientConnInterface, error) {
	ctx, err := rpc.OnBehalf(ctx)
	if err != nil {
		return nil, nil, err
	}
	cc, err := c.network.calls.Server(node)
	return ctx, cc, err
}

// sessionService renews sessions for followers. It runs at the leader.
type sessionService struct {
	pb.UnimplementedSessionServiceServer
	resources *resource.Service
	manager   *session.Manager
}

// Renew implements pb.SessionServiceServer.
func (s *sessionService) Renew(ctx context.Context, req *pb.RenewSessionRequest) (*pb.RenewSessionResponse, error) {
	err := s.resources.Allow(ctx, resource.VerbWrite, session.Type, req.GetId())
	found := false
	if err == nil {
		found, err = s.manager.Renew(ctx, req.GetId())
	}
	if err != nil {
		return nil, resource.StatusError(err)
	}
	return &pb.RenewSessionResponse{Found: found}, nil
}

// renewSession renews a session at the leader.
func (c *components) renewSession(ctx context.Context, id string) (found bool, err error) {
	if c.store.IsLeader() {
		return c.sessions.Renew(ctx, id)
	}
	ctx, cc, err := c.leaderConn(ctx)
	if err != nil {
		return false, err
	}
	resp, err := pb.NewSessionServiceClient(cc).Renew(ctx, &pb.RenewSessionRequest{Id: id})
	return resp.GetFound(), resource.FromStatus(err)
}

// mergedCalls returns the calls that a follower merges: see rpc.Config.Forward.
func (c *components) mergedCalls() map[string]rpc.ForwardFunc {
	leases := lease.NewForwarder(c.network.calls.Server, c.resources.Allow)
	return map[string]rpc.ForwardFunc{pb.LeaseService_Renew_FullMethodName: leases.Renew}
}

// confirmLeadership returns nil if a majority has confirmed this server as the
// leader after the call.
func (c *components) confirmLeadership(ctx context.Context) error {
	_, err := c.store.ReadIndex(ctx)
	return err
}

// query serves a request that a server of another datacenter has forwarded.
func (c *components) query(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
	resp, err := httpapi.Serve(ctx, c.http.server.Handler, req)
	if err != nil {
		return nil, status.FromContextError(err).Err()
	}
	return resp, nil
}

// anyServerAlive reports whether any server of dc is alive in the WAN pool.
func (c *components) anyServerAlive(dc string) bool {
	return slices.ContainsFunc(c.wan.Members(), func(m gossip.Member) bool {
		_, memberDC, err := federation.SplitWANName(m.Name)
		return err == nil && memberDC == dc && m.Alive()
	})
}
