// SPDX-License-Identifier: MPL-2.0

// Package sdnotify reports the state of this process to the service manager, as
// sd_notify(3) specifies. Without a service manager (NOTIFY_SOCKET is not set)
// it does nothing.
//
//	sdnotify.Send(logger, sdnotify.Ready)
//
// Send never blocks on the service manager, and logs a failure. The package
// starts no goroutine.
package sdnotify
