// SPDX-License-Identifier: MPL-2.0

package catalog_test

import (
	"context"
	"fmt"
	"log"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// A Writer registers a service with a check. A View reads the result.
func ExampleWriter_Register() {
	ctx := context.Background()
	types := resource.NewRegistry()
	if err := catalog.Register(types); err != nil {
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

	view := catalog.NewView(backend)
	writer := catalog.NewWriter(service, view)
	err = writer.Register(ctx, catalog.Registration{
		Node:    &pb.Node{Node: "db1", Address: "10.0.0.9"},
		Service: &pb.Service{Node: "db1", Id: "postgres", Service: "postgres", Port: 5432},
		Checks: []*pb.Check{{
			Node: "db1", CheckId: "up", ServiceId: "postgres", Status: catalog.StatusPassing,
		}},
	})
	if err != nil {
		log.Fatal(err)
	}

	snapshot, err := view.At(ctx, resource.Strong)
	if err != nil {
		log.Fatal(err)
	}
	postgres := snapshot.Node("db1").Service("postgres")
	fmt.Println(postgres.Port, postgres.AllChecks()[0].Status)

	err = writer.Register(ctx, catalog.Registration{Node: &pb.Node{Node: "db2"}})
	fmt.Println(err)
	// Output:
	// 5432 passing
	// no such node: "db2"; register it with its address
}
