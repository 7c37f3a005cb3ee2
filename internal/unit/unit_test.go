// SPDX-License-Identifier: MPL-2.0

package unit

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestUnit_String(t *testing.T) {
	for command, want := range map[string]struct{ ambient, after string }{
		"server":  {"", "network-online.target"},
		"gateway": {"CAP_NET_BIND_SERVICE", "network-online.target wanfed-server.service"},
	} {
		u := Unit{Command: command, Program: "/bin/true", Settings: "/etc/wanfed/x.hcl", Data: "/var/lib/wanfed", User: "root"}
		text := u.String()
		for _, line := range []string{
			"ExecStart=/bin/true " + command + " --config-file /etc/wanfed/x.hcl", "User=root", "ReadWritePaths=/var/lib/wanfed /etc/wanfed",
			"AmbientCapabilities=" + want.ambient, "CapabilityBoundingSet=" + want.ambient,
			"After=" + want.after, "ProtectSystem=strict", "NoNewPrivileges=yes",
		} {
			if !strings.Contains(text, "\n"+line+"\n") {
				t.Errorf("the unit of a %s lacks the line %q:\n%s", command, line, text)
			}
		}
		if strings.Contains(text, "%!") {
			t.Errorf("the unit of a %s has a wrong verb:\n%s", command, text)
		}
		verify(t, u)
	}
}

// verify lets systemd read a unit.
func verify(t *testing.T, u Unit) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("no systemd-analyze: the unit is not verified")
		return
	}
	file := filepath.Join(t.TempDir(), u.Name())
	if err := os.WriteFile(file, []byte(u.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", file).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify = %v: %s", err, out)
	}
}
