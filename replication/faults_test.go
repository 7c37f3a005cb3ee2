// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// An interrupted comparison continues in the next stream. No resource is sent
// twice.
func TestFollow_InterruptedComparison(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	for i := range 20 { // three resources fit in a batch
		put(t, store, docType, fmt.Sprint("d", i), strings.Repeat("x", batchBytes*3/10))
	}
	p := newPrimary(t, store)
	p.cutAfter.Store(3) // the begin message, and at most two of seven batches
	f := p.follower(t, secondary)
	run(t, f.run)
	waitUntil(t, secondary, func() error {
		if n := len(replicas(t, secondary, false)); n < 6 {
			return fmt.Errorf("%d replicas, want at least 6", n)
		}
		return nil
	})
	if err := checkInSync(t, store, secondary); err == nil {
		t.Error("all replicas arrived in one stream, want an interrupted stream")
	}
	p.cutAfter.Store(5)
	waitInSync(t, store, secondary)
	p.cutAfter.Store(0)
	put(t, store, docType, "last", "1")
	waitInSync(t, store, secondary)
	p.sent.Range(func(name, times any) bool {
		if times != 1 {
			t.Errorf("%v was sent %v times, want once", name, times)
		}
		return times == 1
	})
	if st := f.Status(); st.Compared < 2 {
		t.Errorf("Status() = %+v, want Compared of at least 2", st)
	}
}

// A secondary follows a primary that restored an older snapshot.
func TestFollow_RestoredPrimary(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	fill(t, store, 100)
	p := newPrimary(t, store)
	f := p.follower(t, secondary)
	run(t, f.run)
	waitInSync(t, store, secondary)
	var snapshot bytes.Buffer
	if err := store.WriteSnapshot(&snapshot); err != nil {
		t.Fatal(err)
	}
	put(t, store, docType, "document-00001", "2", "default", "default")
	put(t, store, siteType, "later", "1")
	remove(t, store, docType, "document-00002", "default", "default")
	waitInSync(t, store, secondary)
	if err := store.Restore(&snapshot); err != nil {
		t.Fatal(err)
	}
	waitInSync(t, store, secondary)
	put(t, store, docType, "after", "1")
	waitInSync(t, store, secondary)
	if st := f.Status(); st.Resumed != 0 {
		t.Errorf("Status() after a restore = %+v, want Resumed 0", st)
	}
}

// A secondary follows a primary that was reinstalled. Some names exist in both
// installations. The indexes of the second one are lower or higher.
func TestFollow_ReinstalledPrimary(t *testing.T) {
	for name, writes := range map[string]int{"lower indexes": 0, "higher indexes": 300} {
		t.Run(name, func(t *testing.T) {
			oldStore, newStore, secondary := resourcetest.NewStore(), resourcetest.NewStore(), resourcetest.NewStore()
			for i := range 150 {
				put(t, oldStore, docType, fmt.Sprint("d", i), "1")
			}
			put(t, newStore, docType, "d7", "new")
			oldPrimary, reinstalled := newPrimary(t, oldStore), newPrimary(t, newStore)
			waitReady(t, reinstalled)
			for i := range writes {
				put(t, newStore, siteType, fmt.Sprint("s", i%3), fmt.Sprint(i))
			}
			var conn atomic.Pointer[grpc.ClientConn]
			conn.Store(oldPrimary.client(t))
			f := follower(t, secondary, conn.Load)
			run(t, f.run)
			waitInSync(t, oldStore, secondary)
			put(t, oldStore, siteType, "position", "1")
			waitInSync(t, oldStore, secondary)
			conn.Store(reinstalled.client(t))
			oldPrimary.drop()
			waitInSync(t, newStore, secondary)
			put(t, newStore, docType, "d7", "newer")
			waitInSync(t, newStore, secondary)
			waitUntil(t, secondary, func() error {
				if st := f.Status(); st.Index > uint64(2+writes+10) || st.Index < 2 {
					return fmt.Errorf("Status() = %+v, want an index of the reinstalled primary", st)
				}
				return nil
			})
		})
	}
}

// Two servers of a secondary may both be leader for a moment. Their followers
// store the same replicas.
func TestFollow_TwoLeaders(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	fill(t, store, 200)
	p := newPrimary(t, store)
	run(t, p.follower(t, secondary).run)
	stop := run(t, p.follower(t, secondary).run)
	for i := range 200 {
		put(t, store, docType, fmt.Sprint("d", i%20), fmt.Sprint(i))
		if i%7 == 0 {
			remove(t, store, docType, fmt.Sprint("d", i%20))
		}
		if i == 100 {
			stop()
		}
	}
	waitInSync(t, store, secondary)
}

