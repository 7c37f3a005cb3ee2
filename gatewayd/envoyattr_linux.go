// SPDX-License-Identifier: MPL-2.0

package gatewayd

import "syscall"

// envoyAttr keeps Ctrl-C from Envoy, which RunEnvoy drains first, and ends
// Envoy if this process is killed.
func envoyAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
