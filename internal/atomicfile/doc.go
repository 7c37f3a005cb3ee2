// SPDX-License-Identifier: MPL-2.0

// Package atomicfile replaces files atomically. After a crash, a file has
// either the complete old contents or the complete new contents. The new
// contents survive a power loss after WriteFile has returned, if the file
// system honours fsync.
package atomicfile
