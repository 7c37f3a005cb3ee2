// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/internal/monitor"
	"github.com/wanfed/wanfed/internal/tracing"
	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/limit"
	"github.com/wanfed/wanfed/session"
	"github.com/wanfed/wanfed/tlsutil"
)

// Config configures the handler.
type Config struct {
	DC      string       // the server's datacenter; required
	Cluster Cluster      // serves the endpoints of the federation; required
	Metrics http.Handler // serves /metrics; nil: the path does not exist
	// Requests measures requests. nil: they are not measured.
	Requests *monitor.Requests
	// Tracer records spans of requests. nil: none.
	Tracer *tracing.Tracer
	// Profiles serves the paths under profile.Path, to operators of the
	// datacenter. nil: the paths do not exist.
	Profiles http.Handler
	Logger   *slog.Logger // gets a Debug line for each request; required
	// Peer identifies the client by the certificate of the connection. The
	// request fails if Peer fails. A forwarded request has its caller in the
	// context. nil: all clients are anonymous.
	Peer func(r *http.Request) (tlsutil.Peer, error)
	// Policy decides who may call each endpoint, and records calls. Required.
	Policy *policy.Engine
	// Resources serves the resources and authorizes each call by the peer of
	// its context. Backend is the store of Resources. nil: the endpoints of
	// keys and of the catalog do not exist.
	Resources *resource.Service
	Backend   resource.Backend
	// Node and Address are the name and the IP address of this server. The
	// agent endpoints register services on this node. Required with Resources.
	Node, Address string
	// Report sends the status of a check to the leader. Without a leader, it
	// fails with resource.ErrNotLeader. Required with Resources.
	Report func(ctx context.Context, r catalog.CheckUpdate) error
	// Servers returns the servers of this datacenter, which the catalog lists.
	// Nil: none.
	Servers catalog.Servers
	// GatewaySnapshots returns the snapshots of the gateways of this datacenter,
	// ordered by name. Required with Resources.
	GatewaySnapshots func() []api.GatewaySnapshot
	// Group serves the endpoints of the Raft group, of coordinates and of the
	// machine. Nil: they do not exist.
	Group Group
	// RenewSession restarts the TTL of a session at the leader, and reports
	// whether the session exists. Without a leader, it fails with
	// resource.ErrNotLeader. Required with Resources.
	RenewSession func(ctx context.Context, id string) (found bool, err error)
	// API serves all paths under /api/. The peer is in the context. nil: the
	// paths do not exist.
	API http.Handler
	// UI serves the web UI at the paths under ui.Path. nil: the paths do not
	// exist.
	UI http.Handler
	// Controllers returns the state of the controllers of this server. nil:
	// the server has none.
	Controllers func() []api.Controller
	// Names are the permitted DNS names of the Host header, without port, in
	// addition to localhost and IP addresses.
	Names []string
}

func (c Config) validate() error {
	var errs []error
	if err := tlsutil.CheckLabel(c.DC); err != nil {
		errs = append(errs, fmt.Errorf("datacenter: %w", err))
	}
	if c.Cluster == nil {
		errs = append(errs, errors.New("no cluster"))
	}
	if c.Policy == nil {
		errs = append(errs, errors.New("no policy"))
	}
	if c.Logger == nil {
		errs = append(errs, errors.New("no logger"))
	}
	if c.Resources != nil && (c.Node == "" || c.Report == nil || c.RenewSession == nil || c.GatewaySnapshots == nil) {
		errs = append(errs, errors.New("resources without Node, Report, RenewSession or GatewaySnapshots"))
	}
	for _, name := range c.Names {
		if name == "" {
			errs = append(errs, errors.New("one of the allowed host names is empty"))
		}
	}
	return errors.Join(errs...)
}

type handler struct {
	Config
	large   *limit.PerPeer // slots of large responses
	watches *limit.PerPeer // slots of watches of the status

	// These fields are nil without Config.Resources.
	kv       *kv.Store
	stored   *catalog.View       // without the servers
	view     *catalog.MergedView // with the servers
	writer   *catalog.Writer
	sessions *session.Store
}

