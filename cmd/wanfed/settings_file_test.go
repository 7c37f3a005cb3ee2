// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// fileError is a settings file with one error.
type fileError struct {
	name string
	set  map[string]string // values that replace the common values; "": no attribute
	line string            // last line of the file
	want string            // regular expression of the whole error; FILE is the path of the file
	code int               // exit status of the command with this file
}

// settingsFile writes a file with attrs in their order, and the changes of r.
func (r fileError) settingsFile(t testing.TB, dir string, attrs [][2]string) string {
	t.Helper()
	var b strings.Builder
	for _, a := range attrs {
		value, ok := r.set[a[0]]
		if !ok {
			value = a[1]
		}
		if value != "" {
			fmt.Fprintf(&b, "%s = %s\n", a[0], value)
		}
	}
	b.WriteString(r.line)
	path := filepath.Join(dir, "settings.hcl")
	writeFile(t, path, b.String())
	return path
}

// check validates the file and starts the command with the file. Both must
// report the same error.
func (r fileError) check(t *testing.T, command string, attrs [][2]string) {
	t.Run(r.name, func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		attrs := append([][2]string{{"data_dir", `"` + dir + `/data"`}}, attrs...)
		path := r.settingsFile(t, dir, attrs)
		want := strings.ReplaceAll(r.want, "FILE", regexp.QuoteMeta(path))

		got := execute(t, nil, "validate", path)
		if got.code != 1 || got.stderr != "wanfed: 1 of 1 files not valid\n" {
			t.Errorf("validate: exit status = %d, stderr %s, want 1, 1 of 1 files not valid", got.code, got.stderr)
		}
		if !regexp.MustCompile(`^` + want + `\n$`).MatchString(got.stdout) {
			t.Errorf("validate: stdout =\n%s\nwant one line that matches %s", got.stdout, want)
		}
		// In contrast to validate, the command that reads the file names the
		// line of a syntax error only, and no line for an invalid value.
		line := regexp.MustCompile(`^` + regexp.QuoteMeta(regexp.QuoteMeta(path)) + `(:\d+)?: `)
		short := line.ReplaceAllString(want, "")
		execute(t, nil, command, "--config-file", path).checkError(t, r.code, short)

		if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
			t.Errorf("files after the command = %v, %v, want only the settings file", files, err)
		}
	})
}

func quote(s string) string { return fmt.Sprintf("%q", s) }

// pathsOf returns the attributes that name a certificate and its key.
func pathsOf(c pemFiles, name string) map[string]string {
	return map[string]string{
		"cert_file": quote(c.path(name + ".pem")), "key_file": quote(c.path(name + "-key.pem")),
	}
}

func TestSettingsFile_ServerErrors(t *testing.T) {
	c := newPEMFiles(t)
	attrs := [][2]string{ // from line 2 on
		{"dc", `"dc1"`}, {"node", `"srv1"`}, {"bind", `"127.0.0.1"`}, {"port", `0`}, {"http_addr", `"127.0.0.1:0"`},
		{"ca_file", quote(c.path("ca.pem"))},
		{"cert_file", quote(c.path("srv1.pem"))}, {"key_file", quote(c.path("srv1-key.pem"))},
	}
	for _, r := range []fileError{
		{name: "unknown attribute", line: "colour = \"red\"\n", code: 2,
			want: `FILE:10,1: Unsupported argument: An argument named "colour" is not expected here\.`},
		{name: "attribute twice", line: "port = 1\n", code: 2, want: `FILE:10,1: Attribute redefined: .*`},
		{name: "a block", line: "server {\n}\n", code: 2, want: `FILE:10,1: Unsupported block type: .*`},
		{name: "wrong type", set: map[string]string{"port": `"many"`}, code: 2,
			want: `FILE:5,9: Unsuitable value type: .* a number is required`},
		{name: "not HCL", line: "domain =\n", code: 2, want: `FILE:10,9: Invalid expression: .*`},
		{name: "variable", set: map[string]string{"node": "var.node"}, code: 2,
			want: `FILE:3,8: Variables not allowed: .*`},

		{name: "certificate without the node's name", set: pathsOf(c, "no-node-srv1"), code: 1,
			want: `FILE:8: cert no-node-srv1\.pem: certificate has no SAN of the form .*`},
		{name: "certificate of another datacenter", set: pathsOf(c, "dc2-srv1"), code: 1,
			want: `FILE:8: cert dc2-srv1\.pem has no SAN .*`},
		{name: "certificate of another node", set: pathsOf(c, "srv2"), code: 1,
			want: `FILE:8: cert srv2\.pem has no SAN .*`},
		{name: "certificate of a gateway", set: pathsOf(c, "gw-srv1"), code: 1,
			want: `FILE:8: cert gw-srv1\.pem has no SAN .*`},
		{name: "certificate of another CA", set: pathsOf(c, "other-srv1"), code: 1,
			want: `FILE:8: cert other-srv1\.pem: .* signed by another CA .*`},
		{name: "expired", set: pathsOf(c, "expired-srv1"), code: 1,
			want: `FILE:8: cert expired-srv1\.pem: .* expired at .*`},
		{name: "not yet valid", set: pathsOf(c, "early-srv1"), code: 1,
			want: `FILE:8: cert early-srv1\.pem: .* is not valid before .*`},
		{name: "key of another certificate", set: map[string]string{"key_file": quote(c.path("srv2-key.pem"))}, code: 1,
			want: `FILE:9: key srv2-key\.pem does not belong to cert srv1\.pem; .*`},
		{name: "no CA file", set: map[string]string{"ca_file": `"absent.pem"`}, code: 1,
			want: `FILE:7: CA file absent\.pem does not exist; check the path`},

		{name: "node with a dot", set: map[string]string{"node": `"srv.1"`}, code: 2,
			want: `FILE:3: node: "srv\.1" is not a DNS label: .*`},
		{name: "datacenter in upper case", set: map[string]string{"dc": `"DC1"`}, code: 2,
			want: `FILE:2: dc: "DC1" is not a DNS label: .*`},
		{name: "no node", set: map[string]string{"node": ""}, code: 2,
			want: `FILE: node is required, for example --node srv1`},
		{name: "data dir that is a file", set: map[string]string{"data_dir": quote(c.path("text"))}, code: 1,
			want: `FILE:1: data_dir \S+/text is a file, not a directory: .*`},
		{name: "HTTP beyond loopback", set: map[string]string{"http_addr": `"0.0.0.0:0"`}, code: 2,
			want: `FILE:6: http_addr "0\.0\.0\.0:0" is not a loopback address: .*`},
		{name: "primary gateways in the primary", line: "primary_gateways = [\"gw:8443\"]\n", code: 2,
			want: `FILE:10: primary_gateways is set, but dc1 is the primary itself: .*`},
		{name: "secondary without primary gateways", line: "primary_datacenter = \"dc9\"\n", code: 2,
			want: `FILE: primary_gateways is missing: .*`},
		{name: "bootstrap of 2", line: "bootstrap_expect = 2\n", code: 2,
			want: `FILE:10: bootstrap_expect is 2: must be 1, 3 or 5`},
		{name: "bind is not an IP address", set: map[string]string{"bind": `"eth0"`}, code: 2,
			want: `FILE:4: bind "eth0" is not an IP address`},
		{name: "port above 65535", set: map[string]string{"port": "70000"}, code: 2,
			want: `FILE:5: port is 70000: must be 0 to 65535`},
	} {
		r.check(t, "server", attrs)
	}
}

