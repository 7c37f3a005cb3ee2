// SPDX-License-Identifier: MPL-2.0

// Package resource is the record platform: everything durable is a resource of a registered type, kept by a Backend and
// served by one gRPC service.
//
// A Backend (backend.go has the whole contract) reads, lists, commits and watches. Its implementations are the packages
// memory and raftstore, and Routed, by which a follower has its leader do what only that can; resourcetest is the suite all
// pass. What replicates records between datacenters, what reconciles them and what their data means are other packages.
//
// # Flow of a write
//
// Service.Write takes a resource from a verified peer. The Registry says what its type demands: name, tenancy and data are
// checked, the type's Mutate, Authorize and Validate run, in this order. The service then chooses uid (new at creation) and
// generation (new when the data is), keeps status and owner, and commits one Put: with the version the client gave, as
// compare-and-swap; without one, against what is stored now, again at most eight times if others write between. The
// state machine alone decides, in commit order, whether the expectation holds.
//
// Code inside a server that writes records of its own uses the Backend directly, with PutOp, RemoveOp and ReplicaOp, and
// chooses uids with NewUID.
//
// # Flow of a deletion
//
// A resource with finalizers is marked, and goes with the last of them. One without goes at once, and what it owns with it, up
// to MaxCascade resources; a tombstone remembers what else there is, and Reap, which the leader runs, takes that in bounded
// steps. A crash or another leader leaves the tombstone where it is.
//
// # Promises
//
// Resources handed out by a Backend are shared: clone before changing one. Versions and indexes are those of one store and
// mean nothing in another; uid, generation and data are the same everywhere. Every deletion is in watches, also of what
// went with its owner. Errors are the sentinels of backend.go and errors.go; StatusError turns them into gRPC status and
// FromStatus back, so that errors.Is works on both sides of the wire.
//
// # Limits
//
// A resource has at most MaxSize bytes. Partitions and namespaces need not be made before they are used. An answer is one gRPC
// message: a List larger than api.MaxMessageSize fails, WatchList does not.
//
// No goroutine is started here; Reap is for the caller's. Methods of Service block only in the Backend, and end with their
// context.
//
//	reg := resource.NewRegistry()
//	err := reg.Register(resource.Registration{Type: typ, Message: &pb.FederationState{}, Scope: resource.ScopeCluster, Federated: true})
//	svc, err := resource.NewService(resource.ServiceConfig{Backend: b, Registry: reg, DC: "dc1", Peer: peer, Primary: isPrimary})
//	pb.RegisterResourceServiceServer(grpcServer, svc)
//
//	r, err := resource.New(typ, "dc2", &pb.FederationState{Datacenter: "dc2"})
//	stored, err := b.Commit(ctx, resource.PutOp(r, ""))
//	state, err := resource.Decode[*pb.FederationState](stored[0])
package resource
