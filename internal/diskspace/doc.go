// SPDX-License-Identifier: MPL-2.0

// Package diskspace measures the free space of a disk. A store checks it before
// a write that must not fail halfway.
//
//	free, err := diskspace.Free("/var/lib/wanfed")
//
// The result is a snapshot: other processes may use the space at any time.
package diskspace
