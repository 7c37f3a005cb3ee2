// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/tlsutil"
)

// settings are the values of the flags.
type settings struct {
	wanfed           string
	n, processes     int
	renew, warm, run time.Duration
	alone            bool
	changes          int
	expire, sessions bool
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == holderCommand {
		exitOn(runHolder(os.Args[2:]))
		return
	}
	var s settings
	flag.StringVar(&s.wanfed, "wanfed", "../bin/wanfed", "`path` of the wanfed program")
	flag.IntVar(&s.n, "n", 10000, "number of leases")
	flag.IntVar(&s.processes, "processes", 6, "number of client processes that hold the leases")
	flag.DurationVar(&s.renew, "renew", 5*time.Second, "time between two renewals of a lease")
	flag.DurationVar(&s.warm, "warm", 10*time.Second, "time before the measurement")
	flag.DurationVar(&s.run, "for", 30*time.Second, "measured time; 0: renewals are not measured")
	flag.BoolVar(&s.alone, "alone", false, "each lease has its own client")
	flag.IntVar(&s.changes, "changes", 0, "number of leadership transfers after the measurement")
	flag.BoolVar(&s.expire, "expire", false, "measure the expiry of leases")
	flag.BoolVar(&s.sessions, "sessions", false, "measure the expiry of sessions with locked keys")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exitOn(s.measure(ctx))
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "leasebench:", err)
		os.Exit(1)
	}
}

func (s settings) measure(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "leasebench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d, err := start(ctx, s.wanfed, dir)
	defer d.kill()
	if err != nil {
		return err
	}
	fmt.Printf("| %d leases | | rule |\n| --- | --- | --- |\n", s.n)
	if s.run > 0 {
		if err := s.measureRenewals(ctx, d); err != nil {
			return err
		}
	}
	if s.expire {
		if err := s.measureExpiry(ctx, d); err != nil {
			return fmt.Errorf("expiry of leases: %w", err)
		}
	}
	if s.sessions {
		if err := s.measureSessions(ctx, d); err != nil {
			return fmt.Errorf("expiry of sessions: %w", err)
		}
	}
	return nil
}

// datacenter is three server processes.
type datacenter struct {
	dir      string
	operator tlsutil.Files
	servers  []*subprocess.Server
	holders  []*subprocess.Process
	conns    []*grpc.ClientConn // by server
	http     *http.Client
}

func start(ctx context.Context, program, dir string) (*datacenter, error) {
	d := &datacenter{dir: dir}
	pki, err := subprocess.NewPKI(filepath.Join(dir, "pki"), tlsutil.DefaultDomain)
	if err != nil {
		return d, err
	}
	if d.operator, err = pki.Issue(tlsutil.RoleOperator, "dc1", "joe"); err != nil {
		return d, err
	}
	if d.http, err = httpClient(d.operator); err != nil {
		return d, err
	}
	id, err := tlsutil.Load(d.operator, tlsutil.DefaultDomain, nil)
	if err != nil {
		return d, err
	}
	ports, err := freePorts()
	if err != nil {
		return d, err
	}
	var join []string
	for _, port := range ports {
		join = append(join, fmt.Sprintf("127.0.0.1:%d", port))
	}
	for i, port := range ports {
		node := fmt.Sprintf("srv%d", i+1)
		files, err := pki.Issue(tlsutil.RoleServer, "dc1", node)
		if err != nil {
			return d, err
		}
		srv, err := subprocess.StartServer(ctx, subprocess.ServerConfig{
			Program: []string{program}, Dir: filepath.Join(dir, node), DC: "dc1", Node: node, TLS: files,
			BootstrapExpect: 3, RetryJoin: join, Port: port,
		})
		if err != nil {
			return d, err
		}
		d.servers = append(d.servers, srv)
		cc, err := api.NewServerClient(id, "dc1", api.Addrs(srv.Addr))
		if err != nil {
			return d, err
		}
		d.conns = append(d.conns, cc)
	}
	_, err = d.awaitLeader(ctx, time.Minute)
	return d, err
}

// freePorts returns ports of 127.0.0.1 that were free.
func freePorts() (ports [3]int, err error) {
	for i := range ports {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return ports, err
		}
		defer ln.Close()
		ports[i] = ln.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}

func (d *datacenter) kill() {
	for _, cc := range d.conns {
		_ = cc.Close()
	}
	for _, p := range d.holders {
		p.Kill()
	}
	for _, s := range d.servers {
		s.Kill()
	}
}

