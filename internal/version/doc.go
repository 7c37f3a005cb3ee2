// SPDX-License-Identifier: MPL-2.0

// Package version says which wanfed a program is: for "wanfed version", for the status that a server gives, and for the
// build tag by which members of the gossip pools show what they run.
//
// The number is the constant Version, raised by hand with a release. What it was built from, the commit and whether files
// were changed after it, is what the Go toolchain wrote into the binary; builds from a module download or without git
// have less of it, and tests nothing. Nothing is set by the linker.
//
// It starts nothing, reads no file, and imports nothing but the standard library.
//
//	fmt.Println(version.Get()) // 0.1.0-dev (commit 6b745d1c2f0a, go1.26.8, linux/amd64)
package version
