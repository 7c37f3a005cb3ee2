// SPDX-License-Identifier: MPL-2.0

// Package resourcehttp is the HTTP API of resources of every registered type, and the OpenAPI document that describes it. No type has
// code here: what a type demands comes from the registry, and what is done is done by a resource service, this datacenter's or
// another's. It leaves to others the listener, who may connect and who asks (tlsutil.PeerFromContext of the request's context).
//
// # Requests
//
//	GET    /api/GROUP/VERSION/KIND          list; ?prefix= ?partition= ?namespace= ("*": all) ?consistent ?watch
//	GET    /api/GROUP/VERSION/KIND/NAME     one; ?uid= ?consistent; with ?owned what it owns
//	PUT    /api/GROUP/VERSION/KIND/NAME     create or replace; ?version= ?uid=; ?dry-run checks only; ?status=KEY writes a status
//	DELETE /api/GROUP/VERSION/KIND/NAME     ?version= ?uid=
//	GET    /api/types                       the registered types
//	GET    /api/openapi.json                all of this, for tools
//
// All take ?dc=NAME, which asks a server of that datacenter, and ?pretty. The kind is written in upper or lower case. A name is the rest of
// the path: it may hold "/" where its type allows that; parts that are empty, "." or ".." must be percent-encoded. A parameter
// that is not known is refused: a misspelt ?version= would else write without a comparison.
//
// The body of a PUT is {"data": {...}}, perhaps with "metadata" and "owner", or a whole resource as a GET answers it (api.Resource).
// What it says of version, uid, type, name and tenancy must agree with the path and the parameters; what the server decides is
// ignored: generation, status, indexes. Unknown fields are refused.
//
// # Answers
//
// Resources are JSON as api.Resource has it. Lists are {"resources": [...]}, written piece by piece, whatever their size. Errors are
// one line of plain text; StatusOf says with which status. 503 means that nothing was done, 504 that nobody knows. While the
// datacenter has no leader, what needs one waits up to 7 seconds for it.
//
// A watch is a stream of server-sent events: "upsert" and "delete", whose data are a resource, "end-of-snapshot" after what was there
// at the beginning, and "end" with the reason when the server ends it. A comment comes every 15 seconds. Who does not read for 10
// seconds is cut. A new watch begins with a new snapshot: there is nothing to resume.
//
// # Goroutines
//
// A watch has one besides its handler's, which ends before the handler does. Everything ends with the request's context. Deadlines of
// reading and writing are set for each request.
//
// # Limits
//
// A body has at most MaxBody bytes. A list from another datacenter that is larger than one gRPC message is read as a watch's
// snapshot; only ?consistent is refused then.
//
//	h, err := resourcehttp.New(resourcehttp.Config{DC: "dc1", Registry: registry, Client: client})
//	mux.Handle("/api/", h)
package resourcehttp
