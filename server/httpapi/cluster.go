// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"errors"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
)

// Errors of Cluster.Query. Their texts are Consul's, and are the body of the
// response. The rest of an error that wraps one goes into the header
// api.HeaderCause.
var (
	// ErrNoPath: the datacenter is not known.
	//lint:ignore ST1005 Consul's text
	ErrNoPath = errors.New("No path to datacenter")
	// ErrUnreachable: the datacenter is known, but none of its servers can be
	// reached now.
	//lint:ignore ST1005 Consul's text
	ErrUnreachable = errors.New("Remote DC has no server currently reachable")
)

// Cluster is the federation as this server knows it. All methods may be called
// from any goroutine. Neither side changes a returned value afterwards. Methods
// without a context read from memory and do not block.
type Cluster interface {
	// FederationStates returns the states of all datacenters, ordered by
	// datacenter, and their index in the store. The index is at least 1 and
	// grows with every change. The states are read from this server's own
	// store.
	FederationStates(ctx context.Context) (states []*pb.FederationState, index uint64, err error)

	// WaitFederationStates returns nil once that index is above after, or the
	// error of ctx. Any other error means that the store has failed.
	WaitFederationStates(ctx context.Context, after uint64) error

	// Members returns the members of the LAN pool or of the WAN pool, ordered
	// by name.
	Members(wan bool) []api.Member

	// Datacenters returns the names of all known datacenters: the local one
	// first, then the others by round-trip time.
	Datacenters() []string

	// Leader returns the ip:port of the Raft leader of this datacenter, and the
	// time since this server last received a message from it: 0 on the leader
	// itself. ok is false when there is no leader.
	Leader() (addr string, lastContact time.Duration, ok bool)

	// Peers returns the ip:port of each voter of the Raft group.
	Peers() []string

	// Status returns the status of the federation.
	Status(ctx context.Context) (api.Status, error)

	// Query sends a request of the HTTP API to a server of another datacenter.
	// The path and the query of req are escaped as in a URL; the query has no
	// dc. A request other than GET is sent once, on behalf of the peer of ctx
	// (tlsutil.PeerFromContext). Query returns when ctx ends, or after timeout.
	//
	// Errors: ErrNoPath; ErrUnreachable, wrapped with the path that failed and
	// why; resource.ErrDenied; context.DeadlineExceeded after timeout; the
	// error of ctx.
	Query(ctx context.Context, dc string, req *pb.QueryRequest, timeout time.Duration) (*pb.QueryResponse, error)
}
