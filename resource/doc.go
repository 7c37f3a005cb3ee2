// SPDX-License-Identifier: MPL-2.0

// Package resource is the platform for durable data. A resource is a named
// record of a registered type. A Backend stores resources, and a Service serves
// them by gRPC.
//
//	registry := resource.NewRegistry()
//	err := registry.Register(resource.Registration{
//		Type: typ, Message: &pb.FederationState{}, Scope: resource.ScopeCluster, Federated: true,
//	})
//	service, err := resource.NewService(resource.ServiceConfig{
//		Backend: backend, Registry: registry, DC: "dc1", Peer: peer, Primary: isPrimary,
//	})
//	pb.RegisterResourceServiceServer(grpcServer, service)
//
//	r, err := resource.New(typ, "dc2", &pb.FederationState{Datacenter: "dc2"})
//	stored, err := backend.Commit(ctx, resource.PutOp(r, ""))
//	state, err := resource.Decode[*pb.FederationState](stored[0])
//
// Package raftstore implements Backend for servers. A ForwardingBackend
// combines a follower with its leader. Package resourcetest implements Backend
// for tests, and has the tests that every Backend passes. Other packages
// replicate resources between datacenters and interpret their data.
//
// # Parts of a resource
//
// The id of a resource has a type, a tenancy, a name and a uid. The tenancy is
// a partition and a namespace. A resource that is deleted and created again has
// the same name and another uid. The data is a protobuf message of the
// type. Every write changes the version. A write of other data also changes the
// generation. A resource has a status per controller, metadata, and at most one
// owner. The deletion of the owner deletes the resource. Finalizers are names
// in the metadata that delay a deletion.
//
// A federated type is written in one datacenter, the primary. Every other
// datacenter, a secondary, has replicas of its resources.
//
// # Flow of a write
//
// Service.Write receives a resource from a verified peer. The Registry defines
// the rules of the type. The service checks name, tenancy and data, and then
// calls the type's Mutate, Authorize and Validate, in this order. The service
// sets the uid (new at creation) and the generation (new when the data
// changes), and keeps status and owner. The service then commits one Put. If
// the request has a version, the Put is a compare-and-swap. Otherwise the Put
// expects the stored version, and the service tries up to eight times while
// concurrent writes change the resource. The state machine checks the expected
// version in commit order.
//
// A server writes its own resources by calling the Backend with PutOp, RemoveOp
// and ReplicaOp.
//
// # Flow of a deletion
//
// The deletion of a resource with finalizers only gives it a deletion
// timestamp, and the resource is deleted when its last finalizer is removed. A
// resource without finalizers is deleted at once, together with up to
// MaxCascade resources that it owns. If it owns more, the store keeps a
// tombstone of the owner. The leader calls ReapOnce, which deletes the owned
// resources of each tombstone in bounded steps, and then the tombstone.
//
// # Guarantees
//
// Versions and indexes belong to one store. Uid, generation and data are equal
// in all datacenters. Every deletion appears in watches, including the deletion
// of an owned resource. Each error that callers test for is a variable of this
// package. StatusError converts errors to gRPC statuses, and FromStatus
// converts them back, so errors.Is works in clients as in servers. See Backend
// for the guarantees of reads, watches and commits.
//
// # Limits
//
// A resource has at most MaxSize bytes. Partitions and namespaces need no
// creation. The response to a List is one gRPC message: a List larger than
// api.MaxMessageSize fails, a WatchList does not.
//
// # Goroutines
//
// Only ForwardingBackend starts a goroutine: it reads the index of the leader
// for concurrent strong reads, and ends with the last of these reads. The
// methods of Service block only in the Backend, and return when their context
// ends.
package resource
