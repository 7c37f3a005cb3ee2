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

// part is a component that runs until it is stopped.
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

// end stops the part, which must return nil.
func (p *part) end(t testing.TB) {
	t.Helper()
	p.stop()
	select {
	case err := <-p.done:
		if err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	case <-time.After(starting):
		t.Error("Run() does not return after its context ended")
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
		t.Fatalf("server of %s does not start: %v", cfg.DC, err)
	case <-time.After(starting):
		t.Fatalf("server of %s does not start", cfg.DC)
	}
	return nil, Addrs{}
}

// startGateway runs a real gateway in this process. It returns its WAN address, which is wanAddr if that is given.
func startGateway(t *testing.T, files tlsutil.Files, server, dir string, wanAddr ...string) (*part, string) {
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
	lan, wan := gateway.NewListener("lan", lns[0]), gateway.NewListener("wan", lns[1])
	proxy, err := gateway.New(gateway.Config{Logger: quiet, Drain: -1})
	if err != nil {
		t.Fatal(err)
	}
	client, err := proxycfg.New(proxycfg.Config{
		Identity: id, Servers: []string{server}, LAN: lns[0].Addr().String(), WAN: lns[1].Addr().String(),
		DataDir: dir, LANListener: lan, WANListener: wan, Logger: quiet,
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
		wg.Go(func() {
			served <- proxy.Run(base, lan, wan)
		})
		err := client.Run(ctx)
		stop()
		return errors.Join(err, <-served)
	}), lns[1].Addr().String()
}

// open returns the files that this process has open. It leaves out pipes: the
// runtime keeps those of splice for a while.
func open() (out []string) {
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && !strings.HasPrefix(to, "pipe:") {
			out = append(out, to)
		}
	}
	slices.Sort(out)
	return out
}

// TestRun_Lifecycle federates two datacenters in this process, stops them, and
// starts them again on their data. No goroutine, descriptor or temporary file is
// left.
func TestRun_Lifecycle(t *testing.T) {
	testutil.Cluster(t)
	leaks := goleak.IgnoreCurrent()
	dir := t.TempDir()
	t.Setenv("TMPDIR", filepath.Join(dir, "tmp"))
	if err := os.Mkdir(filepath.Join(dir, "tmp"), 0o700); err != nil {
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
			t.Errorf("round %d: index %d is not above %d of the round before: the store lost data", round, index, lastIndex)
		}
		lastIndex = index
		for _, p := range []*part{g2, s2, g1, s1} {
			p.end(t)
		}
		if round == 0 { // the runtime has opened the descriptors that it keeps
			before = open()
		}
	}
	http.DefaultClient.CloseIdleConnections()
	noneLeft(t, leaks)
	if after := open(); len(after) > len(before) {
		t.Errorf("open descriptors = %v, want at most %v", after, before)
	}
	for _, pattern := range []string{"tmp/*", "*/*.tmp", "*/*/*.tmp"} {
		if left, _ := filepath.Glob(filepath.Join(dir, pattern)); len(left) > 0 {
			t.Errorf("files left: %v, want none", left)
		}
	}
}

// starting bounds how long a test waits until servers run, have a leader, know each
// other or have stopped, when it does not test how long that takes. 20 s were too
// short at load 14 on two cores.
const starting = time.Minute

// untilFederated waits until both servers see two members and two states with a
// healthy gateway. It returns the index of dc1.
func untilFederated(t *testing.T, urls ...string) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), starting)
	defer cancel()
	var index uint64
	for _, url := range urls {
		c, err := api.NewClient(api.ClientConfig{Addr: url})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var q api.QueryOptions
		for {
			states, meta, err := c.FederationStates(ctx, q)
			if err != nil {
				t.Fatal(err)
			}
			if url == urls[0] {
				index = meta.Index
			}
			problem := unfederated(ctx, c, states)
			if problem == nil {
				break
			}
			if ctx.Err() != nil {
				t.Fatalf("%s: %v", url, problem)
			}
			q = api.QueryOptions{Index: meta.Index, Wait: 50 * time.Millisecond} // members have no index of their own
		}
	}
	return index
}

func unfederated(ctx context.Context, c *api.Client, states []api.FederationState) error {
	for _, dc := range []string{"dc1", "dc2"} {
		if !slices.ContainsFunc(states, func(s api.FederationState) bool {
			return s.Datacenter == dc && slices.ContainsFunc(s.MeshGateways, api.MeshGateway.Healthy)
		}) {
			return fmt.Errorf("no healthy gateway of %s", dc)
		}
	}
	members, err := c.Members(ctx, true, api.QueryOptions{})
	if err != nil {
		return err
	}
	alive := 0
	for _, m := range members {
		if m.Status == api.MemberAlive {
			alive++
		}
	}
	if alive != 2 {
		return fmt.Errorf("%d members alive", alive)
	}
	for _, dc := range []string{"dc1", "dc2"} {
		if _, err := c.Leader(ctx, api.QueryOptions{Datacenter: dc}); err != nil {
			return err
		}
	}
	return nil
}
