// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// bench is one measurement.
type bench struct {
	wanfed                   string
	tasks, services, changes int

	dir     string
	pki     *subprocess.PKI
	dcs     []*datacenter // dc1, in which the daemon runs, and dc2
	daemon  *subprocess.Process
	apiPort int
}

// datacenter is a server and a gateway.
type datacenter struct {
	name      string
	server    *subprocess.Server
	gateway   *subprocess.Gateway
	resources pb.ResourceServiceClient
}

// dcOf returns the datacenter of service and task i.
func (b *bench) dcOf(i int) *datacenter { return b.dcs[i%len(b.dcs)] }

func main() {
	var b bench
	flag.StringVar(&b.wanfed, "wanfed", "../bin/wanfed", "`path` of the wanfed program")
	flag.IntVar(&b.tasks, "tasks", 1000, "number of tasks, at most -services")
	flag.IntVar(&b.services, "services", 10000, "number of instances of services")
	flag.IntVar(&b.changes, "changes", 200, "number of measured changes")
	withTerraform := flag.Bool("terraform", false,
		"measure the driver terraform instead: -tasks new tasks, one task with -services instances")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := b.run
	if *withTerraform {
		run = b.terraformRows
	}
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "syncbench:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context) error {
	if b.tasks > b.services || b.tasks < 2 || b.changes < 2 {
		return errors.New("-tasks must be 2 to -services, and -changes at least 2")
	}
	var err error
	if b.dir, err = os.MkdirTemp("", "syncbench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	defer b.stopDatacenters()
	if err := b.startDatacenters(ctx); err != nil {
		return err
	}
	if err := b.register(ctx); err != nil {
		return err
	}
	first, err := b.startDaemon(ctx)
	if err != nil {
		return err
	}
	defer func() { b.daemon.Kill() }()
	ran := b.stamps()
	if err := b.daemon.Stop(ctx); err != nil {
		return err
	}
	serversBefore, err := b.serversCPU()
	if err != nil {
		return err
	}
	again, err := b.startDaemon(ctx)
	if err != nil {
		return err
	}
	daemonCPU, err := b.daemon.CPUTime()
	if err != nil {
		return err
	}
	serversCPU, err := b.serversCPU()
	if err != nil {
		return err
	}
	rerun := b.stamps() - ran
	daemon, err := b.measure(ctx, b.programOfTask)
	if err != nil {
		return err
	}
	memory, err := rss(b.daemon.Pid())
	if err != nil {
		return err
	}
	bare, err := b.measureBare(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("| %d tasks, %d instances, half of both in another datacenter | | rule |\n| --- | --- | --- |\n", b.tasks, b.services)
	fmt.Printf("| first start, with a run of each task | %.2f s | |\n", first.Seconds())
	fmt.Printf("| restart until all tasks are claimed | %.2f s | < 5 s |\n", again.Seconds())
	fmt.Printf("| processor time of the restart, daemon and servers | %.2f s, %.2f s | |\n", daemonCPU.Seconds(),
		(serversCPU - serversBefore).Seconds())
	fmt.Printf("| runs of the restart | %d | 0 |\n", rerun)
	for k, dc := range b.dcs {
		for _, q := range []struct {
			name, rule string
			of         float64
		}{{"p50", "<= 10 ms", 0.5}, {"p99", "< 50 ms", 0.99}} {
			fmt.Printf("| change in %s to start of the program, %s | %.1f ms | %s |\n",
				dc.name, q.name, ms(quantile(daemon[k], q.of)), q.rule)
			fmt.Printf("| the same with a watch and the program alone, %s | %.1f ms | |\n",
				q.name, ms(quantile(bare[k], q.of)))
		}
	}
	fmt.Printf("| RSS of the daemon | %.0f MB | < 150 MB |\n", float64(memory)/1e6)
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func quantile(all []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// startDatacenters starts the datacenters and waits until they are federated.
func (b *bench) startDatacenters(ctx context.Context) error {
	var err error
	if b.pki, err = subprocess.NewPKI(filepath.Join(b.dir, "pki"), tlsutil.DefaultDomain); err != nil {
		return err
	}
	var primary []string // WAN address of the gateway of dc1
	for _, name := range []string{"dc1", "dc2"} {
		dc := &datacenter{name: name}
		b.dcs = append(b.dcs, dc)
		if err := b.startDatacenter(ctx, dc, primary); err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
		primary = []string{dc.gateway.WAN}
	}
	c, err := api.NewClient(api.ClientConfig{Addr: b.dcs[0].server.HTTP})
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		st, err := c.Status(ctx, api.QueryOptions{})
		switch {
		case err == nil && len(st.Datacenters) == len(b.dcs) && st.OK():
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (b *bench) startDatacenter(ctx context.Context, dc *datacenter, primaryGateways []string) error {
	files, err := b.pki.Issue(tlsutil.RoleServer, dc.name, "srv1")
	if err != nil {
		return err
	}
	dc.server, err = subprocess.StartServer(ctx, subprocess.ServerConfig{
		Program: []string{b.wanfed}, Dir: filepath.Join(b.dir, dc.name, "srv1"), DC: dc.name, Node: "srv1", TLS: files,
		PrimaryDC: "dc1", PrimaryGateways: primaryGateways, LogLevel: "error",
	})
	if err != nil {
		return err
	}
	if files, err = b.pki.Issue(tlsutil.RoleGateway, dc.name, "gw1"); err != nil {
		return err
	}
	dc.gateway, err = subprocess.StartGateway(ctx, subprocess.GatewayConfig{
		Program: []string{b.wanfed}, Dir: filepath.Join(b.dir, dc.name, "gw1"), DC: dc.name, Node: "gw1", TLS: files,
		Servers: []string{dc.server.Addr}, LogLevel: "error",
	})
	if err != nil {
		return err
	}
	operator, err := b.pki.Issue(tlsutil.RoleOperator, dc.name, "op")
	if err != nil {
		return err
	}
	id, err := tlsutil.Load(operator, tlsutil.DefaultDomain, nil)
	if err != nil {
		return err
	}
	cc, err := api.NewServerClient(id, dc.name, api.Addrs(dc.server.Addr))
	dc.resources = pb.NewResourceServiceClient(cc)
	return err
}

func (b *bench) stopDatacenters() {
	for _, dc := range b.dcs {
		if dc.gateway != nil {
			dc.gateway.Kill()
		}
		if dc.server != nil {
			dc.server.Kill()
		}
	}
}

// serversCPU returns the processor time of the servers.
func (b *bench) serversCPU() (sum time.Duration, err error) {
	for _, dc := range b.dcs {
		cpu, err := dc.server.CPUTime()
		if err != nil {
			return 0, err
		}
		sum += cpu
	}
	return sum, nil
}

// service writes instance i of the services.
func (b *bench) service(ctx context.Context, i, port int) error {
	s := &pb.Service{Node: fmt.Sprintf("n%d", i/100), Id: fmt.Sprintf("i%d", i), Service: fmt.Sprintf("s%d", i), Port: uint32(port)}
	r := &pb.Resource{Id: resource.ID(catalog.ServiceType, s.Node+"/"+s.Id), Owner: resource.ID(catalog.NodeType, s.Node)}
	var err error
	if r.Data, err = anypb.New(s); err == nil {
		_, err = b.dcOf(i).resources.Write(ctx, &pb.WriteRequest{Resource: r})
	}
	return err
}

// register registers nodes and services.
func (b *bench) register(ctx context.Context) error {
	for i := range (b.services + 99) / 100 {
		n := &pb.Node{Node: fmt.Sprintf("n%d", i), Address: "10.0.0.1"}
		r := &pb.Resource{Id: resource.ID(catalog.NodeType, n.Node)}
		var err error
		if r.Data, err = anypb.New(n); err != nil {
			return err
		}
		for _, dc := range b.dcs {
			if _, err := dc.resources.Write(ctx, &pb.WriteRequest{Resource: r}); err != nil {
				return fmt.Errorf("write node in %s: %w", dc.name, err)
			}
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(64)
	for i := range b.services {
		g.Go(func() error { return b.service(ctx, i, 80) })
	}
	return g.Wait()
}

// stampFile is the file in which the program of task i writes its start times.
func (b *bench) stampFile(i int) string { return filepath.Join(b.dir, "stamps", strconv.Itoa(i)) }

// program is the program of task i.
func (b *bench) program(i int) []string {
	return []string{"/bin/sh", "-c", "date +%s%N >> " + b.stampFile(i)}
}

// startDaemon starts the daemon, and returns the time until it has claimed all
// tasks and no run is active.
func (b *bench) startDaemon(ctx context.Context) (time.Duration, error) {
	if b.apiPort == 0 {
		if err := b.writeConfig(); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	var err error
	b.daemon, err = subprocess.Start(ctx, subprocess.Config{
		Name: "sync", Command: []string{b.wanfed, "sync", "--config-file", filepath.Join(b.dir, "sync.hcl")},
		LogPath: filepath.Join(b.dir, "sync.log"), Ready: func(line string) bool { return strings.HasPrefix(line, "wanfed sync") },
	})
	if err != nil {
		return 0, err
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/metrics", b.apiPort)
	for {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		claimed, active, err := tasksOf(ctx, url)
		if err == nil && claimed == b.tasks && active == 0 && b.stamps() >= b.tasks {
			return time.Since(began), nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// tasksOf reads two metrics of the daemon.
func tasksOf(ctx context.Context, url string) (claimed, active int, err error) {
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return 0, 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		switch n, _ := strconv.Atoi(value); name {
		case "wanfed_sync_tasks":
			claimed = n
		case "wanfed_sync_runs_active":
			active = n
		}
	}
	return claimed, active, lines.Err()
}

func (b *bench) writeConfig() error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	b.apiPort = ln.Addr().(*net.TCPAddr).Port
	ln.Close()
	files, err := b.pki.Issue(tlsutil.RoleSync, "dc1", "sync1")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(b.dir, "stamps"), 0o700); err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "id = \"sync1\"\nport = %d\nworking_dir = %q\nlog_level = \"WARN\"\nbuffer_period { enabled = false }\n"+
		"consul { address = %q }\nwanfed {\n  ca = %q\n  cert = %q\n  key = %q\n}\n",
		b.apiPort, filepath.Join(b.dir, "work"), b.dcs[0].server.HTTP, files.CA, files.Cert, files.Key)
	for i := range b.tasks {
		p := b.program(i)
		fmt.Fprintf(&text, "task {\n  name = \"t%d\"\n  driver = \"exec\"\n  condition \"services\" {\n    names = [\"s%d\"]\n"+
			"    datacenter = %q\n  }\n  exec { command = [%q, %q, %q] }\n}\n", i, i, b.dcOf(i).name, p[0], p[1], p[2])
	}
	return os.WriteFile(filepath.Join(b.dir, "sync.hcl"), []byte(text.String()), 0o600)
}

// stamps returns the number of starts of programs.
func (b *bench) stamps() (n int) {
	for i := range b.tasks {
		text, _ := os.ReadFile(b.stampFile(i)) // absent: no start
		n += strings.Count(string(text), "\n")
	}
	return n
}

// programOfTask waits until the program of task i has started again after the
// time since, and returns the time of the start.
func (b *bench) programOfTask(ctx context.Context, i int, since time.Time) (time.Time, error) {
	for ctx.Err() == nil {
		text, _ := os.ReadFile(b.stampFile(i))
		lines := strings.Fields(string(text))
		if len(lines) > 0 {
			n, err := strconv.ParseInt(lines[len(lines)-1], 10, 64)
			if at := time.Unix(0, n); err == nil && at.After(since) {
				return at, nil
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
	return time.Time{}, ctx.Err()
}

// measure changes services one after the other, and returns the times from the
// response of the write to the start of the program, for each datacenter.
func (b *bench) measure(
	ctx context.Context, started func(ctx context.Context, i int, since time.Time) (time.Time, error),
) ([][]time.Duration, error) {
	out := make([][]time.Duration, len(b.dcs))
	for k := range b.changes {
		i := k * 7 % b.tasks
		sent := time.Now()
		if err := b.service(ctx, i, 1000+k); err != nil {
			return nil, err
		}
		written := time.Now()
		at, err := started(ctx, i, sent)
		if err != nil {
			return nil, err
		}
		dc := i % len(b.dcs)
		out[dc] = append(out[dc], max(0, at.Sub(written)))
		time.Sleep(20 * time.Millisecond)
	}
	return out, nil
}

// measureBare is measure with a process that watches the services and starts the
// program, and does nothing else.
func (b *bench) measureBare(ctx context.Context) ([][]time.Duration, error) {
	if err := b.daemon.Stop(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := api.NewClient(api.ClientConfig{Addr: b.dcs[0].server.HTTP})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ready, done := make(chan struct{}, len(b.dcs)), make(chan error, len(b.dcs))
	for _, dc := range b.dcs {
		go func() { done <- b.runPrograms(ctx, c, dc.name, ready) }()
	}
	for range b.dcs {
		select {
		case <-ready:
		case err := <-done:
			return nil, err
		}
	}
	out, err := b.measure(ctx, b.programOfTask)
	cancel()
	for range b.dcs {
		<-done
	}
	return out, err
}

// runPrograms watches the services of a datacenter, and runs the program of the
// task of each changed service, until ctx ends. It sends to ready when the watch
// is complete.
func (b *bench) runPrograms(ctx context.Context, c *api.Client, dc string, ready chan<- struct{}) error {
	snapshot := true
	typ := api.ResourceTypeName{Group: "catalog", GroupVersion: "v1", Kind: "Service"}
	for ev, err := range c.WatchResources(ctx, typ, api.Tenancy{}, api.ResourceOptions{Datacenter: dc}) {
		switch {
		case err != nil:
			return err
		case ev.Type == api.EventEndOfSnapshot:
			snapshot = false
			ready <- struct{}{}
		case !snapshot:
			_, id, _ := strings.Cut(ev.Resource.ID.Name, "/i")
			i, err := strconv.Atoi(id)
			if err == nil {
				p := b.program(i)
				err = exec.CommandContext(ctx, p[0], p[1:]...).Run()
			}
			if err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
	return nil
}

// rss returns the resident memory of a process, in bytes.
func rss(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}
