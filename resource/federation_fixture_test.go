// SPDX-License-Identifier: MPL-2.0

package resource_test

import (
	"context"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// federation is a Service in the secondary dc2, which forwards writes to a
// Service in the primary dc1. A goroutine copies resources in place of
// replication.
type federation struct {
	*fixture                                           // of the secondary
	primaryDC *fixture                                 // of the primary
	dial      func() (pb.ResourceServiceClient, error) // ServiceConfig.PrimaryClient

	mu  sync.Mutex
	lag chan struct{} // replication waits until lag is closed; nil: no wait
}

func newFederation(t *testing.T) *federation {
	f := &federation{primaryDC: newFixture(t, nil)}
	f.dial = func() (pb.ResourceServiceClient, error) { return f.primaryDC, nil }
	f.fixture = newFixture(t, nil, func(cfg *resource.ServiceConfig) {
		cfg.DC, cfg.PrimaryDC = "dc2", "dc1"
		cfg.PrimaryClient = func() (pb.ResourceServiceClient, error) { return f.dial() }
	})
	f.primary.Store(false)
	f.as(tlsutil.RoleOperator, "dc2")
	f.primaryDC.as(tlsutil.RoleOperator, "dc2")
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() { f.replicate(ctx) })
	for range 20 { // so that the two stores have different versions
		f.write(node(t, "local", ""))
	}
	return f
}

// replicate copies federated resources from the primary to the secondary.
func (f *federation) replicate(ctx context.Context) {
	w, err := f.primaryDC.backend.Watch(resource.Query{Type: fsType})
	if err != nil {
		f.Error(err)
		return
	}
	defer w.Close()
	for {
		e, err := w.Next(ctx)
		if err != nil {
			return
		}
		f.mu.Lock()
		lag := f.lag
		f.mu.Unlock()
		if lag != nil {
			<-lag
		}
		var op *pb.Op
		if r := proto.CloneOf(e.GetUpsert().GetResource()); r != nil {
			r.PrimaryModifyIndex, r.Status = r.ModifyIndex, nil
			op = resource.ReplicaOp(r)
		} else if r := e.GetDelete().GetResource(); r != nil {
			op = resource.RemoveReplicaOp(r.Id)
		}
		if op != nil {
			if _, err := f.backend.Commit(ctx, op); err != nil && ctx.Err() == nil {
				f.Error(err)
			}
		}
	}
}

// holdReplication delays replication until release is called.
func (f *federation) holdReplication() (release func()) {
	lag := make(chan struct{})
	f.mu.Lock()
	f.lag = lag
	f.mu.Unlock()
	var once sync.Once
	release = func() {
		once.Do(func() {
			f.mu.Lock()
			f.lag = nil
			f.mu.Unlock()
			close(lag)
		})
	}
	f.Cleanup(release)
	return release
}

// federationState returns the federation state of a datacenter with one
// gateway.
func federationState(t testing.TB, name, gateway string) *pb.Resource {
	return &pb.Resource{Id: &pb.ID{Type: fsType, Name: name}, Data: data(t, &pb.FederationState{
		Datacenter: name, MeshGateways: []*pb.MeshGateway{{Node: &pb.Node{Node: gateway}}},
	})}
}

// gatewayOf returns the node of the gateway in a federation state.
func gatewayOf(t testing.TB, r *pb.Resource) string {
	t.Helper()
	s, err := resource.Decode[*pb.FederationState](r)
	if err != nil {
		t.Fatal(err)
	}
	return s.MeshGateways[0].Node.Node
}

func (f *federation) read(id *pb.ID) *pb.Resource {
	f.Helper()
	out, err := f.Read(f.Context(), &pb.ReadRequest{Id: id})
	if err != nil {
		f.Fatal(err)
	}
	return out.Resource
}
