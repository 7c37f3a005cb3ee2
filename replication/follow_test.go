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

// A follower replicates creations, changes and deletions of all kinds and
// tenancies. It replaces or deletes the secondary's own resources of federated
// types.
func TestFollow(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	var ops []*pb.Op
	for i := range 1500 { // several batches
		r := newResource(t, docType, fmt.Sprintf("d%d", i), "1", "default", fmt.Sprintf("ns%d", i%3))
		ops = append(ops, resource.PutOp(r, ""))
	}
	commitOne(t, store, ops...)
	put(t, store, siteType, "a", "1")
	put(t, store, zoneType, "a", "1", "p1")
	put(t, store, zoneType, "a", "1", "p2")
	put(t, store, localType, "a", "1")
	notInPrimary := newResource(t, docType, "not-in-primary", "own")
	resourcetest.AddFinalizer(notInPrimary, "test")
	commitOne(t, secondary, resource.PutOp(notInPrimary, ""))
	put(t, secondary, siteType, "a", "own") // the primary has another value
	local := put(t, secondary, localType, "local", "own")

	p := newPrimary(t, store)
	f := p.follower(t, secondary)
	stop := run(t, f.run)
	waitInSync(t, store, secondary)

	put(t, store, docType, "d7", "2", "default", "ns1")
	put(t, store, docType, "new", "1", "p1", "ns9")
	remove(t, store, zoneType, "a", "p1")
	put(t, store, siteType, "a", "2")
	waitInSync(t, store, secondary)
	if st := f.Status(); !st.Connected || st.LastError != nil || st.LastContact.IsZero() || st.Index == 0 ||
		st.Compared != 1 || st.Refused != 0 {
		t.Errorf("Status() = %+v, want a connection, one comparison and no error", st)
	}
	if r, err := secondary.Read(t.Context(), resource.Eventual, local.Id); err != nil || r.Version != local.Version {
		t.Errorf("Read() of a local type = %v, %v, want version %s", r, err, local.Version)
	}
	_, err := secondary.Read(t.Context(), resource.Eventual, resource.ID(localType, "a"))
	if !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("Read() of a local type of the primary = %v, want ErrNotFound", err)
	}
	types, err := f.TypeStatuses(t.Context())
	if err != nil || len(types) != 3 || types[0].Type != "test/v1/Doc" || types[0].Records != 1501 ||
		types[0].Primary != 1500 || !types[0].Known || types[0].Bytes == 0 {
		t.Errorf("TypeStatuses() = %+v, %v, want three types, with 1501 of 1500 resources of test/v1/Doc", types, err)
	}
	stop()
	p.open.Wait()
	if st := p.source.Status(); st.Followers != 0 || st.Compared != 1 || st.SentBytes == 0 {
		t.Errorf("Status() of the source = %+v, want one comparison and no follower", st)
	}
}

// The status of a resource is not replicated.
func TestFollow_StatusIsLocal(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	put(t, store, siteType, "a", "1")
	p := newPrimary(t, store)
	run(t, p.follower(t, secondary).run)
	waitInSync(t, store, secondary)
	r, err := secondary.Read(t.Context(), resource.Eventual, resource.ID(siteType, "a"))
	if err != nil {
		t.Fatal(err)
	}
	withStatus := func(r *pb.Resource, key string) *pb.Resource {
		r, _ = resource.WithData(r, &pb.Node{Node: "a", Address: "1"})
		r.Status = map[string]*pb.Status{key: {ObservedGeneration: "1"}}
		return r
	}
	commitOne(t, secondary, resource.PutOp(withStatus(r, "secondary"), r.Version))
	original, err := store.Read(t.Context(), resource.Eventual, resource.ID(siteType, "a"))
	if err != nil {
		t.Fatal(err)
	}
	commitOne(t, store, resource.PutOp(withStatus(original, "primary"), original.Version))
	waitInSync(t, store, secondary)
	r, err = secondary.Read(t.Context(), resource.Eventual, r.Id)
	if err != nil || len(r.Status) != 1 || r.Status["secondary"] == nil {
		t.Errorf("status in the secondary = %v, %v, want key secondary only", r.GetStatus(), err)
	}
}

// A resource whose group version changes keeps its uid, and with it the
// resources that it owns.
func TestFollow_GroupVersionChange(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	before := put(t, store, docType, "a", "1")
	run(t, newPrimary(t, store).follower(t, secondary).run)
	waitInSync(t, store, secondary)
	child := newResource(t, localType, "child", "1")
	child.Owner = before.Id
	commitOne(t, secondary, resource.PutOp(child, ""))
	for version, typ := range []*pb.Type{doc2Type, docType} {
		put(t, store, typ, "a", fmt.Sprint(version))
		waitInSync(t, store, secondary)
		if _, err := secondary.Read(t.Context(), resource.Eventual, child.Id); err != nil {
			t.Errorf("Read() of an owned resource after a change to %v = %v, want nil", typ, err)
		}
	}
}

