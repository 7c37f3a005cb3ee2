// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

var quiet = slog.New(slog.DiscardHandler)

// part is a server or a gateway that runs until it is stopped.
type part struct {
	stop context.CancelFunc
	done chan error
}

func start(run func(context.Context) error) *part {
	ctx, cancel := context.WithCancel(context.Background())
	p := &part{stop: cancel, done: make(chan error, 1)}
	go func() { p.done <- run(ctx) }()
	return p
}

// end stops the part and fails the test unless the part returns nil.
func (p *part) end(t testing.TB) {
	t.Helper()
	p.stop()
	select {
	case err := <-p.done:
		if err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	case <-time.After(startTimeout):
		t.Errorf("Run() has not returned %v after the end of its context", startTimeout)
	}
}

func startServer(t testing.TB, cfg Config) (*part, Addrs) {
	t.Helper()
	cfg.Bind, cfg.HTTPAddr, cfg.Port = "127.0.0.1", "127.0.0.1:0", -1
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	started := make(chan Addrs, 1)
	cfg.Started = func(a Addrs) { started <- a }
	p := start(func(ctx context.Context) error { return Run(ctx, cfg) })
	select {
	case a := <-started:
		return p, a
	case err := <-p.done:
		t.Fatalf("Run() of a server of %s = %v, want a started server", cfg.DC, err)
	case <-time.After(startTimeout):
		t.Fatalf("Run() of a server of %s has not called Started after %v", cfg.DC, startTimeout)
	}
	return nil, Addrs{}
}

