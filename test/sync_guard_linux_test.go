// SPDX-License-Identifier: MPL-2.0

package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// TestSync_LongCommand kills the daemon of a long command, or stops it with
// SIGSTOP. Another daemon runs the command again after the first one has ended,
// with one SIGINT.
func TestSync_LongCommand(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			if signal == syscall.SIGSTOP {
				onlyChaos(t) // TestGuard has this case too
			}
			r := newSyncRig(t, "")
			log := filepath.Join(r.dir, "commands")
			script := fmt.Sprintf(`echo start >> %[1]s; trap 'echo end >> %[1]s; exit 1' INT; while :; do sleep 0.1; done`, log)
			cluster := `high_availability {
  cluster {
    name = "edge"
    storage "consul" {
      session_ttl = "2s"
    }
  }
}`
			text := fmt.Sprintf(`task {
  name   = "long"
  driver = "exec"
  grace  = "1s"
  condition "services" {
    names = ["web"]
  }
  exec {
    command = ["sh", "-c", %q]
  }
}`, script)
			r.configure("sync1", cluster, text)
			r.configure("sync2", cluster, text)
			one := r.run("sync1")
			lines := func() string { b, _ := os.ReadFile(log); return strings.Join(strings.Fields(string(b)), " ") }
			testutil.Eventually(t, waitLimit, func() bool { return lines() == "start" }, "the command runs")
			two := r.run("sync2")
			if err := one.Signal(signal); err != nil {
				t.Fatal(err)
			}
			at := time.Now()
			testutil.Eventually(t, time.Minute, func() bool { return strings.Count(lines(), "start") == 2 }, "the command runs again")
			t.Logf("the command runs again %v after the signal", time.Since(at))
			if got := lines(); got != "start end start" {
				t.Errorf("events = %q, want the end of the first command before the start of the second", got)
			}
			if signal == syscall.SIGSTOP {
				if err := one.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				one.stop(t)
			}
			if text := r.mustCLI("task", "list"); strings.Contains(text, "NoDaemon") {
				t.Errorf("task list = %s, want a daemon", text)
			}
			two.stop(t)
			for _, command := range [][]string{{"task", "list"}, {"task", "read", "long"}} {
				if text := r.mustCLI(command...); !strings.Contains(text, "NoDaemon") {
					t.Errorf("wanfed %q without a daemon = %s, want NoDaemon", command, text)
				}
			}
		})
	}
}
