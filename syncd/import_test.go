// SPDX-License-Identifier: MPL-2.0

package syncd_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestImport_Terraform reads the states that Terraform's backend consul has
// stored in the key-value store of a server, as CTS stores them in Consul:
// compressed in one key, and in several keys.
func TestImport_Terraform(t *testing.T) {
	terraform, err := exec.LookPath("terraform")
	if err != nil {
		t.Skip("no terraform in PATH")
	}
	r := newRig(t)
	f := r.issue(tlsutil.RoleOperator, "op")
	dir := filepath.Join(r.dir, "tf")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	rc := filepath.Join(dir, "rc")
	large := make([]byte, 400_000) // more than 512 KiB in hexadecimal, also compressed
	if _, err := rand.Read(large); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		rc: "disable_checkpoint = true\n", filepath.Join(dir, "large.txt"): hex.EncodeToString(large),
		filepath.Join(dir, "main.tf"): fmt.Sprintf(`
			variable "file" { default = "" }
			terraform {
				backend "consul" {
					address   = %q
					scheme    = "https"
					path      = %q
					gzip      = true
					ca_file   = %q
					cert_file = %q
					key_file  = %q
				}
			}
			resource "terraform_data" "x" {
				input = var.file == "" ? "small" : file(var.file)
			}`, strings.TrimPrefix(r.addrs.HTTP, "https://"), state.ConsulPath, f.CA, f.Cert, f.Key),
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, terraform, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CHECKPOINT_DISABLE=1", "TF_CLI_CONFIG_FILE="+rc, "TF_IN_AUTOMATION=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("terraform %v = %v:\n%s", args, err, out)
		}
	}
	read := func(want string) {
		t.Helper()
		data, err := state.ReadConsul(t.Context(), r.operator, state.ConsulPath, "t")
		if err != nil || !strings.Contains(string(data), want) || !strings.Contains(string(data), `"lineage"`) {
			t.Errorf("ReadConsul() = %d bytes, %v, want a state with %.20s", len(data), err, want)
		}
	}
	run("init", "-input=false", "-no-color")
	run("workspace", "new", "t")
	run("apply", "-auto-approve", "-input=false", "-no-color")
	read(`"small"`)
	run("apply", "-auto-approve", "-input=false", "-no-color", "-var", "file=large.txt")
	read(hex.EncodeToString(large))
	keys, _, err := r.operator.Keys(t.Context(), state.ConsulPath+"-env:t/tfstate.", api.QueryOptions{})
	if err != nil || len(keys) < 2 {
		t.Errorf("%d keys of chunks, %v, want several", len(keys), err)
	}
}
