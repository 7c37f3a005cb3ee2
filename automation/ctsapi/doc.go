// SPDX-License-Identifier: MPL-2.0

// Package ctsapi is the HTTP API of Consul-Terraform-Sync (CTS): the same paths,
// status codes and JSON. The sync daemon implements Tasks.
//
//	srv := http.Server{Handler: ctsapi.New(daemon, nil)}
//
// The API has no authentication. The daemon serves it on a loopback address, or
// with TLS. Web pages in the browser of an operator are rejected: the Host of a
// request without TLS must be an IP address, localhost or one of the names of
// New, a POST must have the content type JSON, and no response permits requests
// of other origins. A browser sends no PATCH or DELETE without such a
// permission.
//
// # Differences from CTS
//
//   - A task with an invalid field has the status 400. CTS accepts some of them.
//   - OPTIONS has the status 405.
//   - The task of ?run=inspect has all keys, and buffer_period always has
//     enabled.
//   - All errors have the content type JSON, except that of an unknown path.
//
// The JSON of a task has only what CTS has. Conditions and options of wanfed are
// not in it: read the resource sync/v1/Task instead.
//
// A body has at most MaxBody bytes, and must arrive within 30 s. A request with
// ?run waits for the end of the run, so the server must not limit the duration
// of a response.
package ctsapi
