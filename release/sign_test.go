// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestSign verifies a signature with the commands of docs/install.md.
func TestSign(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("needs the program ssh-keygen")
	}
	dir := t.TempDir()
	key, sums := filepath.Join(dir, "key"), filepath.Join(dir, "SHA256SUMS")
	command(t, dir, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key)
	if err := os.WriteFile(sums, []byte("00  wanfed\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := sign(sums, key); err != nil {
		t.Fatal(err)
	}
	command(t, dir, "sh", "-ec", `printf 'wanfed %s\n' "$(cat key.pub)" >signers`)
	const verify = `ssh-keygen -Y verify -f signers -I wanfed -n wanfed-release -s SHA256SUMS.sig <SHA256SUMS`
	command(t, dir, "sh", "-ec", verify)
	if err := os.WriteFile(sums, []byte("01  wanfed\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	changed := exec.Command("sh", "-ec", verify)
	changed.Dir = dir
	if out, err := changed.CombinedOutput(); err == nil {
		t.Errorf("verification of changed checksums = %s, want an error", out)
	}
	if err := sign(sums, filepath.Join(dir, "missing")); err == nil {
		t.Error("sign() without a key = nil, want an error")
	}
}
