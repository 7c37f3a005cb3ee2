// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// newResource returns a resource. tenancy is a partition and a namespace.
func newResource(t testing.TB, typ *pb.Type, name, address string, tenancy ...string) *pb.Resource {
	t.Helper()
	r, err := resource.New(typ, name, &pb.Node{Node: name, Address: address})
	if err != nil {
		t.Fatal(err)
	}
	r.Id.Tenancy = &pb.Tenancy{}
	if len(tenancy) > 0 {
		r.Id.Tenancy.Partition = tenancy[0]
	}
	if len(tenancy) > 1 {
		r.Id.Tenancy.Namespace = tenancy[1]
	}
	return r
}

func commitOne(t testing.TB, b resource.Backend, ops ...*pb.Op) *pb.Resource {
	t.Helper()
	out, err := b.Commit(t.Context(), ops...)
	if err != nil {
		t.Fatal(err)
	}
	return out[0]
}

// put creates a resource or changes the address in a stored one.
func put(t testing.TB, b resource.Backend, typ *pb.Type, name, address string, tenancy ...string) *pb.Resource {
	t.Helper()
	r := newResource(t, typ, name, address, tenancy...)
	byName := proto.CloneOf(r.Id)
	byName.Uid = ""
	old, err := b.Read(t.Context(), resource.Strong, byName)
	if mismatch, ok := errors.AsType[*resource.GroupVersionError](err); ok {
		old, err = mismatch.Stored, nil
	}
	if err == nil {
		r.Id.Uid, r.Owner, r.Metadata = old.Id.Uid, old.Owner, old.Metadata
	}
	return commitOne(t, b, resource.PutOp(r, resource.AnyVersion))
}

func remove(t testing.TB, b resource.Backend, typ *pb.Type, name string, tenancy ...string) {
	t.Helper()
	id := newResource(t, typ, name, "", tenancy...).Id
	id.Uid = ""
	commitOne(t, b, resource.RemoveOp(id, resource.AnyVersion))
}

// replicas returns the federated resources of a store, by kind and key. It
// converts the resources of the primary to replicas.
func replicas(t testing.TB, b resource.Backend, isPrimary bool) map[string]*pb.Resource {
	t.Helper()
	out := map[string]*pb.Resource{}
	order, _ := kindsOf(registry(t))
	for _, k := range order {
		all, _, err := b.List(t.Context(), resource.Eventual, k.query())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			c := replicaOf(r)
			if !isPrimary {
				c.PrimaryModifyIndex = r.PrimaryModifyIndex
			}
			out[k.String()+" "+keyOf(r.Id)] = c
		}
	}
	return out
}

// checkInSync returns the first difference between the stores of the primary
// and of a secondary.
func checkInSync(t testing.TB, primary, secondary resource.Backend) error {
	t.Helper()
	want, got := replicas(t, primary, true), replicas(t, secondary, false)
	for name, w := range want {
		if !proto.Equal(w, got[name]) {
			return fmt.Errorf("replica %q = %v, want %v", name, got[name], w)
		}
	}
	for name := range got {
		if want[name] == nil {
			return fmt.Errorf("replica %q exists, want none", name)
		}
	}
	return nil
}

// waitInSync waits until the store of a secondary has the primary's resources.
func waitInSync(t testing.TB, primary, secondary resource.Backend) {
	t.Helper()
	waitUntil(t, secondary, func() error { return checkInSync(t, primary, secondary) })
}

// waitUntil waits until check returns nil. It calls check after every change of
// federated resources in b.
func waitUntil(t testing.TB, b resource.Backend, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	wake := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	order, _ := kindsOf(registry(t))
	for _, k := range order {
		wg.Go(func() { resource.Notify(ctx, b, k.query(), wake) })
	}
	tick := time.NewTicker(50 * time.Millisecond) // check may depend on more than resources
	defer tick.Stop()
	for {
		start := time.Now()
		err := check()
		if err == nil {
			return
		}
		<-time.After(2 * time.Since(start)) // limits the load to a third of a processor
		select {
		case <-wake:
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}
