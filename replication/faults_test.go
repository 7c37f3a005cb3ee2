// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// Each attempt at the first comparison progresses, and nothing is sent twice.
func TestFollow_InterruptedComparison(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	for i := range 20 { // three to a batch
		put(t, store, docType, fmt.Sprint("d", i), strings.Repeat("x", batchBytes*3/10))
	}
	p := newPrimary(t, store)
	p.cut.Store(3) // begin, and at most two of seven batches
	f := p.follower(t, secondary)
	run(t, f.Run)
	until(t, secondary, func() error {
		if n := len(copies(t, secondary, false)); n < 6 {
			return fmt.Errorf("%d replicas, want at least 6", n)
		}
		return nil
	})
	if err := unlike(t, store, secondary); err == nil {
		t.Error("the stream was not interrupted")
	}
	p.cut.Store(5)
	untilSame(t, store, secondary)
	p.cut.Store(0)
	put(t, store, docType, "last", "1")
	untilSame(t, store, secondary)
	p.sent.Range(func(name, times any) bool {
		if times != 1 {
			t.Errorf("%v was sent %v times, want once", name, times)
		}
		return times == 1
	})
	if st := f.Status(); st.Compared < 2 {
		t.Errorf("status: %+v", st)
	}
}

// Secondaries follow a primary that was restored to an older state.
func TestFollow_RestoredPrimary(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	fill(t, store, 100)
	p := newPrimary(t, store)
	f := p.follower(t, secondary)
	run(t, f.Run)
	untilSame(t, store, secondary)
	var snapshot bytes.Buffer
	if err := store.WriteSnapshot(&snapshot); err != nil {
		t.Fatal(err)
	}
	put(t, store, docType, "document-00001", "2", "default", "default")
	put(t, store, siteType, "later", "1")
	remove(t, store, docType, "document-00002", "default", "default")
	untilSame(t, store, secondary)
	if err := store.Restore(&snapshot); err != nil {
		t.Fatal(err)
	}
	untilSame(t, store, secondary)
	put(t, store, docType, "after", "1")
	untilSame(t, store, secondary)
	if st := f.Status(); st.Resumed != 0 {
		t.Errorf("status = %+v, want no resumed stream after a restore", st)
	}
}

// A primary that was reinstalled, with some of the same names, is followed too,
// whether its indexes are lower or higher than those of the first one.
func TestFollow_ReinstalledPrimary(t *testing.T) {
	for _, later := range []int{0, 300} {
		first, second, secondary := resourcetest.NewStore(), resourcetest.NewStore(), resourcetest.NewStore()
		for i := range 150 {
			put(t, first, docType, fmt.Sprint("d", i), "1")
		}
		put(t, second, docType, "d7", "new")
		p, q := newPrimary(t, first), newPrimary(t, second)
		ready(t, q)
		for i := range later {
			put(t, second, siteType, fmt.Sprint("s", i%3), fmt.Sprint(i))
		}
		var mu sync.Mutex
		to := p.client(t)
		f := follower(t, secondary, func() *grpc.ClientConn {
			mu.Lock()
			defer mu.Unlock()
			return to
		})
		run(t, f.Run)
		untilSame(t, first, secondary)
		put(t, first, siteType, "position", "1")
		untilSame(t, first, secondary)
		mu.Lock()
		to = q.client(t)
		mu.Unlock()
		p.drop()
		untilSame(t, second, secondary)
		put(t, second, docType, "d7", "newer")
		untilSame(t, second, secondary)
		until(t, secondary, func() error {
			if st := f.Status(); st.Index > uint64(2+later+10) || st.Index < 2 {
				return fmt.Errorf("status: %+v", st)
			}
			return nil
		})
	}
}

// Two followers of one store agree, as when two servers consider themselves leader.
func TestFollow_TwoLeaders(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	fill(t, store, 200)
	p := newPrimary(t, store)
	run(t, p.follower(t, secondary).Run)
	stop := run(t, p.follower(t, secondary).Run)
	for i := range 200 {
		put(t, store, docType, fmt.Sprint("d", i%20), fmt.Sprint(i))
		if i%7 == 0 {
			remove(t, store, docType, fmt.Sprint("d", i%20))
		}
		if i == 100 {
			stop()
		}
	}
	untilSame(t, store, secondary)
}

