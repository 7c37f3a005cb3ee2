// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/test/lab"
)

// TestUpgrade starts a federation with the program that WANFED_OLD names, and changes it to this version while operators write: server
// after server, gateway after gateway, one datacenter after the other, and then back. Old and new work together, every record is
// kept, and no acknowledged write is lost.
func TestUpgrade(t *testing.T) {
	old := os.Getenv("WANFED_OLD")
	if old == "" {
		t.Skip("WANFED_OLD names no older wanfed to upgrade from")
	}
	l := lab.New(t)
	now := l.Use(old)
	f := promotion{&sharers{t: t, l: l}, map[*lab.Node]pb.ResourceServiceClient{}}
	for range 2 {
		l.Add(3, 1)
	}
	start := func(n *lab.Node) {
		if n.WAN == "" {
			n.StartServer("--remote-writes-from", "*")
		} else {
			n.StartGateway()
		}
	}
	all := l.Datacenters()
	for _, dc := range all {
		for _, n := range dc.Nodes() {
			start(n)
		}
	}
	awaitWhole(t, l, failure, "start of "+old)
	for i := range 100 {
		f.mustWrite(all[0], f.doc(fmt.Sprint("d", i), i))
		f.mustWrite(all[1], entry(fmt.Sprint("k", i), i))
	}
	documents, keys := f.records(all[0]), f.keys(all[1])

	for _, to := range []string{now, old} {
		l.Use(to)
		stop := f.keepWriting(all...)
		for _, dc := range all {
			for _, n := range dc.Nodes() {
				began := time.Now()
				n.Stop()
				start(n)
				awaitWhole(t, l, failure, n.WANName()+" is of "+to)
				t.Logf("%s changed to %s: whole after %v", n.WANName(), to, ms(time.Since(began)))
			}
		}
		acked := stop()
		f.same("changed to "+to, all...)
		got := f.records(all[1])
		for name, generation := range acked {
			if r := got[name]; r == nil || r.Generation != generation {
				t.Errorf("changed to %s: an acknowledged write of %s is lost: %v", to, name, r)
			}
			delete(got, name)
		}
		for name, r := range documents {
			if got[name].GetId().GetUid() != r.Id.Uid || got[name].GetGeneration() != r.Generation {
				t.Errorf("changed to %s: document %s is %v, was %v", to, name, got[name], r)
			}
		}
		if after := f.keys(all[1]); !sameDocuments(keys, after) {
			t.Errorf("changed to %s: %d keys, were %d", to, len(after), len(keys))
		}
		t.Logf("changed to %s: %d documents acknowledged meanwhile", to, len(acked))
	}
}

func entry(key string, n int) *pb.Resource {
	data, err := anypb.New(&pb.KVEntry{Value: fmt.Append(nil, n)})
	if err != nil {
		panic(err)
	}
	return &pb.Resource{Id: &pb.ID{Type: kv.EntryType, Name: key}, Data: data}
}

// keys lists the keys of a datacenter.
func (f promotion) keys(dc *lab.Datacenter) map[string]*pb.Resource {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 10*time.Second)
	defer cancel()
	got, err := f.at(dc.Servers[0]).List(resource.WithConsistency(ctx, resource.Strong), &pb.ListRequest{Type: kv.EntryType})
	if err != nil {
		f.t.Fatal(err)
	}
	out := map[string]*pb.Resource{}
	for _, r := range got.GetResources() {
		out[r.Id.Name] = r
	}
	return out
}
