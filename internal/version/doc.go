// SPDX-License-Identifier: MPL-2.0

// Package version describes the running program. "wanfed version", the status
// of a server and the build tag of gossip members use the description.
//
//	fmt.Println(version.Get()) // 0.1.0-dev (commit 6b745d1c2f0a, go1.26.8, linux/amd64)
//
// The version number is the constant Version, which changes with a release. The
// Go toolchain records the commit, and whether files differ from the commit. A
// build without git or from a module download lacks some of this information.
package version
