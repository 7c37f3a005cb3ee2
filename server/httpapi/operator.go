// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// raftProtocol is the version of Raft's protocol in responses.
	raftProtocol = "3"
	// maxContact and maxTrailing are those of a server that is healthy: the time
	// since its last contact with the leader, and its missing log entries.
	maxContact  = 2 * time.Second
	maxTrailing = 250
)

// Group is the Raft group and the gossip pools of a server.
type Group interface {
	// RaftPeers returns the Raft group as its leader sees it, or with stale as
	// this server sees it. Without a leader, it fails with
	// resource.ErrNotLeader.
	RaftPeers(ctx context.Context, stale bool) ([]*pb.RaftPeer, error)
	// Coordinates returns the coordinates of the members of the LAN pool or of
	// the WAN pool, ordered by name.
	Coordinates(wan bool) []gossip.Coordinate
	// Host describes the machine of the server.
	Host() api.Host
}

// groupRoutes need Config.Group, and the right to read federation states.
func (h *handler) groupRoutes() []route {
	return []route{
		{read, "/v1/operator/raft/configuration", "Lists the Raft group as its leader sees it; with ?stale as this server does.",
			h.raftConfiguration},
		{read, "/v1/operator/autopilot/health", "Returns the health of the servers; the status is 429 if one of them is not healthy.",
			h.groupHealth},
		{read, "/v1/coordinate/datacenters", "Lists the coordinates of the servers of all datacenters.", h.coordinateDatacenters},
		{read, "/v1/coordinate/nodes", "Lists the coordinates of the servers of this datacenter.", h.coordinateNodes},
		{read, "/v1/coordinate/node/{node...}", "Returns the coordinate of one server, in a list.", h.coordinateNode},
	}
}

// hostRoutes are local. They also need the right to read federation states.
func (h *handler) hostRoutes() []route {
	return []route{
		{read, "/v1/agent/host", "Describes the machine of this server. Only for operators.", h.agentHost},
		{read, "/v1/agent/version", "Returns the version of this server.", h.agentVersion},
		{read, "/v1/agent/metrics", "Returns the metrics of /metrics, with ?format=prometheus.", h.agentMetrics},
	}
}

func (h *handler) raftPeers(r *http.Request, q query) (peers []*pb.RaftPeer, err error) {
	c, err := q.consistency()
	if err != nil {
		return nil, err
	}
	if c == resource.Eventual {
		return h.Group.RaftPeers(r.Context(), true)
	}
	err = untilLeader(r.Context(), func(ctx context.Context) (err error) {
		peers, err = h.Group.RaftPeers(ctx, false)
		return err
	})
	return peers, err
}

func (h *handler) raftConfiguration(r *http.Request, q query) (response, error) {
	peers, err := h.raftPeers(r, q)
	if err != nil {
		return response{}, err
	}
	out := api.RaftConfiguration{Servers: []api.RaftServer{}}
	for _, p := range peers {
		out.Servers = append(out.Servers, api.RaftServer{
			ID: p.GetId(), Node: p.GetNode(), Address: p.GetAddress(), Leader: p.GetLeader(), ProtocolVersion: raftProtocol,
			Voter: p.GetVoter(), LastIndex: p.GetLastIndex(),
		})
	}
	return response{body: out}, nil
}

func (h *handler) groupHealth(r *http.Request, q query) (response, error) {
	peers, err := h.raftPeers(r, q)
	if err != nil {
		return response{}, err
	}
	builds := map[string]string{}
	for _, m := range h.Cluster.Members(false) {
		builds[m.Name], _, _ = strings.Cut(m.Build(), ":")
	}
	out := healthOfGroup(peers, builds)
	resp := response{body: out}
	if !out.Healthy {
		resp.status = http.StatusTooManyRequests
	}
	return resp, nil
}

