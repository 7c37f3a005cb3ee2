// SPDX-License-Identifier: MPL-2.0

package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/gatewayd"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/serverd"
	"github.com/wanfed/wanfed/tlsutil"
)

// testAddresses are valid addresses of a machine.
func testAddresses() addresses {
	return addresses{wan: "127.0.0.1:8443", lan: "10.0.0.5", serverPort: 8300, lanPort: 8444, httpPort: 8500}
}

// join must find out that it cannot write before it uses the token.
func TestLayoutCheckFree(t *testing.T) {
	parent := t.TempDir()
	readOnly := filepath.Join(parent, "read-only")
	if err := os.Mkdir(readOnly, 0o500); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // may write everywhere, but not there
		readOnly = "/proc"
		if _, err := os.Stat(readOnly); err != nil {
			t.Skip("root may write everywhere, and there is no /proc")
		}
	}
	for dir, want := range map[string]string{
		filepath.Join(parent, "a", "b"):   "",
		filepath.Join(readOnly, "a"):      "choose a directory with --dir that this user may write",
		filepath.Join(readOnly, "a", "b"): "choose a directory with --dir that this user may write",
	} {
		l, err := newLayout(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.checkFree(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("checkFree() of %s = %v, want %q", dir, err, want)
		}
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) != 1 {
		t.Errorf("directory after checkFree() = %v, %v, want read-only alone", left, err)
	}
}

// A directory is complete or does not exist, and its keys are for the owner.
func TestLayoutWrite(t *testing.T) {
	parent := t.TempDir()
	l, err := newLayout(filepath.Join(parent, "${x}", "dir"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := firstFiles(l, "dc1", testAddresses())
	if err != nil {
		t.Fatal(err)
	}
	bad := newFiles{filepath.Join(l.serverHCL(), "x"): nil}
	for path, b := range files {
		bad[path] = b
	}
	if err := l.write(bad); err == nil {
		t.Fatal("write() of a file below a file = nil, want an error")
	}
	if left, err := os.ReadDir(filepath.Dir(l.conf)); err != nil || len(left) > 0 {
		t.Errorf("files after a failed write() = %v, %v, want none", left, err)
	}
	if err := l.write(files); err != nil {
		t.Fatal(err)
	}
	keys := 0
	for path := range files {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, "-key.pem") {
			if keys++; st.Mode().Perm() != 0o600 {
				t.Errorf("mode of %s = %v, want 0600", path, st.Mode())
			}
		}
	}
	if left, err := os.ReadDir(filepath.Dir(l.conf)); keys != 5 || err != nil || len(left) != 1 {
		t.Errorf("%d keys, directory %v, %v, want 5 and no temporary file", keys, left, err)
	}
	if err := l.checkFree(); err == nil || !strings.Contains(err.Error(), "exists and is not empty; nothing was changed") {
		t.Errorf("checkFree() of a used directory = %v, want an error", err)
	}
	for file, kind := range map[string]settings.Kind{l.serverHCL(): serverFile, l.gatewayHCL(): gatewayFile} {
		if err := validateFile(file, []settings.Kind{kind}); err != nil {
			t.Errorf("validateFile(%s) = %v, want nil", file, err)
		}
	}
}

// The settings of a machine are valid for every kind of address.
func TestMachineSettings(t *testing.T) {
	dir := t.TempDir()
	l, err := newLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	secondary := member{dc: "dc2", domain: "example.com", primary: "dc1", primaryGateways: []string{"gw.dc1.example:8443"}}
	further := member{dc: "dc1", domain: tlsutil.DefaultDomain, primary: "dc1", servers: []string{"10.0.0.6:8300"}}
	for name, tt := range map[string]struct {
		m      member
		change func(*addresses)
		server []string // lines of server.hcl
		wan    string   // listen address of the gateway
	}{
		"secondary": {secondary, func(*addresses) {}, []string{`primary_datacenter = "dc1"`,
			`primary_gateways = ["gw.dc1.example:8443"]`, `domain = "example.com"`}, "127.0.0.1:8443"},
		"further server": {further, func(*addresses) {}, []string{`retry_join = ["10.0.0.6:8300"]`}, "127.0.0.1:8443"},
		"NAT":            {further, func(a *addresses) { a.wan = "192.0.2.1:443" }, nil, "0.0.0.0:443"},
		"DNS name":       {further, func(a *addresses) { a.wan = "gw.example:8443" }, nil, "0.0.0.0:8443"},
		"IPv6": {further, func(a *addresses) { a.wan, a.lan = "[2001:db8::1]:8443", "fd00::5" },
			[]string{`bind = "::"`, `advertise = "fd00::5"`}, "[::]:8443"},
		"other ports": {further, func(a *addresses) { a.serverPort, a.httpPort = 9300, 9500 },
			[]string{`port = 9300`, `http_addr = "127.0.0.1:9500"`}, "127.0.0.1:8443"},
	} {
		a := testAddresses()
		tt.change(&a)
		server, gateway := serverd.DefaultSettings(), gatewayd.DefaultSettings()
		text := serverSettings(l, tt.m, a, "srv1")
		for _, f := range []struct {
			b  []byte
			to any
		}{{text, &server}, {gatewaySettings(l, tt.m, a, "gw1", gatewayAdminAddr), &gateway}} {
			path := filepath.Join(dir, "x.hcl")
			if err := os.WriteFile(path, f.b, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := settings.Read(path, f.to); err != nil {
				t.Fatalf("%s: Read() = %v of\n%s", name, err, f.b)
			}
		}
		if err := settings.Join(server.Check(), gateway.Check()); err != nil {
			t.Errorf("%s: Check() = %v, want nil", name, err)
		}
		for _, line := range tt.server {
			if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), line) {
				t.Errorf("%s: settings of the server =\n%s\nwant %s", name, text, line)
			}
		}
		if bind := a.wanBind(); bind != tt.wan || gateway.WANBind != "" && gateway.WANBind != tt.wan {
			t.Errorf("%s: listen address = %s, wan_bind = %q, want %s", name, bind, gateway.WANBind, tt.wan)
		}
	}
}

// A port that is in use is reported with the flag for another one.
func TestCheckPorts(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a := testAddresses()
	a.httpPort, a.serverPort = ln.Addr().(*net.TCPAddr).Port, 0
	if err := a.checkPorts(true, false); err == nil || !strings.Contains(err.Error(), "--http-port") {
		t.Errorf("checkPorts() = %v, want the flag --http-port", err)
	}
}
