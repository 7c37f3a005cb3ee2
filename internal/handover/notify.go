// SPDX-License-Identifier: MPL-2.0

package handover

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// States of a process, for Notify.
const (
	StateReady    = "READY=1"
	StateStopping = "STOPPING=1"
)

// StateReloading says that settings are being read again, until StateReady. systemd wants the time with it (Type=notify-reload).
func StateReloading() string {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return "RELOADING=1"
	}
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000)
}

// StateMain says that the process of that number stands for the service from now on.
func StateMain(pid int) string { return fmt.Sprintf("MAINPID=%d", pid) }

// Notify tells the service manager about this process, if it wants to know (sd_notify(3), variable NOTIFY_SOCKET). It does not
// wait for it.
func Notify(state string) error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"}) // "@" stands for an abstract name
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(state)); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}
