// SPDX-License-Identifier: MPL-2.0

// Package resourcehttp is the HTTP API of all registered types of resources,
// with an OpenAPI document. The registry defines the rules of each type. A
// resource service, of this datacenter or of another, performs the requests.
// The package neither opens a listener nor authenticates: the caller of a
// request is tlsutil.PeerFromContext of the request's context.
//
//	h, err := resourcehttp.New(resourcehttp.Config{DC: "dc1", Registry: registry, Client: client})
//	mux.Handle("/api/", h)
//
// # Requests
//
//	GET    /api/GROUP/VERSION/KIND          list; ?prefix= ?partition= ?namespace= ("*": all) ?consistent ?watch
//	GET    /api/GROUP/VERSION/KIND/NAME     read one; ?uid= ?consistent; ?owned lists what it owns
//	PUT    /api/GROUP/VERSION/KIND/NAME     create or replace; ?version= ?uid= ?dry-run; ?status=KEY writes a status
//	DELETE /api/GROUP/VERSION/KIND/NAME     ?version= ?uid=
//	GET    /api/types                       the registered types
//	GET    /api/openapi.json                the OpenAPI document
//
// All requests accept ?dc=NAME, which forwards to a server of another
// datacenter, and ?pretty. The case of the kind does not matter. A name is the
// rest of the path. It may contain "/" if its type allows "/". Parts that are
// empty, "." or ".." must be percent-encoded. An unknown parameter is an error,
// because a misspelt ?version= would otherwise write without a comparison.
//
// The body of a PUT is {"data": {...}}, optionally with "metadata" and "owner",
// or a whole resource as a GET returns it (api.Resource). Version, uid, type,
// name and tenancy in the body must agree with the path and the parameters.
// Generation, status and indexes are ignored. Unknown fields are an error.
//
// # Responses
//
// Resources are JSON in the form of api.Resource. A list is {"resources":
// [...]}, written in pieces. An error is one line of plain text; StatusOf
// defines its HTTP status. While the datacenter has no leader, requests that
// need a leader wait up to 7 seconds.
//
// A watch is a stream of server-sent events. The data of the events "upsert"
// and "delete" is a resource. The event "end-of-snapshot" follows the initial
// resources. The event "end" has the reason why the server ends the watch. The
// server sends a comment every 15 seconds, and disconnects a client that does
// not read for 10 seconds. A watch cannot be resumed: a new watch begins with a
// new snapshot.
//
// # Goroutines
//
// A watch has one goroutine in addition to its handler, which ends before the
// handler returns. A request ends with its context, and sets its own read and
// write deadlines.
//
// # Limits
//
// A body has at most MaxBody bytes. A list that exceeds one gRPC message is
// read as the snapshot of a watch; with ?consistent such a list fails.
package resourcehttp
