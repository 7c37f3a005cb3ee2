// SPDX-License-Identifier: MPL-2.0

package kv_test

import (
	"context"
	"fmt"
	"log"

	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// newStore returns a Store in memory, used by an operator of dc1.
func newStore() *kv.Store {
	types := resource.NewRegistry()
	if err := kv.Register(types); err != nil {
		log.Fatal(err)
	}
	backend := resourcetest.NewStore()
	service, err := resource.NewService(resource.ServiceConfig{
		Backend: backend, Registry: types, DC: "dc1",
		Primary: func() bool { return false },
		Peer: func(context.Context) (tlsutil.Peer, error) {
			return tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc1", Node: "joe"}, nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	s, err := kv.New(service, backend)
	if err != nil {
		log.Fatal(err)
	}
	return s
}

// A compare-and-swap writes a key only if it has not changed since it was read.
func ExampleStore_Put() {
	ctx, s := context.Background(), newStore()
	entry := kv.Entry{Key: "app/color", Value: []byte("blue")}

	created, err := s.Put(ctx, entry, kv.IfIndex(0)) // only if the key does not exist
	fmt.Println(created, err)
	again, err := s.Put(ctx, entry, kv.IfIndex(0))
	fmt.Println(again, err)

	stored, _, err := s.Get(ctx, resource.Strong, "app/color")
	if err != nil {
		log.Fatal(err)
	}
	stored.Value = []byte("red")
	swapped, err := s.Put(ctx, *stored, kv.IfIndex(stored.ModifyIndex))
	fmt.Println(swapped, err)
	// Output:
	// true <nil>
	// false <nil>
	// true <nil>
}

// A transaction changes several keys in one commit, or none.
func ExampleStore_Txn() {
	ctx, s := context.Background(), newStore()
	_, failures, err := s.Txn(ctx, resource.Strong, []kv.Op{
		{Verb: kv.VerbSet, Key: "app/color", Value: []byte("blue")},
		{Verb: kv.VerbGet, Key: "app/size"},
	})
	fmt.Println(failures[0].Op, failures[0].Reason, err)

	entries, failures, err := s.Txn(ctx, resource.Strong, []kv.Op{
		{Verb: kv.VerbSet, Key: "app/color", Value: []byte("blue")},
		{Verb: kv.VerbGetTree, Key: "app/"},
	})
	fmt.Printf("%s=%s %d %v\n", entries[1].Key, entries[1].Value, len(failures), err)
	// Output:
	// 1 key "app/size" doesn't exist <nil>
	// app/color=blue 0 <nil>
}
