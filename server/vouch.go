// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"fmt"

	"google.golang.org/grpc/metadata"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/tlsutil"
)

// Writes of an operator that go to another datacenter through a server of his own. There his certificate is not seen, only
// the server's, which says whom it speaks for. A server that somebody broke into could say anything, so each datacenter
// decides whose servers it believes (Config.RemoteWritesFrom), and never more than that they speak for their own operators,
// in the methods whose rule is vouched.

// forCaller returns a context for calls to another datacenter that says for which operator they are made. It fails for callers
// that this server may not speak for: resource.ErrDenied.
func (p *parts) forCaller(ctx context.Context) (context.Context, error) {
	who, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case who.Role != tlsutil.RoleOperator:
		return nil, fmt.Errorf("%w: %v may not write: make an operator's certificate with: wanfed tls cert create --cli --dc %s",
			resource.ErrDenied, who, p.cfg.DC)
	case who.DC != p.cfg.DC:
		return nil, fmt.Errorf("%w: servers of %s hand on writes of operators of %s only, and %v is another's: "+
			"write at a server of the datacenter itself", resource.ErrDenied, p.cfg.DC, p.cfg.DC, who)
	}
	return metadata.AppendToOutgoingContext(ctx, api.OnBehalfKey, who.String()), nil
}
