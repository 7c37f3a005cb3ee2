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

// TestServersSeeTheSource has dc1's gateway tell its servers whom it forwards,
// dc2's not. What comes from dc2 comes to dc1's servers from the address of
// dc2's gateway, who connected to dc1's; and dc2's servers, who are told
// nothing, see their own gateway alone.
func TestServersSeeTheSource(t *testing.T) {
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

	sources := func(s *lab.Node, peer string) map[string]bool {
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
	only := func(s *lab.Node, peer, want string, must bool) {
		t.Helper()
		got := sources(s, peer)
		if delete(got, want); len(got) > 0 || must && len(sources(s, peer)) == 0 {
			t.Errorf("%s sees %s come from %v, want %s", s.WANName(), peer, sources(s, peer), want)
		}
	}
	seen := 0
	for _, s := range dc1.Servers {
		only(s, "server/dc2/srv1", gw2.WAN, false)
		only(s, "gateway/dc1/gw1", gw1.LAN, false) // its own connections, by LOCAL
		seen += len(sources(s, "server/dc2/srv1"))
	}
	if seen == 0 {
		t.Error("no server of dc1 has a connection from dc2")
	}
	only(dc2.Servers[0], "server/dc1/srv1", gw2.LAN, true)

	// Who is refused through the gateway is named too, and who connects from
	// the gateway's machine without a header is told why.
	stranger := func(from *lab.Node, addr string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		defer cancel()
		c, err := lab.DialIn(from.NS)(ctx, "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(waitLimit))
		tc := tls.Client(c, &tls.Config{ServerName: "srv1.server.dc1.wanfed", InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		if tc.Handshake() == nil { // TLS 1.3: the server looks at the client's certificate afterwards
			tc.Read(make([]byte, 1))
		}
	}
	srv1, log := dc1.Servers[0], logOf(dc1.Servers[0].Process)
	stranger(gw2, gw1.WANAddr())
	if line := log.await(t, `reason=certificate_missing\b`)[0]; !strings.Contains(line, " remote="+gw2.WAN+":") {
		t.Errorf("refused: %s", line)
	}
	for _, s := range dc1.Servers {
		if lines, err := logOf(s.Process).lines(`reason=proxy_header`); err != nil || len(lines) > 0 {
			t.Errorf("%s refused for the header, before anybody left it out: %q, %v", s.Name, lines, err)
		}
	}
	stranger(gw1, srv1.ServerAddr())
	log.await(t, `from there a PROXY header is wanted.* remote=`+regexp.QuoteMeta(gw1.LAN)+`:.*reason=proxy_header\b`)
	if n := metricOf(t, srv1, `wanfed_port_refused_total{reason="proxy_header"}`); n != 1 {
		t.Errorf("%v connections were refused for the header", n)
	}
}
