// SPDX-License-Identifier: MPL-2.0

// Package atomicfile replaces files atomically. After a crash, a file has
// either the complete old contents or the complete new contents. After
// WriteFile has returned, the new contents survive a power loss if the file
// system honours fsync.
package atomicfile
