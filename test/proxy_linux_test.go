// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"crypto/tls"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/proxyproto"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestProxyProtocol_ShowsTheClient: gateways send PROXY headers to the servers
// of their datacenter without a setting. The servers see the address of the
// client. They refuse a header from any other address.
func TestProxyProtocol_ShowsTheClient(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	dc1, dc2 := l.Add(3, 1), l.Add(1, 1)
	gw1, gw2 := dc1.Gateways[0], dc2.Gateways[0]
	for _, s := range dc1.Servers {
		s.StartServer("--log-level", "debug")
	}
	gw1.StartGateway()
	dc2.Servers[0].StartServer("--log-level", "debug")
	gw2.StartGateway()
	awaitWhole(t, l, 2*promptly, "start")
	for _, s := range dc1.Servers {
		logOf(gw1.Process).await(t, `msg="server accepts PROXY headers".* addr=`+regexp.QuoteMeta(s.ServerAddr()))
	}

	// A refusal names the client behind the gateway.
	for _, s := range dc1.Servers {
		log := logOf(s.Process)
		connectWithoutCert(t, gw2, gw1.WANAddr(), s)
		if line := log.await(t, `reason=certificate_missing\b`)[0]; !strings.Contains(line, " remote="+gw2.WAN+":") {
			t.Errorf("log line = %s, want the address of dc2's gateway", line)
		}
	}
	// A connection of the gateway's machine without a header is served, and a
	// forged header of another machine is refused.
	srv1, srv2 := dc1.Servers[0], dc1.Servers[1]
	log := logOf(srv1.Process).mark(t)
	connectWithoutCert(t, gw1, srv1.ServerAddr(), srv1)
	log.await(t, `remote=`+regexp.QuoteMeta(gw1.LAN)+`:.*reason=certificate_missing\b`)
	forged := proxyproto.Append(nil, netip.MustParseAddrPort("192.0.2.1:7"), netip.MustParseAddrPort(srv1.ServerAddr()))
	connectWithoutCert(t, srv2, srv1.ServerAddr(), srv1, forged...)
	log.await(t, `msg="connection refused: PROXY header from an address that is not a registered gateway".* remote=`+
		regexp.QuoteMeta(srv2.LAN)+`:.*reason=proxy_header_not_taken\b`)
	if n := metricOf(t, srv1, `wanfed_port_refused_total{reason="proxy_header_not_taken"}`); n != 1 {
		t.Errorf("connections refused for a forged header = %v, want 1", n)
	}
}

// connectWithoutCert connects to the server to at addr, without a client
// certificate. It first sends the bytes first.
func connectWithoutCert(t *testing.T, from *lab.Node, addr string, to *lab.Node, first ...byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	c, err := lab.DialIn(from.NS)(ctx, "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(waitLimit))
	c.Write(first)
	tc := tls.Client(c, &tls.Config{ServerName: tlsutil.ServerName(to.Name, to.DC().Name, tlsutil.DefaultDomain), InsecureSkipVerify: true,
		NextProtos: []string{"h2"}})
	if tc.Handshake() == nil { // TLS 1.3: the server checks the client's certificate afterwards
		tc.Read(make([]byte, 1))
	}
}
