// SPDX-License-Identifier: MPL-2.0

// Package resourcehttp is the HTTP API of all registered types of resources, and
// the OpenAPI document that describes it. The rules of a type come from the
// registry. A resource service, of this datacenter or of another, carries out the
// requests. The package does not open a listener and does not authenticate:
// tlsutil.PeerFrom of the request's context is the caller.
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
// All requests take ?dc=NAME, which forwards to a server of that datacenter, and
// ?pretty. The case of the kind does not matter. A name is the rest of the path. It
// may contain "/" if its type allows that. Parts that are empty, "." or ".." must
// be percent-encoded. An unknown parameter is an error, because a misspelt
// ?version= would write without a comparison.
//
// The body of a PUT is {"data": {...}}, optionally with "metadata" and "owner", or
// a whole resource as a GET returns it (api.Resource). Version, uid, type, name and
// tenancy in the body must agree with the path and the parameters. Generation,
// status and indexes are ignored. Unknown fields are an error.
//
// # Responses
//
// Resources are JSON in the form of api.Resource. A list is {"resources": [...]},
// written in pieces. An error is one line of plain text; StatusOf defines its
// status. While the datacenter has no leader, requests that need one wait for it
// up to 7 seconds.
//
// A watch is a stream of server-sent events. The data of "upsert" and "delete"
// is a resource. "end-of-snapshot" follows the initial resources. "end" has the
// reason for which the server ends the watch. A comment is sent every 15
// seconds. A client that does not read for 10 seconds is disconnected. A watch
// cannot be resumed: a new one begins with a new snapshot.
//
// # Goroutines
//
// A watch has one goroutine in addition to its handler. The handler ends this
// goroutine. A request ends with its context, and sets its own read and write
// deadlines.
//
// # Limits
//
// A body has at most MaxBody bytes. A list of another datacenter that exceeds one
// gRPC message is read as the snapshot of a watch; with ?consistent it fails.
package resourcehttp
