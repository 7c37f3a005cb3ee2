// SPDX-License-Identifier: MPL-2.0

package rpc

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// AnyDatacenter, in Config.AllowRemoteWritesFrom, stands for every datacenter.
const AnyDatacenter = "*"

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
func (e *Edge) identify(ctx context.Context, r rule) (p tlsutil.Peer, forwarded bool, err error) {
	p, err = holder(ctx)
	if err != nil || p.Role != tlsutil.RoleServer {
		return p, false, err
	}
	md, _ := metadata.FromIncomingContext(ctx)
	learn := func(from tlsutil.Peer) {
		if epoch := md.Get(api.EpochKey); len(epoch) > 0 && e.cfg.Learn != nil {
			e.cfg.Learn(epoch[0], from)
		}
	}
	named := md.Get(api.OnBehalfKey)
	if len(named) == 0 {
		learn(p)
		return p, false, nil
	}
	role, rest, _ := strings.Cut(named[0], "/")
	dc, node, ok := strings.Cut(rest, "/")
	caller := tlsutil.Peer{Role: tlsutil.Role(role), DC: dc, Node: node}
	switch {
	case p.DC != e.cfg.DC:
		learn(p)
		p, err = e.delegated(p, caller, r)
		return p, false, err
	case !ok:
		return p, false, status.Errorf(codes.InvalidArgument, "metadata %s is not role/dc/node", api.OnBehalfKey)
	}
	learn(caller)
	return caller, true, nil
}

// delegated returns the effective caller of a request that server p of another
// datacenter makes on behalf of caller.
//
// An operator may write to another datacenter through a server of its own
// datacenter. The other datacenter can verify the certificate of the server,
// but not the certificate of the operator. A compromised server could name any
// operator. Each datacenter therefore lists the datacenters whose servers it
// trusts. It trusts these servers only for operators of their own datacenter,
// and only in methods whose rule is delegable.
func (e *Edge) delegated(p, caller tlsutil.Peer, r rule) (tlsutil.Peer, error) {
	if !r.delegable || caller.Role != tlsutil.RoleOperator || caller.DC != p.DC {
		return p, nil // the server itself is the caller
	}
	from := e.cfg.AllowRemoteWritesFrom()
	if !slices.Contains(from, p.DC) && !slices.Contains(from, AnyDatacenter) {
		return p, resource.StatusError(fmt.Errorf(
			"%w: %s does not accept writes through servers of %s: write at a server of %s, or set "+
				"allow_remote_writes_from = [%q] on its servers", resource.ErrDenied, e.cfg.DC, p.DC, e.cfg.DC, p.DC))
	}
	return caller, nil
}
