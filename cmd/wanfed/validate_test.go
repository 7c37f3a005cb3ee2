// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/internal/proc"
	"github.com/wanfed/wanfed/tlsutil"
)

// serverFiles makes the certificate of srv1 in dc2 and returns the three lines of settings that name it.
func serverFiles(t testing.TB) string {
	t.Helper()
	pki, err := proc.NewPKI(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	f, err := pki.Issue(tlsutil.RoleServer, "dc2", "srv1")
	if err != nil {
		t.Fatal(err)
	}
	return "ca_file = \"" + f.CA + "\"\ncert_file = \"" + f.Cert + "\"\nkey_file = \"" + f.Key + "\"\n"
}

func TestValidateServerFile(t *testing.T) {
	valid := "dc = \"dc2\"\nnode = \"srv1\"\ndata_dir = \"data\"\nprimary_datacenter = \"dc1\"\n" +
		"primary_gateways = [\"gw.dc1.example.com:8443\"]\n"
	tests := []struct {
		name, file string
		want       []string // parts of one line of output each
	}{
		{"valid", valid, []string{"FILE: valid"}},
		{"not HCL", "dc = \n", []string{"FILE:1,"}},
		{"unknown attribute", valid + "colour = \"red\"\n", []string{"FILE:6,1: Unsupported argument"}},
		{"wrong type", valid + "port = \"many\"\n", []string{"FILE:6,"}},
		{"all faults at once", strings.Replace(valid, "gw.dc1.example.com:8443", "gw", 1) + "port = -1\nlog_level = \"loud\"\nbootstrap_expect = 2\nretry_join = [\"a:1\"]\n",
			[]string{"FILE:5: primary_gateways", "FILE:6: port is -1", "FILE:7: log_level", "FILE:8: bootstrap_expect is 2"}},
		{"absent attribute", strings.Replace(valid, "data_dir", "bind", 1), []string{"FILE: data_dir is required", "FILE:3: bind"}},
		{"another's certificate", strings.Replace(valid, "srv1", "srv2", 1), []string{"srv2"}},
	}
	certs := serverFiles(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "server.hcl")
			if err := os.WriteFile(path, []byte(test.file+certs), 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			err := validateFiles(&out, []string{path}, []fileKind{serverFile})
			if (err == nil) != (test.name == "valid") {
				t.Errorf("error = %v", err)
			}
			got := strings.ReplaceAll(out.String(), path, "FILE")
			for _, want := range test.want {
				if !strings.Contains(got, want) {
					t.Errorf("output lacks %q:\n%s", want, got)
				}
			}
			if lines := strings.Count(got, "\n"); lines != len(test.want) {
				t.Errorf("%d lines of output, want %d:\n%s", lines, len(test.want), got)
			}
		})
	}
}

func TestValidateManyFiles(t *testing.T) {
	dir := t.TempDir()
	var out strings.Builder
	err := validateFiles(&out, []string{filepath.Join(dir, "a.hcl"), filepath.Join(dir, "b.hcl")}, []fileKind{serverFile})
	if err == nil || err.Error() != "2 of 2 files not valid" {
		t.Errorf("error = %v", err)
	}
	if got := out.String(); !strings.Contains(got, "a.hcl") || !strings.Contains(got, "b.hcl") {
		t.Errorf("output = %s", got)
	}
}
