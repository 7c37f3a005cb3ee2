// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"crypto/tls"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/test/lab"
)

// TestProxyProtocol_ShowsTheClient: dc1's gateway sends PROXY headers to its
// servers, dc2's does not. dc1's servers see the address of dc2's gateway as
// the client. dc2's servers see their own gateway only.
func TestProxyProtocol_ShowsTheClient(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	dc1, dc2 := l.Add(3, 1), l.Add(1, 1)
	gw1, gw2 := dc1.Gateways[0], dc2.Gateways[0]
	for _, s := range dc1.Servers {
		s.StartServer("--proxy-protocol", gw1.LAN, "--log-level", "debug")
	}
	gw1.StartGateway("--server-proxy-protocol")
	dc2.Servers[0].StartServer("--log-level", "debug")
	gw2.StartGateway()
	awaitWhole(t, l, 2*promptly, "start")

	seen := 0
	for _, s := range dc1.Servers {
		checkSource(t, s, "server/dc2/srv1", gw2.WAN, false)
		checkSource(t, s, "gateway/dc1/gw1", gw1.LAN, false) // the gateway's own connections, with a LOCAL header
		seen += len(clientAddrs(t, s, "server/dc2/srv1"))
	}
	if seen == 0 {
		t.Error("connections from dc2 = 0, want some")
	}
	checkSource(t, dc2.Servers[0], "server/dc1/srv1", gw2.LAN, true)

	// A refusal names the client behind the gateway. A connection from the
	// gateway's machine without a header is refused with the reason.
	srv1, log := dc1.Servers[0], logOf(dc1.Servers[0].Process)
	connectWithoutCert(t, gw2, gw1.WANAddr())
	if line := log.await(t, `reason=certificate_missing\b`)[0]; !strings.Contains(line, " remote="+gw2.WAN+":") {
		t.Errorf("log line = %s, want the address of dc2's gateway", line)
	}
	for _, s := range dc1.Servers {
		if lines, err := logOf(s.Process).lines(`reason=proxy_header`); err != nil || len(lines) > 0 {
			t.Errorf("%s: log lines = %q, %v, want none before a header is missing", s.Name, lines, err)
		}
	}
	connectWithoutCert(t, gw1, srv1.ServerAddr())
	log.await(t, `msg="connection refused: no PROXY header.* remote=`+regexp.QuoteMeta(gw1.LAN)+
		`:.*reason=proxy_header\b`)
	if n := metricOf(t, srv1, `wanfed_port_refused_total{reason="proxy_header"}`); n != 1 {
		t.Errorf("connections refused without a header = %v, want 1", n)
	}
}

// clientAddrs returns the remote addresses in the log lines of connections that
// s accepted from peer.
func clientAddrs(t *testing.T, s *lab.Node, peer string) map[string]bool {
	t.Helper()
	all, err := logOf(s.Process).lines(`msg="connection accepted".* peer=` + peer + ` `)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, line := range all {
		out[regexp.MustCompile(` remote=(\S+):\d+`).FindStringSubmatch(line[0])[1]] = true
	}
	return out
}

// checkSource fails the test if s logged a connection of peer from another
// address than want. If must is set, it also fails if there was none.
func checkSource(t *testing.T, s *lab.Node, peer, want string, must bool) {
	t.Helper()
	all := clientAddrs(t, s, peer)
	for addr := range all {
		if addr != want {
			t.Errorf("%s logs connections of %s from %v, want %s only", s.WANName(), peer, addr, want)
		}
	}
	if must && len(all) == 0 {
		t.Errorf("%s logs no connection of %s, want one from %s", s.WANName(), peer, want)
	}
}

// connectWithoutCert connects to a server without a client certificate.
func connectWithoutCert(t *testing.T, from *lab.Node, addr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	c, err := lab.DialIn(from.NS)(ctx, "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(waitLimit))
	tc := tls.Client(c, &tls.Config{ServerName: "srv1.server.dc1.wanfed", InsecureSkipVerify: true,
		NextProtos: []string{"h2"}})
	if tc.Handshake() == nil { // TLS 1.3: the server checks the client's certificate afterwards
		tc.Read(make([]byte, 1))
	}
}
