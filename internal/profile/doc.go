// SPDX-License-Identifier: MPL-2.0

// Package profile serves profiles of the Go runtime to operators: where a
// process spends its time and its memory.
//
//	mux.Handle("GET "+profile.Path, profile.Handler(logger))
//
// The paths are those of net/http/pprof, so "go tool pprof URL" reads them:
//
//	/debug/pprof/                     the list of profiles
//	/debug/pprof/heap                 memory; likewise allocs
//	/debug/pprof/goroutine?debug=2    stacks of all goroutines
//	/debug/pprof/profile?seconds=30   processor time
//	/debug/pprof/mutex?seconds=30     waits for mutexes; likewise block
//	/debug/pprof/trace?seconds=1      execution trace, for "go tool trace"
//
// A profile with a duration takes 1 to 60 seconds. The process takes one of
// these at a time: a request during another one receives status 429. Mutexes and
// blocking are sampled only during such a request. A trace takes at most 10
// seconds.
//
// A profile has names of functions and counts, but no data of the process. The
// server of the handler authorizes the caller, usually with [Authorize].
package profile
