// SPDX-License-Identifier: MPL-2.0

package resource_test

import (
	"context"
	"fmt"
	"log"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

var exampleType = &pb.Type{Group: "example", GroupVersion: "v1", Kind: "Node"}

// A registry defines the rules of each type.
func ExampleNewRegistry() {
	registry := resource.NewRegistry()
	err := registry.Register(resource.Registration{
		Type: exampleType, Message: &pb.Node{}, Scope: resource.ScopeNamespace,
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, reg := range registry.Types() {
		fmt.Println(resource.TypeString(reg.Type), reg.Scope)
	}
	// Output: example/v1/Node namespace
}

// A Backend stores resources. A Put with a version is a compare-and-swap.
func ExampleBackend_commit() {
	ctx := context.Background()
	var b resource.Backend = resourcetest.NewStore()

	r, err := resource.New(exampleType, "web1", &pb.Node{Address: "10.0.0.1"})
	if err != nil {
		log.Fatal(err)
	}
	created, err := b.Commit(ctx, resource.PutOp(r, "")) // fails if web1 exists
	if err != nil {
		log.Fatal(err)
	}
	next, err := resource.WithData(created[0], &pb.Node{Address: "10.0.0.2"})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := b.Commit(ctx, resource.PutOp(next, created[0].Version)); err != nil {
		log.Fatal(err)
	}
	stored, err := b.Read(ctx, resource.Strong, resource.ID(exampleType, "web1"))
	if err != nil {
		log.Fatal(err)
	}
	node, err := resource.Decode[*pb.Node](stored)
	fmt.Println(node.GetAddress(), err)
	// Output: 10.0.0.2 <nil>
}

// A watch sends the stored resources, an end of snapshot, and then every
// change.
func ExampleBackend_watch() {
	ctx := context.Background()
	var b resource.Backend = resourcetest.NewStore()
	write := func(name string) {
		r, err := resource.New(exampleType, name, &pb.Node{})
		if err == nil {
			_, err = b.Commit(ctx, resource.PutOp(r, ""))
		}
		if err != nil {
			log.Fatal(err)
		}
	}

	write("web1")
	w, err := b.Watch(resource.Query{Type: exampleType})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	write("web2")
	for range 3 {
		ev, err := w.Next(ctx)
		switch {
		case err != nil:
			log.Fatal(err)
		case ev.GetEndOfSnapshot() != nil:
			fmt.Println("end of snapshot")
		case ev.GetUpsert() != nil:
			fmt.Println("upsert", ev.GetUpsert().GetResource().GetId().GetName())
		}
	}
	// Output:
	// upsert web1
	// end of snapshot
	// upsert web2
}
