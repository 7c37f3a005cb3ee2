// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Suspend stops the process with SIGSTOP and returns when it is stopped. The
// kernel still accepts connections to its ports, and data until the buffers are
// full. Resume continues the process.
func (n *Node) Suspend() {
	n.dc.lab.t.Helper()
	n.signal(syscall.SIGSTOP)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.Process.Pid()))
		if err != nil {
			n.dc.lab.t.Fatalf("suspend %s/%s: %v", n.dc.Name, n.Name, err)
		}
		if bytes.Contains(stat, []byte(") T ")) {
			return
		}
	}
}

// Resume continues a process after Suspend.
func (n *Node) Resume() {
	n.dc.lab.t.Helper()
	n.signal(syscall.SIGCONT)
}

func (n *Node) signal(s syscall.Signal) {
	n.dc.lab.t.Helper()
	if err := n.Process.Signal(s); err != nil {
		n.dc.lab.t.Fatalf("%v to %s/%s: %v", s, n.dc.Name, n.Name, err)
	}
}
