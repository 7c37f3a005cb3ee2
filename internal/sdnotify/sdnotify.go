// SPDX-License-Identifier: MPL-2.0

package sdnotify

import (
	"fmt"
	"log/slog"

	"github.com/coreos/go-systemd/v22/daemon"
)

// States of a process.
const (
	Ready    = daemon.SdNotifyReady
	Stopping = daemon.SdNotifyStopping
)

// Reloading returns the state of a process that reads its settings again. The
// state lasts until Ready. systemd also needs the time (Type=notify-reload).
func Reloading() string {
	now, err := monotonicNano()
	if err != nil {
		return daemon.SdNotifyReloading
	}
	return fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now/1000)
}

// MainPID returns the state that makes process pid the main process of the
// service.
func MainPID(pid int) string { return fmt.Sprintf("MAINPID=%d", pid) }

// Send reports a state to the service manager, and logs a failure. It does not
// wait for the service manager.
func Send(logger *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		logger.Warn("cannot notify the service manager", "err", err)
	}
}
