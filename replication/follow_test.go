// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/test/lab"
)

// Records of all kinds and tenancies are created, changed and deleted. A secondary's
// own records are deleted.
func TestFollow(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	var ops []*pb.Op
	for i := range 1500 { // several batches
		ops = append(ops, resource.PutOp(record(t, docType, fmt.Sprintf("d%d", i), "1", "default", fmt.Sprintf("ns%d", i%3)), ""))
	}
	commit1(t, store, ops...)
	put(t, store, siteType, "a", "1")
	put(t, store, zoneType, "a", "1", "p1")
	put(t, store, zoneType, "a", "1", "p2")
	put(t, store, localType, "a", "1")
	// The primary lacks the first, which has a finalizer. It has the second with other
	// contents. The third is local and stays.
	own := record(t, docType, "stale", "own")
	resourcetest.AddFinalizer(own, "test")
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
		t.Errorf("Status() = %+v, want a connection, one comparison and no error", st)
	}
	if r, err := secondary.Read(t.Context(), resource.Eventual, local.Id); err != nil || r.Version != local.Version {
		t.Errorf("the local record = %v, %v, want it unchanged", r, err)
	}
	if _, err := secondary.Read(t.Context(), resource.Eventual, resource.ID(localType, "a")); !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("Read() of the primary's local record = %v, want ErrNotFound", err)
	}
	types, err := f.TypeStatuses(t.Context())
	if err != nil || len(types) != 3 || types[0].Type != "test/v1/Doc" || types[0].Records != 1501 || types[0].Primary != 1500 || !types[0].Known || types[0].Bytes == 0 {
		t.Errorf("TypeStatuses() = %+v, %v, want three types with 1501 docs", types, err)
	}
	stop()
	p.open.Wait() // for the end of the stream in the source
	if st := p.source.Status(); st.Followers != 0 || st.Compared != 1 || st.SentBytes == 0 {
		t.Errorf("Status() of the source = %+v, want one comparison and no follower", st)
	}
}

// The status of a record is not replicated.
func TestFollow_StatusIsLocal(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
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
		t.Errorf("status in the secondary = %v, %v, want the local one", r.GetStatus(), err)
	}
}

// A record that changes its group version stays the same record for followers that
// know the version.
func TestFollow_GroupVersions(t *testing.T) {
	store, secondary, old := resourcetest.NewStore(), resourcetest.NewStore(), resourcetest.NewStore()
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
		t.Errorf("Read() of an owned record = %v, want nil", err)
	}
	check := func() error {
		have := copies(t, old, false)
		if len(have) != 1 {
			return fmt.Errorf("an older version has %v, want b", have)
		}
		for _, r := range have {
			if r.Id.Name != "b" {
				return fmt.Errorf("an older version has %v, want b", r)
			}
		}
		return nil
	}
	until(t, old, check)

	// A new stream has the same result, and reports the number of missing records.
	stop()
	f = p.follower(t, old, doc2Type, siteType)
	run(t, f.Run)
	until(t, old, func() error {
		types, err := f.TypeStatuses(t.Context())
		if err != nil || len(types) != 3 || types[1].Unknown != 1 || types[1].Primary != 2 || types[1].Records != 1 ||
			types[0].Type != "test/Site" || types[0].Known || types[0].Unknown != 1 {
			return fmt.Errorf("TypeStatuses() = %+v, %v, want three types with 1501 docs", types, err)
		}
		return check()
	})
	put(t, store, siteType, "s", "2")
	put(t, store, docType, "a", "3") // the first version again
	untilSame(t, store, secondary)
	until(t, old, func() error {
		if n := len(copies(t, old, false)); n != 2 {
			return fmt.Errorf("an older version has %d replicas, want 2", n)
		}
		return nil
	})
	if st := f.Status(); st.Refused != 0 || st.Compared != 1 {
		t.Errorf("status: %+v", st)
	}
}

// Replicas of a type that the primary's server does not know stay.
func TestFollow_OlderPrimary(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
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

// A local record is deleted with the replica that owns it. Replicas are deleted when
// the primary's records are.
func TestFollow_Owners(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	owner := put(t, store, siteType, "owner", "1")
	owned := func(b resource.Backend, typ *pb.Type, name string, owner *pb.ID, finalizer string) *pb.Resource {
		r := record(t, typ, name, "1")
		r.Owner = owner
		if finalizer != "" {
			resourcetest.AddFinalizer(r, finalizer)
		}
		return commit1(t, b, resource.PutOp(r, ""))
	}
	owned(store, docType, "goes", owner.Id, "")
	held := owned(store, docType, "held", owner.Id, "test")
	already := owned(store, docType, "already", owner.Id, "test")
	remove(t, store, docType, "already") // marked before its owner is deleted, which does not change it
	p := newPrimary(t, store)
	run(t, p.follower(t, secondary).Run)
	untilSame(t, store, secondary)
	local := owned(secondary, localType, "local", owner.Id, "")

	remove(t, store, siteType, "owner") // held is only marked
	untilSame(t, store, secondary)
	if n := len(copies(t, secondary, false)); n != 2 {
		t.Errorf("%d replicas, want the two that have finalizers in the primary", n)
	}
	if _, err := secondary.Read(t.Context(), resource.Eventual, local.Id); !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("Read() of a local record of a deleted owner = %v, want ErrNotFound", err)
	}
	for _, id := range []*pb.ID{held.Id, already.Id} {
		r, err := store.Read(t.Context(), resource.Eventual, id)
		if err != nil {
			t.Fatal(err)
		}
		r = proto.CloneOf(r)
		resourcetest.RemoveFinalizer(r, "test")
		commit1(t, store, resource.PutOp(r, r.Version))
	}
	untilSame(t, store, secondary)
}

func TestFollow_RetriesWhenPathsChange(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	put(t, store, siteType, "a", "1")
	p := newPrimary(t, store)
	cc := p.client(t)
	var paths broadcast.Broadcast
	reachable, tries := make(chan struct{}), make(chan struct{}, 100)
	f, err := NewFollower(FollowerConfig{
		Backend: secondary, Registry: registry(t), PathsChanged: paths.Wait, Logger: quiet,
		Connect: func() (pb.ReplicationServiceClient, error) {
			var client pb.ReplicationServiceClient
			err := errors.New("unreachable")
			select {
			case <-reachable:
				client, err = pb.NewReplicationServiceClient(cc), nil
			default:
			}
			tries <- struct{}{} // after the choice, so that a later change needs another attempt
			return client, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, f.Run)
	for range 5 { // then the backoff is more than a second
		<-tries
	}
	close(reachable)
	stalls, start := lab.WatchStalls(t), time.Now()
	paths.Notify()
	<-tries
	if took := stalls.Awake(start); took > time.Second { // replication itself may take longer
		t.Errorf("retry after %v, want at once", took)
	}
	untilSame(t, store, secondary)
}
