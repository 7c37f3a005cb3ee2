// SPDX-License-Identifier: MPL-2.0

// Command release builds what a release of wanfed consists of, from the files of
// this repository: programs, packages for Debian and RPM systems, an image for
// containers, software bills of materials, and checksums.
//
//	make release        # into bin/release
//
// The order: "make build" for each platform; the package version, from the
// version and the commit that the Go toolchain has recorded in the program;
// manual pages and shell completion, from the commands of the program; then the
// packages, the image and the Helm chart. Nothing needs root, a container runtime or the tools of
// a distribution.
//
// The same commit and the same version of Go give the same bytes: all times are
// that of the commit, and no name of a user or a machine is recorded.
//
// With WANFED_SIGNING_KEY, the file of an SSH key, ssh-keygen signs the checksums.
//
// The command is a module of its own, so its libraries are not dependencies of
// wanfed.
package main
