// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"testing"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// A partitioned server of the former primary lacks the demotion and the last
// writes. A new primary that copies resources from that server copies them
// again from another server.
func TestPromotion_CopiesFromCurrentServer(t *testing.T) {
	t.Parallel()
	fed := &testFederation{t: t}
	dc1, dc2 := fed.add("dc1", "dc1"), fed.add("dc2", "dc1")
	fill(t, dc1.store, 10)
	waitInSync(t, dc1.store, dc2.store)
	dc2.stop()

	lagging := resourcetest.NewStore()
	fill(t, lagging, 10)
	commitOne(t, lagging, resource.PutOp(primaryResource(t, &pb.Primary{Datacenter: "dc1", Complete: true}), ""))
	src := NewSource(primaryManager(t, lagging), leaderless{lagging})
	srv := grpc.NewServer()
	pb.RegisterReplicationServiceServer(srv, src)
	ln, stopServing := serve(t, srv)
	stopSource := run(t, src.Run)
	laggingConn := connect(t, ln)
	t.Cleanup(func() { stopServing(); stopSource() })

	put(t, dc1.store, docType, "late", "1")
	dc1.restart("dc2")
	dc1.waitUntil("successor dc2", func() bool { return dc1.manager.announcedSuccessor().dc == "dc2" })
	dc1.mu.Lock()
	streams := 0
	dc1.connections, dc1.route = 0, func(n int) pb.ReplicationServiceClient {
		if n%2 == 0 && streams < 2 { // odd connections are probes, which must reach srv1
			streams++
			return pb.NewReplicationServiceClient(laggingConn)
		}
		return nil
	}
	dc1.mu.Unlock()
	dc2.start("dc2")
	dc2.waitPrimary("dc2")
	late := newResource(t, docType, "late", "1").Id
	late.Uid = ""
	if _, err := dc2.store.Read(t.Context(), resource.Eventual, late); err != nil {
		t.Errorf("Read(%v) in dc2 = %v, want the resource that dc1 acknowledged", late, err)
	}
	dc1.mu.Lock()
	defer dc1.mu.Unlock()
	if streams == 0 {
		t.Error("the lagging server received 0 streams, want at least 1")
	}
}

func primaryResource(t testing.TB, m *pb.Primary) *pb.Resource {
	t.Helper()
	r, err := resource.New(PrimaryType, primaryName, m)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
