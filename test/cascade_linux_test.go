// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// ownerTree is a tree of resources: each one owns its children.
type ownerTree struct {
	name          string
	owners, owned int // children of the root, and children of each of them
	depth         int // length of a chain below the first child of the root
	resources     int // total, set by create
	root          *pb.ID
	client        pb.ResourceServiceClient
}

// write creates a resource. owner may be nil.
func (o *ownerTree) write(ctx context.Context, name string, owner *pb.ID) (*pb.ID, error) {
	data, err := anypb.New(&pb.KVEntry{Value: []byte("x")})
	if err != nil {
		return nil, err
	}
	out, err := o.client.Write(ctx, &pb.WriteRequest{
		Resource: &pb.Resource{Id: resource.ID(entryType, o.name+"."+name), Owner: owner, Data: data},
	})
	return out.GetResource().GetId(), err
}

// create creates all resources of the tree.
func (o *ownerTree) create(ctx context.Context) (err error) {
	if o.root, err = o.write(ctx, "root", nil); err != nil {
		return err
	}
	const writers = 100
	g, gctx := errgroup.WithContext(ctx)
	for w := range writers {
		g.Go(func() error {
			for n := w; n < o.owners; n += writers {
				owner, err := o.write(gctx, fmt.Sprintf("owner%d", n), o.root)
				for m := 0; m < o.owned && err == nil; m++ {
					_, err = o.write(gctx, fmt.Sprintf("owned%d.%d", n, m), owner)
				}
				for m := 0; n == 0 && m < o.depth && err == nil; m++ {
					owner, err = o.write(gctx, fmt.Sprintf("chain%d", m), owner)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	o.resources = 1 + o.owners*(1+o.owned) + o.depth
	return g.Wait()
}

// count returns the number of resources of the tree that exist.
func (o *ownerTree) count(ctx context.Context) (int, error) {
	out, err := o.client.List(ctx, &pb.ListRequest{Type: entryType, NamePrefix: o.name + "."})
	return len(out.GetResources()), err
}

// tombstones returns the number of incomplete deletions, of all trees.
func (o *ownerTree) tombstones(ctx context.Context) (int, error) {
	out, err := o.client.List(ctx, &pb.ListRequest{Type: resource.TombstoneType})
	return len(out.GetResources()), err
}

// awaitGone waits until no resource and no tombstone is left. It returns the
// largest memory of the server during that time.
func (o *ownerTree) awaitGone(t *testing.T, d *diskServer) (most int) {
	t.Helper()
	testutil.Await(t, time.Minute, "the end of "+o.name, func(ctx context.Context) error {
		most = max(most, rssOf(t, &site{server: d.server}))
		n, err := o.tombstones(ctx)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d tombstones are left", n)
		}
		return err
	})
	if n, err := o.count(t.Context()); n != 0 || err != nil {
		t.Errorf("count of %s = %d, %v, want 0", o.name, n, err)
	}
	return most
}

// TestCascade_LargeAndInterrupted deletes the root of a tree: the root owns
// 10,000 resources, which own further ones, and a chain of 1,000 levels. The
// deletion needs little memory. The deletion of a second tree continues after
// SIGKILL of the server.
func TestCascade_LargeAndInterrupted(t *testing.T) {
	t.Parallel()
	l := newLoopback(t)
	d := l.newDiskServer(t, "srv1", nil)
	d.start()
	d.awaitPut("a leader")
	connect := func(o *ownerTree) {
		o.client = pb.NewResourceServiceClient(l.call(t, d.server.Addr, "server.dc1.wanfed", tlsutil.RoleOperator,
			"op", "dc1"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	whole := &ownerTree{name: "whole", owners: 10_000, owned: 1, depth: 1000}
	killed := &ownerTree{name: "killed", owners: 1500, owned: 1, depth: 10}
	if chaos() {
		whole.owned, killed.owners = 2, 5000
	}
	began := time.Now()
	for _, o := range []*ownerTree{whole, killed} {
		connect(o)
		if err := o.create(ctx); err != nil {
			t.Fatal(err)
		}
		if n, err := o.count(ctx); n != o.resources || err != nil {
			t.Fatalf("count of %s = %d, %v, want %d", o.name, n, err, o.resources)
		}
	}
	t.Logf("%d resources written in %v", whole.resources+killed.resources, time.Since(began).Round(time.Millisecond))

	before, began := rssOf(t, &site{server: d.server}), time.Now()
	d.delete(whole)
	answered := time.Since(began)
	most := whole.awaitGone(t, d)
	t.Logf("%d resources deleted through their owner: acknowledged after %v, complete after %v, memory from %d "+
		"to %d MiB", whole.resources,
		answered.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), before>>20, most>>20)
	if most-before > 64<<20 {
		t.Errorf("memory grew from %d to %d MiB, want at most 64 MiB more", before>>20, most>>20)
	}
	if n, err := killed.count(ctx); n != killed.resources || err != nil {
		t.Errorf("count of the other tree = %d, %v, want %d", n, err, killed.resources)
	}

	d.delete(killed)
	var counts []int
	for began = time.Now(); len(counts) < 2; {
		d.server.Kill()
		d.start()
		connect(killed)
		n := -1
		testutil.Await(t, waitLimit, "a list", func(ctx context.Context) (err error) {
			n, err = killed.count(resource.WithConsistency(ctx, resource.Strong))
			return err
		})
		counts = append(counts, n)
	}
	killed.awaitGone(t, d)
	d.check(d.values, "")
	t.Logf("of %d resources %v remained after each kill; deletion complete after %v", killed.resources, counts,
		time.Since(began).Round(time.Millisecond))
	if counts[0] == 0 {
		t.Error("0 resources remained after the first kill, want some: the kill came too late")
	}
}

// delete deletes the root of a tree by HTTP, and returns when the server has
// acknowledged the deletion of the root.
func (d *diskServer) delete(o *ownerTree) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	url := strings.Replace(d.server.HTTP, "http:", "https:", 1) + "/api/kv/v1/entry/" + o.root.Name
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, url, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	resp, err := d.client.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		d.t.Fatalf("DELETE of %s = %s, want a status of 2xx", o.root.Name, resp.Status)
	}
}
