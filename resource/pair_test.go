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

// pair is the service of a primary and of a secondary, connected by gRPC. A goroutine
// copies resources in place of replication.
type pair struct {
	*rig  // the secondary
	there *rig
	mu    sync.Mutex
	lag   chan struct{} // if not nil, copies wait until it is closed
	via   func() (pb.ResourceServiceClient, error)
}

func newPair(t *testing.T) *pair {
	p := &pair{there: newRig(t, nil)}
	p.via = func() (pb.ResourceServiceClient, error) { return p.there, nil }
	p.rig = newRig(t, nil, func(cfg *resource.ServiceConfig) {
		cfg.DC, cfg.PrimaryDC = "dc2", "dc1"
		cfg.PrimaryClient = func() (pb.ResourceServiceClient, error) { return p.via() }
	})
	p.primary.Store(false)
	p.as(tlsutil.RoleOperator, "dc2")
	p.there.as(tlsutil.RoleOperator, "dc2")
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() { p.copy(ctx) })
	// The stores have different versions.
	for range 20 {
		p.write(node(t, "local", ""))
	}
	return p
}

func (p *pair) copy(ctx context.Context) {
	w, err := p.there.backend.Watch(resource.Query{Type: fsType})
	if err != nil {
		p.Error(err)
		return
	}
	defer w.Close()
	for {
		e, err := w.Next(ctx)
		if err != nil {
			return
		}
		p.mu.Lock()
		lag := p.lag
		p.mu.Unlock()
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
			if _, err := p.backend.Commit(ctx, op); err != nil && ctx.Err() == nil {
				p.Error(err)
			}
		}
	}
}

// hold delays copies until the returned function is called.
func (p *pair) hold() (release func()) {
	lag := make(chan struct{})
	p.mu.Lock()
	p.lag = lag
	p.mu.Unlock()
	var once sync.Once
	release = func() {
		once.Do(func() {
			p.mu.Lock()
			p.lag = nil
			p.mu.Unlock()
			close(lag)
		})
	}
	p.Cleanup(release)
	return release
}

func fed(t testing.TB, name, gateway string) *pb.Resource {
	return &pb.Resource{Id: &pb.ID{Type: fsType, Name: name}, Data: data(t, &pb.FederationState{
		Datacenter: name, MeshGateways: []*pb.MeshGateway{{Node: &pb.Node{Node: gateway}}},
	})}
}

func gatewayOf(t testing.TB, r *pb.Resource) string {
	t.Helper()
	s, err := resource.Decode[*pb.FederationState](r)
	if err != nil {
		t.Fatal(err)
	}
	return s.MeshGateways[0].Node.Node
}

func (p *pair) read(id *pb.ID) *pb.Resource {
	p.Helper()
	out, err := p.Read(p.Context(), &pb.ReadRequest{Id: id})
	if err != nil {
		p.Fatal(err)
	}
	return out.Resource
}
