// SPDX-License-Identifier: MPL-2.0

// Package policy decides who may do what. The HTTP API, the gRPC services,
// requests from other datacenters and writes of federated resources have the
// same decision: [Engine.Decide] for resources, and [Engine.ActsHere] for the
// methods of operators.
//
// # Rights
//
// The rights of a caller depend on the role and the datacenter of its
// certificate:
//
//	operator   reads and writes all resources
//	server     reads and writes all resources
//	sync       reads keys, the catalog and most other resources; writes sync/v1
//	           and, in the catalog, the registrations of sync daemons
//	client     reads all resources except the states of tasks
//	anonymous  a caller without a certificate, with the rights of a client
//	gateway    reads federation states
//	user       nothing, except what the policy of its name permits
//
// These rights hold in the datacenter of the caller. In other datacenters a
// caller may only read the catalog, federation states and other federated
// resources, and a gateway may do nothing. Operators and users of the
// datacenters in [Config.OperatorsFrom] have their rights here too. Callers of the
// datacenters in [Config.ReadsFrom] may read here what they may read there.
//
// A server of another datacenter names the caller for whom it makes a request:
// see [Named]. The certificate of that caller cannot be verified here. The
// caller therefore has the rights of an operator or a user only if
// [Config.ForwardFrom] lists the datacenter.
//
// A type may refuse more: see resource.Registration.Authorize. The type refuses
// by the same caller.
//
// # Policies
//
// A policy is a federated resource of type policy/v1/Policy with rules. Policy
// joe is for the user joe of every datacenter. Policy joe.dc1 is for the user joe
// of dc1 only, who then does not use policy joe. Policy anonymous replaces the
// rights of callers without a certificate. What no rule permits is refused.
//
// A list or a watch is permitted if every name with its prefix is permitted.
// Otherwise it is refused. Results are never filtered.
//
// A server without a replica of a policy permits nothing to its user. A missing
// or deleted policy therefore never permits more. While a server starts, anonymous
// callers wait until it has read the policies: see [Config.Loaded].
//
// # Example
//
//	engine := policy.New(policy.Config{DC: "dc1", OperatorsFrom: ..., ForwardFrom: ...})
//	go engine.Run(ctx, backend)
//	err := engine.Decide(policy.WithCaller(ctx, caller), resource.Access{Verb: resource.VerbRead, Type: typ, Name: "app/x"})
//
// # Records of calls
//
// A [Call] describes one call at an edge of the server: the caller, the server
// that named it, the resources, the index of the last write and the error. Both
// edges give each write and each refused call to [Config.Recorder]. A call that
// may write needs a reserved record before its first commit: see [Engine.Reserve]
// and [Engine.Noting].
//
// # Cost
//
// A decision takes no lock and, for built-in roles, allocates no memory. It blocks
// only for anonymous callers of a server that starts.
package policy
