// SPDX-License-Identifier: MPL-2.0

package raftgroup

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/raftstore"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/wanfed"
)

// identifyTimeout limits the request to another server with the name of this
// server.
const identifyTimeout = 2 * time.Second

// contactTimeout is the time since the last message of Raft after which two
// servers are not in contact.
const contactTimeout = 5 * time.Second

// Names finds other servers of this datacenter with the name of this
// server. The Raft group decides which of them is the duplicate, not the
// servers themselves: a copied certificate permits any claim.
//
// A server yields if it accepts that it is the duplicate. A server that leads
// the group, or receives messages of its leader, never yields. Any other server
// yields if a third server reports that the group is in contact with the other
// server of the same name. A server without Raft state also yields if that other
// server reports that it is in contact with the group.
type Names struct{ NamesConfig }

// NamesConfig configures Names. All fields are required.
type NamesConfig struct {
	DC, Node string    // names of this server
	Instance string    // random id of this process
	Address  string    // host:port of this server
	Started  time.Time // of this process
	Dialer   *wanfed.Dialer
	Store    raftState
	// Others returns the addresses (host:port) of the other known servers of the
	// datacenter, by node.
	Others func() map[string]string
	// Report records a server with the name of this server.
	Report func(federation.Duplicate)
}

// NewNames returns a Names.
func NewNames(cfg NamesConfig) *Names { return &Names{cfg} }

// raftState is the part of a raftstore.Store that Names reads.
type raftState interface {
	HasState() bool
	// LastContact returns the time since the last message of the leader: 0 on
	// the leader, -1 if there was no message.
	LastContact() time.Duration
}

// Taken reports whether another running server with the name of this server is
// at addr. Both pools call it (gossip.Config.NameTaken) when other members list
// this server at addr, because addr may also be the address that this server had
// before a restart.
func (n *Names) Taken(ctx context.Context, addr netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	var other *pb.ServerIdentity
	err := n.call(ctx, n.Node, addr.String(), func(c pb.ServerServiceClient) (err error) {
		other, err = c.Identify(ctx, n.self())
		return err
	})
	if err != nil {
		return status.Code(err) == codes.Unimplemented // a server of a previous version runs there
	}
	return n.compare(ctx, other)
}

// call calls a server of this datacenter at addr.
func (n *Names) call(ctx context.Context, node, addr string, f func(pb.ServerServiceClient) error) error {
	conn, err := n.Dialer.Dial(ctx, wanfed.Target{DC: n.DC, Node: node, Addr: addr}, wanfed.ProtoGRPC)
	if err != nil {
		return err
	}
	cc, closeAll, err := api.NewConnClient(conn)
	if err != nil {
		return err
	}
	defer closeAll()
	return f(pb.NewServerServiceClient(cc))
}

// compare passes the other server to Report if it is another process, and returns
// whether it is.
func (n *Names) compare(ctx context.Context, other *pb.ServerIdentity) (differ bool) {
	if other.Instance == n.Instance {
		return false
	}
	n.Report(federation.Duplicate{Address: other.Address, Refused: n.yields(ctx, other), Seen: time.Now()})
	return true
}

// yields reports whether this server is the duplicate of the other one. It
// blocks until ctx ends if other servers do not respond.
func (n *Names) yields(ctx context.Context, other *pb.ServerIdentity) bool {
	if n.inGroup() {
		return false
	}
	if !n.Store.HasState() && other.InGroup {
		return true
	}
	responses := n.Describe(ctx, func(string) bool { return true })
	inContact := func(addr string) bool {
		return slices.ContainsFunc(slices.Collect(maps.Values(responses)), func(r *pb.DescribeCallerResponse) bool {
			return r.Address == addr && r.LastContact != nil && r.LastContact.AsDuration() < contactTimeout
		})
	}
	return !n.inGroup() && !inContact(n.Address) && inContact(other.Address)
}

// Describe calls DescribeCaller of the other known servers that wanted accepts,
// and returns the responses by node. It blocks until all have responded or
// failed, or ctx ends.
func (n *Names) Describe(
	ctx context.Context, wanted func(node string) bool,
) map[string]*pb.DescribeCallerResponse {
	var wg sync.WaitGroup
	var mu sync.Mutex
	responses := map[string]*pb.DescribeCallerResponse{}
	for node, addr := range n.Others() {
		if !wanted(node) {
			continue
		}
		wg.Go(func() {
			_ = n.call(ctx, node, addr, func(c pb.ServerServiceClient) error { // without a response, node is omitted
				r, err := c.DescribeCaller(ctx, &pb.DescribeCallerRequest{})
				if err == nil {
					mu.Lock()
					defer mu.Unlock()
					responses[node] = r
				}
				return err
			})
		})
	}
	wg.Wait()
	return responses
}

// inGroup reports whether this server leads its Raft group, or receives
// messages of the leader. A duplicate of this server cannot pretend to be that
// leader: it has the certificate of this server, not of the leader.
func (n *Names) inGroup() bool {
	contact := n.Store.LastContact()
	return contact >= 0 && contact < contactTimeout
}

func (n *Names) self() *pb.ServerIdentity {
	return &pb.ServerIdentity{
		Instance: n.Instance, Uptime: durationpb.New(time.Since(n.Started)), Address: n.Address, InGroup: n.inGroup(),
	}
}

// Identify is the method Identify of pb.ServerServiceServer. Only a server with
// the name of this server may call it.
func (n *Names) Identify(ctx context.Context, other *pb.ServerIdentity) (*pb.ServerIdentity, error) {
	if caller, err := rpc.Peer(ctx); err != nil || caller.Node != n.Node {
		return nil, status.Errorf(codes.PermissionDenied, "only a server with the name %s may call Identify here", n.Node)
	}
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	self := n.self()
	n.compare(ctx, other)
	return self, nil
}

// DescribeCaller implements the method DescribeCaller of
// pb.ServerServiceServer for a server with store and lan. The argument node is
// the name of the calling server. InGroup of the response means that this server
// has a Raft group, with or without contact to its leader.
func DescribeCaller(node string, store *raftstore.Store, lan *gossip.Pool) (*pb.DescribeCallerResponse, error) {
	servers, err := store.Members()
	if err != nil {
		return nil, resource.StatusError(err)
	}
	resp := &pb.DescribeCallerResponse{InGroup: len(servers) > 0, LastIndex: store.LastIndex()}
	resp.ConfirmedTerm, resp.ConfirmedIndex = store.Confirmed(node)
	for _, m := range lan.Members() {
		if m.Name == node && m.Alive() {
			resp.Address = m.Addr
		}
	}
	for _, m := range servers {
		if m.Node != node {
			continue
		}
		resp.Voter = m.Voter
		if m.LastContact >= 0 {
			resp.LastContact = durationpb.New(m.LastContact)
		}
	}
	return resp, nil
}