// A follower of an older version has no replicas of the types and versions that
// it does not support.
func TestFollow_OlderSecondary(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	put(t, store, docType, "a", "1")
	p := newPrimary(t, store)
	f := p.follower(t, secondary, doc2Type, siteType)
	stop := run(t, f.run)
	waitInSync(t, store, secondary)
	hasOnlyB := func() error {
		got := replicas(t, secondary, false)
		if len(got) != 1 || got["test/Doc "+joinKey("default", "default", "b")] == nil {
			return fmt.Errorf("replicas = %v, want b", got)
		}
		return nil
	}
	put(t, store, doc2Type, "a", "2")
	put(t, store, siteType, "s", "1")
	put(t, store, docType, "b", "1")
	waitUntil(t, secondary, hasOnlyB)

	// A comparison has the same result as single changes.
	stop()
	f = p.follower(t, secondary, doc2Type, siteType)
	run(t, f.run)
	waitUntil(t, secondary, func() error {
		types, err := f.TypeStatuses(t.Context())
		if err != nil || len(types) != 3 || types[1].Unknown != 1 || types[1].Primary != 2 || types[1].Records != 1 ||
			types[0].Type != "test/Site" || types[0].Known || types[0].Unknown != 1 {
			return fmt.Errorf("TypeStatuses() = %+v, %v, want one unknown resource of Doc and of Site", types, err)
		}
		return hasOnlyB()
	})
	put(t, store, siteType, "s", "2")
	put(t, store, docType, "a", "3") // the supported version again
	waitUntil(t, secondary, func() error {
		if got := replicas(t, secondary, false); len(got) != 2 {
			return fmt.Errorf("replicas = %v, want a and b", got)
		}
		return nil
	})
	if st := f.Status(); st.Refused != 0 || st.Compared != 1 {
		t.Errorf("Status() = %+v, want Refused 0 and Compared 1", st)
	}
}

// Replicas of a type that the primary does not support stay unchanged.
func TestFollow_OlderPrimary(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	put(t, store, siteType, "s", "1")
	put(t, store, docType, "a", "1")
	p := newPrimary(t, store)
	stop := run(t, p.follower(t, secondary).run)
	waitInSync(t, store, secondary)
	stop()
	older := newPrimary(t, store, siteType)
	put(t, store, siteType, "s", "2")
	f := older.follower(t, secondary)
	run(t, f.run)
	put(t, store, docType, "a", "2")
	waitUntil(t, secondary, func() error {
		got := replicas(t, secondary, false)
		a, s := got["test/Doc default\x00default\x00a"], got["test/Site default\x00default\x00s"]
		if a == nil || s == nil {
			return fmt.Errorf("replicas = %v, want Doc a and Site s", got)
		}
		if n, err := resource.Decode[*pb.Node](a); err != nil || n.Address != "2" {
			return fmt.Errorf("Decode(%v) = %v, %v, want address 2", a, n, err)
		}
		return nil
	})
}

// A local resource is deleted with the replica that owns it. A replica is
// deleted only when the primary's resource is deleted.
func TestFollow_Owners(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	owner := put(t, store, siteType, "owner", "1")
	owned := func(b resource.Backend, typ *pb.Type, name string, owner *pb.ID, finalizer string) *pb.Resource {
		r := newResource(t, typ, name, "1")
		r.Owner = owner
		if finalizer != "" {
			resourcetest.AddFinalizer(r, finalizer)
		}
		return commitOne(t, b, resource.PutOp(r, ""))
	}
	owned(store, docType, "no-finalizer", owner.Id, "")
	held := owned(store, docType, "held", owner.Id, "test")
	marked := owned(store, docType, "marked", owner.Id, "test")
	remove(t, store, docType, "marked") // only marks the resource for deletion
	p := newPrimary(t, store)
	run(t, p.follower(t, secondary).run)
	waitInSync(t, store, secondary)
	local := owned(secondary, localType, "local", owner.Id, "")

	remove(t, store, siteType, "owner")
	waitInSync(t, store, secondary)
	if got := replicas(t, secondary, false); len(got) != 2 {
		t.Errorf("replicas = %v, want held and marked, which have finalizers in the primary", got)
	}
	if _, err := secondary.Read(t.Context(), resource.Eventual, local.Id); !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("Read() of a local resource of a deleted owner = %v, want ErrNotFound", err)
	}
	for _, id := range []*pb.ID{held.Id, marked.Id} {
		r, err := store.Read(t.Context(), resource.Eventual, id)
		if err != nil {
			t.Fatal(err)
		}
		r = proto.CloneOf(r)
		resourcetest.RemoveFinalizer(r, "test")
		commitOne(t, store, resource.PutOp(r, r.Version))
	}
	waitInSync(t, store, secondary)
}

func TestFollow_RetriesWhenPathsChange(t *testing.T) {
	store, secondary := resourcetest.NewStore(), resourcetest.NewStore()
	put(t, store, siteType, "a", "1")
	p := newPrimary(t, store)
	conn := p.client(t)
	var paths broadcast.Broadcast
	reachable, attempts := make(chan struct{}), make(chan struct{}, 100)
	f := newTestFollower(t, secondary, fakeRemote{
		pathsChanged: paths.Wait,
		client: func() (pb.ReplicationServiceClient, error) {
			var client pb.ReplicationServiceClient
			err := errors.New("unreachable")
			select {
			case <-reachable:
				client, err = pb.NewReplicationServiceClient(conn), nil
			default:
			}
			attempts <- struct{}{}
			return client, err
		},
	})
	run(t, f.run)
	for range 5 { // the backoff grows to more than a second
		<-attempts
	}
	close(reachable)
	stalls, start := lab.WatchStalls(t), time.Now()
	paths.Notify()
	<-attempts
	if elapsed := stalls.Awake(start); elapsed > time.Second {
		t.Errorf("retry %v after a change of the paths, want at most 1s", elapsed)
	}
	waitInSync(t, store, secondary)
}
