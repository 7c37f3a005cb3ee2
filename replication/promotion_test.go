// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"testing"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// cutOff is the store of a server that cannot reach its leader.
type cutOff struct{ resource.Backend }

func (c cutOff) List(ctx context.Context, how resource.Consistency, q resource.Query) ([]*pb.Resource, uint64, error) {
	if how == resource.Strong {
		return nil, 0, resource.ErrNotLeader
	}
	return c.Backend.List(ctx, how, q)
}

// A server of the former primary that is cut off and has not seen the demotion may
// lack the last records. The new primary does not complete its copy from it.
func TestPromotion_DrainsFromCurrentServer(t *testing.T) {
	t.Parallel()
	d := &dcs{t: t}
	one, two := d.add("dc1", "dc1"), d.add("dc2", "dc1")
	fill(t, one.store, 10)
	untilSame(t, one.store, two.store)
	two.stop()

	lagging := resourcetest.NewStore()
	fill(t, lagging, 10)
	if _, err := lagging.Commit(t.Context(), resource.PutOp(primaryRecord(t, &pb.Primary{Datacenter: "dc1", Complete: true}), "")); err != nil {
		t.Fatal(err)
	}
	reg := registry(t)
	if err := Register(reg); err != nil {
		t.Fatal(err)
	}
	src, err := NewSource(SourceConfig{Backend: cutOff{lagging}, Registry: reg, Primary: AlwaysPrimary, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	pb.RegisterReplicationServiceServer(srv, src)
	ln, stopServing := serve(t, srv)
	stopSource := run(t, src.Run)
	cc := connect(t, ln)
	t.Cleanup(func() { stopServing(); stopSource() })

	put(t, one.store, docType, "late", "1")
	one.restart("dc2")
	one.until("demoted", func() bool { return one.manager.Successor() == "dc2" })
	one.mu.Lock()
	streams := 0
	one.reached, one.second = 0, func(n int) pb.ReplicationServiceClient {
		if n%2 == 0 && streams < 2 { // probes reach srv1, and the first streams the lagging server
			streams++
			return pb.NewReplicationServiceClient(cc)
		}
		return nil
	}
	one.mu.Unlock()
	two.start("dc2")
	two.is("dc2")
	late := record(t, docType, "late", "1").Id
	late.Uid = ""
	if _, err := two.store.Read(t.Context(), resource.Eventual, late); err != nil {
		t.Errorf("Read() of a record that dc1 has acknowledged = %v, want nil", err)
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	if streams == 0 {
		t.Error("no stream reached the lagging server, want one")
	}
}

func primaryRecord(t testing.TB, m *pb.Primary) *pb.Resource {
	t.Helper()
	r, err := resource.New(PrimaryType, primaryName, m)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
