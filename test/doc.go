// SPDX-License-Identifier: MPL-2.0

// Package test has what can only be tested with the whole: datacenters of real
// processes in network namespaces without lateral routes (package test/lab
// builds them), the demo as a user runs it, and the rules of this repository:
// who imports whom, and what every file has. It exports nothing.
//
// # Needs
//
// Tests that need Linux, root or a tool say so in one line and are skipped
// where that is missing; the others pass on a machine with nothing but Go. Each
// test makes its own namespaces, folders and ports and removes them; none talks
// to another machine.
//
// # Time
//
// Tests wait for events, with bounds that a busy machine with two cores keeps,
// and log how long things took. The bounds are not the times to expect: benches
// measure those.
//
// # Example
//
//	go test -race -run TestImports ./test
//	sudo go test ./test
//	sudo WANFED_CHAOS=1 go test -v -timeout 30m -run TestChaos ./test
//	WANFED_BENCH=1 go test -v -timeout 30m -run TestIdleFootprint ./test
package test
