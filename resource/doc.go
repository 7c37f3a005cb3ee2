// SPDX-License-Identifier: MPL-2.0

// Package resource is the platform for durable data. Everything durable is a
// resource of a registered type. A Backend stores resources, and Service serves
// them by gRPC.
//
//	reg := resource.NewRegistry()
//	err := reg.Register(resource.Registration{
//		Type: typ, Message: &pb.FederationState{}, Scope: resource.ScopeCluster, Federated: true,
//	})
//	svc, err := resource.NewService(resource.ServiceConfig{
//		Backend: b, Registry: reg, DC: "dc1", Peer: peer, Primary: isPrimary,
//	})
//	pb.RegisterResourceServiceServer(grpcServer, svc)
//
//	r, err := resource.New(typ, "dc2", &pb.FederationState{Datacenter: "dc2"})
//	stored, err := b.Commit(ctx, resource.PutOp(r, ""))
//	state, err := resource.Decode[*pb.FederationState](stored[0])
//
// The packages memory and raftstore implement Backend. ForwardingBackend
// combines a follower with its leader. Package resourcetest has the tests that
// all of them pass. Other packages replicate resources between datacenters,
// reconcile them, and interpret their data.
//
// # Flow of a write
//
// Service.Write gets a resource from a verified peer. The Registry defines the
// rules of its type: name, tenancy and data are checked first, then the type's
// Mutate, Authorize and Validate are called, in this order. The service sets
// the uid (new at creation) and the generation (new when the data changes), and
// keeps status and owner. It then commits one Put. If the request has a
// version, the Put is a compare-and-swap. Otherwise the Put expects the version
// that is stored now. The service tries such a Put up to eight times if
// concurrent writes make it fail. The state machine checks the expectation in
// commit order.
//
// A server writes its own resources by calling the Backend with PutOp, RemoveOp and
// ReplicaOp. NewUID returns the uid of a new resource.
//
// # Flow of a deletion
//
// A resource with finalizers gets a deletion timestamp, and is deleted with its
// last finalizer. Other resources are deleted at once, with up to MaxCascade
// resources that they own. A tombstone represents the remaining owned
// resources. The leader runs Reap, which deletes the rest in bounded steps. A
// crash or a change of the leader does not affect the tombstone.
//
// # Guarantees
//
// Resources that a Backend returns are shared: clone a resource before changing
// it. Versions and indexes belong to one store. Uid, generation and data are
// the same in all datacenters. Every deletion appears in watches, including the
// deletion of an owned resource. All errors that callers test for are variables
// of this package. StatusError converts them to a gRPC status, and FromStatus
// converts the status back. errors.Is therefore works in the client as in the
// server.
//
// # Limits
//
// A resource has at most MaxSize bytes. Partitions and namespaces are not created
// before they are used. A response is one gRPC message: a List larger than
// api.MaxMessageSize fails, a WatchList does not.
//
// # Goroutines
//
// The package starts a goroutine only in ForwardingBackend, for the read index of
// concurrent strong reads. The goroutine ends with the last of these reads. The
// methods of Service block only in the Backend, and end with their context.
package resource
