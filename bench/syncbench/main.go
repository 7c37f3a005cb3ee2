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

	dir       string
	pki       *subprocess.PKI
	server    *subprocess.Server
	resources pb.ResourceServiceClient
	daemon    *subprocess.Process
	apiPort   int
}

func main() {
	var b bench
	flag.StringVar(&b.wanfed, "wanfed", "../bin/wanfed", "`path` of the wanfed program")
	flag.IntVar(&b.tasks, "tasks", 1000, "number of tasks, at most -services")
	flag.IntVar(&b.services, "services", 10000, "number of instances of services")
	flag.IntVar(&b.changes, "changes", 200, "number of measured changes")
	withTerraform := flag.Bool("terraform", false, "measure the driver terraform instead: -tasks new tasks, one task with -services instances")
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
	if b.tasks > b.services || b.changes < 1 {
		return errors.New("-tasks must be at most -services, and -changes at least 1")
	}
	var err error
	if b.dir, err = os.MkdirTemp("", "syncbench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if err := b.startServer(ctx); err != nil {
		return err
	}
	defer b.server.Kill()
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
	serverBefore, err := b.server.CPUTime()
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
	serverCPU, err := b.server.CPUTime()
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
	fmt.Printf("| %d tasks, %d instances | | rule |\n| --- | --- | --- |\n", b.tasks, b.services)
	fmt.Printf("| first start, with a run of each task | %.2f s | |\n", first.Seconds())
	fmt.Printf("| restart until all tasks are claimed | %.2f s | < 5 s |\n", again.Seconds())
	fmt.Printf("| processor time of the restart, daemon and server | %.2f s, %.2f s | |\n", daemonCPU.Seconds(),
		(serverCPU - serverBefore).Seconds())
	fmt.Printf("| runs of the restart | %d | 0 |\n", rerun)
	fmt.Printf("| change to start of the program, p50 | %.1f ms | <= 10 ms |\n", ms(quantile(daemon, 0.5)))
	fmt.Printf("| change to start of the program, p99 | %.1f ms | < 50 ms |\n", ms(quantile(daemon, 0.99)))
	fmt.Printf("| the same with a watch and the program alone, p50 | %.1f ms | |\n", ms(quantile(bare, 0.5)))
	fmt.Printf("| the same with a watch and the program alone, p99 | %.1f ms | |\n", ms(quantile(bare, 0.99)))
	fmt.Printf("| RSS of the daemon | %.0f MB | < 150 MB |\n", float64(memory)/1e6)
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func quantile(all []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func (b *bench) startServer(ctx context.Context) error {
	var err error
	if b.pki, err = subprocess.NewPKI(filepath.Join(b.dir, "pki"), tlsutil.DefaultDomain); err != nil {
		return err
	}
	files, err := b.pki.Issue(tlsutil.RoleServer, "dc1", "srv1")
	if err != nil {
		return err
	}
	b.server, err = subprocess.StartServer(ctx, subprocess.ServerConfig{
		Program: []string{b.wanfed}, Dir: filepath.Join(b.dir, "srv1"), DC: "dc1", Node: "srv1", TLS: files, LogLevel: "error",
	})
	if err != nil {
		return err
	}
	operator, err := b.pki.Issue(tlsutil.RoleOperator, "dc1", "op")
	if err != nil {
		return err
	}
	id, err := tlsutil.Load(operator, tlsutil.DefaultDomain, nil)
	if err != nil {
		return err
	}
	cc, err := api.NewServerClient(id, "dc1", api.Addrs(b.server.Addr))
	b.resources = pb.NewResourceServiceClient(cc)
	return err
}

// service writes instance i of the services.
func (b *bench) service(ctx context.Context, i, port int) error {
	s := &pb.Service{Node: fmt.Sprintf("n%d", i/100), Id: fmt.Sprintf("i%d", i), Service: fmt.Sprintf("s%d", i), Port: uint32(port)}
	r := &pb.Resource{Id: resource.ID(catalog.ServiceType, s.Node+"/"+s.Id), Owner: resource.ID(catalog.NodeType, s.Node)}
	var err error
	if r.Data, err = anypb.New(s); err == nil {
		_, err = b.resources.Write(ctx, &pb.WriteRequest{Resource: r})
	}
	return err
}

// register registers nodes and services.
func (b *bench) register(ctx context.Context) error {
	for i := range (b.services + 99) / 100 {
		n := &pb.Node{Node: fmt.Sprintf("n%d", i), Address: "10.0.0.1"}
		r := &pb.Resource{Id: resource.ID(catalog.NodeType, n.Node)}
		var err error
		if r.Data, err = anypb.New(n); err == nil {
			_, err = b.resources.Write(ctx, &pb.WriteRequest{Resource: r})
		}
		if err != nil {
			return fmt.Errorf("write node: %w", err)
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
		b.apiPort, filepath.Join(b.dir, "work"), b.server.HTTP, files.CA, files.Cert, files.Key)
	for i := range b.tasks {
		p := b.program(i)
		fmt.Fprintf(&text, "task {\n  name = \"t%d\"\n  driver = \"exec\"\n  condition \"services\" { names = [\"s%d\"] }\n"+
			"  exec { command = [%q, %q, %q] }\n}\n", i, i, p[0], p[1], p[2])
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
// response of the write to the start of the program.
func (b *bench) measure(
	ctx context.Context, started func(ctx context.Context, i int, since time.Time) (time.Time, error),
) ([]time.Duration, error) {
	var out []time.Duration
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
		out = append(out, max(0, at.Sub(written)))
		time.Sleep(20 * time.Millisecond)
	}
	return out, nil
}

// measureBare is measure with a process that watches the services and starts the
// program, and does nothing else.
func (b *bench) measureBare(ctx context.Context) ([]time.Duration, error) {
	if err := b.daemon.Stop(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := api.NewClient(api.ClientConfig{Addr: b.server.HTTP})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		snapshot := true
		typ := api.ResourceTypeName{Group: "catalog", GroupVersion: "v1", Kind: "Service"}
		for ev, err := range c.WatchResources(ctx, typ, api.Tenancy{}, api.ResourceOptions{}) {
			switch {
			case err != nil:
				done <- err
				return
			case ev.Type == api.EventEndOfSnapshot:
				snapshot = false
				close(ready)
			case !snapshot:
				_, id, _ := strings.Cut(ev.Resource.ID.Name, "/i")
				i, err := strconv.Atoi(id)
				if err == nil {
					p := b.program(i)
					err = exec.CommandContext(ctx, p[0], p[1:]...).Run()
				}
				if err != nil && ctx.Err() == nil {
					done <- err
					return
				}
			}
		}
		done <- nil
	}()
	select {
	case <-ready:
	case err := <-done:
		return nil, err
	}
	out, err := b.measure(ctx, b.programOfTask)
	cancel()
	<-done
	return out, err
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
