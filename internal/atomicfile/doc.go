// SPDX-License-Identifier: MPL-2.0

// Package atomicfile replaces files atomically. After a crash, a file has
// either the complete old contents or the complete new contents. After
// WriteFile has returned, the new contents survive a power loss if the file
// system honours fsync.
//
//	err := atomicfile.WriteFile("servers.json", data, 0o600)
//
// One goroutine of one process may write a path at a time. Readers need no
// lock. A crash leaves at most one additional file per path, which the next
// WriteFile replaces. WriteFile blocks for two fsyncs.
package atomicfile
