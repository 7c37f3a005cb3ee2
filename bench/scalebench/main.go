// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/tlsutil"
)

// settings are the values of the flags.
type settings struct {
	wanfed                string
	n, port               int
	limit, settle, sample time.Duration
	restart, up           bool
}

func main() {
	var s settings
	flag.StringVar(&s.wanfed, "wanfed", "../bin/wanfed", "`path` of the wanfed program")
	flag.IntVar(&s.n, "n", 25, "number of datacenters")
	flag.IntVar(&s.port, "port", 20000, "first `port`; each datacenter uses up to ten")
	flag.DurationVar(&s.limit, "limit", 5*time.Minute, "longest wait for a whole federation")
	flag.DurationVar(&s.settle, "settle", 4*time.Minute, "time before the cost at rest is measured; 0: it is not measured")
	flag.DurationVar(&s.sample, "for", time.Minute, "time for which the cost at rest is measured")
	flag.BoolVar(&s.restart, "restart", true, "kill and start all processes again")
	flag.BoolVar(&s.up, "up", false, `run the server and the gateway of a datacenter in one process: "wanfed up"`)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := s.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "scalebench:", err)
		os.Exit(1)
	}
}

func (s settings) run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "scalebench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	pki, err := subprocess.NewPKI(filepath.Join(dir, "pki"), tlsutil.DefaultDomain)
	if err != nil {
		return err
	}
	f := &federation{settings: s}
	for i := range s.n {
		d := &datacenter{name: fmt.Sprintf("dc%d", i+1), port: s.port + 10*i, dir: filepath.Join(dir, strconv.Itoa(i+1))}
		if d.server, err = pki.Issue(tlsutil.RoleServer, d.name, "srv1"); err != nil {
			return err
		}
		if d.gateway, err = pki.Issue(tlsutil.RoleGateway, d.name, "gw1"); err != nil {
			return err
		}
		f.dcs = append(f.dcs, d)
	}
	defer f.kill()
	fmt.Printf("| %d datacenters | | rule |\n| --- | --- | --- |\n", s.n)
	if err := f.measureStart(ctx, "started at once"); err != nil {
		return err
	}
	if s.settle > 0 {
		if err := f.measureRest(ctx); err != nil {
			return err
		}
	}
	if !s.restart {
		return nil
	}
	f.kill()
	return f.measureStart(ctx, "all killed and started at once")
}

// startRule returns the longest time in which n datacenters that start at once
// on two cores become whole.
func startRule(n int) string {
	for _, rule := range []struct {
		n     int
		limit time.Duration
	}{{40, 20 * time.Second}, {60, time.Minute}, {100, 150 * time.Second}} {
		if n <= rule.n {
			return fmt.Sprintf("< %.0f s", rule.limit.Seconds())
		}
	}
	return ""
}

// Rules of the cost per datacenter at rest, for maxRestRule datacenters.
const (
	maxRestRule = 25
	restCPU     = "< 0.8 %"
	restMemory  = "< 70 MB"
)

func (f *federation) restRule(rule string) string {
	if f.n > maxRestRule {
		return ""
	}
	return rule
}

// datacenter is one server and one gateway.
type datacenter struct {
	name, dir       string
	port            int // of the server; HTTP, LAN and WAN have the next ones
	server, gateway tlsutil.Files
	processes       [2]*subprocess.Process // nil: not started, or there is only one
}

func (d *datacenter) addr(offset int) string { return fmt.Sprintf("127.0.0.1:%d", d.port+offset) }

func (d *datacenter) startServer(ctx context.Context, program string, primary *datacenter) error {
	cfg := subprocess.ServerConfig{
		Program: []string{program}, Dir: filepath.Join(d.dir, "srv1"), DC: d.name, Node: "srv1", TLS: d.server,
		PrimaryDC: primary.name, Port: d.port, HTTPAddr: d.addr(1),
	}
	if d != primary {
		cfg.PrimaryGateways = []string{primary.addr(3)}
	}
	srv, err := subprocess.StartServer(ctx, cfg)
	if err == nil {
		d.processes[0] = srv.Process
	}
	return err
}

