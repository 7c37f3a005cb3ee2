// SPDX-License-Identifier: MPL-2.0

package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/dcrpc"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/httpapi"
	"github.com/wanfed/wanfed/server/limit"
	"github.com/wanfed/wanfed/server/rpc"
)

// source answers the HTTP API from this server's parts.
type source struct{ p *parts }

var _ httpapi.Cluster = source{}

// FederationStates implements httpapi.Cluster.
func (s source) FederationStates(ctx context.Context) ([]*pb.FederationState, uint64, error) {
	return federation.ListStates(ctx, s.p.store)
}

// WaitFederationStates implements httpapi.Cluster.
func (s source) WaitFederationStates(ctx context.Context, after uint64) error {
	return s.p.store.Wait(ctx, resource.Query{Type: federation.StateType}, after)
}

// Members implements httpapi.Cluster.
func (s source) Members(wan bool) []api.Member {
	p := s.p.lan
	if wan {
		p = s.p.wan
	}
	out := []api.Member{}
	for _, m := range p.Members() {
		out = append(out, api.Member{
			Name: m.Name, Addr: m.Host, Port: m.Port, Tags: m.Tags, Status: api.MemberStatus(m.Status),
			ProtocolMin: m.ProtocolMin, ProtocolMax: m.ProtocolMax, ProtocolCur: m.ProtocolCur,
			DelegateMin: m.DelegateMin, DelegateMax: m.DelegateMax, DelegateCur: m.DelegateCur,
		})
	}
	return out
}

// Datacenters implements httpapi.Cluster: those of the WAN pool and of the federation states.
func (s source) Datacenters() []string {
	rtt := map[string]time.Duration{}
	for dc := range s.p.book.Load().Paths {
		rtt[dc] = time.Hour // known, never measured
	}
	for _, m := range s.p.wan.Members() {
		_, dc, err := federation.SplitWANName(m.Name)
		if err != nil || m.Status == gossip.StatusLeft {
			continue
		}
		d, ok := s.p.wan.RTT(m.Name)
		if !ok {
			d = time.Hour
		}
		if old, known := rtt[dc]; !known || d < old {
			rtt[dc] = d
		}
	}
	rtt[s.p.cfg.DC] = -1 // first
	return slices.SortedFunc(maps.Keys(rtt), func(a, b string) int {
		return cmp.Or(cmp.Compare(rtt[a], rtt[b]), cmp.Compare(a, b))
	})
}

// Leader implements httpapi.Cluster.
func (s source) Leader() (addr string, lastContact time.Duration, ok bool) {
	node, ok := s.p.store.Leader()
	if !ok {
		return "", 0, false
	}
	return s.serverAddr(node), max(0, s.p.store.LastContact()), true
}

// Peers implements httpapi.Cluster.
func (s source) Peers() []string {
	nodes, err := s.p.store.Peers()
	if err != nil {
		return []string{}
	}
	out := make([]string, 0, len(nodes))
	for _, n := range nodes {
		out = append(out, s.serverAddr(n))
	}
	return out
}

// serverAddr is the address of a node of this datacenter, or its name while the LAN pool does not know it.
func (s source) serverAddr(node string) string {
	for _, m := range s.p.lan.Members() {
		if m.Name == node {
			return m.Addr
		}
	}
	return node
}

// Query implements httpapi.Cluster.
func (s source) Query(ctx context.Context, dc string, req *pb.QueryRequest, limit time.Duration) (*pb.QueryResponse, error) {
	if _, known := s.p.book.Load().Paths[dc]; !known {
		return nil, fmt.Errorf("%w: %s knows no datacenter %q; see: wanfed federation list", httpapi.ErrNoPath, s.p.cfg.DC, dc)
	}
	deadline := time.Now().Add(limit)
	resp, err := s.forward(ctx, dc, req, deadline)
	switch {
	case err == nil:
		return resp, nil
	case status.Code(err) == codes.PermissionDenied:
		said := strings.TrimPrefix(status.Convert(err).Message(), resource.ErrDenied.Error()+": ")
		return nil, fmt.Errorf("%w: %s", resource.ErrDenied, said)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case status.Code(err) == codes.DeadlineExceeded:
		return nil, context.DeadlineExceeded
	case status.Code(err) == codes.Unavailable, status.Code(err) == codes.Canceled: // the latter: the connection was given up
		return nil, fmt.Errorf("%w: %s", httpapi.ErrUnreachable, resource.ErrorText(status.Convert(err).Message()))
	}
	return nil, err
}

// forward sends req to a server of dc: a write once, for its caller; a read that waits for a change as a call of its own.
func (s source) forward(ctx context.Context, dc string, req *pb.QueryRequest, deadline time.Time) (*pb.QueryResponse, error) {
	if req.Method == "" && !waits(req) {
		return s.p.calls.Query(ctx, dc, req, deadline)
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if req.Method == "" || req.Method == http.MethodGet {
		return pb.NewServerServiceClient(s.p.calls.Reader(dc)).Query(ctx, req)
	}
	ctx, err := s.p.forCaller(ctx)
	if err != nil {
		return nil, err
	}
	return pb.NewServerServiceClient(s.p.calls.Writer(dc)).Query(ctx, req)
}

// waits says whether a query may block until something changes.
func waits(req *pb.QueryRequest) bool { return strings.Contains(req.RawQuery, "index=") }

// serverService is what other servers ask.
type serverService struct {
	pb.UnimplementedServerServiceServer
	query     func(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error)
	responses *limit.PerPeer
}

// Query implements pb.ServerServiceServer.
func (s *serverService) Query(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
	return s.query(ctx, req)
}

// smallResponse is the size, in bytes, up to which a response needs no slot while it waits to be sent.
const smallResponse = 8 << 10

// Exchange implements pb.ServerServiceServer.
func (s *serverService) Exchange(stream pb.ServerService_ExchangeServer) error {
	caller, _ := rpc.Peer(stream.Context())
	return dcrpc.ServeRequests(stream, func(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, func(), error) {
		slot, err := s.responses.Acquire(ctx, caller)
		if err != nil {
			return nil, nil, err
		}
		resp, err := s.query(limit.NewContext(ctx, slot), req)
		if err != nil || len(resp.GetBody()) <= smallResponse {
			slot.Release()
			return resp, nil, err
		}
		return resp, slot.Release, nil
	})
}