// A follower that does not read delays no other one and costs no more memory than
// the log. When it reads again, its stream is aborted.
func TestSource_SlowFollower(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	p := newPrimary(t, store)
	ready(t, p)
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
	if _, err := stream.Recv(); err != nil { // the stream has begun; the rest is not read for now
		t.Fatal(err)
	}
	run(t, p.follower(t, secondary).Run)
	big := string(make([]byte, 64<<10))
	const written = 2 * maxLogBytes
	for i := range written / len(big) {
		put(t, store, docType, fmt.Sprint("d", i%10), big)
	}
	untilSame(t, store, secondary)
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	if mem.HeapAlloc > 2*written {
		t.Errorf("%d MiB are in use, want at most %d", mem.HeapAlloc>>20, 2*written>>20)
	}
	p.source.log.mu.Lock()
	size := p.source.log.size
	p.source.log.mu.Unlock()
	if size > maxLogBytes {
		t.Errorf("the log has %d bytes, want at most %d", size, maxLogBytes)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Aborted {
		t.Errorf("Recv() of the slow follower = %v, want Aborted", err)
	}
}

// failing is a store whose commits fail, applied or not.
type failing struct {
	*resourcetest.Store
	mu   sync.Mutex
	fail int // number of failures
	done bool
}

func (s *failing) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	s.mu.Lock()
	fail, done := s.fail > 0, s.done
	s.fail--
	s.mu.Unlock()
	if !fail {
		return s.Store.Commit(ctx, ops...)
	}
	if done {
		if _, err := s.Store.Commit(ctx, ops...); err != nil {
			return nil, err
		}
	}
	return nil, resource.ErrUnknownOutcome
}

// After a commit with an unknown outcome, the follower compares.
func TestFollow_UnknownCommitOutcome(t *testing.T) {
	for _, done := range []bool{false, true} {
		store, secondary := resourcetest.NewStore(), &failing{Store: resourcetest.NewStore(), done: done}
		p := newPrimary(t, store)
		f := p.follower(t, secondary)
		run(t, f.Run)
		put(t, store, docType, "a", "1")
		untilSame(t, store, secondary)
		put(t, store, docType, "a", "2") // now the follower has a position
		untilSame(t, store, secondary)
		secondary.mu.Lock()
		secondary.fail = 1
		secondary.mu.Unlock()
		put(t, store, docType, "a", "3")
		put(t, store, docType, "b", "1")
		untilSame(t, store, secondary)
		until(t, secondary, func() error {
			if st := f.Status(); st.Compared != 2 || st.Resumed != 0 {
				return fmt.Errorf("status: %+v", st)
			}
			return nil
		})
	}
}

// A server of the primary that cannot reach its leader, and may have older records
// than the follower, is not followed.
func TestFollow_LaggingSource(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	put(t, store, docType, "a", "1")
	p := newPrimary(t, leaderless{store})
	ahead := record(t, docType, "ahead", "1")
	ahead.PrimaryModifyIndex = 1000
	commit1(t, secondary, resource.ReplicaOp(ahead))
	f := p.follower(t, secondary)
	stop := run(t, f.Run)
	until(t, secondary, func() error {
		if st := f.Status(); status.Code(st.LastError) != codes.Unavailable || st.Index != 0 {
			return fmt.Errorf("status: %+v", st)
		}
		return nil
	})
	stop()
	commit1(t, secondary, resource.RemoveReplicaOp(ahead.Id))
	behind := record(t, docType, "behind", "1")
	behind.PrimaryModifyIndex = 2
	commit1(t, secondary, resource.ReplicaOp(behind))
	g := p.follower(t, secondary)
	run(t, g.Run)
	until(t, secondary, func() error {
		if err := unlike(t, store, secondary); err != nil {
			return fmt.Errorf("%w; status: %+v", err, g.Status())
		}
		return nil
	})
}
