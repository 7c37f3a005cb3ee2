// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
	"github.com/wanfed/wanfed/test/lab"
)

// TestFollow: records of all kinds and tenancies come, change and go; what a secondary has of its own goes.
func TestFollow(t *testing.T) {
	store, secondary := memory.New(), memory.New()
	var ops []*pb.Op
	for i := range 1500 { // several batches
		ops = append(ops, resource.PutOp(record(t, docType, fmt.Sprintf("d%d", i), "1", "default", fmt.Sprintf("ns%d", i%3)), ""))
	}
	commit1(t, store, ops...)
	put(t, store, siteType, "a", "1")
	put(t, store, zoneType, "a", "1", "p1")
	put(t, store, zoneType, "a", "1", "p2")
	put(t, store, localType, "a", "1")
	// What the primary does not have must go, finalizers or not; what it has otherwise must change; what is local stays.
	own := record(t, docType, "stale", "own")
	resource.AddFinalizer(own, "somebody")
	commit1(t, secondary, resource.PutOp(own, ""))
	put(t, secondary, siteType, "a", "own")
	local := put(t, secondary, localType, "mine", "own")

	p := newPrimary(t, store)
	f := p.follower(t, secondary)
	stop := run(t, f.Run)
	untilSame(t, store, secondary)

	put(t, store, docType, "d7", "2", "default", "ns1")
	put(t, store, docType, "new", "1", "p1", "ns9")
	remove(t, store, zoneType, "a", "p1")
	put(t, store, siteType, "a", "2")
	untilSame(t, store, secondary)
	if st := f.Status(); !st.Connected || st.LastError != nil || st.LastContact.IsZero() || st.Index == 0 || st.Compared != 1 || st.Refused != 0 {
		t.Errorf("status while following: %+v", st)
	}
	if r, err := secondary.Read(t.Context(), resource.Eventual, local.Id); err != nil || r.Version != local.Version {
		t.Errorf("the local record: %v, %v", r, err)
	}
	if _, err := secondary.Read(t.Context(), resource.Eventual, resource.ID(localType, "a")); !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("the primary's local record came: %v", err)
	}
	types, err := f.TypeStatuses(t.Context())
	if err != nil || len(types) != 3 || types[0].Type != "test/v1/Doc" || types[0].Records != 1501 || types[0].Primary != 1500 || !types[0].Known || types[0].Bytes == 0 {
		t.Errorf("types: %+v, %v", types, err)
	}
	stop()
	p.open.Wait() // the source has noticed
	if st := p.source.Status(); st.Followers != 0 || st.Compared != 1 || st.SentBytes == 0 {
		t.Errorf("the source's status: %+v", st)
	}
}

// TestStatusStaysLocal: of a status, only that something of the record was written is the primary's affair.
func TestStatusStaysLocal(t *testing.T) {
	store, secondary := memory.New(), memory.New()
	put(t, store, siteType, "a", "1")
	p := newPrimary(t, store)
	run(t, p.follower(t, secondary).Run)
	untilSame(t, store, secondary)
	r, err := secondary.Read(t.Context(), resource.Eventual, resource.ID(siteType, "a"))
	if err != nil {
		t.Fatal(err)
	}
	withStatus := func(r *pb.Resource, key string) *pb.Resource {
		r, _ = resource.WithData(r, &pb.Node{Node: "a", Address: "1"})
		r.Status = map[string]*pb.Status{key: {ObservedGeneration: "1"}}
		return r
	}
	commit1(t, secondary, resource.PutOp(withStatus(r, "here"), r.Version))
	there, err := store.Read(t.Context(), resource.Eventual, resource.ID(siteType, "a"))
	if err != nil {
		t.Fatal(err)
	}
	commit1(t, store, resource.PutOp(withStatus(there, "there"), there.Version))
	untilSame(t, store, secondary)
	if r, err = secondary.Read(t.Context(), resource.Eventual, r.Id); err != nil || len(r.Status) != 1 || r.Status["here"] == nil {
		t.Errorf("status in the secondary: %v, %v", r.GetStatus(), err)
	}
}

// TestGroupVersions: a record that becomes one of another version stays the same record, for those who know that.
func TestGroupVersions(t *testing.T) {
	store, secondary, old := memory.New(), memory.New(), memory.New()
	before := put(t, store, docType, "a", "1")
	p := newPrimary(t, store)
	run(t, p.follower(t, secondary).Run)
	f := p.follower(t, old, doc2Type, siteType)
	stop := run(t, f.Run)
	untilSame(t, store, secondary)
	untilSame(t, store, old)
	r, err := secondary.Read(t.Context(), resource.Eventual, before.Id)
	if err != nil {
		t.Fatal(err)
	}
	child := record(t, localType, "child", "1")
	child.Owner = r.Id
	commit1(t, secondary, resource.PutOp(child, ""))

	put(t, store, doc2Type, "a", "2")
	put(t, store, siteType, "s", "1")
	put(t, store, docType, "b", "1")
	untilSame(t, store, secondary)
	if _, err := secondary.Read(t.Context(), resource.Eventual, child.Id); err != nil {
		t.Errorf("what the record owns: %v", err)
	}
	check := func() error {
		have := copies(t, old, false)
		if len(have) != 1 {
			return fmt.Errorf("an older binary has %v", have)
		}
		for _, r := range have {
			if r.Id.Name != "b" {
				return fmt.Errorf("an older binary has %v", r)
			}
		}
		return nil
	}
	until(t, old, check)

	// The same when it begins anew; then it also learns how many it misses.
	stop()
	f = p.follower(t, old, doc2Type, siteType)
	run(t, f.Run)
	until(t, old, func() error {
		types, err := f.TypeStatuses(t.Context())
		if err != nil || len(types) != 3 || types[1].Unknown != 1 || types[1].Primary != 2 || types[1].Records != 1 ||
			types[0].Type != "test/Site" || types[0].Known || types[0].Unknown != 1 {
			return fmt.Errorf("types: %+v, %v", types, err)
		}
		return check()
	})
	put(t, store, siteType, "s", "2")
	put(t, store, docType, "a", "3") // back
	untilSame(t, store, secondary)
	until(t, old, func() error {
		if n := len(copies(t, old, false)); n != 2 {
			return fmt.Errorf("an older binary has %d copies", n)
		}
		return nil
	})
	if st := f.Status(); st.Refused != 0 || st.Compared != 1 {
		t.Errorf("status: %+v", st)
	}
}

