// SPDX-License-Identifier: MPL-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/tlsutil"
)

// certLines creates a certificate of a node in dc2 and returns its lines of a
// settings file.
func certLines(t testing.TB, role tlsutil.Role, node string) string {
	t.Helper()
	pki, err := subprocess.NewPKI(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	f, err := pki.Issue(role, "dc2", node)
	if err != nil {
		t.Fatal(err)
	}
	return "ca_file = \"" + f.CA + "\"\ncert_file = \"" + f.Cert + "\"\nkey_file = \"" + f.Key + "\"\n"
}

// validateTest is a file with the expected output.
type validateTest struct {
	name, file string
	want       []string // part of each line, with FILE for the path; nil: the file is valid
}

func (test validateTest) run(t *testing.T, kinds ...settings.Kind) {
	t.Run(test.name, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "x.hcl")
		writeFile(t, path, test.file)
		var out strings.Builder
		err := validateFiles(&out, []string{path}, kinds)
		if (err == nil) != (test.want == nil) {
			t.Errorf("validateFiles() = %v, want an error: %v", err, test.want != nil)
		}
		want := test.want
		if want == nil {
			want = []string{"FILE: valid"}
		}
		got := strings.ReplaceAll(out.String(), path, "FILE")
		for _, part := range want {
			if !strings.Contains(got, part) {
				t.Errorf("output = %s\nwant %s", got, part)
			}
		}
		if lines := strings.Count(got, "\n"); lines != len(want) {
			t.Errorf("lines of output = %d, want %d:\n%s", lines, len(want), got)
		}
	})
}

func TestValidate_ServerFile(t *testing.T) {
	valid := "dc = \"dc2\"\nnode = \"srv1\"\ndata_dir = \"data\"\nprimary_datacenter = \"dc1\"\n" +
		"primary_gateways = [\"gw.dc1.example.com:8443\"]\n"
	certs := certLines(t, tlsutil.RoleServer, "srv1")
	for _, test := range []validateTest{
		{"valid", valid + certs, nil},
		{"not HCL", "dc = \n", []string{"FILE:1,"}},
		{"unknown attribute", valid + "colour = \"red\"\n" + certs, []string{"FILE:6,1: Unsupported argument"}},
		{"wrong type", valid + "port = \"many\"\n" + certs, []string{"FILE:6,"}},
		{"all errors at once", strings.Replace(valid, "gw.dc1.example.com:8443", "gw", 1) +
			"port = -2\nlog_level = \"loud\"\nbootstrap_expect = 2\nretry_join = [\"a:1\"]\n" + certs,
			[]string{"FILE:5: primary_gateways", "FILE:6: port is -2", "FILE:7: log_level",
				"FILE:8: bootstrap_expect is 2"}},
		{"absent attribute", strings.Replace(valid, "data_dir", "bind", 1) + certs,
			[]string{"FILE: data_dir is required", "FILE:3: bind"}},
		{"certificate of another node", strings.Replace(valid, "srv1", "srv2", 1) + certs, []string{"srv2"}},
	} {
		test.run(t, serverFile, gatewayFile)
	}
}

func TestValidate_GatewayFile(t *testing.T) {
	certs := certLines(t, tlsutil.RoleGateway, "gw1")
	valid := "dc = \"dc2\"\nnode = \"gw1\"\ndata_dir = \"data\"\nservers = [\"10.0.0.5:8300\"]\n" +
		"lan = \"10.0.0.5:8444\"\nwan = \"198.51.100.1:8443\"\n" + certs
	routes := filepath.Join(t.TempDir(), "routes.hcl")
	writeFile(t, routes, "route \"a b\" {\n  to = [\"10.0.0.1:1\"]\n}\n")
	for _, test := range []validateTest{
		{"valid", valid, nil},
		{"errors", strings.Replace(valid, "10.0.0.5:8444", "lan", 1), []string{"FILE:5: lan"}},
		{"certificate of another node", strings.Replace(valid, "gw1", "gw2", 1), []string{"gw2"}},
		{"file of routes", "listen = [\"0.0.0.0:8443\"]\nroutes = \"" + routes + "\"\n",
			[]string{"routes.hcl:1,1: route \"a b\""}},
		{"attribute of a server", valid + "primary_gateways = [\"a:1\"]\n",
			[]string{"FILE:10,1: Unsupported argument"}},
	} {
		test.run(t, serverFile, gatewayFile)
	}
	validateTest{"only common attributes", "dc = \"dc2\"\nnode = \"gw1\"\ndata_dir = \"data\"\n" + certs,
		[]string{"FILE: lan is required", "FILE: wan is required", "FILE: servers is empty"}}.run(t, gatewayFile)
}

func TestValidate_RouteFile(t *testing.T) {
	for _, test := range []validateTest{
		{"valid", "route \"*.server.dc2.wanfed\" {\n  to = [\"198.51.100.2:8443\"]\n}\n", nil},
		{"errors", "route \"a b\" {\n  to = [\"h:1\"]\n}\nroute \"a\" {\n  to = [\"h\"]\n}\n",
			[]string{"FILE:1,1: route \"a b\"", "FILE:4,1: route \"a\""}},
		{"attribute absent", "route \"a\" {\n}\n", []string{"FILE:1,"}},
	} {
		test.run(t, serverFile, gatewayFile)
	}
}

func TestValidate_ManyFiles(t *testing.T) {
	dir := t.TempDir()
	var out strings.Builder
	err := validateFiles(&out, []string{filepath.Join(dir, "a.hcl"), filepath.Join(dir, "b.hcl")},
		[]settings.Kind{serverFile})
	if want := "2 of 2 files not valid"; err == nil || err.Error() != want {
		t.Errorf("validateFiles() = %v, want %s", err, want)
	}
	if got := out.String(); !strings.Contains(got, "a.hcl") || !strings.Contains(got, "b.hcl") {
		t.Errorf("output = %s, want errors of a.hcl and b.hcl", got)
	}
}
