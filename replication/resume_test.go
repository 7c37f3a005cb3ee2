// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"fmt"
	"maps"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// fill writes n resources.
func fill(t testing.TB, store resource.Backend, n int) {
	t.Helper()
	var ops []*pb.Op
	for i := range n {
		r := newResource(t, docType, fmt.Sprintf("document-%05d", i), "1", "default", "default")
		ops = append(ops, resource.PutOp(r, ""))
	}
	commitOne(t, store, ops...)
}

// checkSent checks that the primary has sent each name once, and no other name,
// since p.sent was cleared.
func checkSent(t *testing.T, p *primary, names ...string) {
	t.Helper()
	got, want := map[string]int{}, map[string]int{}
	p.sent.Range(func(name, times any) bool { got[name.(string)] = times.(int); return true })
	for _, name := range names {
		want[name] = 1
	}
	if !maps.Equal(got, want) {
		t.Errorf("sent upserts by name = %v, want %v", got, want)
	}
}

// The bytes on the wire for 10,000 resources stay within limits.
func TestFollow_Bytes(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	fill(t, store, 10_000)
	p := newPrimary(t, store)
	f := p.follower(t, secondary)
	stop := run(t, f.run)
	// writeMark writes the last resource and waits for its replica.
	writeMark := func(value string) {
		t.Helper()
		put(t, store, siteType, "mark", value)
		waitUntil(t, secondary, func() error {
			r, err := secondary.Read(t.Context(), resource.Eventual, resource.ID(siteType, "mark"))
			if err != nil {
				return err
			}
			if n, err := resource.Decode[*pb.Node](r); err != nil || n.Address != value {
				return fmt.Errorf("mark = %v, %v, want address %s", n, err, value)
			}
			return nil
		})
	}
	reset := func() { p.bytesUp.Store(0); p.bytesDown.Store(0); p.digests.Store(0); p.sent.Clear() }
	check := func(step string, maxUp, maxDown, maxDigests int64) {
		t.Helper()
		up, down, digests := p.bytesUp.Load(), p.bytesDown.Load(), p.digests.Load()
		t.Logf("%s: %d bytes up, %d down, %d digests", step, up, down, digests)
		if up > maxUp || down > maxDown || digests > maxDigests {
			t.Errorf("%s: %d bytes up, %d down and %d digests, want at most %d, %d and %d",
				step, up, down, digests, maxUp, maxDown, maxDigests)
		}
	}
	restart := func(f *Follower) {
		stop()
		p.open.Wait()
		reset()
		stop = run(t, f.run)
	}
	writeMark("1")
	t.Logf("first comparison: %d bytes up, %d down", p.bytesUp.Load(), p.bytesDown.Load())
	reset()
	writeMark("2")
	check("one change", 100, 500, 0)
	checkSent(t, p, "mark")

	stop()
	put(t, store, docType, "document-00008", "2", "default", "default")
	remove(t, store, docType, "document-00009", "default", "default")
	restart(f) // Run begins without a position
	writeMark("3")
	check("comparison with two differences", 9000, 1000, 1000)
	checkSent(t, p, "document-00008", "mark")
	restart(p.follower(t, secondary))
	writeMark("4")
	check("comparison without a difference", 5000, 1000, 100)
	stop()
	if err := checkInSync(t, store, secondary); err != nil {
		t.Error(err)
	}
}

// A broken stream resumes at any server of the primary whose log contains the
// position.
func TestFollow_Resume(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	fill(t, store, 500)
	servers := []*primary{newPrimary(t, store), newPrimary(t, store)}
	for _, p := range servers {
		waitReady(t, p)
	}
	conns := []*grpc.ClientConn{servers[0].client(t), servers[1].client(t)}
	var current atomic.Int32 // the server that the follower uses
	f := follower(t, secondary, func() *grpc.ClientConn { return conns[current.Load()] })
	run(t, f.run)
	waitInSync(t, store, secondary)
	write := func(name string) {
		t.Helper()
		put(t, store, docType, name, "1")
		waitInSync(t, store, secondary)
	}
	write("a") // a commit that both logs contain
	for i, next := range []int32{0, 1, 0} {
		last := current.Swap(next)
		servers[0].sent.Clear()
		servers[1].sent.Clear()
		servers[last].drop()
		name := fmt.Sprint("b", i)
		write(name)
		if st := f.Status(); st.Resumed != uint64(i)+1 || st.Compared != 1 {
			t.Errorf("Status() after break %d = %+v, want Resumed %d and Compared 1", i, st, i+1)
		}
		checkSent(t, servers[next], name)
	}
}

// A server accepts only positions whose commit its own log contains.
func TestChangeLog_Positions(t *testing.T) {
	store := resourcetest.NewStore()
	server1, server2, otherKinds := newPrimary(t, store), newPrimary(t, store), newPrimary(t, store, siteType)
	// otherHistory is a store with other contents and the same indexes.
	otherStore := resourcetest.NewStore()
	otherHistory := newPrimary(t, otherStore)
	all := []*primary{server1, server2, otherKinds, otherHistory}
	end := func(p *primary) *pb.FollowPosition {
		_, position, _ := p.source.log.end()
		return position
	}
	checkFind := func(name string, p *primary, position *pb.FollowPosition, want bool) {
		t.Helper()
		if _, ok := p.source.log.find(position); ok != want {
			t.Errorf("find() of %s = %v, want %v", name, ok, want)
		}
	}
	for _, p := range all {
		waitReady(t, p)
	}
	checkFind("the start of another log", server2, end(server1), false)
	checkFind("the start of the log", server1, end(server1), true)

	r := put(t, store, docType, "a", "1")
	if other := put(t, otherStore, docType, "a", "1"); other.ModifyIndex != r.ModifyIndex {
		t.Fatalf("index in the other store = %d, want %d", other.ModifyIndex, r.ModifyIndex)
	}
	for _, p := range all {
		waitUntil(t, p.store, func() error {
			if got := end(p).GetIndex(); got != r.ModifyIndex {
				return fmt.Errorf("index of the log = %d, want %d", got, r.ModifyIndex)
			}
			return nil
		})
	}
	checkFind("a commit that both logs contain", server2, end(server1), true)
	checkFind("a commit of a server with other kinds", server1, end(otherKinds), false)
	checkFind("a commit of another history", server1, end(otherHistory), false)
	checkFind("no position", server1, nil, false)
}
