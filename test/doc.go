// SPDX-License-Identifier: MPL-2.0

// Package test has the end-to-end tests: datacenters of real processes in
// network namespaces without lateral routes (package test/lab builds them),
// federations on loopback, and the demo as a user runs it. It exports nothing.
//
// # Requirements
//
// Tests that need Linux, root or a tool skip with one line that names what is
// missing. Each test creates its own namespaces, directories and ports, and
// removes them. No test sends traffic to another machine.
//
// # Time
//
// All tests run on the wall clock, so "go test -short" skips them. They wait
// for events, with bounds that a busy machine with two cores keeps, and log how
// long things took. Benchmarks measure the times to expect.
//
// Tests mostly wait, and share the machine: they call t.Parallel, and a server
// that starts again at its address has a port of unusedPort. A test that
// measures short times, or needs most of the processor time, runs alone.
//
// # Pages
//
// TestNewResourceType, TestDocs_Envoy and TestDocs_Consul execute pages of
// docs as they are: each command after "$ " in a block of language console. "..."
// in an output stands for any text. A command that no test can execute ends with
// the comment "# not tested: needs consul".
//
// # Example
//
//	sudo go test ./test
//	sudo WANFED_CHAOS=1 go test -v -timeout 30m -run TestChaos ./test
//	sudo WANFED_BENCH=1 go test -v -timeout 30m -run TestIdleFootprint ./test
package test