// TestOlderPrimary: copies of a type that the primary's server does not know stay.
func TestOlderPrimary(t *testing.T) {
	store, secondary := memory.New(), memory.New()
	put(t, store, siteType, "s", "1")
	put(t, store, docType, "a", "1")
	p := newPrimary(t, store)
	stop := run(t, p.follower(t, secondary).Run)
	untilSame(t, store, secondary)
	stop()
	older := newPrimary(t, store, siteType)
	put(t, store, siteType, "s", "2")
	f := older.follower(t, secondary)
	run(t, f.Run)
	put(t, store, docType, "a", "2")
	until(t, secondary, func() error {
		have := copies(t, secondary, false)
		a, s := have["test/Doc default\x00default\x00a"], have["test/Site default\x00default\x00s"]
		if a == nil || s == nil {
			return fmt.Errorf("copies: %v", have)
		}
		if n, err := resource.Decode[*pb.Node](a); err != nil || n.Address != "2" {
			return fmt.Errorf("doc: %v, %v", n, err)
		}
		return nil
	})
}

// TestOwners: what a copy owns in the secondary alone goes with it; copies go when the primary's do.
func TestOwners(t *testing.T) {
	store, secondary := memory.New(), memory.New()
	owner := put(t, store, siteType, "owner", "1")
	owned := func(b resource.Backend, typ *pb.Type, name string, owner *pb.ID, finalizer string) *pb.Resource {
		r := record(t, typ, name, "1")
		r.Owner = owner
		if finalizer != "" {
			resource.AddFinalizer(r, finalizer)
		}
		return commit1(t, b, resource.PutOp(r, ""))
	}
	owned(store, docType, "goes", owner.Id, "")
	held := owned(store, docType, "held", owner.Id, "somebody")
	already := owned(store, docType, "already", owner.Id, "somebody")
	remove(t, store, docType, "already") // marked before its owner goes, which is no news of it
	p := newPrimary(t, store)
	run(t, p.follower(t, secondary).Run)
	untilSame(t, store, secondary)
	local := owned(secondary, localType, "local", owner.Id, "")

	remove(t, store, siteType, "owner") // held is marked, and stays
	untilSame(t, store, secondary)
	if n := len(copies(t, secondary, false)); n != 2 {
		t.Errorf("%d copies, want the two that finalizers hold in the primary", n)
	}
	if _, err := secondary.Read(t.Context(), resource.Eventual, local.Id); !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("what a copy owned in the secondary: %v", err)
	}
	for _, id := range []*pb.ID{held.Id, already.Id} {
		r, err := store.Read(t.Context(), resource.Eventual, id)
		if err != nil {
			t.Fatal(err)
		}
		r = proto.CloneOf(r)
		resource.RemoveFinalizer(r, "somebody")
		commit1(t, store, resource.PutOp(r, r.Version))
	}
	untilSame(t, store, secondary)
}

func TestFollowRecoversWhenTheWayChanges(t *testing.T) {
	store, secondary := memory.New(), memory.New()
	put(t, store, siteType, "a", "1")
	p := newPrimary(t, store)
	cc := p.client(t)
	w := &ways{}
	reachable, tries := make(chan struct{}), make(chan struct{}, 100)
	f, err := NewFollower(FollowerConfig{
		Backend: secondary, Registry: registry(t), PathsChanged: w.Changed, Logger: quiet,
		Connect: func() (pb.ReplicationServiceClient, error) {
			var client pb.ReplicationServiceClient
			err := errors.New("no way")
			select {
			case <-reachable:
				client, err = pb.NewReplicationServiceClient(cc), nil
			default:
			}
			tries <- struct{}{} // after the choice: what becomes reachable once this is seen takes another try
			return client, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, f.Run)
	for range 5 { // by now it waits for more than a second
		<-tries
	}
	close(reachable)
	stalls, start := lab.WatchStalls(t), time.Now()
	w.change()
	<-tries
	if took := stalls.Awake(start); took > time.Second { // what is copied then takes its time
		t.Errorf("a changed way was used after %v: not at once", took)
	}
	untilSame(t, store, secondary)
}
