// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// fill writes n records.
func fill(t testing.TB, store resource.Backend, n int) {
	t.Helper()
	var ops []*pb.Op
	for i := range n {
		ops = append(ops, resource.PutOp(record(t, docType, fmt.Sprintf("document-%05d", i), "1", "default", "default"), ""))
	}
	commit1(t, store, ops...)
}

// wantSent checks the upserts since p.sent was cleared.
func wantSent(t *testing.T, p *primary, names ...string) {
	t.Helper()
	want := map[string]bool{}
	for _, n := range names {
		want[n] = true
	}
	n := 0
	p.sent.Range(func(name, times any) bool {
		if n++; !want[name.(string)] || times != 1 {
			t.Errorf("%v was sent %v times, want %v once", name, times, names)
		}
		return true
	})
	if n != len(names) {
		t.Errorf("%d records were sent, want %v", n, names)
	}
}

// The bytes on the wire for 10,000 records stay within limits.
func TestFollow_Bytes(t *testing.T) {
	const records = 10_000
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	fill(t, store, records)
	p := newPrimary(t, store)
	f := p.follower(t, secondary)
	stop := run(t, f.Run)
	sync := func(value string) {
		t.Helper()
		put(t, store, siteType, "mark", value)
		until(t, secondary, func() error { // it is written last
			r, err := secondary.Read(t.Context(), resource.Eventual, resource.ID(siteType, "mark"))
			if err != nil {
				return err
			}
			if n, err := resource.Decode[*pb.Node](r); err != nil || n.Address != value {
				return fmt.Errorf("the mark is %v, %v", n, err)
			}
			return nil
		})
	}
	sync("1")
	t.Logf("%d records: %d bytes up, %d down", records, p.up.Load(), p.down.Load())

	reset := func() { p.up.Store(0); p.down.Store(0); p.ask.Store(0); p.sent.Clear() }
	check := func(what string, up, down int64) {
		t.Helper()
		t.Logf("%s: %d bytes up, %d down, %d digests", what, p.up.Load(), p.down.Load(), p.ask.Load())
		if p.up.Load() > up || p.down.Load() > down {
			t.Errorf("%s: %d bytes up, %d down, want at most %d and %d", what, p.up.Load(), p.down.Load(), up, down)
		}
	}
	reset()
	sync("2")
	check("one change", 100, 500)
	wantSent(t, p, "mark")

	// A follower without a position compares.
	stop()
	p.open.Wait()
	reset()
	put(t, store, docType, "document-00008", "2", "default", "default")
	remove(t, store, docType, "document-00009", "default", "default")
	stop = run(t, f.Run)
	sync("3")
	check("one comparison", 9000, 1000)
	wantSent(t, p, "document-00008", "mark")
	stop()
	p.open.Wait()
	reset()
	stop = run(t, p.follower(t, secondary).Run)
	sync("4")
	check("comparison of equal records", 5000, 1000)
	if n := p.ask.Load(); n > 100 {
		t.Errorf("%d digests for equal records, want at most 100", n)
	}
	stop()
	if err := unlike(t, store, secondary); err != nil {
		t.Error(err)
	}
}

// A broken stream resumes at any server of the primary whose log reaches back.
func TestFollow_Resume(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	fill(t, store, 500)
	servers := []*primary{newPrimary(t, store), newPrimary(t, store)}
	for _, p := range servers {
		ready(t, p)
	}
	at := 0
	clients := []*grpc.ClientConn{servers[0].client(t), servers[1].client(t)}
	var mu sync.Mutex
	f := follower(t, secondary, func() *grpc.ClientConn {
		mu.Lock()
		defer mu.Unlock()
		return clients[at]
	})
	run(t, f.Run)
	untilSame(t, store, secondary)
	write := func(name string) {
		t.Helper()
		put(t, store, docType, name, "1")
		untilSame(t, store, secondary)
	}
	write("a") // a commit that both logs have
	for i, to := range []int{0, 1, 0} {
		mu.Lock()
		from := at
		at = to
		mu.Unlock()
		for _, p := range servers {
			p.sent.Clear()
			p.ask.Store(0)
		}
		servers[from].drop()
		name := fmt.Sprint("b", i)
		write(name)
		if st := f.Status(); st.Resumed != uint64(i)+1 || st.Compared != 1 {
			t.Errorf("break %d: %+v", i, st)
		}
		wantSent(t, servers[to], name)
	}
}

func TestChangeLog_Positions(t *testing.T) {
	store := resourcetest.NewStore()
	here, there, other := newPrimary(t, store), newPrimary(t, store), newPrimary(t, store, siteType)
	all := []*primary{here, there, other}
	end := func(p *primary) *pb.FollowPosition {
		_, at, _ := p.source.log.end()
		return at
	}
	for _, p := range all {
		ready(t, p)
	}
	if _, ok := there.source.log.find(end(here)); ok {
		t.Error("find() of the start of another log is ok, want not")
	}
	if _, ok := here.source.log.find(end(here)); !ok {
		t.Error("find() of the start of the log is not ok, want ok")
	}
	r := put(t, store, docType, "a", "1")
	for _, p := range all {
		until(t, store, func() error {
			if at := end(p).GetIndex(); at != r.ModifyIndex {
				return fmt.Errorf("index %d", at)
			}
			return nil
		})
	}
	if _, ok := there.source.log.find(end(here)); !ok {
		t.Error("find() of a position of a server with the same commits is not ok, want ok")
	}
	if _, ok := here.source.log.find(end(other)); ok {
		t.Error("find() of a position of a server with other kinds is ok, want not")
	}
	// A store with another history and the same indexes.
	twin := resourcetest.NewStore()
	p := newPrimary(t, twin)
	ready(t, p)
	if again := put(t, twin, docType, "a", "1"); again.ModifyIndex != r.ModifyIndex {
		t.Fatalf("index %d, not %d", again.ModifyIndex, r.ModifyIndex)
	}
	until(t, twin, func() error {
		if at := end(p).GetIndex(); at != r.ModifyIndex {
			return fmt.Errorf("index %d", at)
		}
		return nil
	})
	if _, ok := here.source.log.find(end(p)); ok {
		t.Error("find() of a position of another history is ok, want not")
	}
	if _, ok := here.source.log.find(nil); ok {
		t.Error("find(nil) is ok, want not")
	}
}
