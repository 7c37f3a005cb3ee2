// SPDX-License-Identifier: MPL-2.0

// Package resource is the record platform: everything durable is a resource of a registered type, kept by a Backend and
// served by one gRPC service.
//
// A Backend (backend.go has the whole contract) reads, lists, commits and watches. Its implementations are the packages
// memory and raftstore; resourcetest is the suite both pass. What replicates records between datacenters, what reconciles
// them and what their data means are other packages.
//
// # Flow of a write
//
// Service.Write takes a resource from a verified peer. The Registry says what its type demands: the name and data are
// checked, the type's Mutate, Authorize and Validate run, in this order. The service then chooses uid (new at creation) and
// generation (new when the data is), keeps status and owner, and commits one Put: with the version the client gave, as
// compare-and-swap; without one, against what is stored now, again at most eight times if others write between. The
// state machine alone decides, in commit order, whether the expectation holds.
//
// Code inside a server that writes records of its own uses the Backend directly, with PutOp, RemoveOp and ReplicaOp, and
// chooses uids with NewUID.
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
// There is one tenancy, partition "default" and namespace "default"; it is filled in where a request leaves it out. An
// answer is one gRPC message: a List larger than api.MaxMessageSize fails, WatchList does not.
//
// No goroutine is started here. Methods of Service block only in the Backend, and end with their context.
//
//	reg := resource.NewRegistry()
//	err := reg.Register(resource.Registration{Type: typ, Message: &pb.FederationState{}, Federated: true})
//	svc, err := resource.NewService(resource.ServiceConfig{Backend: b, Registry: reg, DC: "dc1", Peer: peer, Primary: isPrimary})
//	pb.RegisterResourceServiceServer(grpcServer, svc)
//
//	r, err := resource.New(typ, "dc2", &pb.FederationState{Datacenter: "dc2"})
//	stored, err := b.Commit(ctx, resource.PutOp(r, ""))
//	state, err := resource.Decode[*pb.FederationState](stored[0])
package resource
