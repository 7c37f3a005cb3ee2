// SPDX-License-Identifier: MPL-2.0

package rpc

import (
	"context"
	"net/netip"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// Peer returns the caller of the request of ctx: the holder of the certificate,
// or the caller for whom a server forwards the request.
func Peer(ctx context.Context) (tlsutil.Peer, error) {
	if p, ok := tlsutil.PeerFromContext(ctx); ok {
		return p, nil
	}
	return tlsutil.Peer{}, status.Error(codes.Unauthenticated, "call without a verified certificate")
}

// holder returns the holder of the certificate of the connection.
func holder(ctx context.Context) (tlsutil.Peer, error) {
	if conn := connInfoOf(ctx); conn != nil {
		return conn.holder, nil
	}
	return tlsutil.Peer{}, status.Error(codes.Unauthenticated, "call without a verified certificate")
}

// identify returns the caller of a method with rule r. The caller is the holder
// of the certificate, unless the holder is a server that names another caller.
// forwarded is true if a server of this datacenter names another caller.
func (e *Edge) identify(ctx context.Context, r rule) (c policy.Caller, forwarded bool, err error) {
	p, err := holder(ctx)
	if err != nil || p.Role != tlsutil.RoleServer {
		return policy.Caller{Peer: p}, false, err
	}
	md, _ := metadata.FromIncomingContext(ctx)
	named := md.Get(api.OnBehalfKey)
	switch {
	case len(named) == 0 || p.DC != e.cfg.DC && !r.delegable:
		c = policy.Caller{Peer: p}
	case p.DC != e.cfg.DC:
		if c, err = policy.Named(p, named[0]); err != nil {
			return policy.Caller{Peer: p}, false, resource.StatusError(err)
		}
	default:
		var ok bool
		if c.Peer, ok = policy.Parse(named[0]); ok && len(named) > 1 {
			c.Via, ok = policy.Parse(named[1])
		}
		if !ok {
			return policy.Caller{Peer: p}, false, status.Errorf(codes.InvalidArgument, "metadata %s is not role/dc/node", api.OnBehalfKey)
		}
		forwarded = true
	}
	if epoch := md.Get(api.EpochKey); len(epoch) > 0 && e.cfg.Learn != nil {
		e.cfg.Learn(epoch[0], sender(p, c, forwarded))
	}
	return c, forwarded, nil
}

// sender returns the peer that has sent the epoch of a request from connection
// holder p: the original sender, if a server of this datacenter forwards the
// request.
func sender(p tlsutil.Peer, c policy.Caller, forwarded bool) tlsutil.Peer {
	switch {
	case !forwarded:
		return p
	case c.Via != (tlsutil.Peer{}):
		return c.Via
	}
	return c.Peer
}

// onBehalf returns the metadata of a call that this server makes at another
// server of its datacenter for c.
func onBehalf(c policy.Caller) metadata.MD {
	md := metadata.Pairs(api.OnBehalfKey, c.Peer.String())
	if c.Via != (tlsutil.Peer{}) {
		md.Append(api.OnBehalfKey, c.Via.String())
	}
	return md
}

// forwardedAddr returns the address of the caller of a call that a server of
// this datacenter has forwarded, or "".
func forwardedAddr(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	if addrs := md.Get(api.OnBehalfAddrKey); len(addrs) > 0 {
		if addr, err := netip.ParseAddrPort(addrs[0]); err == nil {
			return addr.String()
		}
	}
	return ""
}

// targetOf returns what the request of an operator changes, if it is not a
// resource. Other fields of a request may be secret.
func targetOf(req any) string {
	switch r := req.(type) {
	case *pb.RemovePeerRequest:
		return r.GetNode()
	case *pb.TransferLeaderRequest:
		return r.GetNode()
	case *pb.TakeOverRequest:
		return r.GetFrom()
	case *pb.ReplaceGroupRequest:
		return r.GetDatacenter()
	case *pb.ApplyFederationStateRequest:
		return r.GetState().GetDatacenter()
	case *pb.ChangeKeyringRequest:
		return r.GetOp().String()
	}
	return ""
}

// OnBehalf returns the context of a call at another server of this datacenter,
// with the caller of ctx and its address.
func OnBehalf(ctx context.Context) (context.Context, error) {
	c, ok := policy.FromContext(ctx)
	if !ok {
		return nil, status.Error(codes.Unauthenticated, "call without a verified certificate")
	}
	outgoing, _ := metadata.FromOutgoingContext(ctx)
	md := metadata.Join(outgoing, onBehalf(c))
	if call := policy.CallOf(ctx); call != nil && call.Addr != "" {
		md.Set(api.OnBehalfAddrKey, call.Addr)
	}
	return metadata.NewOutgoingContext(ctx, md), nil
}