func (d *datacenter) startGateway(ctx context.Context, program string) error {
	gw, err := subprocess.StartGateway(ctx, subprocess.GatewayConfig{
		Program: []string{program}, Dir: filepath.Join(d.dir, "gw1"), DC: d.name, Node: "gw1", TLS: d.gateway,
		Servers: []string{d.addr(0)}, LAN: d.addr(2), WAN: d.addr(3),
	})
	if err == nil {
		d.processes[1] = gw.Process
	}
	return err
}

// startBoth starts the server and the gateway in one process.
func (d *datacenter) startBoth(ctx context.Context, program string, primary *datacenter) error {
	common := func(node string, files tlsutil.Files) string {
		return fmt.Sprintf("dc = %q\nnode = %q\ndata_dir = %q\nca_file = %q\ncert_file = %q\nkey_file = %q\n",
			d.name, node, filepath.Join(d.dir, node), files.CA, files.Cert, files.Key)
	}
	server := common("srv1", d.server) + fmt.Sprintf("bind = %q\nport = %d\nhttp_addr = %q\nprimary_datacenter = %q\n",
		"127.0.0.1", d.port, d.addr(1), primary.name)
	if d != primary {
		server += fmt.Sprintf("primary_gateways = [%q]\n", primary.addr(3))
	}
	gateway := common("gw1", d.gateway) + fmt.Sprintf("servers = [%q]\nlan = %q\nwan = %q\n",
		d.addr(0), d.addr(2), d.addr(3))
	err := os.MkdirAll(d.dir, 0o700)
	for file, text := range map[string]string{"server.hcl": server, "gateway.hcl": gateway} {
		if err == nil {
			err = os.WriteFile(filepath.Join(d.dir, file), []byte(text), 0o600)
		}
	}
	if err != nil {
		return err
	}
	d.processes[0], err = subprocess.Start(ctx, subprocess.Config{
		Name: d.name, Command: []string{program, "up", "--dir", d.dir, "--" + subprocess.StopOnEOF},
		LogPath: filepath.Join(d.dir, "log"),
		Ready:   func(line string) bool { _, ok := subprocess.ParseServerReady(line); return ok },
	})
	return err
}

// get decodes the response of the server to path.
func (d *datacenter) get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.addr(1)+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// federation is all datacenters. The first one is the primary.
type federation struct {
	settings
	dcs []*datacenter
}

// kill kills all processes at once.
func (f *federation) kill() {
	var g errgroup.Group
	for _, d := range f.dcs {
		for i, p := range d.processes {
			if p != nil {
				g.Go(func() error { p.Kill(); return nil })
				d.processes[i] = nil
			}
		}
	}
	_ = g.Wait() // no function returns an error
}

