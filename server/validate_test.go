// SPDX-License-Identifier: MPL-2.0

package server

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   []string // parts of the error; nil means no error
	}{
		{"valid secondary", func(*Config) {}, nil},
		{"single datacenter", func(c *Config) { c.PrimaryDC, c.PrimaryGateways = "", nil }, nil},
		{"empty", func(c *Config) { *c = Config{} }, []string{
			"dc is required", "node is required", "data_dir is required", "ca_file", "cert_file", "key_file",
		}},
		{"dc with a dot", func(c *Config) { c.DC = "dc.2" }, []string{`dc: "dc.2" is not a DNS label`}},
		{"node in upper case", func(c *Config) { c.Node = "SRV1" }, []string{`node: "SRV1" is not a DNS label`}},
		{"secondary without gateways", func(c *Config) { c.PrimaryGateways = nil }, []string{
			"primary_gateways is missing", "--primary-gateway",
		}},
		// Without primary_datacenter, gateways of a primary suggest that the
		// setting is missing. With primary_datacenter, the gateways are for
		// the time when the primary is a secondary.
		{"primary by default, with gateways", func(c *Config) { c.PrimaryDC = "" }, []string{
			"primary_gateways is set, but dc2 is the primary itself",
		}},
		{"primary with gateways", func(c *Config) { c.PrimaryDC = "dc2" }, nil},
		{"gateway without port", func(c *Config) { c.PrimaryGateways = []string{"gw1"} }, []string{
			`primary_gateways: address "gw1" has no port`,
		}},
		{"gateway with port 0", func(c *Config) { c.PrimaryGateways = []string{"gw1:0"} },
			[]string{`port "0" is not a number from 1`}},
		{"mode", func(c *Config) { c.MeshGatewayMode = "auto" }, nil},
		{"unknown mode", func(c *Config) { c.MeshGatewayMode = "none" }, []string{
			`mesh_gateway_mode "none" is none of local, remote and auto`,
		}},
		{"bootstrap_expect 2", func(c *Config) { c.BootstrapExpect = 2 },
			[]string{"bootstrap_expect is 2: must be 1, 3 or 5"}},
		{"bootstrap_expect 3 without retry_join", func(c *Config) { c.BootstrapExpect = 3 },
			[]string{"retry_join is empty"}},
		{"bootstrap_expect 3", func(c *Config) { c.BootstrapExpect, c.RetryJoin = 3, []string{"10.0.0.2:8300"} }, nil},
		{"dead_server_after too short", func(c *Config) { c.DeadServerAfter = time.Second }, []string{
			"dead_server_after is 1s: must be 10s or more", "no vote for 10s",
		}},
		{"dead_server_after negative", func(c *Config) { c.DeadServerAfter = -time.Second }, []string{
			"dead_server_after is -1s: must be 10s or more",
		}},
		{"dead_server_after at the minimum", func(c *Config) { c.DeadServerAfter = MinDeadServerAfter }, nil},
		{"dead_server_after too long", func(c *Config) { c.DeadServerAfter = 100 * MaxDeadServerAfter }, []string{
			"dead_server_after is 876000h0m0s: must be 8760h0m0s (a year) or less",
		}},
		{"several faults", func(c *Config) { c.Port, c.BootstrapExpect, c.DC = 70000, 7, "-" }, []string{
			"port is", "bootstrap_expect", "dc:",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) { wantFaults(t, tt.change, tt.want) })
	}
}

func TestCheck_Addresses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   []string // parts of the error; nil means no error
	}{
		{"HTTP on all addresses", func(c *Config) { c.HTTPAddr = "0.0.0.0:8500" }, []string{
			"not a loopback address", "https://0.0.0.0:8500",
		}},
		{"HTTP on a private address", func(c *Config) { c.HTTPAddr = "http://10.0.0.1:8500" },
			[]string{"not a loopback address"}},
		{"HTTP on a host name", func(c *Config) { c.HTTPAddr = "example.com:8500" },
			[]string{"not a loopback address"}},
		{"HTTPS on all addresses", func(c *Config) { c.HTTPAddr = "https://0.0.0.0:8500" }, nil},
		{"HTTP on localhost", func(c *Config) { c.HTTPAddr = "localhost:8500" }, nil},
		{"HTTP on IPv6 loopback", func(c *Config) { c.HTTPAddr = "[::1]:8500" }, nil},
		{"HTTP with path", func(c *Config) { c.HTTPAddr = "https://[::1]:8500/x" }, []string{"is not host:port"}},
		{"unknown scheme", func(c *Config) { c.HTTPAddr = "ftp://[::1]:8500" }, []string{"neither http nor https"}},
		{"advertise unspecified", func(c *Config) { c.Advertise = "0.0.0.0" }, []string{"unspecified"}},
		{"bind to a name", func(c *Config) { c.Bind = "eth0" }, []string{`bind "eth0" is not an IP address`}},
		{"port too large", func(c *Config) { c.Port = 70000 }, []string{"port is 70000"}},
		{"same port", func(c *Config) { c.HTTPAddr = "127.0.0.1:8300" }, []string{
			`http_addr "127.0.0.1:8300" overlaps with bind and port, 0.0.0.0:8300`,
		}},
		{"same port, host name", func(c *Config) {
			c.Bind, c.Port, c.HTTPAddr = "127.0.0.1", 8500, "http://localhost:8500"
		}, []string{
			`http_addr "http://localhost:8500" overlaps with`,
		}},
		{"same port, TLS", func(c *Config) { c.Bind, c.HTTPAddr = "10.0.0.1", "https://:8300" },
			[]string{"10.0.0.1:8300: each needs"}},
		{"same port, different addresses", func(c *Config) { c.Bind, c.HTTPAddr = "10.0.0.1", "127.0.0.1:8300" }, nil},
		{"ports that the system chooses", func(c *Config) { c.Port, c.HTTPAddr = -1, "127.0.0.1:0" }, nil},
		{"PROXY headers from a gateway", func(c *Config) {
			c.ProxyFrom = []netip.Prefix{netip.MustParsePrefix("10.0.0.5/32")}
		}, nil},
		{"PROXY headers from this server", func(c *Config) {
			c.ProxyFrom = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		}, []string{
			"proxy_protocol 10.0.0.0/8 contains 10.0.0.1, the address of a server (advertise)",
			"name only load balancers",
		}},
		{"PROXY headers from another server", func(c *Config) {
			c.ProxyFrom, c.RetryJoin = []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32")},
				[]string{"srv3.example:8300", "10.0.0.2:8300"}
		}, []string{"contains 10.0.0.2, the address of a server (retry_join)"}},
		{"invalid network", func(c *Config) { c.ProxyFrom = make([]netip.Prefix, 1) }, []string{"proxy_protocol"}},
	} {
		t.Run(tt.name, func(t *testing.T) { wantFaults(t, tt.change, tt.want) })
	}
}

// wantFaults changes a valid Config and fails the test unless the error of
// check contains all texts of want.
func wantFaults(t *testing.T, change func(*Config), want []string) {
	t.Helper()
	cfg := Config{
		DC: "dc2", Node: "srv1", DataDir: "data", CAFile: "ca", CertFile: "cert", KeyFile: "key",
		PrimaryDC: "dc1", PrimaryGateways: []string{"[2001:db8::1]:8443"}, Advertise: "10.0.0.1",
	}
	change(&cfg)
	err := errors.Join(cfg.withDefaults().check()...)
	if len(want) == 0 && err != nil {
		t.Fatalf("check() = %v, want nil", err)
	}
	for _, text := range want {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("check() = %v, want an error with %q", err, text)
		}
	}
}
