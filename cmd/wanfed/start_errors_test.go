// SPDX-License-Identifier: MPL-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// A server with an error in its settings or files fails at its start.
func TestServer_StartErrors(t *testing.T) {
	c := newPEMFiles(t)
	addr, port := usedAddress(t)
	base := append([]string{"server", "--dc", "dc1", "--node", "srv1", "--bind", "127.0.0.1", "--port", "-1",
		"--http-addr", "127.0.0.1:0", "--ca-file", c.path("ca.pem")}, c.certFlags("srv1")...)
	remedy := `; make one with: wanfed tls cert create --server --datacenter dc1 --node srv1`
	for _, r := range []startError{
		{name: "certificate without the node's name", args: c.certFlags("no-node-srv1"), code: 1,
			want: `cert no-node-srv1\.pem: certificate has no SAN of the form .* its SANs: server\.dc1\.wanfed, ` +
				`localhost\); make one with: wanfed tls cert create --server \(or --gateway\) --datacenter DC ` +
				`--node NODE`},
		{name: "certificate of another domain", args: []string{"--domain", "consul"}, code: 1,
			want: `cert srv1\.pem: certificate has no SAN of the form .* \(domain "consul"; .* --domain consul`},
		{name: "certificate without the datacenter's name", args: c.certFlags("no-group-srv1"), code: 1,
			want: `cert no-group-srv1\.pem has no SAN "server\.dc1\.wanfed"` + remedy},
		{name: "certificate of two nodes", args: c.certFlags("two-srv1"), code: 1,
			want: `cert two-srv1\.pem: certificate names two peers, server/dc1/srv1 and server/dc1/xsrv1; .*`},
		{name: "certificate of another datacenter", args: c.certFlags("dc2-srv1"), code: 1,
			want: `cert dc2-srv1\.pem has no SAN "srv1\.server\.dc1\.wanfed" \(it is for datacenter dc2: ` +
				`server/dc2/srv1\)` + remedy},
		{name: "certificate of another node", args: c.certFlags("srv2"), code: 1,
			want: `cert srv2\.pem has no SAN "srv1\.server\.dc1\.wanfed" \(it is for node srv2: ` +
				`server/dc1/srv2\)` + remedy},
		{name: "certificate of a gateway", args: c.certFlags("gw-srv1"), code: 1,
			want: `cert gw-srv1\.pem has no SAN "srv1\.server\.dc1\.wanfed" \(its role is gateway: ` +
				`gateway/dc1/srv1\)` + remedy},
		{name: "certificate of an operator", args: c.certFlags("cli"), code: 1,
			want: `cert cli\.pem has no SAN .* \(its role is operator: cli/dc1/cli\)` + remedy},
		{name: "certificate of another CA", args: c.certFlags("other-srv1"), code: 1,
			want: `cert other-srv1\.pem: certificate of srv1\.server\.dc1\.wanfed is signed by another CA ` +
				`\(CN=.*\) \(CA file ca\.pem\)`},
		{name: "another CA", args: []string{"--ca-file", c.path("other-ca.pem")}, code: 1,
			want: `cert srv1\.pem: certificate of srv1\.server\.dc1\.wanfed is signed by another CA .* \(CA ` +
				`file other-ca\.pem\)`},
		{name: "expired", args: c.certFlags("expired-srv1"), code: 1,
			want: `cert expired-srv1\.pem: certificate of srv1\.server\.dc1\.wanfed expired at \S+Z; create a ` +
				`new one \(CA file ca\.pem\)`},
		{name: "not yet valid", args: c.certFlags("early-srv1"), code: 1,
			want: `cert early-srv1\.pem: certificate of srv1\.server\.dc1\.wanfed is not valid before \S+Z; ` +
				`check the clocks \(CA file ca\.pem\)`},
		{name: "certificate for clients only", args: c.certFlags("client-only-srv1"), code: 1,
			want: `cert client-only-srv1\.pem: .* lacks the extended key usage .*`},
		{name: "key of another certificate", args: []string{"--key-file", c.path("srv2-key.pem")}, code: 1,
			want: `key srv2-key\.pem does not belong to cert srv1\.pem; use two files that were created together`},
		{name: "key is a directory", args: []string{"--key-file", c.dir}, code: 1,
			want: `read key file \S+: is a directory`},
		{name: "key is not PEM", args: []string{"--key-file", c.path("text")}, code: 1,
			want: `key text: is not PEM: .*`},
		{name: "key and certificate swapped",
			args: []string{"--cert-file", c.path("srv1-key.pem"), "--key-file", c.path("srv1.pem")}, code: 1,
			want: `cert srv1-key\.pem: is a private key, not a certificate; keep it secret, and use the ` +
				`certificate's file`},
		{name: "no CA file", args: []string{"--ca-file", c.path("absent.pem")}, code: 1,
			want: `CA file \S+/absent\.pem does not exist; check the path`},
		{name: "no certificate file", args: []string{"--cert-file", c.path("absent.pem")}, code: 1,
			want: `cert file \S+/absent\.pem does not exist; check the path`},
		{name: "no key file", args: []string{"--key-file", c.path("absent.pem")}, code: 1,
			want: `key file \S+/absent\.pem does not exist; check the path`},

		{name: "node with a dot", args: []string{"--node", "srv.1"}, code: 2,
			want: `node: "srv\.1" is not a DNS label: '\.' is not one of a-z, 0-9, "-"`},
		{name: "node in upper case", args: []string{"--node", "Srv1"}, code: 2,
			want: `node: "Srv1" is not a DNS label: 'S' is not .*`},
		{name: "node with an underscore", args: []string{"--node", "srv_1"}, code: 2,
			want: `node: "srv_1" is not a DNS label: '_' is not .*`},
		{name: "node of 64 characters", args: []string{"--node", strings.Repeat("n", 64)}, code: 2,
			want: `node: "n{64}" is longer than 63 characters`},
		{name: "datacenter with a dot", args: []string{"--dc", "dc.1"}, code: 2,
			want: `dc: "dc\.1" is not a DNS label: .*`},
		{name: "datacenter in upper case", args: []string{"--dc", "DC1"}, code: 2,
			want: `dc: "DC1" is not a DNS label: .*`},
		{name: "datacenter with an underscore", args: []string{"--dc", "dc_1"}, code: 2,
			want: `dc: "dc_1" is not a DNS label: .*`},
		{name: "datacenter of 64 characters", args: []string{"--dc", strings.Repeat("d", 64)}, code: 2,
			want: `dc: "d{64}" is longer than 63 characters`},
		{name: "no datacenter", args: []string{"--dc", ""}, code: 2, want: `dc is required, for example --dc dc1`},
		{name: "no node", args: []string{"--node", ""}, code: 2, want: `node is required, for example --node srv1`},
		{name: "no data dir", args: []string{"--data-dir", ""}, code: 2, want: `data_dir is required: set ` +
			`--data-dir`},
		{name: "primary is not a label", args: []string{"--primary-datacenter", "dc.9", "--primary-gateway", "gw:1"},
			code: 2,
			want: `primary_datacenter: "dc\.9" is not a DNS label: .*`},
		{name: "domain is not a name", args: []string{"--domain", "a..b"}, code: 2,
			want: `domain: "a\.\.b" is not a DNS name: .*`},

		{name: "data dir is a file", args: []string{"--data-dir", c.path("text")}, code: 1,
			want: `data_dir \S+/text is a file, not a directory: .*`},
		{name: "data dir below a file", args: []string{"--data-dir", filepath.Join(c.path("text"), "data")}, code: 1,
			want: `create data_dir: mkdir \S+/text: not a directory; choose a --data-dir that this user may write`},
		{name: "server port taken", args: []string{"--port", port}, code: 1,
			want: `port of 127\.0\.0\.1:` + port +
				` is in use by another process: stop the process \(see: ss -ltnp\), ` +
				`or choose another port with --port or --bind`},
		{name: "HTTP port taken", args: []string{"--http-addr", addr}, code: 1,
			want: `port of ` + addr + ` is in use by another process: stop the process \(see: ss -ltnp\), or choose ` +
				`another port with --http-addr`},
		{name: "HTTP on the server port", args: []string{"--port", "18300", "--http-addr", "127.0.0.1:18300"}, code: 2,
			want: `http_addr "127\.0\.0\.1:18300" overlaps with bind and port, 127\.0\.0\.1:18300: each needs ` +
				`its own address or port`},
		{name: "HTTP beyond loopback", args: []string{"--http-addr", "0.0.0.0:0"}, code: 2,
			want: `http_addr "0\.0\.0\.0:0" is not a loopback address: other addresses need TLS and client ` +
				`certificates; write https://0\.0\.0\.0:0`},
		{name: "HTTP beyond loopback, IPv6", args: []string{"--http-addr", "http://[::]:0"}, code: 2,
			want: `http_addr "http://\[::\]:0" is not a loopback address: .*`},
		{name: "HTTP on all addresses", args: []string{"--http-addr", ":0"}, code: 2,
			want: `http_addr ":0" is not a loopback address: .*`},
		{name: "HTTP scheme", args: []string{"--http-addr", "ftp://127.0.0.1:0"}, code: 2,
			want: `http_addr "ftp://127\.0\.0\.1:0": scheme is neither http nor https`},
		{name: "HTTP without port", args: []string{"--http-addr", "127.0.0.1"}, code: 2,
			want: `http_addr "127\.0\.0\.1" has no port`},

		{name: "primary gateways in the primary", args: []string{"--primary-gateway", "gw:8443"}, code: 2,
			want: `primary_gateways is set, but dc1 is the primary itself: remove primary_gateways, ` +
				`or set primary_datacenter to another datacenter or to dc1`},
		{name: "secondary without primary gateways", args: []string{"--primary-datacenter", "dc9"}, code: 2,
			want: `primary_gateways is missing: dc1 is a secondary of dc9 and needs at least one WAN address of ` +
				`a gateway there, for example --primary-gateway gw\.dc9\.example\.com:8443`},
		{name: "primary gateway without port",
			args: []string{"--primary-datacenter", "dc9", "--primary-gateway", "gw"}, code: 2,
			want: `primary_gateways: address "gw" has no port: write host:port`},
		{name: "primary gateway with port 0",
			args: []string{"--primary-datacenter", "dc9", "--primary-gateway", "gw:0"}, code: 2,
			want: `primary_gateways: address "gw:0": port "0" is not a number from 1 to 65535`},
		{name: "primary gateway of IPv6 without brackets",
			args: []string{"--primary-datacenter", "dc9", "--primary-gateway", "2001:db8::1:8443"}, code: 2,
			want: `primary_gateways: address "2001:db8::1:8443": write IPv6 as \[address\]:port, .*`},
		{name: "primary gateway is a URL",
			args: []string{"--primary-datacenter", "dc9", "--primary-gateway", "http://gw:8443"}, code: 2,
			want: `primary_gateways: address "http://gw:8443": .*`},
		{name: "unknown mode", args: []string{"--mesh-gateway-mode", "none"}, code: 2,
			want: `mesh_gateway_mode "none" is none of local, remote and auto`},
		{name: "bind is not an IP address", args: []string{"--bind", "eth0"}, code: 2,
			want: `bind "eth0" is not an IP address`},
		{name: "bind to another machine's address", args: []string{"--bind", "192.0.2.1"}, code: 1,
			want: `192\.0\.2\.1:0 is not an address of this machine: choose another address with --port or --bind`},
		{name: "advertise the unspecified address", args: []string{"--advertise", "0.0.0.0"}, code: 2,
			want: `advertise "0\.0\.0\.0" is unspecified: .*`},
		{name: "advertise a name", args: []string{"--advertise", "host"}, code: 2,
			want: `advertise "host" is not an IP address`},
		{name: "port above 65535", args: []string{"--port", "65536"}, code: 2,
			want: `port is 65536: must be 0 to 65535`},
		{name: "port below -1", args: []string{"--port", "-2"}, code: 2, want: `port is -2: must be -1 to 65535`},
		{name: "bootstrap of 2", args: []string{"--bootstrap-expect", "2"}, code: 2,
			want: `bootstrap_expect is 2: must be 1, 3 or 5`},
		{name: "bootstrap of 3 without others", args: []string{"--bootstrap-expect", "3"}, code: 2,
			want: `bootstrap_expect is 3 but retry_join is empty: .*`},
		{name: "retry-join without port", args: []string{"--retry-join", "host"}, code: 2,
			want: `retry_join: address "host" has no port: .*`},
		{name: "log level", args: []string{"--log-level", "loud"}, code: 2,
			want: `log_level "loud" is not one of debug, info, warn, error`},
		{name: "log format", args: []string{"--log-format", "xml"}, code: 2,
			want: `log_format "xml" is not one of text, json`},

		{name: "number in the environment", env: []string{"WANFED_BOOTSTRAP_EXPECT=three"}, code: 2,
			want: `environment variable WANFED_BOOTSTRAP_EXPECT: "three" is not a whole number`},
		{name: "bad value in the environment", env: []string{"WANFED_ADVERTISE=host"}, code: 2,
			want: `advertise "host" is not an IP address`},
		{name: "bad list in the environment", env: []string{"WANFED_RETRY_JOIN=127.0.0.1:1, host"}, code: 2,
			want: `retry_join: address "host" has no port: .*`},
		{name: "file in the environment", env: []string{"WANFED_CONFIG_FILE=" + c.path("absent.hcl")}, code: 2,
			want: `read settings: \S+/absent\.hcl does not exist; check the path`},
		{name: "unknown flag", args: []string{"--colour", "red"}, code: 2,
			want: `unknown flag: --colour; see: wanfed server --help`},
		{name: "word for a number", args: []string{"--port", "many"}, code: 2,
			want: `invalid argument "many" for "--port" flag: must be a whole number; see: wanfed server --help`},
		{name: "number too large", args: []string{"--port", "99999999999999999999"}, code: 2,
			want: `invalid argument .* flag: number too large; see: .*`},
		{name: "word for a boolean", args: []string{"--encrypt-verify-incoming=yep"}, code: 2,
			want: `invalid argument .* flag: must be true or false; see: .*`},
		{name: "directory for a file", args: []string{"--config-file", c.dir}, code: 2,
			want: `read settings: \S+ is a directory; name a file`},
		{name: "argument", args: []string{"srv1"}, code: 2,
			want: `unknown command "srv1"; see: wanfed server --help`},
	} {
		r.check(t, base...)
	}
}

