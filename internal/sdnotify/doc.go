// SPDX-License-Identifier: MPL-2.0

// Package sdnotify reports the state of this process to the service manager, as
// sd_notify(3) specifies. If NOTIFY_SOCKET is not set, no service manager runs
// the process, and Send does nothing.
//
//	sdnotify.Send(logger, sdnotify.Ready)
//
// A failure is logged and has no other effect: the process works without its
// service manager. Send does not wait for a response.
package sdnotify