// startGateway runs a gateway in this process, and returns its WAN address. The
// argument wanAddr selects the address. Without wanAddr, the system chooses.
func startGateway(t *testing.T, files tlsutil.Files, server, dir string, wanAddr ...string) (_ *part, wan string) {
	t.Helper()
	id, err := tlsutil.Load(files, "wanfed", quiet)
	if err != nil {
		t.Fatal(err)
	}
	var lns []net.Listener
	for _, addr := range append([]string{"127.0.0.1:0"}, append(wanAddr, "127.0.0.1:0")[0]) {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		lns = append(lns, ln)
	}
	lanListener, wanListener := gateway.NewListener("lan", lns[0]), gateway.NewListener("wan", lns[1])
	proxy, err := gateway.New(gateway.Config{Logger: quiet, Drain: -1})
	if err != nil {
		t.Fatal(err)
	}
	client, err := proxycfg.New(proxycfg.Config{
		Identity: id, Servers: []string{server}, LAN: lns[0].Addr().String(), WAN: lns[1].Addr().String(),
		DataDir: dir, LANListener: lanListener, WANListener: wanListener, Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	return start(func(ctx context.Context) error {
		base, stop := context.WithCancel(context.Background())
		defer stop()
		var wg sync.WaitGroup
		defer wg.Wait()
		served := make(chan error, 1)
		wg.Go(func() { served <- proxy.Run(base, lanListener, wanListener) })
		err := client.Run(ctx)
		stop()
		return errors.Join(err, <-served)
	}), lns[1].Addr().String()
}

// openFiles returns the targets of the open file descriptors of this process,
// without pipes. The runtime keeps the pipes of splice open for a while.
func openFiles() (out []string) {
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && !strings.HasPrefix(to, "pipe:") {
			out = append(out, to)
		}
	}
	slices.Sort(out)
	return out
}

// TestRun_Lifecycle starts and stops two federated datacenters three times,
// with the same data directories. It proves that the data survives, and that no
// goroutine, file descriptor or temporary file remains.
func TestRun_Lifecycle(t *testing.T) {
	testutil.Cluster(t)
	leaks := goleak.IgnoreCurrent()
	dir := t.TempDir()
	tmp := filepath.Join(dir, "tmp")
	t.Setenv("TMPDIR", tmp)
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	pki, err := subprocess.NewPKI(filepath.Join(dir, "pki"), "")
	if err != nil {
		t.Fatal(err)
	}
	issue := func(role tlsutil.Role, dc, node string) tlsutil.Files {
		f, err := pki.Issue(role, dc, node)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	config := func(dc string, gateways ...string) Config {
		f := issue(tlsutil.RoleServer, dc, "srv1")
		return Config{
			DC: dc, Node: "srv1", PrimaryDC: "dc1", PrimaryGateways: gateways, DataDir: filepath.Join(dir, dc),
			CAFile: f.CA, CertFile: f.Cert, KeyFile: f.Key,
		}
	}
	var before []string
	var lastIndex uint64
	for round := range 3 {
		s1, a1 := startServer(t, config("dc1"))
		g1, wan1 := startGateway(t, issue(tlsutil.RoleGateway, "dc1", "gw1"), a1.Server, filepath.Join(dir, "gw-dc1"))
		s2, a2 := startServer(t, config("dc2", wan1))
		g2, _ := startGateway(t, issue(tlsutil.RoleGateway, "dc2", "gw1"), a2.Server, filepath.Join(dir, "gw-dc2"))
		index := untilFederated(t, a1.HTTP, a2.HTTP)
		if index <= lastIndex {
			t.Errorf("index of dc1 in round %d = %d, want more than %d", round, index, lastIndex)
		}
		lastIndex = index
		for _, p := range []*part{g2, s2, g1, s1} {
			p.end(t)
		}
		if round == 0 { // the runtime now has all descriptors that it keeps open
			before = openFiles()
		}
	}
	http.DefaultClient.CloseIdleConnections()
	wantNoGoroutines(t, leaks)
	if after := openFiles(); len(after) > len(before) {
		t.Errorf("open files = %v, want at most %v", after, before)
	}
	for _, pattern := range []string{"tmp/*", "*/*.tmp", "*/*/*.tmp"} {
		if files, _ := filepath.Glob(filepath.Join(dir, pattern)); len(files) > 0 {
			t.Errorf("temporary files %s = %v, want none", pattern, files)
		}
	}
}

// startTimeout bounds the time for servers to start, elect a leader, federate
// or stop, in tests that do not measure this time.
const startTimeout = time.Minute

// untilFederated waits until checkFederated returns nil for all servers. It
// returns the index of the federation states at the first server.
func untilFederated(t *testing.T, urls ...string) (index uint64) {
	t.Helper()
	for i, url := range urls {
		c, err := api.NewClient(api.ClientConfig{Addr: url})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		testutil.Await(t, startTimeout, "a federation of dc1 and dc2 at "+url, func(ctx context.Context) error {
			states, meta, err := c.FederationStates(ctx, api.QueryOptions{})
			if err != nil {
				return err
			}
			if i == 0 {
				index = meta.Index
			}
			return checkFederated(ctx, c, states)
		})
	}
	return index
}

// checkFederated returns an error unless both datacenters have a state with a
// healthy gateway, an alive member of the WAN pool and a leader.
func checkFederated(ctx context.Context, c *api.Client, states []api.FederationState) error {
	for _, dc := range []string{"dc1", "dc2"} {
		if !slices.ContainsFunc(states, func(s api.FederationState) bool {
			return s.Datacenter == dc && slices.ContainsFunc(s.MeshGateways, api.MeshGateway.Healthy)
		}) {
			return fmt.Errorf("%s has no healthy gateway", dc)
		}
	}
	members, err := c.Members(ctx, true, api.QueryOptions{})
	if err != nil {
		return err
	}
	alive := slices.DeleteFunc(members, func(m api.Member) bool { return m.Status != api.MemberAlive })
	if len(alive) != 2 {
		return fmt.Errorf("%d members are alive", len(alive))
	}
	for _, dc := range []string{"dc1", "dc2"} {
		if _, err := c.Leader(ctx, api.QueryOptions{Datacenter: dc}); err != nil {
			return err
		}
	}
	return nil
}