// A follower that does not read delays no other follower and costs no memory
// except the log. When it reads again, the stream is aborted.
func TestSource_SlowFollower(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	p := newPrimary(t, store)
	waitReady(t, p)
	stream, err := pb.NewReplicationServiceClient(p.client(t)).Follow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	types := []*pb.Type{docType, siteType, zoneType}
	for _, m := range []*pb.FollowRequest{
		{Part: &pb.FollowRequest_Hello{Hello: &pb.FollowHello{Types: types}}},
		{Part: &pb.FollowRequest_Summary{Summary: &pb.FollowSummary{Type: docType}}},
		{Part: &pb.FollowRequest_Summary{Summary: &pb.FollowSummary{Last: true}}},
	} {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stream.Recv(); err != nil { // only the begin message is read
		t.Fatal(err)
	}
	run(t, p.follower(t, secondary).run)
	big := string(make([]byte, 64<<10))
	const written = 2 * maxLogBytes
	for i := range written / len(big) {
		put(t, store, docType, fmt.Sprint("d", i%10), big)
	}
	waitInSync(t, store, secondary)
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	if mem.HeapAlloc > 2*written {
		t.Errorf("heap = %d MiB, want at most %d", mem.HeapAlloc>>20, 2*written>>20)
	}
	p.source.log.mu.Lock()
	size := p.source.log.size
	p.source.log.mu.Unlock()
	if size > maxLogBytes {
		t.Errorf("size of the log = %d bytes, want at most %d", size, maxLogBytes)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Aborted {
		t.Errorf("Recv() of the slow follower = %v, want Aborted", err)
	}
}

// failingStore is a store whose next commit fails if fail is set. The failed
// commit is applied if apply is set.
type failingStore struct {
	*resourcetest.Store
	fail  atomic.Bool
	apply bool
}

func (s *failingStore) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	if !s.fail.Swap(false) {
		return s.Store.Commit(ctx, ops...)
	}
	if s.apply {
		if _, err := s.Store.Commit(ctx, ops...); err != nil {
			return nil, err
		}
	}
	return nil, resource.ErrUnknownOutcome
}

// After a commit with an unknown outcome, the follower compares.
func TestFollow_UnknownCommitOutcome(t *testing.T) {
	for _, apply := range []bool{false, true} {
		t.Run(fmt.Sprintf("applied %v", apply), func(t *testing.T) {
			store, secondary := resourcetest.NewStore(), &failingStore{Store: resourcetest.NewStore(), apply: apply}
			p := newPrimary(t, store)
			f := p.follower(t, secondary)
			run(t, f.run)
			put(t, store, docType, "a", "1")
			waitInSync(t, store, secondary)
			put(t, store, docType, "a", "2") // the follower now has a position
			waitInSync(t, store, secondary)
			secondary.fail.Store(true)
			put(t, store, docType, "a", "3")
			put(t, store, docType, "b", "1")
			waitInSync(t, store, secondary)
			waitUntil(t, secondary, func() error {
				if st := f.Status(); st.Compared != 2 || st.Resumed != 0 {
					return fmt.Errorf("Status() = %+v, want Compared 2 and Resumed 0", st)
				}
				return nil
			})
		})
	}
}

// leaderless is the store of a server that cannot reach its leader.
type leaderless struct{ *resourcetest.Store }

func (s leaderless) List(ctx context.Context, c resource.Consistency,
	q resource.Query) ([]*pb.Resource, uint64, error) {
	if c == resource.Strong {
		return nil, 0, resource.ErrNotLeader
	}
	return s.Store.List(ctx, c, q)
}

// A server of the primary that cannot reach its leader does not serve a
// follower with a higher index.
func TestFollow_LaggingSource(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	put(t, store, docType, "a", "1")
	p := newPrimary(t, leaderless{store})
	ahead := newResource(t, docType, "ahead", "1")
	ahead.PrimaryModifyIndex = 1000
	commitOne(t, secondary, resource.ReplicaOp(ahead))
	f := p.follower(t, secondary)
	stop := run(t, f.run)
	waitUntil(t, secondary, func() error {
		if st := f.Status(); status.Code(st.LastError) != codes.Unavailable || st.Index != 0 {
			return fmt.Errorf("Status() = %+v, want Unavailable and index 0", st)
		}
		return nil
	})
	stop()
	commitOne(t, secondary, resource.RemoveReplicaOp(ahead.Id))
	behind := newResource(t, docType, "behind", "1")
	behind.PrimaryModifyIndex = 2
	commitOne(t, secondary, resource.ReplicaOp(behind))
	f = p.follower(t, secondary)
	run(t, f.run)
	waitUntil(t, secondary, func() error {
		if err := checkInSync(t, store, secondary); err != nil {
			return fmt.Errorf("%w; Status() = %+v", err, f.Status())
		}
		return nil
	})
}
