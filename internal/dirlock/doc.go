// SPDX-License-Identifier: MPL-2.0

// Package dirlock locks a directory for one process.
//
//	lock, err := dirlock.Lock(dir, "lock")
//	if errors.Is(err, dirlock.ErrInUse) { ... }
//	defer lock.Close()
package dirlock
