// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeCluster is a Cluster without a store and gossip pools. These tests cover
// the handlers. Package test covers the Cluster of a server.
type fakeCluster struct {
	members     map[bool][]api.Member
	datacenters []string
	leaderAddr  string
	lastContact time.Duration
	peers       []string
	status      api.Status
	err         error // of FederationStates and Status
	waitErr     error // of WaitFederationStates
	query       func(ctx context.Context, dc string, req *pb.QueryRequest) (*pb.QueryResponse, error)

	mu      sync.Mutex
	states  []*pb.FederationState
	index   uint64
	changed chan struct{} // closed and replaced by set
}

// set replaces the federation states and wakes all waiting calls.
func (f *fakeCluster) set(index uint64, states ...*pb.FederationState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index, f.states = index, states
	if f.changed != nil {
		close(f.changed)
	}
	f.changed = make(chan struct{})
}

func (f *fakeCluster) now() ([]*pb.FederationState, uint64, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.states, f.index, f.changed
}

func (f *fakeCluster) FederationStates(context.Context) ([]*pb.FederationState, uint64, error) {
	states, index, _ := f.now()
	return states, index, f.err
}

func (f *fakeCluster) WaitFederationStates(ctx context.Context, after uint64) error {
	for {
		_, index, changed := f.now()
		if index > after || f.waitErr != nil {
			return f.waitErr
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeCluster) Members(wan bool) []api.Member { return f.members[wan] }
func (f *fakeCluster) Datacenters() []string         { return f.datacenters }
func (f *fakeCluster) Peers() []string               { return f.peers }
func (f *fakeCluster) Leader() (string, time.Duration, bool) {
	return f.leaderAddr, f.lastContact, f.leaderAddr != ""
}
func (f *fakeCluster) Status(context.Context) (api.Status, error) { return f.status, f.err }
func (f *fakeCluster) Query(
	ctx context.Context, dc string, req *pb.QueryRequest, timeout time.Duration,
) (*pb.QueryResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return f.query(ctx, dc, req)
}

func newFakeCluster() *fakeCluster {
	f := &fakeCluster{leaderAddr: "10.1.0.11:8300"}
	f.set(22, state("dc1"), state("dc2", "gw1"))
	return f
}

// state returns the federation state of dc with gateways of these names.
func state(dc string, gateways ...string) *pb.FederationState {
	s := &pb.FederationState{Datacenter: dc, ModifyIndex: 20}
	for _, name := range gateways {
		s.MeshGateways = append(s.MeshGateways, &pb.MeshGateway{
			Node:    &pb.Node{Node: name, Datacenter: dc},
			Service: &pb.Service{Id: name, Kind: "mesh-gateway"},
		})
	}
	return s
}

func newHandler(t testing.TB, cluster Cluster) http.Handler {
	t.Helper()
	h, err := New(Config{DC: "dc1", Policy: policyOf("dc1"), Cluster: cluster, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// get sends a GET request to h without a socket.
func get(ctx context.Context, h http.Handler, target string) *httptest.ResponseRecorder {
	return do(ctx, h, http.MethodGet, target)
}

func do(ctx context.Context, h http.Handler, method, target string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, method, target, nil)
	r.Host = "127.0.0.1:8500"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}
