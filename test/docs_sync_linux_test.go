// SPDX-License-Identifier: MPL-2.0

package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestDocs_Sync executes docs/sync.md on one machine, which already has a CA, a
// server, and the certificate of an operator.
func TestDocs_Sync(t *testing.T) {
	r, _ := newMachine(t, "10.0.0.5")
	if _, err := exec.LookPath("terraform"); err != nil {
		t.Skip("terraform is not installed")
	}
	rc := filepath.Join(r.dir, "terraform.rc")
	if err := os.WriteFile(rc, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.env = append(r.env, "TF_CLI_CONFIG_FILE="+rc)
	r.run("wanfed tls ca create", "...")
	r.run("wanfed tls cert create --server --datacenter dc1 --node srv1", "...")
	r.run("wanfed tls cert create --operator --datacenter dc1", "...")
	r.run("wanfed server --dc dc1 --node srv1 --data-dir /var/lib/wanfed/server --advertise 10.0.0.5 "+
		"--ca-file wanfed-agent-ca.pem --cert-file dc1-server-wanfed-0.pem --key-file dc1-server-wanfed-0-key.pem", "...")
	before := r.commands
	r.read("../docs/sync.md")
	if n := r.commands - before; n != 28 || r.untested != 0 {
		t.Errorf("page has %d tested commands and %d others, want 28 and 0", n, r.untested)
	}
}
