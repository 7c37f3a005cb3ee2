// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/tlsutil"
)

// syncHTTPPort is the port of the HTTP API that ServeHTTP opens at the LAN.
const syncHTTPPort = 8501

// ServeHTTP returns the flags by which a server has its HTTP API at its LAN
// address, over HTTPS. Node.Get does not work then.
func (n *Node) ServeHTTP() []string {
	return []string{"--http-addr", fmt.Sprintf("https://%s:%d", n.LAN, syncHTTPPort)}
}

// AddSync adds a sync daemon. It runs in the namespace of the server host. If
// host is nil, it has its own namespace, and the first server of the datacenter
// needs the flags of ServeHTTP. All daemons of a datacenter have the same keys.
func (d *Datacenter) AddSync(host *Node) *Node {
	d.lab.t.Helper()
	i := len(d.Syncs) + 1
	name, lan := fmt.Sprintf("sync%d", i), fmt.Sprintf("10.10.0.%d", 150+i)
	var n *Node
	if host == nil {
		n = d.node(tlsutil.RoleSync, name, lan, "")
	} else {
		n = d.nodeIn(tlsutil.RoleSync, name, host.NS)
	}
	n.host = host
	d.Syncs = append(d.Syncs, n)
	if _, err := os.Stat(d.SyncKeys()); err != nil {
		if out, err := n.CLI("task", "state", "key", d.SyncKeys()); err != nil {
			d.lab.t.Fatalf("wanfed task state key: %v: %s", err, out)
		}
	}
	return n
}

// SyncKeys returns the path of the keys of the states.
func (d *Datacenter) SyncKeys() string { return filepath.Join(d.lab.dir, d.Name+"-keys") }

// SyncConfig returns the path of the configuration file of a sync daemon.
func (n *Node) SyncConfig() string { return filepath.Join(n.directory(), "sync.hcl") }

// StartSync starts a sync daemon on its working directory, for the first time or
// again. parts are added to its configuration file.
func (n *Node) StartSync(parts ...string) {
	t := n.dc.lab.t
	t.Helper()
	source := `address = "127.0.0.1:8500"`
	if n.host == nil {
		s := n.dc.Servers[0]
		source = fmt.Sprintf("address = \"https://%s:%d\"\n  tls {\n    enabled     = true\n    server_name = %q\n  }",
			s.LAN, syncHTTPPort, tlsutil.ServerName(s.Name, n.dc.Name, tlsutil.DefaultDomain))
	}
	var servers []string
	for _, s := range n.dc.Servers {
		servers = append(servers, fmt.Sprintf("%q", s.ServerAddr()))
	}
	text := fmt.Sprintf(`
id             = %q
port           = 0
log_level      = "DEBUG"
working_dir    = %q
state_key_file = %q
max_running    = 4
buffer_period {
  enabled = false
}
consul {
  %s
}
wanfed {
  address = [%s]
  ca      = %q
  cert    = %q
  key     = %q
}
%s`, n.Name, filepath.Join(n.directory(), "tasks"), n.dc.SyncKeys(), source, strings.Join(servers, ", "),
		n.TLS.CA, n.TLS.Cert, n.TLS.Key, strings.Join(parts, "\n"))
	if err := os.MkdirAll(n.directory(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.SyncConfig(), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	p, err := subprocess.Start(ctx, subprocess.Config{
		Name:    n.dc.Name + "/" + n.Name,
		Command: append(n.program(), "sync", "--config-file", n.SyncConfig(), "--"+subprocess.StopOnEOF),
		Env:     n.Env,
		LogPath: filepath.Join(n.directory(), "log"),
		Ready:   func(line string) bool { return strings.HasPrefix(line, "wanfed sync "+n.Name+": api ") },
	})
	if err != nil {
		t.Fatal(err)
	}
	n.Process = p
}
