// SPDX-License-Identifier: MPL-2.0

package xds

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/gateway/proxycfg"
)

// Config configures a Server. All fields are required.
type Config struct {
	// Snapshot returns the newest snapshot of a gateway, or nil, and a channel
	// that is closed at the next change. See proxycfg.Manager.Snapshot.
	Snapshot func(gateway string) (*proxycfg.Snapshot, <-chan struct{})
	// Gateway returns the name of the gateway that makes a call, from its
	// certificate. The error is a gRPC status.
	Gateway func(ctx context.Context) (string, error)
	Logger  *slog.Logger
}

// Server serves snapshots as Envoy resources. It implements the
// AggregatedDiscoveryService. The methods may be called from any goroutine.
type Server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	cfg     Config
	builder builder

	mu      sync.Mutex
	streams map[*stream]bool
	ended   map[string]time.Time // end of the last stream, by gateway
	names   map[string][]string  // the last list of names that a proxy subscribed, by type URL
}

// NewServer returns a Server without streams.
func NewServer(cfg Config) *Server {
	return &Server{cfg: cfg, builder: builder{names: newNames(cfg.Logger)}, streams: map[*stream]bool{},
		ended: map[string]time.Time{}, names: map[string][]string{}}
}

// Run resolves the host names in snapshots until ctx ends. A proxy receives no
// address for a name before.
func (s *Server) Run(ctx context.Context) error { return s.builder.names.run(ctx) }

// Proxy is the state of one stream of a proxy.
type Proxy struct {
	Gateway   string
	Version   string // of Envoy
	Connected time.Time
	Types     []Type // in the order of their first request
}

// Type is the state of one type of resources of a proxy.
type Type struct {
	TypeURL string
	// Sent and Accepted are the numbers of responses.
	Sent, Accepted int
	// Resources is the number of resources in the sent responses. It includes
	// removed ones.
	Resources int
	// Rejected is the message of the proxy if it rejected the last response.
	// The proxy then uses the last accepted resources.
	Rejected   string
	RejectedAt time.Time
}

// Proxies returns the connected proxies, sorted by name and time.
func (s *Server) Proxies() []Proxy {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Proxy, 0, len(s.streams))
	for st := range s.streams {
		p := st.proxy
		p.Types = slices.Clone(p.Types)
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Proxy) int {
		return cmp.Or(cmp.Compare(a.Gateway, b.Gateway), a.Connected.Compare(b.Connected))
	})
	return out
}

// Disconnected returns when the last stream of each proxy ended that has no
// stream now, by gateway.
func (s *Server) Disconnected() map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := maps.Clone(s.ended)
	for st := range s.streams {
		delete(out, st.proxy.Gateway)
	}
	return out
}

// StreamAggregatedResources implements the state-of-the-world variant.
func (s *Server) StreamAggregatedResources(
	g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer,
) error {
	return serve(s, g, stateOfTheWorld{})
}

// DeltaAggregatedResources implements the incremental variant.
func (s *Server) DeltaAggregatedResources(
	g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
) error {
	return serve(s, g, incremental{})
}

// stream is one stream of a proxy. The goroutine of serve owns it, except
// proxy, which Server.mu guards.
type stream struct {
	server *Server
	proxy  Proxy
	bind   Bind
	subs   map[string]*subscription // by type URL
	// resources are those of the newest snapshot; nil: none yet.
	resources *resources
	responses uint64
}

// message is a request of either variant.
type message interface {
	GetTypeUrl() string
	GetResponseNonce() string
	GetNode() *corev3.Node
	GetErrorDetail() *rpcstatus.Status
}

// variant is one variant of the protocol.
type variant[Req message, Resp any] interface {
	// subscribe changes sub as a request demands.
	subscribe(sub *subscription, req Req) error
	// response returns the next response for a subscription and the number of
	// resources in it. It returns false if nothing must be sent.
	response(sub *subscription, all *set, url string) (resp Resp, resources int, ok bool)
}

// grpcStream is either kind of gRPC stream.
type grpcStream[Req, Resp any] interface {
	Context() context.Context
	Recv() (Req, error)
	Send(Resp) error
}

