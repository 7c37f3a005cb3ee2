// SPDX-License-Identifier: MPL-2.0

package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// unguarded matches code that opens a TLS connection, or that passes a TLS
// configuration to a library which opens one.
var unguarded = regexp.MustCompile(`tls\.(Client|Server|NewListener|Listen|Dial|DialWithDialer)\(|tls\.Dialer\{|\.(ServerConfig|ClientConfig)\(`)

// guardedFiles lists the files that may do so, with the reason.
var guardedFiles = map[string]string{
	"wanfed/mux.go":     "Mux.serve calls Admit",
	"wanfed/dial.go":    "dialAddr calls Admit",
	"api/failover.go":   "for servers other than those of wanfed; ClientConfig.Identity has a Guard",
	"enroll/client.go":  "one request; the client has no identity yet, and verifies the server by the token",
	"diagnose/paths.go": "a handshake that cannot succeed, for the MTU of a path",
	"syncd/api.go":      "clients of CTS have certificates of any CA",

	"internal/monitor/monitor.go": "clients have no certificates",
}

// TestTLS_ConnectionsAreGuarded checks that each TLS connection ends with the
// right of its peer to exist: see tlsutil.Guard.
func TestTLS_ConnectionsAreGuarded(t *testing.T) {
	checked, found := 0, map[string]bool{}
	for _, p := range listPackages(t) {
		name, _ := relative(p.ImportPath)
		if name == "tlsutil" || strings.HasPrefix(name, "bench/") || strings.HasPrefix(name, "test") ||
			strings.HasPrefix(name, "tlsutil/") || strings.HasPrefix(name, "automation/") {
			continue
		}
		for _, file := range p.GoFiles {
			b, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			checked++
			at := name + "/" + file
			m := unguarded.FindString(string(b))
			if found[at] = m != ""; m != "" && guardedFiles[at] == "" {
				t.Errorf("%s has %q: use tlsutil.Identity.Client, or a Guard", at, m)
			}
		}
	}
	for file := range guardedFiles {
		if !found[file] {
			t.Errorf("%s opens no TLS connection: remove it from the list", file)
		}
	}
	if checked < 100 {
		t.Errorf("checked %d files, want at least 100", checked)
	}
}
