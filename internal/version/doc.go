// SPDX-License-Identifier: MPL-2.0

// Package version describes the running program: for "wanfed version", for the
// status of a server, and for the build tag of members of the gossip pools.
//
//	fmt.Println(version.Get()) // 0.1.0-dev (commit 6b745d1c2f0a, go1.26.8, linux/amd64)
//
// The number is the constant Version, which changes with a release. The Go
// toolchain records the commit and whether files were changed after it. A build
// from a module download or without git has less of this information, and a test
// has none. The linker sets nothing.
//
// The package starts no goroutine, reads no file and imports only the standard
// library.
package version