func TestSettingsFile_GatewayErrors(t *testing.T) {
	c := newPEMFiles(t)
	attrs := [][2]string{
		{"dc", `"dc1"`}, {"node", `"gw1"`}, {"servers", `["127.0.0.1:1"]`}, {"lan", `"127.0.0.1:0"`},
		{"wan", `"127.0.0.2:0"`},
		{"ca_file", quote(c.path("ca.pem"))},
		{"cert_file", quote(c.path("gw1.pem"))}, {"key_file", quote(c.path("gw1-key.pem"))},
	}
	for _, r := range []fileError{
		{name: "unknown attribute", line: "colour = \"red\"\n", code: 2,
			want: `FILE:10,1: Unsupported argument: An argument named "colour" is not expected here\.`},
		{name: "certificate of another node", set: pathsOf(c, "gw2"), code: 1,
			want: `FILE:8: cert gw2\.pem has no SAN .*`},
		{name: "certificate of a server", set: pathsOf(c, "srv-gw1"), code: 1,
			want: `FILE:8: cert srv-gw1\.pem has no SAN .*`},
		{name: "expired", set: pathsOf(c, "expired-gw1"), code: 1,
			want: `FILE:8: cert expired-gw1\.pem: .* expired at .*`},
		{name: "certificate of another CA", set: pathsOf(c, "other-gw1"), code: 1,
			want: `FILE:8: cert other-gw1\.pem: .* signed by another CA .*`},
		{name: "node with an underscore", set: map[string]string{"node": `"gw_1"`}, code: 2,
			want: `FILE:3: node: "gw_1" is not a DNS label: .*`},
		{name: "server without port", set: map[string]string{"servers": `["host"]`}, code: 2,
			want: `FILE:4: servers: address "host" has no port: .*`},
		{name: "LAN that is a name", set: map[string]string{"lan": `"host:1"`}, code: 2,
			want: `FILE:5: lan "host:1" is not ip:port`},
		{name: "data dir that is a file", set: map[string]string{"data_dir": quote(c.path("text"))}, code: 1,
			want: `FILE:1: data_dir \S+/text is a file, not a directory: .*`},
	} {
		r.check(t, "gateway", attrs)
	}
}

func TestSettingsFile_JSONError(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "server.json")
	writeFile(t, path, "{\n  \"dc\": \"dc1\",\n  \"colour\": \"red\"\n}\n")
	execute(t, nil, "server", "--config-file", path).checkError(t, 2, regexp.QuoteMeta(path)+`:3,3: .*colour.*`)
}

func TestSettings_EnvironmentOverridesFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "gateway.hcl")
	text := "listen = [\"127.0.0.1:0\"]\nroutes = \"" + dir + "/none\"\nlog_level = \"info\"\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	const warning = "wanfed: environment variable WANFED_ROUTES overrides routes of "
	for routes, warned := range map[string]bool{dir + "/none": false, dir + "/other": true} {
		got := execute(t, []string{"WANFED_ROUTES=" + routes, "WANFED_DRAIN_TIME=5s"}, "gateway", "--config-file", path)
		if got.code != 1 || strings.Contains(got.stderr, warning+path+"\n") != warned ||
			strings.Count(got.stderr, " overrides ") > 1 {
			t.Errorf("WANFED_ROUTES=%s: exit status = %d, stderr %q, want 1 and a warning: %v",
				routes, got.code, got.stderr, warned)
		}
	}
	got := execute(t, []string{"WANFED_CA_FILE=ca.pem"}, "gateway", "--config-file", path)
	if got.code != 2 || !strings.Contains(got.stderr, "remove WANFED_CA_FILE in the environment, or") {
		t.Errorf("WANFED_CA_FILE: exit status = %d, stderr %q, want 2 and the name of the variable",
			got.code, got.stderr)
	}
}
