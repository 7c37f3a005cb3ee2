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

// record returns a resource. tenancy is a partition and a namespace.
func record(t testing.TB, typ *pb.Type, name, address string, tenancy ...string) *pb.Resource {
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

func commit1(t testing.TB, b resource.Backend, ops ...*pb.Op) *pb.Resource {
	t.Helper()
	out, err := b.Commit(t.Context(), ops...)
	if err != nil {
		t.Fatal(err)
	}
	return out[0]
}

// put creates a record or changes the address of the stored one.
func put(t testing.TB, b resource.Backend, typ *pb.Type, name, address string, tenancy ...string) *pb.Resource {
	t.Helper()
	r := record(t, typ, name, address, tenancy...)
	byName := proto.CloneOf(r.Id)
	byName.Uid = ""
	old, err := b.Read(t.Context(), resource.Strong, byName)
	if other, ok := errors.AsType[*resource.GroupVersionError](err); ok {
		old, err = other.Stored, nil
	}
	if err == nil {
		r.Id.Uid, r.Owner, r.Metadata = old.Id.Uid, old.Owner, old.Metadata
	}
	return commit1(t, b, resource.PutOp(r, resource.AnyVersion))
}

func remove(t testing.TB, b resource.Backend, typ *pb.Type, name string, tenancy ...string) {
	t.Helper()
	id := record(t, typ, name, "", tenancy...).Id
	id.Uid = ""
	commit1(t, b, resource.RemoveOp(id, resource.AnyVersion))
}

// copies returns the federated resources of a store in the form of replicas.
func copies(t testing.TB, b resource.Backend, isPrimary bool) map[string]*pb.Resource {
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

// unlike returns the first difference between the primary and a secondary.
func unlike(t testing.TB, primary, secondary resource.Backend) error {
	t.Helper()
	want, got := copies(t, primary, true), copies(t, secondary, false)
	for name, w := range want {
		if !proto.Equal(w, got[name]) {
			return fmt.Errorf("%q is %v, want %v", name, got[name], w)
		}
	}
	for name := range got {
		if want[name] == nil {
			return fmt.Errorf("%q is not in the primary", name)
		}
	}
	return nil
}

// untilSame waits until a secondary has the primary's records.
func untilSame(t testing.TB, primary, secondary resource.Backend) {
	t.Helper()
	until(t, secondary, func() error { return unlike(t, primary, secondary) })
}

// until waits until check returns nil. It checks after every change of federated
// records in b.
func until(t testing.TB, b resource.Backend, check func() error) {
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
	tick := time.NewTicker(50 * time.Millisecond) // for changes other than of records
	defer tick.Stop()
	for {
		began := time.Now()
		err := check()
		if err == nil {
			return
		}
		<-time.After(2 * time.Since(began)) // checks take at most a third of a processor
		select {
		case <-wake:
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}
