// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// Ports of all nodes.
const (
	WANPort    = 8443 // WAN listener of a gateway
	LANPort    = 8444 // LAN listener of a gateway
	ServerPort = 8300 // server
)

// Lab is a federation under test. dc1 is the primary.
type Lab struct {
	t   testing.TB
	Net *Network
	PKI *subprocess.PKI
	WAN string // namespace of the WAN bridge; empty if the WAN is emulated
	// PrimaryGateways (host:port) is the setting of servers of secondaries. nil
	// means all gateways of dc1.
	PrimaryGateways []string
	// Envoys selects the gateways that are Envoy. The zero value selects none.
	Envoys Envoys

	dir      string
	bin      string
	dcs      []*Datacenter
	emulator *emulator // nil: the WAN is a bridge
}

// Datacenter is one datacenter of a lab.
type Datacenter struct {
	lab      *Lab
	Name     string
	number   int
	bridge   string
	Servers  []*Node
	Gateways []*Node
	Syncs    []*Node
}

var built struct {
	once sync.Once
	path string
	err  error
}

// Binary builds wanfed once per test process and returns its path. Tests that
// run the program depend on the wall clock, so Binary skips under "go test
// -short".
func Binary(t testing.TB) string {
	t.Helper()
	testutil.Cluster(t)
	built.once.Do(func() {
		dir, err := os.MkdirTemp("", "wanfed-lab-")
		if err != nil {
			built.err = err
			return
		}
		built.path = filepath.Join(dir, "wanfed")
		out, err := exec.Command("go", "build", "-o", built.path,
			"github.com/wanfed/wanfed/cmd/wanfed").CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("build wanfed: %w: %s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}

// RemoveBinary deletes the program that Binary built. TestMain calls it.
func RemoveBinary() {
	if built.path != "" {
		os.RemoveAll(filepath.Dir(built.path))
	}
}

// New returns an empty lab. It skips the test where a lab cannot run, and in
// short mode.
func New(t testing.TB) *Lab {
	t.Helper()
	l := newLab(t)
	l.WAN = l.Net.Bridge("wan")
	return l
}

// newLab returns a lab without a WAN.
func newLab(t testing.TB) *Lab {
	t.Helper()
	l := &Lab{t: t, Net: NewNetwork(t), dir: t.TempDir(), bin: Binary(t)}
	var err error
	if keep := os.Getenv("WANFED_LAB_DIR"); keep != "" { // keeps the logs
		if l.dir, err = os.MkdirTemp(keep, strings.ReplaceAll(t.Name(), "/", "-")+"-"); err != nil {
			t.Fatal(err)
		}
	}
	if l.PKI, err = subprocess.NewPKI(filepath.Join(l.dir, "pki"), ""); err != nil {
		t.Fatal(err)
	}
	return l
}

// Use sets the path of the program of all processes that are started from now
// on. It returns the previous path.
func (l *Lab) Use(bin string) (previous string) {
	previous, l.bin = l.bin, bin
	return previous
}

// Datacenters returns the datacenters in the order of Add. The caller must not
// change the slice.
func (l *Lab) Datacenters() []*Datacenter { return l.dcs }

// Running returns the servers whose processes run, of the given datacenters or
// of all.
func (l *Lab) Running(dcs ...*Datacenter) []*Node {
	if len(dcs) == 0 {
		dcs = l.dcs
	}
	var out []*Node
	for _, dc := range dcs {
		for _, s := range dc.Servers {
			if s.Running() {
				out = append(out, s)
			}
		}
	}
	return out
}

// One returns the first server of a datacenter.
func One(d *Datacenter) *Node { return d.Servers[0] }

// Nodes returns the servers and gateways.
func (d *Datacenter) Nodes() []*Node { return slices.Concat(d.Servers, d.Gateways) }

// Add adds a datacenter with servers and gateways. It starts nothing. Every
// datacenter has the same subnet and addresses.
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

// Clone adds a copy of a datacenter whose processes have stopped: with its name,
// certificates, LAN addresses and the data directories of its servers, in a LAN of
// its own. The WAN addresses differ. It starts nothing.
func (l *Lab) Clone(d *Datacenter) *Datacenter {
	l.t.Helper()
	c := l.Add(len(d.Servers), len(d.Gateways))
	for i, n := range c.Nodes() {
		n.TLS = d.Nodes()[i].TLS
	}
	for i, n := range c.Servers {
		if err := errors.Join(os.CopyFS(n.DataDir(), os.DirFS(d.Servers[i].DataDir())), os.Chmod(n.DataDir(), 0o700)); err != nil {
			l.t.Fatal(err)
		}
	}
	c.Name = d.Name
	return c
}

func (d *Datacenter) addServer() {
	i := len(d.Servers) + 1
	d.Servers = append(d.Servers, d.node(tlsutil.RoleServer, fmt.Sprintf("srv%d", i),
		fmt.Sprintf("10.10.0.%d", 10+i), ""))
}

// AddGateway adds a gateway with interfaces in the LAN and the WAN.
func (d *Datacenter) AddGateway() *Node {
	d.lab.t.Helper()
	i := len(d.Gateways) + 1
	g := d.node(tlsutil.RoleGateway, fmt.Sprintf("gw%d", i), fmt.Sprintf("10.10.0.%d", 100+i),
		fmt.Sprintf("198.18.%d.%d", d.number, i))
	if d.lab.emulator != nil {
		d.lab.emulator.attach(g)
	} else {
		d.lab.Net.Plug(g.NS, "wan", g.WAN+"/16", d.lab.WAN)
	}
	d.Gateways = append(d.Gateways, g)
	return g
}

// Kill ends all servers and gateways of a datacenter with SIGKILL.
func (d *Datacenter) Kill() {
	for _, n := range d.Nodes() {
		n.Kill()
	}
}

// Start starts all servers and gateways of a datacenter. It does not wait for a
// leader or a federation.
func (d *Datacenter) Start() {
	d.lab.t.Helper()
	for _, s := range d.Servers {
		s.StartServer()
	}
	for _, g := range d.Gateways {
		g.StartGateway()
	}
}