// New returns the handler of all endpoints.
func New(cfg Config) (http.Handler, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("HTTP API: %w", err)
	}
	h := &handler{
		Config: cfg, large: limit.New(func(tlsutil.Peer) int64 { return maxLarge }),
		watches: limit.New(func(tlsutil.Peer) int64 { return maxWatches }),
	}
	if cfg.Resources != nil {
		var err error
		if h.kv, err = kv.New(cfg.Resources, cfg.Backend); err != nil {
			return nil, fmt.Errorf("HTTP API: %w", err)
		}
		h.stored = catalog.NewView(cfg.Backend)
		h.view = catalog.NewMergedView(h.stored, cfg.Servers)
		h.writer = catalog.NewWriter(cfg.Resources, h.stored)
		h.sessions, err = session.NewStore(session.StoreConfig{
			Resources: cfg.Resources, Backend: cfg.Backend, Locked: kv.EntryType, Renew: cfg.RenewSession,
		})
		if err != nil {
			return nil, fmt.Errorf("HTTP API: %w", err)
		}
	}
	return limitTime(rejectGRPC(h.logRequests(h.identify(h.record(checkHost(cfg.Names, h.router())))))), nil
}

// otherDatacenter is the error of an endpoint whose request body names another
// datacenter, to which the request is then forwarded.
type otherDatacenter string

func (e otherDatacenter) Error() string { return "the request is for datacenter " + string(e) }

// serve returns the handler of one route. A local route refuses requests for
// other datacenters. A GET needs the right to list resources of type reads. Nil:
// the handler authorizes the caller.
func (h *handler) serve(rt route, local bool, reads *pb.Type) http.Handler {
	return h.authorizeWrites(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q, err := readRequest(w, r)
		if err == nil && local {
			err = h.checkLocal(r, q)
		}
		if err != nil {
			writeFailure(w, r, err)
			return
		}
		if q.blocks() || q.body != nil { // other requests have this deadline from limitTime
			setWriteDeadline(w, api.MaxBlockTime(q.wait)+writeTimeout)
		}
		if q.dc != "" && q.dc != h.DC {
			h.forward(w, r, q)
			return
		}
		var resp response
		if err = h.authorizeRead(r, reads); err == nil {
			err = rt.requireName(r)
		}
		if err == nil {
			resp, err = rt.handle(r, q)
		}
		if dc, ok := errors.AsType[otherDatacenter](err); ok {
			q.dc = string(dc)
			h.forward(w, r, q)
			return
		}
		if err != nil {
			writeFailure(w, r, err)
			return
		}
		h.write(w, r, resp, q.pretty)
	}))
}

// Errors of Cluster.Query: the datacenter is unknown, or none of its servers is
// reachable. The texts are Consul's and are the body of the response. The
// header api.HeaderCause has the rest of the text of an error that wraps one of
// them.
var (
	ErrNoPath      = errors.New("No path to datacenter")                       //lint:ignore ST1005 Consul's text
	ErrUnreachable = errors.New("Remote DC has no server currently reachable") //lint:ignore ST1005 Consul's text
)

// Cluster is the federation as this server sees it. Goroutines may call all
// methods concurrently. Neither the caller nor the implementation changes a
// returned value. Methods without a context read from memory and do not block.
type Cluster interface {
	// FederationStates returns the states of all datacenters from this server's
	// own store, ordered by datacenter, and their index in the store. The index
	// is at least 1 and grows with every change.
	FederationStates(ctx context.Context) (states []*pb.FederationState, index uint64, err error)

	// WaitFederationStates returns nil when the index of the federation states
	// is above after, or the error of ctx or of the store.
	WaitFederationStates(ctx context.Context, after uint64) error

	// Members returns the members of the LAN pool or of the WAN pool, ordered
	// by name.
	Members(wan bool) []api.Member

	// Datacenters returns the names of all known datacenters: the local one
	// first, then the others by round-trip time.
	Datacenters() []string

	// Leader returns the ip:port of the Raft leader of this datacenter, and the
	// time since the leader's last message, which is 0 on the leader itself. ok
	// is false if the datacenter has no leader.
	Leader() (addr string, lastContact time.Duration, ok bool)

	// Peers returns the ip:port of each voter of the Raft group.
	Peers() []string

	// Status returns the status of the federation.
	Status(ctx context.Context) (api.Status, error)

	// Query sends a request of the HTTP API to a server of another datacenter.
	// The path and the query of req are escaped as in a URL. The query has no
	// parameter dc. A request other than GET is sent once, on behalf of the
	// peer of ctx (tlsutil.PeerFromContext). Query ends with ctx or after
	// timeout.
	//
	// Errors: ErrNoPath; ErrUnreachable, wrapped with the failed path and the
	// reason; resource.ErrDenied; context.DeadlineExceeded after timeout; the
	// error of ctx.
	Query(ctx context.Context, dc string, req *pb.QueryRequest, timeout time.Duration) (*pb.QueryResponse, error)
}
