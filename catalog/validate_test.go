// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
)

func TestCheckAddress(t *testing.T) {
	long := strings.Repeat("a.", 126) + "a"
	for _, host := range []string{"10.0.0.1", "2001:db8::1", "gw.example.com", "gw.example.com.", "GW_1.Example",
		"localhost", long} {
		if err := CheckAddress(&pb.Address{Address: host, Port: 65535}); err != nil {
			t.Errorf("CheckAddress(%s) = %v, want nil", host, err)
		}
	}
	for host, port := range map[string]uint32{
		"": 1, "0.0.0.0": 1, "::": 1, "a b": 1, "a/b": 1, "a..b": 1, "-a": 1, "[::1]": 1, "a:1": 1, "a\nb": 1,
		"a\x00": 1, "käse.example": 1,
		long + ".a": 1, strings.Repeat("a", 64): 1, "10.0.0.1": 0, "10.0.0.2": 65536, "10.0.0.3": 1 << 31,
	} {
		if err := CheckAddress(&pb.Address{Address: host, Port: port}); err == nil {
			t.Errorf("CheckAddress(%q, port %d) = nil, want an error", host, port)
		} else if strings.Contains(err.Error(), "\n") || len(err.Error()) > 400 {
			t.Errorf("CheckAddress(%q) = %v, want one line of at most 400 bytes", host, err)
		}
	}
	if CheckAddress(nil) == nil {
		t.Error("CheckAddress(nil) = nil, want an error")
	}
}

func TestParseAddr(t *testing.T) {
	if a, err := parseAddr("WAN", "[2001:db8::1]:8443"); err != nil || a.Address != "2001:db8::1" || a.Port != 8443 {
		t.Errorf("parseAddr([2001:db8::1]:8443) = %v, %v, want address 2001:db8::1 and port 8443", a, err)
	}
	for _, s := range []string{"", "host", ":1", "host:", "host:0", "host:65536", "host:-1", "host:x",
		"2001:db8::1:8443", "a b:1"} {
		if _, err := parseAddr("WAN", s); err == nil || !strings.HasPrefix(err.Error(), "WAN address ") {
			t.Errorf("parseAddr(%q) = %v, want an error that names the WAN address", s, err)
		}
	}
}

func TestCheckGatewayMeta(t *testing.T) {
	if err := checkGatewayMeta(map[string]string{"k": strings.Repeat("v", maxGatewayMeta-1)}); err != nil {
		t.Errorf("checkGatewayMeta() of the largest metadata = %v, want nil", err)
	}
	if checkGatewayMeta(map[string]string{"k": strings.Repeat("v", maxGatewayMeta)}) == nil {
		t.Error("checkGatewayMeta() of too much metadata = nil, want an error")
	}
}
