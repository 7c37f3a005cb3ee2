// SPDX-License-Identifier: MPL-2.0

package netaddr

import (
	"strings"
	"testing"
)

func TestCheckHostPort(t *testing.T) {
	for _, addr := range []string{"192.0.2.1:8443", "[2001:db8::1]:1", "gateway.example:65535", "Gateway.Example.:80",
		"_svc.example:80"} {
		if err := CheckHostPort(addr); err != nil {
			t.Errorf("CheckHostPort(%q) = %v, want nil", addr, err)
		}
	}
	for _, addr := range []string{"", "192.0.2.1", "192.0.2.1:0", "192.0.2.1:65536", "0.0.0.0:80", "[::]:80",
		"2001:db8::1:80",
		"[192.0.2.1]:80", "-a.example:80", "a..b:80", strings.Repeat("a", 64) + ":80", ":80"} {
		if err := CheckHostPort(addr); err == nil {
			t.Errorf("CheckHostPort(%q) = nil, want an error", addr)
		}
	}
}

func TestOverlap(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{"127.0.0.1:80", "127.0.0.1:80", true},
		{"localhost:80", "127.0.0.1:80", true},
		{":80", "127.0.0.1:80", true},
		{"0.0.0.0:80", "[::1]:80", true},
		{"127.0.0.1:80", "127.0.0.2:80", false},
		{"127.0.0.1:80", "127.0.0.1:81", false},
		{":0", ":0", false},
		{"host.example:80", "host.example:80", false},
	} {
		if got := Overlap(test.a, test.b); got != test.want {
			t.Errorf("Overlap(%q, %q) = %v, want %v", test.a, test.b, got, test.want)
		}
	}
}

func TestAllowedHost(t *testing.T) {
	for host, want := range map[string]bool{
		"": true, "localhost": true, "LOCALHOST.:80": true, "127.0.0.1:80": true, "[::1]:80": true, "::1": true,
		"a.example:80": true, "A.example.": true, "b.example": false, "evil.localhost": false, "[fe80::1%eth0]:80": false,
	} {
		if got := AllowedHost(host, []string{"a.example."}); got != want {
			t.Errorf("AllowedHost(%q) = %v, want %v", host, got, want)
		}
	}
}

func FuzzAllowedHost(f *testing.F) {
	for _, seed := range []string{"127.0.0.1:8500", "[::1]:80", "localhost.", "a.example:1", "[fe80::1%eth0]:1",
		":", "[", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, host string) {
		if AllowedHost(host, nil) && strings.HasSuffix(strings.ToLower(host), ".example") {
			t.Errorf("AllowedHost(%q) = true, want false", host)
		}
	})
}