// serve serves one stream until the proxy disconnects or its context ends.
func serve[Req message, Resp any](s *Server, g grpcStream[Req, Resp], v variant[Req, Resp]) error {
	ctx := g.Context()
	name, err := s.cfg.Gateway(ctx)
	if err != nil {
		return err
	}
	st := &stream{server: s, subs: map[string]*subscription{}}
	st.proxy = Proxy{Gateway: name, Connected: time.Now()}
	s.mu.Lock()
	s.streams[st] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.streams, st)
		s.ended[name] = time.Now()
	}()
	received, failed := make(chan Req), make(chan error, 1)
	done := make(chan struct{})
	defer close(done)
	go func() { // ends after serve: gRPC then ends Recv
		for {
			req, err := g.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case received <- req:
			case <-done:
				return
			}
		}
	}()
	for {
		resolved := s.builder.names.changed.Wait() // before the build
		snap, changed := s.cfg.Snapshot(name)
		if snap != nil {
			st.resources = s.builder.build(snap, st.bind, st.resources)
			if err := push(st, g, v); err != nil {
				return err
			}
		}
		select {
		case req := <-received:
			if err := handle(st, req, v); err != nil {
				return err
			}
		case err := <-failed:
			return err
		case <-changed:
		case <-resolved:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// push sends the next response of each type that has none in flight.
func push[Req message, Resp any](st *stream, g grpcStream[Req, Resp], v variant[Req, Resp]) error {
	for _, url := range typeURLs {
		sub := st.subs[url]
		all := st.resources.sets[url]
		if sub == nil || sub.nonce != "" || sub.compared == all {
			continue
		}
		sub.compared = all
		st.responses++
		sub.nonce = strconv.FormatUint(st.responses, 10)
		resp, count, ok := v.response(sub, all, url)
		if !ok {
			sub.nonce = ""
			continue
		}
		sub.last = sub.nonce
		if err := g.Send(resp); err != nil {
			return err
		}
		st.record(url, func(t *Type) { t.Sent, t.Resources = t.Sent+1, t.Resources+count })
	}
	return nil
}

// handle processes a request. It ignores requests for types that Server does
// not have.
func handle[Req message, Resp any](st *stream, req Req, v variant[Req, Resp]) error {
	url := req.GetTypeUrl()
	if !slices.Contains(typeURLs, url) {
		return nil
	}
	st.setNode(req.GetNode())
	sub := st.subs[url]
	if sub == nil {
		sub = &subscription{first: true}
		st.subs[url] = sub
		st.record(url, func(*Type) {})
	}
	if nonce := req.GetResponseNonce(); nonce != "" && nonce == sub.nonce {
		sub.answered(req.GetErrorDetail() != nil)
		st.acknowledge(url, req.GetErrorDetail())
	}
	names := sub.names
	if err := v.subscribe(sub, req); err != nil {
		return err
	}
	sub.first = false
	if !slices.Equal(names, sub.names) {
		sub.names = st.server.shareNames(url, sub.names)
	}
	return nil
}

// shareNames returns the last list of names for a type if it is equal to names.
// The proxies of a datacenter subscribe the same names, so one list is enough.
func (s *Server) shareNames(url string, names []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.names[url], names) {
		s.names[url] = names
	}
	return s.names[url]
}

// setNode reads the description of the proxy, which its first request has.
func (st *stream) setNode(node *corev3.Node) {
	if node == nil {
		return
	}
	meta := node.GetMetadata().GetFields()
	st.bind = Bind{meta["lan_bind"].GetStringValue(), meta["wan_bind"].GetStringValue()}
	st.server.mu.Lock()
	defer st.server.mu.Unlock()
	v := node.GetUserAgentBuildVersion().GetVersion()
	st.proxy.Version = fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch())
}

// acknowledge records that the proxy accepted or rejected a response.
func (st *stream) acknowledge(url string, fault *rpcstatus.Status) {
	if fault == nil {
		st.record(url, func(t *Type) { t.Accepted, t.Rejected, t.RejectedAt = t.Accepted+1, "", time.Time{} })
		return
	}
	text := clip(fault.GetMessage())
	st.record(url, func(t *Type) { t.Rejected, t.RejectedAt = text, time.Now() })
	st.server.cfg.Logger.Warn("configuration rejected by Envoy", "gateway", st.proxy.Gateway, "type_url", url,
		"err", text)
}

// maxRejected is the maximum size, in bytes, of a message of a proxy that
// Server keeps.
const maxRejected = 4 << 10

func clip(s string) string {
	if len(s) > maxRejected {
		s = s[:maxRejected] + "..."
	}
	return strings.ToValidUTF8(cmp.Or(s, "no message"), "?")
}

func (st *stream) record(url string, f func(*Type)) {
	st.server.mu.Lock()
	defer st.server.mu.Unlock()
	i := slices.IndexFunc(st.proxy.Types, func(t Type) bool { return t.TypeURL == url })
	if i < 0 {
		i = len(st.proxy.Types)
		st.proxy.Types = append(st.proxy.Types, Type{TypeURL: url})
	}
	f(&st.proxy.Types[i])
}
