// SPDX-License-Identifier: MPL-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/tlsutil"
)

// federation has all processes of the demo.
type federation struct {
	cfg  Config
	dir  string
	pki  *subprocess.PKI
	dcs  []*datacenter // the primary first; fixed
	prog progress
	sync *subprocess.Process // nil: the demo has no sync daemon

	mu      sync.Mutex
	missing map[string]string // unmet conditions of the current step, by server
}

// datacenter has the started processes of one datacenter.
type datacenter struct {
	name     string
	nodes    []string      // of servers, fixed
	operator tlsutil.Files // fixed

	mu      sync.Mutex
	servers []*subprocess.Server // ordered by node name
	gateway *subprocess.Gateway  // nil before its start
}

// Names of the gateway and of the operator's certificate in each datacenter.
const (
	gatewayNode  = "gw1"
	operatorNode = "operator"
)

func newFederation(cfg Config, dir string) (*federation, error) {
	f := &federation{cfg: cfg, dir: dir, missing: make(map[string]string)}
	if !cfg.JSON {
		f.prog.w = cfg.Out
	}
	var err error
	if f.pki, err = subprocess.NewPKI(filepath.Join(dir, "tls"), ""); err != nil {
		return nil, err
	}
	for i := range cfg.Datacenters {
		dc := &datacenter{name: fmt.Sprintf("dc%d", i+1)}
		for j := range cfg.Servers {
			dc.nodes = append(dc.nodes, fmt.Sprintf("srv%d", j+1))
		}
		if dc.operator, err = f.pki.Issue(tlsutil.RoleOperator, dc.name, operatorNode); err != nil {
			return nil, err
		}
		f.dcs = append(f.dcs, dc)
	}
	return f, nil
}

// start starts all processes, which continue to run after start returns. It
// returns when each server has completed all steps, or when a process or a step
// has failed.
func (f *federation) start(ctx context.Context) error {
	f.prog.plain("wanfed demo: %d datacenters with %d server(s) and 1 gateway each, on this machine only",
		f.cfg.Datacenters, f.cfg.Servers)
	ctx, cancel := context.WithTimeoutCause(ctx, f.cfg.Timeout, fmt.Errorf("not federated within %v", f.cfg.Timeout))
	defer cancel()
	f.prog.begin()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		primary, err := f.startDatacenter(ctx, g, f.dcs[0], nil)
		if err != nil {
			return err
		}
		for _, dc := range f.dcs[1:] {
			g.Go(func() error { _, err := f.startDatacenter(ctx, g, dc, []string{primary.WAN}); return err })
		}
		return nil
	})
	return g.Wait()
}

// startDatacenter starts the servers and then the gateway, which it returns. A
// goroutine of g polls each server as soon as the server listens.
func (f *federation) startDatacenter(
	ctx context.Context, g *errgroup.Group, dc *datacenter, primaryGateways []string,
) (*subprocess.Gateway, error) {
	ports := make([]int, len(dc.nodes)) // 0: the system chooses
	if len(dc.nodes) > 1 {              // servers need each other's addresses before they start
		var err error
		if ports, err = freePorts(len(dc.nodes)); err != nil {
			return nil, err
		}
	}
	servers, startCtx := errgroup.WithContext(ctx)
	for i, node := range dc.nodes {
		servers.Go(func() error {
			s, err := f.startServer(startCtx, dc, node, subprocess.ServerConfig{
				Port: ports[i], RetryJoin: others(ports, i), BootstrapExpect: len(dc.nodes),
				PrimaryDC: f.dcs[0].name, PrimaryGateways: primaryGateways,
			})
			if err == nil {
				g.Go(func() error { return f.watch(ctx, dc, s) })
			}
			return err
		})
	}
	if err := servers.Wait(); err != nil {
		return nil, err
	}
	return f.startGateway(ctx, dc)
}

// others returns the addresses of all ports but ports[own].
func others(ports []int, own int) (addrs []string) {
	for i, port := range ports {
		if i != own {
			addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", port))
		}
	}
	return addrs
}

