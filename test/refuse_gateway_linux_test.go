// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/tlsutil"
)

// refuseAtGateway makes connections to both listeners of the gateway of dc1
// that the gateway must not forward.
func refuseAtGateway(t *testing.T, l *loopback, dc1, dc2 *site) {
	lan, wan := dc1.gateway.LAN, dc1.gateway.WAN
	for _, test := range []struct {
		name, listener, addr string
		sni                  string // "": plain text
		reason               string
		want                 string
		alert                string // TLS alert that the client receives
	}{
		{"plain text from the WAN", "wan", wan, "", "not_tls", `level=INFO msg="connection refused"… listener=wan ` +
			`remote=127.0.0.1:… err="not a TLS ClientHello but a plain HTTP request"`, ""},
		{"plain text from the LAN", "lan", lan, "", "not_tls", `listener=lan`, ""},
		{"unknown datacenter", "lan", lan, "server.dc9.wanfed", "unknown_sni",
			`listener=lan … sni=server.dc9.wanfed … hint="check the datacenter and the domain in the name`,
			"unrecognized name"},
		{"unknown server", "wan", wan, "srv9.server.dc1.wanfed", "unknown_sni",
			`listener=wan … sni=srv9.server.dc1.wanfed`, "unrecognized name"},
		{"another datacenter from the WAN", "wan", wan, "server.dc2.wanfed", "unknown_sni",
			`listener=wan … sni=server.dc2.wanfed`, "unrecognized name"},
		{"a server of another datacenter from the WAN", "wan", wan, "srv1.server.dc2.wanfed", "unknown_sni",
			`sni=srv1.server.dc2.wanfed`, "unrecognized name"},
		{"the gateway itself", "wan", wan, "gw1.gateway.dc1.wanfed", "unknown_sni", `sni=gw1.gateway.dc1.wanfed`,
			"unrecognized name"},
		{"another domain", "lan", lan, "server.dc2.consul", "unknown_sni", `sni=server.dc2.consul`,
			"unrecognized name"},
		{"no name", "wan", wan, "127.0.0.1", "no_sni", `err="the ClientHello has no server_name"`, "missing extension"},
	} {
		t.Run(test.name, func(t *testing.T) {
			series := fmt.Sprintf(`wanfed_gateway_refused_total{listener=%q,reason=%q}`, test.listener, test.reason)
			counted(t, logOf(dc1.gateway.Process), dc1.admin, series, test.reason, test.want, func() {
				if test.sni == "" {
					plainHTTP(t, test.addr)
					return
				}
				got, err := closedBy(t, test.addr, l.client(t, tlsutil.RoleServer, "srv1", "dc2", test.sni, "h2"), nil)
				if err == nil || !strings.Contains(err.Error(), test.alert) {
					t.Errorf("connection ended with %q, %v, want the alert %q", got, err, test.alert)
				}
			})
		})
	}
	t.Run("truncated ClientHello", func(t *testing.T) {
		series := `wanfed_gateway_refused_total{listener="wan",reason="hello_cut"}`
		counted(t, logOf(dc1.gateway.Process), dc1.admin, series, "hello_cut",
			`level=DEBUG msg="connection refused"`, func() {
				c, err := net.Dial("tcp", wan)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if _, err := c.Write([]byte{22, 3, 1, 0x02, 0, 1}); err != nil {
					t.Fatal(err)
				}
				if err := c.(*net.TCPConn).CloseWrite(); err != nil {
					t.Fatal(err)
				}
				drained(t, c, nil)
			})
	})
	t.Run("refused by a server behind two gateways", func(t *testing.T) {
		cfg := l.client(t, tlsutil.RoleGateway, "gw1", "dc2", "server.dc2.wanfed", "wanfed/gossip/1")
		counted(t, logOf(dc2.server.Process), dc2.server.HTTP, `wanfed_port_refused_total{reason="role"}`, "role",
			`peer=gateway/dc2/gw1`, func() {
				if got, _ := closedBy(t, lan, cfg, nil); len(got) > 0 {
					t.Errorf("read %q, want nothing", got)
				}
			})
	})
	t.Run("known name", func(t *testing.T) { // the refusals above have no other cause than their names
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		defer cancel()
		for _, sni := range []string{"server.dc2.wanfed", "srv1.server.dc2.wanfed", "SRV1.Server.DC2.wanfed",
			"server.dc1.wanfed", "srv1.server.dc1.wanfed"} {
			c, err := dial(ctx, lan, l.client(t, tlsutil.RoleServer, "srv1", "dc2", sni, "h2"))
			if err != nil {
				t.Errorf("dial(%s) = %v, want nil", sni, err)
				continue
			}
			checkLeaf(t, c, sni)
		}
	})
}

// checkLeaf closes c. It fails the test unless the certificate of the peer is
// valid for the name sni.
func checkLeaf(t *testing.T, c *tls.Conn, sni string) {
	t.Helper()
	defer c.Close()
	if err := c.ConnectionState().PeerCertificates[0].VerifyHostname(sni); err != nil {
		t.Errorf("certificate of the peer for SNI %s: %v", sni, err)
	}
}