// awaitLeader returns the position of the leader.
func (d *datacenter) awaitLeader(ctx context.Context, limit time.Duration) (leader int, err error) {
	for begin := time.Now(); ; {
		leader, _, err = d.peers(ctx)
		if err == nil || time.Since(begin) > limit || ctx.Err() != nil {
			return leader, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// peers returns the position of the leader and the last index of its log.
func (d *datacenter) peers(ctx context.Context) (leader int, index uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, err := pb.NewOperatorServiceClient(d.conns[0]).ListPeers(ctx, &pb.ListPeersRequest{})
	if err != nil {
		return 0, 0, err
	}
	for _, p := range resp.GetPeers() {
		for i, s := range d.servers {
			if p.GetLeader() && s.Node == p.GetNode() {
				return i, p.GetLastIndex(), nil
			}
		}
	}
	return 0, 0, errors.New("no leader")
}

// lost counts the leases that the client processes have lost.
func (d *datacenter) lost() (n int, err error) {
	for _, h := range d.holders {
		b, err := os.ReadFile(h.LogPath())
		if err != nil {
			return 0, err
		}
		n += strings.Count(string(b), lostLine)
	}
	return n, nil
}

// usage returns the processor time of each server.
func (d *datacenter) usage() (all []time.Duration, err error) {
	for _, s := range d.servers {
		used, err := s.CPUTime()
		if err != nil {
			return nil, err
		}
		all = append(all, used)
	}
	return all, nil
}

func (s settings) measureRenewals(ctx context.Context, d *datacenter) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if err := pause(ctx, s.warm); err != nil {
		return err
	}
	idle, err := s.sample(ctx, d)
	if err != nil {
		return err
	}
	begin := time.Now()
	for i := range s.processes {
		h, err := subprocess.Start(ctx, subprocess.Config{
			Name:    fmt.Sprintf("holder%d", i),
			LogPath: filepath.Join(d.dir, fmt.Sprintf("holder%d.log", i)),
			Ready:   func(line string) bool { return line == readyLine },
			Command: []string{program, holderCommand,
				"-addr", d.servers[i%len(d.servers)].Addr, "-ca", d.operator.CA, "-cert", d.operator.Cert, "-key", d.operator.Key,
				"-from", fmt.Sprint(i * s.n / s.processes), "-to", fmt.Sprint((i + 1) * s.n / s.processes),
				"-renew", s.renew.String(), fmt.Sprintf("-alone=%t", s.alone)},
		})
		if err != nil {
			return err
		}
		d.holders = append(d.holders, h)
	}
	fmt.Printf("| acquired after | %.1f s | |\n", time.Since(begin).Seconds())
	if err := pause(ctx, s.warm); err != nil {
		return err
	}
	leader, index, err := d.peers(ctx)
	if err != nil {
		return err
	}
	used, err := s.sample(ctx, d)
	if err != nil {
		return err
	}
	after, last, err := d.peers(ctx)
	if err != nil {
		return err
	}
	lost, err := d.lost()
	if err != nil {
		return err
	}
	if after != leader || lost > 0 {
		return fmt.Errorf("%d leases were lost, leader srv%d and then srv%d", lost, leader+1, after+1)
	}
	percent := func(d time.Duration) float64 { return 100 * d.Seconds() / s.run.Seconds() }
	for i := range used {
		role, rule := "follower", ""
		if i == leader {
			role, rule = "leader", "< 5 %"
		}
		fmt.Printf("| core of the %s (without leases) | %.2f %% (%.2f %%) | %s |\n", role, percent(used[i]), percent(idle[i]), rule)
	}
	fmt.Printf("| entries added to the log | %d | 0 |\n", last-index)
	return s.changeLeaders(ctx, d)
}

// sample returns the processor time that each server uses in the measured time.
func (s settings) sample(ctx context.Context, d *datacenter) ([]time.Duration, error) {
	before, err := d.usage()
	if err == nil {
		err = pause(ctx, s.run)
	}
	if err != nil {
		return nil, err
	}
	used, err := d.usage()
	for i := range used {
		used[i] -= before[i]
	}
	return used, err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// changeLeaders transfers the leadership, at random moments of the renewals.
func (s settings) changeLeaders(ctx context.Context, d *datacenter) error {
	if s.changes == 0 {
		return nil
	}
	for range s.changes {
		if _, err := pb.NewOperatorServiceClient(d.conns[0]).TransferLeader(ctx, &pb.TransferLeaderRequest{}); err != nil {
			return err
		}
		if err := pause(ctx, 700*time.Millisecond); err != nil {
			return err
		}
	}
	if err := pause(ctx, durationFor(s.renew)); err != nil { // a lease that is not renewed expires in this time
		return err
	}
	lost, err := d.lost()
	fmt.Printf("| leases lost in %d leader changes | %d | 0 |\n", s.changes, lost)
	return err
}