func (f *federation) startServer(
	ctx context.Context, dc *datacenter, node string, cfg subprocess.ServerConfig,
) (*subprocess.Server, error) {
	cert, err := f.pki.Issue(tlsutil.RoleServer, dc.name, node)
	if err != nil {
		return nil, err
	}
	cfg.Program, cfg.Dir, cfg.DC, cfg.Node, cfg.TLS = []string{f.cfg.Program}, f.dirOf(dc, node), dc.name, node, cert
	cfg.Args = []string{"--allow-remote-writes-from", "*"} // each operator may write in every datacenter
	s, err := subprocess.StartServer(ctx, cfg)
	if err != nil {
		return nil, err
	}
	dc.mu.Lock()
	dc.servers = append(dc.servers, s)
	slices.SortFunc(dc.servers, func(a, b *subprocess.Server) int { return strings.Compare(a.Node, b.Node) })
	dc.mu.Unlock()
	f.prog.printf("%s listens: servers %s, %s (pid %d)", s.Name(), s.Addr, s.HTTP, s.Pid())
	f.prog.reach(stepServers, f.serverCount())
	return s, nil
}

func (f *federation) startGateway(ctx context.Context, dc *datacenter) (*subprocess.Gateway, error) {
	cert, err := f.pki.Issue(tlsutil.RoleGateway, dc.name, gatewayNode)
	if err != nil {
		return nil, err
	}
	cfg := subprocess.GatewayConfig{
		Program: []string{f.cfg.Program}, Dir: f.dirOf(dc, gatewayNode), DC: dc.name, Node: gatewayNode, TLS: cert,
	}
	servers, _ := dc.running()
	for _, s := range servers {
		cfg.Servers = append(cfg.Servers, s.Addr)
	}
	gw, err := subprocess.StartGateway(ctx, cfg)
	if err != nil {
		return nil, err
	}
	dc.mu.Lock()
	dc.gateway = gw
	dc.mu.Unlock()
	f.prog.printf("%s listens: LAN %s, WAN %s (pid %d)", gw.Name(), gw.LAN, gw.WAN, gw.Pid())
	f.prog.reach(stepGateways, len(f.dcs))
	return gw, nil
}

func (f *federation) dirOf(dc *datacenter, node string) string {
	return filepath.Join(f.dir, dc.name, node)
}

func (f *federation) serverCount() int { return len(f.dcs) * f.cfg.Servers }

// running returns the started servers, and the started gateway or nil.
func (d *datacenter) running() ([]*subprocess.Server, *subprocess.Gateway) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.servers), d.gateway
}

// processes returns all started processes.
func (f *federation) processes() []*subprocess.Process {
	var all []*subprocess.Process
	for _, dc := range f.dcs {
		servers, gateway := dc.running()
		for _, s := range servers {
			all = append(all, s.Process)
		}
		if gateway != nil {
			all = append(all, gateway.Process)
		}
	}
	if f.sync != nil {
		all = append(all, f.sync)
	}
	return all
}

// ended returns an error if a process has ended.
func (f *federation) ended() error {
	for _, p := range f.processes() {
		if hasEnded(p) {
			return fmt.Errorf("%s has ended: %s", p.Name(), exitStatus(p))
		}
	}
	return nil
}

func hasEnded(p *subprocess.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// exitStatus describes the end of a process.
func exitStatus(p *subprocess.Process) string {
	if err := p.Err(); err != nil {
		return err.Error()
	}
	return "exit status 0"
}

// stop stops all running processes in parallel and waits for them. Its error
// names the processes that did not stop cleanly.
func (f *federation) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	all := f.processes()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	began := time.Now()
	for i, p := range all {
		if hasEnded(p) {
			continue
		}
		wg.Go(func() {
			if err := p.Stop(ctx); err != nil {
				errs[i] = fmt.Errorf("stop %s: %w", p.Name(), err)
			}
		})
	}
	wg.Wait()
	if len(all) > 0 {
		f.prog.plain("stopped %d processes in %.2f s", len(all), time.Since(began).Seconds())
	}
	return errors.Join(errs...)
}

// client returns a client of s, which the caller closes.
func client(s *subprocess.Server) (*api.Client, error) {
	return api.NewClient(api.ClientConfig{Addr: s.HTTP, Timeout: requestTimeout})
}

// The ports of freePorts are below the range of outgoing connections. A free
// port therefore stays free until its server binds it, unless another program
// binds the same port.
const (
	firstPort = 10000
	lastPort  = 29999
)

// freePorts returns n different ports on which nothing listens.
func freePorts(n int) ([]int, error) {
	var ports []int
	var failed error
	for range 100 * n {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			failed = err
			continue
		}
		defer ln.Close() // an open port is not chosen twice
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("find %d free ports: %w", n, failed)
}
