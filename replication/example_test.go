// SPDX-License-Identifier: MPL-2.0

package replication_test

import (
	"fmt"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// Serve the federated resources of a datacenter that is always the primary.
func ExampleSource() {
	registry := resource.NewRegistry()
	if err := federation.Register(registry); err != nil {
		panic(err)
	}
	source, err := replication.NewSource(replication.SourceConfig{
		Backend: resourcetest.NewStore(), Registry: registry, Primary: replication.AlwaysPrimary,
	})
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer()
	pb.RegisterReplicationServiceServer(server, source)
	// In a server: run source.Run(ctx) and server.Serve(listener).
	fmt.Println(source.Status().Followers)
	// Output: 0
}