// healthOfGroup returns the health of a Raft group. builds has the version of
// each server.
func healthOfGroup(peers []*pb.RaftPeer, builds map[string]string) api.GroupHealth {
	out := api.GroupHealth{Healthy: len(peers) > 0, Servers: []api.ServerHealth{}}
	voters, healthyVoters := 0, 0
	for _, p := range peers {
		s := api.ServerHealth{
			ID: p.GetId(), Name: p.GetNode(), Address: p.GetAddress(), SerfStatus: p.GetMember(), Version: builds[p.GetNode()],
			Leader: p.GetLeader(), Voter: p.GetVoter(), LastIndex: p.GetLastIndex(),
		}
		recent := p.GetLeader()
		if p.GetLeader() {
			s.LastContact = "0s"
		} else if p.LastContact != nil {
			d := p.LastContact.AsDuration()
			s.LastContact, recent = d.String(), d < maxContact
		}
		s.Healthy = p.GetMember() == "alive" && recent && p.GetTrailing() <= maxTrailing
		out.Healthy = out.Healthy && s.Healthy
		if s.Voter {
			voters++
			if s.Healthy {
				healthyVoters++
			}
		}
		out.Servers = append(out.Servers, s)
	}
	out.FailureTolerance = max(0, healthyVoters-(voters/2+1))
	return out
}

func (h *handler) coordinateNodes(*http.Request, query) (response, error) {
	return response{body: h.coordinates("")}, nil
}

func (h *handler) coordinateNode(r *http.Request, _ query) (response, error) {
	if out := h.coordinates(r.PathValue("node")); len(out) > 0 {
		return response{body: out}, nil
	}
	return response{}, nil // 404, as in Consul
}

// coordinates returns the coordinate of a server of this datacenter, or of all
// if node is "".
func (h *handler) coordinates(node string) []api.NodeCoordinate {
	out := []api.NodeCoordinate{}
	for _, c := range h.Group.Coordinates(false) {
		if node == "" || c.Name == node {
			out = append(out, nodeCoordinate(c.Name, c))
		}
	}
	return out
}

func nodeCoordinate(node string, c gossip.Coordinate) api.NodeCoordinate {
	return api.NodeCoordinate{Node: node, Coord: api.Coordinate{
		Vec: c.Vec, Error: c.Error, Adjustment: c.Adjustment, Height: c.Height,
	}}
}

func (h *handler) coordinateDatacenters(*http.Request, query) (response, error) {
	out := []api.DatacenterCoordinates{}
	for _, c := range h.Group.Coordinates(true) {
		node, dc, _ := strings.Cut(c.Name, ".")
		i := slices.IndexFunc(out, func(d api.DatacenterCoordinates) bool { return d.Datacenter == dc })
		if i < 0 {
			i = len(out)
			out = append(out, api.DatacenterCoordinates{Datacenter: dc, AreaID: "wan"})
		}
		out[i].Coordinates = append(out[i].Coordinates, nodeCoordinate(node, c))
	}
	slices.SortFunc(out, func(a, b api.DatacenterCoordinates) int { return strings.Compare(a.Datacenter, b.Datacenter) })
	return response{body: out}, nil
}

// agentHost is for operators, because it describes a machine and not the
// federation.
func (h *handler) agentHost(r *http.Request, _ query) (response, error) {
	c, _ := policy.FromContext(r.Context())
	if c.Role != tlsutil.RoleOperator || !h.Policy.ActsHere(c) {
		return response{}, fmt.Errorf("%w: %v may not read the machine of %s: it needs an operator's certificate",
			resource.ErrDenied, c, h.Node)
	}
	return response{body: h.Group.Host()}, nil
}

func (h *handler) agentVersion(*http.Request, query) (response, error) {
	return response{body: map[string]string{"SHA": version.Get().Commit, "HumanVersion": version.Version, "FIPS": ""}}, nil
}

func (h *handler) agentMetrics(_ *http.Request, q query) (response, error) {
	if q.values.Get("format") != "prometheus" {
		return response{}, badRequest{errors.New("metrics have one format: add ?format=prometheus, or use /metrics")}
	}
	if h.Metrics == nil {
		return response{}, nil
	}
	return response{stream: h.Metrics.ServeHTTP}, nil
}