// A gateway with an error in its settings or files fails at its start.
func TestGateway_StartErrors(t *testing.T) {
	c := newPEMFiles(t)
	addr, _ := usedAddress(t)
	base := append([]string{"gateway", "--dc", "dc1", "--node", "gw1", "--server", "127.0.0.1:1",
		"--lan", "127.0.0.1:0", "--wan", "127.0.0.1:0", "--ca-file", c.path("ca.pem")}, c.certFlags("gw1")...)
	remedy := `; make one with: wanfed tls cert create --gateway --datacenter dc1 --node gw1`
	for _, r := range []startError{
		{name: "certificate without the node's name", args: c.certFlags("no-node-gw1"), code: 1,
			want: `cert no-node-gw1\.pem: certificate has no SAN of the form .*; make one with: wanfed tls cert ` +
				`create --server \(or --gateway\) --datacenter DC --node NODE`},
		{name: "certificate without the datacenter's name", args: c.certFlags("no-group-gw1"), code: 1,
			want: `cert no-group-gw1\.pem has no SAN "gateway\.dc1\.wanfed"` + remedy},
		{name: "certificate of another datacenter", args: c.certFlags("dc2-gw1"), code: 1,
			want: `cert dc2-gw1\.pem has no SAN "gw1\.gateway\.dc1\.wanfed" \(it is for datacenter dc2: ` +
				`gateway/dc2/gw1\)` + remedy},
		{name: "certificate of another node", args: c.certFlags("gw2"), code: 1,
			want: `cert gw2\.pem has no SAN .* \(it is for node gw2: gateway/dc1/gw2\)` + remedy},
		{name: "certificate of a server", args: c.certFlags("srv-gw1"), code: 1,
			want: `cert srv-gw1\.pem has no SAN "gw1\.gateway\.dc1\.wanfed" \(its role is server: ` +
				`server/dc1/gw1\)` + remedy},
		{name: "certificate of another CA", args: c.certFlags("other-gw1"), code: 1,
			want: `cert other-gw1\.pem: certificate of gw1\.gateway\.dc1\.wanfed is signed by another CA .*`},
		{name: "expired", args: c.certFlags("expired-gw1"), code: 1,
			want: `cert expired-gw1\.pem: certificate of gw1\.gateway\.dc1\.wanfed expired at .*`},
		{name: "not yet valid", args: c.certFlags("early-gw1"), code: 1,
			want: `cert early-gw1\.pem: certificate of gw1\.gateway\.dc1\.wanfed is not valid before .*`},
		{name: "key of another certificate", args: []string{"--key-file", c.path("gw2-key.pem")}, code: 1,
			want: `key gw2-key\.pem does not belong to cert gw1\.pem; .*`},
		{name: "no key file", args: []string{"--key-file", c.path("absent.pem")}, code: 1,
			want: `key file \S+/absent\.pem does not exist; check the path`},

		{name: "node with a dot", args: []string{"--node", "gw.1"}, code: 2,
			want: `node: "gw\.1" is not a DNS label: .*`},
		{name: "node of 64 characters", args: []string{"--node", strings.Repeat("n", 64)}, code: 2,
			want: `node: "n{64}" is longer than 63 characters`},
		{name: "datacenter in upper case", args: []string{"--dc", "DC1"}, code: 2,
			want: `dc: "DC1" is not a DNS label: .*`},
		{name: "no datacenter", args: []string{"--dc", ""}, code: 2, want: `dc is required, for example --dc dc1`},
		{name: "domain is not a name", args: []string{"--domain", "a..b"}, code: 2,
			want: `domain: "a\.\.b" is not a DNS name: .*`},
		{name: "data dir is a file", args: []string{"--data-dir", c.path("text")}, code: 1,
			want: `data_dir \S+/text is a file, not a directory: .*`},
		{name: "LAN port taken", args: []string{"--lan", addr}, code: 1,
			want: `lan ` + addr + `: the port is in use by another process; stop it \(see: ss -ltnp\), or ` +
				`choose another port`},
		{name: "WAN port taken", args: []string{"--wan", addr}, code: 1,
			want: `wan ` + addr + `: the port is in use by another process; .*`},
		{name: "admin port taken", args: []string{"--admin-addr", addr}, code: 1,
			want: `admin_addr ` + addr + `: the port is in use by another process; .*`},
		{name: "admin port out of range", args: []string{"--admin-addr", "127.0.0.1:70000"}, code: 2,
			want: `admin_addr "127\.0\.0\.1:70000": port is not a number from 0 to 65535`},
		{name: "max conns out of range", args: []string{"--max-conns", "9223372036854775807"}, code: 2,
			want: `max_conns is 9223372036854775807: must be 0 to 1000000000; 0: as many as the limit of open ` +
				`files allows`},
		{name: "drain time out of range", args: []string{"--drain-time", "1000000h"}, code: 2,
			want: `drain_time is 1000000h: must be 720h0m0s or less; a stopping gateway keeps running for this time`},
		{name: "admin beyond loopback", args: []string{"--admin-addr", "0.0.0.0:0"}, code: 2,
			want: `admin_addr "0\.0\.0\.0:0" is not a loopback address; .*`},
		{name: "WAN at another machine", args: []string{"--wan", "192.0.2.1:8443"}, code: 1,
			want: `wan 192\.0\.2\.1:8443 is not an address of this machine; behind NAT, set wan_bind to the ` +
				`address to listen on`},
		{name: "LAN address of another machine", args: []string{"--lan", "192.0.2.1:8444"}, code: 1,
			want: `lan 192\.0\.2\.1:8444 is not an address of this machine; use one that is \(see: ip address\)`},
		{name: "WAN without port", args: []string{"--wan", "127.0.0.1"}, code: 2,
			want: `wan: address "127\.0\.0\.1" has no port: write host:port`},
		{name: "WAN is a name", args: []string{"--wan", "gw.example.com:8443"}, code: 2,
			want: `wan "gw\.example\.com:8443" is a host name; set wan_bind to the ip:port to listen on`},
		{name: "WAN is all addresses", args: []string{"--wan", "0.0.0.0:8443"}, code: 2,
			want: `wan .*0\.0\.0\.0:8443.*`},
		{name: "LAN is a name", args: []string{"--lan", "host:1"}, code: 2, want: `lan "host:1" is not ip:port`},
		{name: "LAN is all addresses", args: []string{"--lan", "[::]:1"}, code: 2,
			want: `lan "\[::\]:1" is unspecified and cannot be dialed; .*`},
		{name: "LAN equals WAN", args: []string{"--lan", "127.0.0.1:1", "--wan", "127.0.0.1:1"}, code: 2,
			want: `wan and lan are both 127\.0\.0\.1:1; .*`},
		{name: "WAN within LAN",
			args: []string{"--lan", "127.0.0.1:18444", "--wan", "gw:18444", "--wan-bind", "[::]:18444"}, code: 2,
			want: `wan \[::\]:18444 and lan 127\.0\.0\.1:18444 overlap; they have different routes, so each ` +
				`needs its own address`},
		{name: "admin on the LAN address",
			args: []string{"--lan", "127.0.0.1:18444", "--admin-addr", "localhost:18444"}, code: 2,
			want: `admin_addr localhost:18444 overlaps with lan 127\.0\.0\.1:18444; each needs its own address ` +
				`or port`},
		{name: "admin on the WAN address",
			args: []string{"--wan", "gw:18443", "--wan-bind", "0.0.0.0:18443", "--admin-addr", "127.0.0.1:18443"},
			code: 2,
			want: `admin_addr 127\.0\.0\.1:18443 overlaps with wan_bind 0\.0\.0\.0:18443; .*`},
		{name: "server without port", args: []string{"--server", "host"}, code: 2,
			want: `servers: address "host" has no port: write host:port`},
		{name: "route file with a datacenter", args: []string{"--listen", "127.0.0.1:0", "--routes", c.path("text")},
			code: 2,
			want: `a standalone gateway has no datacenter: remove .*, or remove listen and routes`},
		{name: "bad list in the environment", env: []string{"WANFED_WAN_BIND=host"}, code: 2,
			want: `wan_bind "host" is not ip:port`},
		{name: "unknown flag", args: []string{"--primary-gateway", "a:1"}, code: 2,
			want: `unknown flag: --primary-gateway; see: wanfed gateway --help`},
	} {
		r.check(t, base...)
	}
}

func TestStandaloneGateway_OverlappingAddresses(t *testing.T) {
	routes := filepath.Join(t.TempDir(), "routes.hcl")
	writeFile(t, routes, "route \"a\" { to = [\"127.0.0.1:1\"] }\n")
	checkError := func(want string, args ...string) {
		t.Helper()
		base := []string{"gateway", "--routes", routes, "--listen", "127.0.0.1:18443"}
		execute(t, nil, append(base, args...)...).checkError(t, 2, want)
	}
	checkError(`listen has 127\.0\.0\.1:18443 twice; remove one`, "--listen", "127.0.0.1:18443")
	checkError(`listen has 127\.0\.0\.1:18443 and 0\.0\.0\.0:18443, which overlap; remove one`,
		"--listen", "0.0.0.0:18443")
	checkError(`admin_addr 127\.0\.0\.1:18443 overlaps with listen 127\.0\.0\.1:18443; .*`,
		"--admin-addr", "127.0.0.1:18443")
}
