// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// loopTime is the time for which the gateways receive connections that could
// circle. Without protection they reach their limit of 7,000 in three seconds.
const loopTime = 10 * time.Second

// addGateway starts a further gateway of s. args may set other addresses.
func (l *loopback) addGateway(s *site, node, wan string, args ...string) (g *subprocess.Gateway, admin string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	g, err := subprocess.StartGateway(ctx, subprocess.GatewayConfig{
		Program: []string{l.bin}, Dir: filepath.Join(l.dir, s.dc+"-"+node), DC: s.dc, Node: node,
		TLS: l.ca.Files(l.t, tlsutil.RoleGateway, node, s.dc), WAN: wan,
		Servers: []string{s.server.Addr}, LogLevel: l.log, Args: append([]string{"--admin-addr", "127.0.0.1:0"}, args...),
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.keep(g.Process)
	return g, logOf(g.Process).await(l.t, `msg="admin address".* addr=(\S+)`)[1]
}

// TestGatewayLoop starts a gateway of dc2 whose WAN address is the LAN address
// of a gateway of dc1, and then the LAN address of the other gateway of dc1. The
// gateways of dc1 must not forward connections for dc2 to each other in turns.
func TestGatewayLoop(t *testing.T) {
	t.Parallel()
	testutil.Cluster(t)
	l := newLoopback(t)
	dc1 := l.start("dc1", "dc1")
	first := dc1.gateway
	second, admin2 := l.addGateway(dc1, "gw2", "")
	dc2 := l.start("dc2", "dc1", first.WAN)
	l.federated(dc2)

	const refused = `addresses of a datacenter are not used.*state_dc=dc2`
	log := logOf(dc1.server.Process)
	view := func(dc string, state api.Health, cause, advice string) {
		t.Helper()
		testutil.Await(t, faultVisible, "status of dc1", func(ctx context.Context) error {
			st, err := dc1.status(ctx)
			if err != nil {
				return err
			}
			return checkView(st, dc, state, cause, advice)
		})
	}
	unused := func(state api.Health, addr, gateway string) {
		t.Helper()
		view("dc2", state, "the address "+addr+" of a gateway of dc2 is also the address of the gateway "+gateway+
			" of dc1, and is not used", "set wan of that gateway of dc2")
	}
	refusedGateway, _ := l.addGateway(dc1, "gw3", first.LAN, "--wan-bind", "127.0.0.1:0")
	view("dc1", api.HealthDegraded, "the gateway gw3 cannot register: WAN address "+first.LAN+
		" is the LAN address of gateway gw1", "set the address at which other datacenters reach this gateway")
	refusedGateway.Kill()
	wrong, _ := l.addGateway(dc2, "gw2", first.LAN, "--wan-bind", "127.0.0.1:0")
	log.await(t, refused)
	unused(api.HealthDegraded, first.LAN, "gw1")
	wrong.Kill()
	log.mark(t)
	l.addGateway(dc2, "gw3", second.LAN, "--wan-bind", "127.0.0.1:0")
	log.await(t, refused)
	dc2.gateway.Kill() // only the wrong addresses are left
	unused(api.HealthUnreachable, first.LAN, "gw1")

	for began := time.Now(); time.Since(began) < loopTime; {
		get(dc1.server.HTTP + "/v1/kv/name?raw&dc=dc2") // fails, and dials all paths to dc2
		for name, admin := range map[string]string{"gw1": dc1.admin, "gw2": admin2} {
			if n := metric(t, admin, `wanfed_gateway_active{listener="lan"}`); n >= 100 {
				t.Fatalf("%s of dc1 has %v connections after %v, want fewer than 100", name, n, time.Since(began))
			}
		}
		time.Sleep(100 * time.Millisecond) // the interval of the measurements
	}
}
