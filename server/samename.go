// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/wanfed"
)

// identifyTimeout limits the request to another server with the name of this
// server.
const identifyTimeout = 2 * time.Second

// nameCheck finds other servers of this datacenter with the name of this
// server. The server that was started last is the duplicate.
type nameCheck struct {
	dc, node string
	instance string // random id of this process
	addr     string // host:port of this server
	started  time.Time
	dialer   *wanfed.Dialer
	report   func(federation.Duplicate)
}

// taken is the function gossip.Config.NameTaken of both pools. Other members
// list this server at addr. Either this server used addr before its restart, or
// another running server has the same name.
func (n *nameCheck) taken(ctx context.Context, addr netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	other, err := n.identify(ctx, addr.String())
	if err != nil {
		return status.Code(err) == codes.Unimplemented // a server of a previous version runs there
	}
	return n.compare(n.self(), other)
}

// identify calls Identify of the server with this name at addr.
func (n *nameCheck) identify(ctx context.Context, addr string) (*pb.ServerIdentity, error) {
	conn, err := n.dialer.Dial(ctx, wanfed.Target{DC: n.dc, Node: n.node, Addr: addr}, wanfed.ProtoGRPC)
	if err != nil {
		return nil, err
	}
	cc, closeAll, err := api.NewConnClient(conn)
	if err != nil {
		return nil, err
	}
	defer closeAll()
	return pb.NewServerServiceClient(cc).Identify(ctx, n.self())
}

// compare reports the other server if it is another process.
func (n *nameCheck) compare(self, other *pb.ServerIdentity) (differ bool) {
	if other.Instance == self.Instance {
		return false
	}
	n.report(federation.Duplicate{
		Address: other.Address, Older: other.Uptime.AsDuration() > self.Uptime.AsDuration(), Seen: time.Now(),
	})
	return true
}

func (n *nameCheck) self() *pb.ServerIdentity {
	return &pb.ServerIdentity{
		Instance: n.instance, Uptime: durationpb.New(time.Since(n.started)), Address: n.addr,
	}
}
