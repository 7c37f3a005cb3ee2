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
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// Node is a server, gateway or sync daemon with its namespace and its process.
type Node struct {
	dc   *Datacenter
	Name string
	NS   string
	LAN  string // IP
	WAN  string // IP; empty for a server
	TLS  tlsutil.Files
	// ServerAddrs are the addresses (host:port) of servers that a gateway is
	// configured with. Nil: those of all servers of its datacenter.
	ServerAddrs []string
	Process     *subprocess.Process // nil before the first start
	client      *http.Client
	host        *Node // of a sync daemon: the server in whose namespace it runs, or nil
	// Env has further environment variables of a sync daemon.
	Env []string
}

func (d *Datacenter) node(role tlsutil.Role, name, lan, wan string) *Node {
	d.lab.t.Helper()
	ns := d.lab.Net.Namespace(d.Name + "-" + name)
	d.lab.Net.Plug(ns, "lan", lan+"/24", d.bridge)
	n := d.nodeIn(role, name, ns)
	n.LAN, n.WAN = lan, wan
	return n
}

// nodeIn returns a node that runs in a namespace.
func (d *Datacenter) nodeIn(role tlsutil.Role, name, ns string) *Node {
	d.lab.t.Helper()
	n := &Node{dc: d, Name: name, NS: ns}
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

// ServerAddr returns the address (host:port) of a server's port.
func (n *Node) ServerAddr() string { return net.JoinHostPort(n.LAN, fmt.Sprint(ServerPort)) }

// LANAddr returns the address (host:port) of a gateway's LAN listener.
func (n *Node) LANAddr() string { return net.JoinHostPort(n.LAN, fmt.Sprint(LANPort)) }

// WANAddr returns the address (host:port) of a gateway's WAN listener.
func (n *Node) WANAddr() string { return net.JoinHostPort(n.WAN, fmt.Sprint(WANPort)) }

// WANName returns a server's name in the WAN pool.
func (n *Node) WANName() string { return n.Name + "." + n.dc.Name }

// DC returns the datacenter of the node.
func (n *Node) DC() *Datacenter { return n.dc }

func (n *Node) program() []string {
	return []string{"ip", "netns", "exec", n.NS, n.dc.lab.bin}
}

// directory returns the directory of the node's files.
func (n *Node) directory() string {
	return filepath.Join(n.dc.lab.dir, fmt.Sprintf("dc%d-%s", n.dc.number, n.Name)) // a clone has the name of another one
}

// StartServer starts a server on its data directory, for the first time or
// again.
func (n *Node) StartServer(args ...string) {
	n.dc.lab.t.Helper()
	cfg := subprocess.ServerConfig{
		Program: n.program(), Dir: n.directory(), DC: n.dc.Name, Node: n.Name, TLS: n.TLS,
		Bind: n.LAN, Port: ServerPort, HTTPAddr: "127.0.0.1:8500", PrimaryDC: "dc1", Args: args,
	}
	if n.dc.number > 1 {
		cfg.PrimaryGateways = n.dc.lab.PrimaryGateways
		for _, g := range n.dc.lab.dcs[0].Gateways {
			if n.dc.lab.PrimaryGateways == nil {
				cfg.PrimaryGateways = append(cfg.PrimaryGateways, g.WANAddr())
			}
		}
	}
	if len(n.dc.Servers) > 1 {
		cfg.BootstrapExpect = len(n.dc.Servers)
		for _, s := range n.dc.Servers {
			cfg.RetryJoin = append(cfg.RetryJoin, s.ServerAddr())
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s, err := subprocess.StartServer(ctx, cfg)
	if err != nil {
		n.dc.lab.t.Fatal(err)
	}
	n.Process = s.Process
}

// Envoys selects the gateways of a lab that are Envoy: one of the constants, or
// the name of a datacenter, for all its gateways.
type Envoys string

const (
	NoEnvoy   Envoys = "native" // all gateways are native
	AllEnvoys Envoys = "all"
	// MixedEnvoys selects every second gateway, also within a datacenter: gw2
	// of dc1, gw1 of dc2, gw2 of dc3, and so on.
	MixedEnvoys Envoys = "mixed"
)

// has reports whether gateway n is Envoy.
func (e Envoys) has(n *Node) bool {
	switch e {
	case AllEnvoys:
		return true
	case MixedEnvoys:
		return (n.dc.number+slices.Index(n.dc.Gateways, n))%2 == 0
	}
	return string(e) == n.dc.Name
}

// StartGateway starts a gateway at its current WAN address, for the first time
// or again. The field Envoys of the lab selects its kind. StartGateway skips the
// test if there is no Envoy. It waits until an Envoy listens.
func (n *Node) StartGateway(args ...string) {
	n.dc.lab.t.Helper()
	envoy := ""
	if n.dc.lab.Envoys.has(n) {
		envoy = testutil.Envoy(n.dc.lab.t)
	}
	servers := n.ServerAddrs
	if servers == nil {
		for _, s := range n.dc.Servers {
			servers = append(servers, s.ServerAddr())
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	g, err := subprocess.StartGateway(ctx, subprocess.GatewayConfig{
		Program: n.program(), Dir: n.directory(), DC: n.dc.Name, Node: n.Name, TLS: n.TLS, Servers: servers,
		LAN: n.LANAddr(), WAN: n.WANAddr(), Envoy: envoy, Args: args,
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

// Kill ends the process with SIGKILL, if it runs.
func (n *Node) Kill() {
	if n.Process != nil {
		n.Process.Kill()
	}
}

// Running reports whether the process was started and has not ended.
func (n *Node) Running() bool {
	if n.Process == nil {
		return false
	}
	select {
	case <-n.Process.Done():
		return false
	default:
		return true
	}
}

// ReAddressLAN changes the LAN address of a node whose process does not run.
func (n *Node) ReAddressLAN(lan string) {
	n.dc.lab.t.Helper()
	n.dc.lab.Net.Flush(n.NS, "lan")
	n.dc.lab.Net.Address(n.NS, "lan", lan+"/24")
	n.LAN = lan
}

// ReAddress changes the WAN address of a stopped gateway.
func (n *Node) ReAddress(wan string) {
	n.dc.lab.t.Helper()
	n.dc.lab.Net.Flush(n.NS, "wan")
	n.dc.lab.Net.Address(n.NS, "wan", wan+"/16")
	n.WAN = wan
	if n.dc.lab.emulator != nil {
		n.dc.lab.emulator.moved(n)
	}
}

// Get sends a GET request to a server's HTTP API. It decodes the JSON response
// into out unless out is nil.
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

// CLI runs a wanfed command in the node's namespace and returns its output.
func (n *Node) CLI(args ...string) (string, error) {
	cmd := exec.Command("ip", append([]string{"netns", "exec", n.NS, n.dc.lab.bin}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
