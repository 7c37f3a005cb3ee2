// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"errors"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
)

// Errors of Source.Query. Their texts are Consul's, and are what the client gets; the rest of an error that wraps one goes
// into the header api.HeaderCause.
var (
	// ErrNoPath: no such datacenter is known.
	//lint:ignore ST1005 Consul's text
	ErrNoPath = errors.New("No path to datacenter")
	// ErrUnreachable: the datacenter is known, but no server of it can be asked now.
	//lint:ignore ST1005 Consul's text
	ErrUnreachable = errors.New("Remote DC has no server currently reachable")
)

// Source answers what the handlers ask. All methods may be called from any goroutine. What they return is not changed
// afterwards by either side. Those without a context answer at once, from memory.
type Cluster interface {
	// FederationStates returns the states of all datacenters, ordered by datacenter, and the store's index of them: it is
	// at least 1 and grows with every change. The read is from this server's own store.
	FederationStates(ctx context.Context) (states []*pb.FederationState, index uint64, err error)

	// WaitFederationStates returns nil once that index is above after, or the error of ctx. Any other error means that
	// the store cannot tell any more.
	WaitFederationStates(ctx context.Context, after uint64) error

	// Members returns the members of the LAN pool or of the WAN pool, ordered by name.
	Members(wan bool) []api.Member

	// Datacenters returns the names of all datacenters known, the own one first, then the nearest first.
	Datacenters() []string

	// Leader returns the ip:port of this datacenter's Raft leader, and how long ago this server heard from it (0 when it
	// is the leader itself). ok is false when there is none.
	Leader() (addr string, lastContact time.Duration, ok bool)

	// Peers returns the ip:port of each voter of this datacenter's Raft group.
	Peers() []string

	// Status sums up what this server knows of the federation.
	Status(ctx context.Context) (api.Status, error)

	// Query asks a server of another datacenter what its HTTP API answers to a request; path and raw query are escaped as in a
	// URL, without dc. Anything but a GET is asked once, and for the peer of ctx (tlsutil.PeerFrom). It obeys ctx, and
	// takes no longer than limit. Errors: ErrNoPath, ErrUnreachable (wrapped with the hop that failed, its address and why),
	// resource.ErrDenied, context.DeadlineExceeded after limit, or that of ctx.
	Query(ctx context.Context, dc string, req *pb.QueryRequest, limit time.Duration) (*pb.QueryResponse, error)
}
