// SPDX-License-Identifier: MPL-2.0

package sdnotify

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestReloading_HasTime(t *testing.T) {
	if got := Reloading(); !strings.HasPrefix(got, "RELOADING=1\nMONOTONIC_USEC=") || len(got) < 30 {
		t.Errorf("Reloading() = %q, want RELOADING=1 and MONOTONIC_USEC=", got)
	}
}

func TestSend_ToSocket(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	Send(logger, Ready)
	if log.Len() > 0 {
		t.Errorf("Send() without a service manager logs %q, want nothing", &log)
	}
	for _, socket := range []string{filepath.Join(t.TempDir(), "n"), fmt.Sprintf("@wanfed-test-%d", os.Getpid())} {
		t.Run(socket, func(t *testing.T) {
			log.Reset()
			c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			t.Setenv("NOTIFY_SOCKET", socket)
			Send(logger, MainPID(7))
			b := make([]byte, 100)
			c.SetDeadline(time.Now().Add(20 * time.Second))
			if n, err := c.Read(b); err != nil || string(b[:n]) != "MAINPID=7" {
				t.Errorf("Send(MainPID(7)) sends %q, %v, want MAINPID=7", b[:n], err)
			}
			if log.Len() > 0 {
				t.Errorf("Send() logs %q, want nothing", &log)
			}
			c.Close()
			if socket[0] == '@' {
				return
			}
			Send(logger, Ready)
			if !strings.Contains(log.String(), "cannot notify the service manager") {
				t.Errorf("Send() without a listener logs %q, want a failure", &log)
			}
		})
	}
}
