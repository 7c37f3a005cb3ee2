// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/proc"
	"github.com/wanfed/wanfed/tlsutil"
)

// WANPort is the port of every gateway's WAN address, LANPort of its LAN address, ServerPort of every server.
const (
	WANPort    = 8443
	LANPort    = 8444
	ServerPort = 8300
)

// Lab is a federation under test. dc1 is the primary.
type Lab struct {
	t   testing.TB
	Net *Network
	PKI *proc.PKI
	WAN string // namespace of the WAN's switch

	dir string
	bin string
	dcs []*Datacenter
}

// Datacenter is one of a lab.
type Datacenter struct {
	lab      *Lab
	Name     string
	number   int
	bridge   string
	Servers  []*Node
	Gateways []*Node
}

// Node is a server or gateway, with its namespace and, while it runs, its process.
type Node struct {
	dc      *Datacenter
	Name    string
	NS      string
	LAN     string // IP
	WAN     string // IP; empty for a server
	TLS     tlsutil.Files
	Process *proc.Process
	client  *http.Client
}

var built struct {
	once sync.Once
	path string
	err  error
}

// Binary builds wanfed once per test process and returns its path.
func Binary(t testing.TB) string {
	t.Helper()
	built.once.Do(func() {
		dir, err := os.MkdirTemp("", "wanfed-lab-")
		if err != nil {
			built.err = err
			return
		}
		built.path = filepath.Join(dir, "wanfed")
		out, err := exec.Command("go", "build", "-o", built.path, "github.com/wanfed/wanfed/cmd/wanfed").CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("build wanfed: %w: %s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}

// RemoveBinary deletes what Binary made; for TestMain.
func RemoveBinary() {
	if built.path != "" {
		os.RemoveAll(filepath.Dir(built.path))
	}
}

// New makes an empty lab, or skips the test.
func New(t testing.TB) *Lab {
	t.Helper()
	l := &Lab{t: t, Net: NewNetwork(t), dir: t.TempDir(), bin: Binary(t)}
	var err error
	if l.PKI, err = proc.NewPKI(filepath.Join(l.dir, "pki"), ""); err != nil {
		t.Fatal(err)
	}
	l.WAN = l.Net.Bridge("wan")
	return l
}

// Add adds a datacenter of servers and gateways. Nothing runs yet. Every datacenter has the same subnet and addresses.
func (l *Lab) Add(servers, gateways int) *Datacenter {
	l.t.Helper()
	dc := &Datacenter{lab: l, number: len(l.dcs) + 1}
	dc.Name = fmt.Sprintf("dc%d", dc.number)
	dc.bridge = l.Net.Bridge(dc.Name)
	l.dcs = append(l.dcs, dc)
	for range servers {
		dc.addServer()
	}
	for range gateways {
		dc.AddGateway()
	}
	return dc
}

func (d *Datacenter) addServer() {
	i := len(d.Servers) + 1
	d.Servers = append(d.Servers, d.node(tlsutil.RoleServer, fmt.Sprintf("srv%d", i), fmt.Sprintf("10.10.0.%d", 10+i), ""))
}

// AddGateway adds a gateway with legs in the LAN and the WAN.
func (d *Datacenter) AddGateway() *Node {
	d.lab.t.Helper()
	i := len(d.Gateways) + 1
	g := d.node(tlsutil.RoleGateway, fmt.Sprintf("gw%d", i), fmt.Sprintf("10.10.0.%d", 100+i), fmt.Sprintf("198.18.%d.%d", d.number, i))
	d.lab.Net.Plug(g.NS, "wan", g.WAN+"/16", d.lab.WAN)
	d.Gateways = append(d.Gateways, g)
	return g
}

func (d *Datacenter) node(role tlsutil.Role, name, lan, wan string) *Node {
	d.lab.t.Helper()
	n := &Node{dc: d, Name: name, NS: d.lab.Net.Namespace(d.Name + "-" + name), LAN: lan, WAN: wan}
	d.lab.Net.Plug(n.NS, "lan", lan+"/24", d.bridge)
	var err error
	if n.TLS, err = d.lab.PKI.Issue(role, d.Name, name); err != nil {
		d.lab.t.Fatal(err)
	}
	tr := &http.Transport{DialContext: DialIn(n.NS)}
	n.client = &http.Client{Transport: tr, Timeout: 30 * time.Second}
	d.lab.t.Cleanup(func() {
		if n.Process != nil {
			n.Process.Kill()
		}
		tr.CloseIdleConnections()
		if d.lab.t.Failed() && n.Process != nil {
			d.lab.t.Logf("end of the log of %s/%s:", d.Name, name)
			for _, line := range n.Process.Tail(25) {
				d.lab.t.Log(line)
			}
		}
	})
	return n
}

func (n *Node) program() []string {
	return []string{"ip", "netns", "exec", n.NS, n.dc.lab.bin}
}

func (n *Node) folder() string {
	return filepath.Join(n.dc.lab.dir, n.dc.Name+"-"+n.Name)
}

// StartServer starts, or starts again, a server on its data.
func (n *Node) StartServer(args ...string) {
	n.dc.lab.t.Helper()
	cfg := proc.ServerConfig{
		Program: n.program(), Dir: n.folder(), DC: n.dc.Name, Node: n.Name, TLS: n.TLS,
		Bind: n.LAN, Port: ServerPort, HTTPAddr: "127.0.0.1:8500", PrimaryDC: "dc1", Args: args,
	}
	if n.dc.number > 1 {
		for _, g := range n.dc.lab.dcs[0].Gateways {
			cfg.PrimaryGateways = append(cfg.PrimaryGateways, net.JoinHostPort(g.WAN, fmt.Sprint(WANPort)))
		}
	}
	if len(n.dc.Servers) > 1 {
		cfg.BootstrapExpect = len(n.dc.Servers)
		for _, s := range n.dc.Servers {
			cfg.RetryJoin = append(cfg.RetryJoin, net.JoinHostPort(s.LAN, fmt.Sprint(ServerPort)))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s, err := proc.StartServer(ctx, cfg)
	if err != nil {
		n.dc.lab.t.Fatal(err)
	}
	n.Process = s.Process
}

// StartGateway starts, or starts again, a gateway at its present WAN address.
func (n *Node) StartGateway(args ...string) {
	n.dc.lab.t.Helper()
	var servers []string
	for _, s := range n.dc.Servers {
		servers = append(servers, net.JoinHostPort(s.LAN, fmt.Sprint(ServerPort)))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	g, err := proc.StartGateway(ctx, proc.GatewayConfig{
		Program: n.program(), Dir: n.folder(), DC: n.dc.Name, Node: n.Name, TLS: n.TLS, Servers: servers,
		LAN: net.JoinHostPort(n.LAN, fmt.Sprint(LANPort)), WAN: net.JoinHostPort(n.WAN, fmt.Sprint(WANPort)), Args: args,
	})
	if err != nil {
		n.dc.lab.t.Fatal(err)
	}
	n.Process = g.Process
}

// Stop ends the process cleanly.
func (n *Node) Stop() {
	n.dc.lab.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	if err := n.Process.Stop(ctx); err != nil {
		n.dc.lab.t.Errorf("stop %s/%s: %v", n.dc.Name, n.Name, err)
	}
}

// ReAddress gives a stopped gateway another WAN address.
func (n *Node) ReAddress(wan string) {
	n.dc.lab.t.Helper()
	n.dc.lab.Net.Flush(n.NS, "wan")
	n.dc.lab.Net.Address(n.NS, "wan", wan+"/16")
	n.WAN = wan
}

// Start starts all servers and gateways of a datacenter, and does not wait for what they do together.
func (d *Datacenter) Start() {
	d.lab.t.Helper()
	for _, s := range d.Servers {
		s.StartServer()
	}
	for _, g := range d.Gateways {
		g.StartGateway()
	}
}

// Get asks a server's HTTP API and decodes the JSON into out, if not nil.
func (n *Node) Get(ctx context.Context, path string, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:8500"+path, nil)
	if err != nil {
		return err
	}
	resp, err := n.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s: %s", path, resp.Status, bytes.TrimSpace(body))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(body, out)
}

// CLI runs a wanfed command in the node's namespace and returns what it printed.
func (n *Node) CLI(args ...string) (string, error) {
	cmd := exec.Command("ip", append([]string{"netns", "exec", n.NS, n.dc.lab.bin}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Eventually calls check every few milliseconds until it returns nil, or fails the test after limit. It returns how long it took.
func Eventually(t testing.TB, limit time.Duration, what string, check func(ctx context.Context) error) time.Duration {
	t.Helper()
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return time.Since(start)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		}
	}
}