// measureStart starts all processes at once, and prints the time until the
// federation is whole.
func (f *federation) measureStart(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, f.limit)
	defer cancel()
	start := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	for _, d := range f.dcs {
		if f.up {
			g.Go(func() error { return d.startBoth(gctx, f.wanfed, f.dcs[0]) })
			continue
		}
		g.Go(func() error { return d.startServer(gctx, f.wanfed, f.dcs[0]) })
		g.Go(func() error { return d.startGateway(gctx, f.wanfed) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, c := range []struct {
		name string
		has  func(ctx context.Context, i int) bool
	}{{"members", f.hasMembers}, {"states", f.hasStates}, {"responses", f.hasResponses}} {
		missing := f.await(ctx, c.has)
		fmt.Printf("| %s: %s | %.1f s | %s |\n", name, c.name, time.Since(start).Seconds(), startRule(f.n))
		if missing > 0 {
			return fmt.Errorf("%d of %d datacenters do not have all %s after %v", missing, f.n, c.name, f.limit)
		}
	}
	used, err := f.usage()
	fmt.Printf("| %s: processor time | %.1f s | |\n", name, used.cpu.Seconds())
	return err
}

// await waits until has is true for every datacenter, or ctx ends. It returns
// the number of datacenters for which has is false.
func (f *federation) await(ctx context.Context, has func(context.Context, int) bool) (missing int) {
	for i := range f.dcs {
		for !has(ctx, i) {
			select {
			case <-time.After(300 * time.Millisecond):
			case <-ctx.Done():
				return f.count(has)
			}
		}
	}
	return 0
}

// count returns the number of datacenters for which has is false.
func (f *federation) count(has func(context.Context, int) bool) (missing int) {
	var g errgroup.Group
	var n atomic.Int64
	for i := range f.dcs {
		g.Go(func() error {
			if !has(context.Background(), i) {
				n.Add(1)
			}
			return nil
		})
	}
	_ = g.Wait() // no function returns an error
	return int(n.Load())
}

func (f *federation) hasMembers(ctx context.Context, i int) bool {
	var members []struct{ Status int }
	alive := 0
	if err := f.dcs[i].get(ctx, "/v1/agent/members?wan=1", &members); err != nil {
		return false
	}
	for _, m := range members {
		if m.Status == 1 {
			alive++
		}
	}
	return alive == f.n
}

func (f *federation) hasStates(ctx context.Context, i int) bool {
	var states []struct{ MeshGateways []json.RawMessage }
	with := 0
	if err := f.dcs[i].get(ctx, "/v1/internal/federation-states", &states); err != nil {
		return false
	}
	for _, s := range states {
		if len(s.MeshGateways) > 0 {
			with++
		}
	}
	return with == f.n
}

// hasResponses reports whether datacenter i receives responses from four others:
// the primary, the last one, the next one, and the one half way round the list.
func (f *federation) hasResponses(ctx context.Context, i int) bool {
	for _, other := range []int{0, f.n - 1, (i + 1) % f.n, (i + f.n/2) % f.n} {
		var leader string
		err := f.dcs[i].get(ctx, "/v1/status/leader?dc="+f.dcs[other].name, &leader)
		if err != nil || leader == "" {
			return false
		}
	}
	return true
}

// usage is the cost of processes.
type usage struct {
	cpu    time.Duration // since their start
	rss    int64         // resident memory of each process, added up, in bytes
	memory int64         // as rss, but each datacenter has the program file once, as a machine has
}

// clockTick is the unit of times in /proc/<pid>/stat, on all systems.
const clockTick = 10 * time.Millisecond

// usage returns the sum over all running processes.
func (f *federation) usage() (sum usage, err error) {
	for _, d := range f.dcs {
		var file int64 // resident pages of the program file
		for _, p := range d.processes {
			if p == nil {
				continue
			}
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
			if err != nil {
				return sum, err
			}
			// The fields of proc(5) after the name of the program, which is in
			// parentheses: 11 is utime, 12 is stime.
			fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
			for _, field := range fields[11:13] {
				n, err := strconv.ParseInt(field, 10, 64)
				if err != nil {
					return sum, fmt.Errorf("read /proc/%d/stat: %w", p.Pid(), err)
				}
				sum.cpu += time.Duration(n) * clockTick
			}
			if b, err = os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.Pid())); err != nil {
				return sum, err
			}
			var size, resident, shared int64 // in pages
			if _, err := fmt.Sscan(string(b), &size, &resident, &shared); err != nil {
				return sum, fmt.Errorf("read /proc/%d/statm: %w", p.Pid(), err)
			}
			sum.rss += resident * int64(os.Getpagesize())
			sum.memory += (resident - shared) * int64(os.Getpagesize())
			file = max(file, shared*int64(os.Getpagesize()))
		}
		sum.memory += file
	}
	return sum, nil
}

// measureRest prints the cost per datacenter after the settle time.
func (f *federation) measureRest(ctx context.Context) error {
	var samples [2]usage
	for i, wait := range []time.Duration{f.settle, f.sample} {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
		var err error
		if samples[i], err = f.usage(); err != nil {
			return err
		}
	}
	percent := 100 * float64(samples[1].cpu-samples[0].cpu) / float64(f.sample) / float64(f.n)
	perDC := func(bytes int64) float64 { return float64(bytes) / 1e6 / float64(f.n) }
	fmt.Printf("| at rest after %v: core per datacenter | %.2f %% | %s |\n", f.settle, percent, f.restRule(restCPU))
	fmt.Printf("| at rest: memory per datacenter | %.1f MB | %s |\n", perDC(samples[1].memory), f.restRule(restMemory))
	fmt.Printf("| at rest: the same with the program file once per process | %.1f MB | |\n", perDC(samples[1].rss))
	return nil
}
