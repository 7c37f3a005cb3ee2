// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

// serverAlias is another address of the server, which only the gateway is
// configured with. Envoy uses it for xDS, and for nothing else.
const serverAlias = "10.10.0.250"

// TestEnvoy_ServersUnreachable cuts the Envoy of dc2 off from the xDS server for
// 30 s, restarts the server, and restores a snapshot. In each case another gateway
// of dc1 starts. Connections through the Envoy succeed all the time, the server
// shows for how long the Envoy is disconnected, and then sends only what has
// changed.
func TestEnvoy_ServersUnreachable(t *testing.T) {
	t.Parallel()
	onlyChaos(t)
	lab.NeedNFT(t)
	l := lab.New(t)
	l.Envoys = "dc2"
	dc1, dc2 := l.Add(1, 4), l.Add(1, 1)
	server, gw, added := dc2.Servers[0], dc2.Gateways[0], dc1.Gateways[1:]
	l.PrimaryGateways = []string{dc1.Gateways[0].WANAddr()} // a configured address is always routed
	dc1.Servers[0].StartServer()
	dc1.Gateways[0].StartGateway()
	server.StartServer()
	gw.NFT(fmt.Sprintf(`table ip alias {
		chain nat { type nat hook output priority -100; ip daddr %s dnat to %s; }
	}`, serverAlias, server.LAN))
	gw.ServerAddrs = []string{fmt.Sprintf("%s:%d", serverAlias, lab.ServerPort)}
	gw.StartGateway()
	awaitWhole(t, l, promptly, "start")
	backup := filepath.Join(t.TempDir(), "backup")
	mustOperate(t, l, server, "snapshot", "save", backup)
	stop := keepConnecting(t, l, server, gw)
	defer stop()

	gw.NFT(fmt.Sprintf(`table ip cut {
		chain in  { type filter hook input  priority 0; ct original ip daddr %[1]s drop; }
		chain out { type filter hook output priority 0; ct original ip daddr %[1]s drop; }
	}`, serverAlias))
	began := time.Now()
	added[0].StartGateway()
	testutil.Await(t, 2*comeback, "Envoy disconnected", func(ctx context.Context) error {
		s, err := snapshotOf(ctx, server, gw)
		if err == nil && (len(s.Envoys) > 0 || s.EnvoyDisconnected.IsZero()) {
			err = fmt.Errorf("snapshot = %+v", s)
		}
		return err
	})
	t.Logf("the server shows that the Envoy is disconnected %v after the cut", time.Since(began))
	outage(t, 30*time.Second-time.Since(began))
	out, err := server.CLI("gateway", "snapshot")
	if t.Logf("wanfed gateway snapshot:\n%s", out); err != nil || !strings.Contains(out, "disconnected for ") {
		t.Errorf("wanfed gateway snapshot = %v, want nil and a disconnected Envoy", err)
	}
	gw.NFT("delete table ip cut")
	awaitEndpoint(t, server, gw, added[0].WANAddr(), nil, "cut")

	server.Stop()
	added[1].StartGateway()
	server.StartServer()
	awaitEndpoint(t, server, gw, added[1].WANAddr(), nil, "restart")

	before, err := sentTo(t.Context(), server, gw)
	if err != nil {
		t.Fatal(err)
	}
	mustRestore(t, l, server, backup)
	added[2].StartGateway()
	awaitEndpoint(t, server, gw, added[2].WANAddr(), before, "restore")
	stop()
	awaitWhole(t, l, promptly, "end")
}

// snapshotOf returns what a server has for a gateway.
func snapshotOf(ctx context.Context, server, gw *lab.Node) (api.GatewaySnapshot, error) {
	var all []api.GatewaySnapshot
	if err := poll(ctx, server, api.GatewaySnapshotsPath, &all); err != nil {
		return api.GatewaySnapshot{}, err
	}
	i := slices.IndexFunc(all, func(s api.GatewaySnapshot) bool { return s.Gateway == gw.Name })
	if i < 0 {
		return api.GatewaySnapshot{}, fmt.Errorf("gateway snapshots = %+v, want one of %s", all, gw.Name)
	}
	return all[i], nil
}

// sentTo returns the numbers of resources that a server has sent to the only
// connection of an Envoy, by the last word of the type. It returns an error if
// the Envoy has not accepted them.
func sentTo(ctx context.Context, server, gw *lab.Node) (map[string]int, error) {
	s, err := snapshotOf(ctx, server, gw)
	if err != nil {
		return nil, err
	}
	if len(s.Envoys) != 1 || len(s.Envoys[0].Types) != 3 {
		return nil, fmt.Errorf("connections = %+v, want one with three types", s.Envoys)
	}
	sent := map[string]int{}
	for _, typ := range s.Envoys[0].Types {
		if typ.Accepted != typ.Sent {
			return nil, fmt.Errorf("type %+v, want all accepted", typ)
		}
		sent[typ.TypeURL[strings.LastIndexByte(typ.TypeURL, '.')+1:]] = typ.Resources
	}
	return sent, nil
}

// awaitEndpoint waits until an Envoy has an address of dc1. It checks that the
// server has since sent only endpoints of dc1: at most two versions, because a
// server that starts can learn of other changes later. before are the numbers of
// resources before, nil for a new connection.
func awaitEndpoint(t *testing.T, server, gw *lab.Node, addr string, before map[string]int, what string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: lab.DialIn(gw.NS), DisableKeepAlives: true}}
	var sent map[string]int
	took := testutil.Await(t, 4*promptly, "Envoy with the address "+addr, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9901/clusters", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		if !strings.Contains(string(b), "server.dc1.wanfed::"+addr+"::") {
			return fmt.Errorf("clusters of the Envoy do not have it:\n%s", b)
		}
		sent, err = sentTo(ctx, server, gw)
		return err
	})
	t.Logf("%s: the Envoy has the change after %v; %v resources sent, %v before", what, took, sent, before)
	for kind, n := range sent {
		limit := 0
		if kind == "ClusterLoadAssignment" {
			limit = 2
		}
		if n -= before[kind]; n > limit || kind == "ClusterLoadAssignment" && n == 0 {
			t.Errorf("%s: %d resources of type %s sent, want at most %d", what, n, kind, limit)
		}
	}
}

// keepConnecting makes a connection to a server of dc1 every 100 ms, through the
// Envoy, until stop is called. stop fails the test if a connection failed.
func keepConnecting(t *testing.T, l *lab.Lab, from, gw *lab.Node) (stop func()) {
	t.Helper()
	files, err := l.PKI.Issue(tlsutil.RoleOperator, "dc1", "operator")
	if err != nil {
		t.Fatal(err)
	}
	id, err := tlsutil.Load(files, "wanfed", quiet)
	if err != nil {
		t.Fatal(err)
	}
	connect := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*pollTimeout)
		defer cancel()
		raw, err := lab.DialIn(from.NS)(ctx, "tcp", gw.LANAddr())
		if err != nil {
			return err
		}
		c, err := handshake(ctx, raw, id.ClientConfig(tlsutil.ServerName("", "dc1", "wanfed"), "h2"))
		if err != nil {
			return err
		}
		return c.Close()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var errs []error
	count := 0
	running.Go(func() {
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := connect(); err != nil {
				errs = append(errs, err)
			}
			count++
		}
	})
	return sync.OnceFunc(func() {
		t.Helper()
		cancel()
		running.Wait()
		t.Logf("%d connections through the Envoy, %d failed", count, len(errs))
		if count == 0 || len(errs) > 0 {
			t.Errorf("%d of %d connections failed, want 0 of some: %v", len(errs), count, errors.Join(errs...))
		}
	})
}
