// SPDX-License-Identifier: MPL-2.0

// Package atomicfile replaces files so that a crash leaves the old contents or
// the new ones, never a part. What WriteFile has written survives a power loss
// once it returns, as far as the file system honours fsync.
package atomicfile
