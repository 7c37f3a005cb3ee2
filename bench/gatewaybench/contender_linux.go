// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/bench/gatewaybench/load"
)

// helloTimeout is how long each proxy waits for the ClientHello. It is the
// default of the gateway. The other proxies are configured to use it.
const helloTimeout = "5s"

// contender is one of the compared setups: a proxy, or a direct connection
// between client and server.
type contender struct {
	name string
	role role
	addr string // address of a proxy that already runs; empty: one is started for each run
	// command is the command line of the proxy. It may contain placeholders:
	// see placeholders.
	command []string
	// files maps names of configuration files to contents, which may contain
	// placeholders. They are written before the command runs.
	files map[string]string
	xds   bool // the proxy receives its configuration from serveXDS
}

type role int

const (
	subject role = iota // its figures are compared with those of the peers
	peer                // a proxy with which subjects are compared
	direct              // no proxy: the limit of client and server
)

// updatable reports whether the proxy reads its route file again on SIGHUP.
func (c contender) updatable() bool {
	return slices.ContainsFunc(c.command, func(w string) bool { return strings.Contains(w, "{routes}") })
}

// placeholders are the values of the names in braces, such as {listen}, in
// commands and files.
type placeholders struct {
	dir, listen, raw, tls, xdsPort string
}

func (ph placeholders) expand(s string) string {
	return strings.NewReplacer(
		"{dir}", ph.dir, "{routes}", ph.routes(), "{listen}", ph.listen, "{raw}", ph.raw, "{tls}", ph.tls,
		"{rawname}", load.RawName, "{tlsroute}", load.TLSRoute, "{tlssuffix}", strings.TrimPrefix(load.TLSRoute, "*"),
		"{hello}", helloTimeout, "{xdsport}", ph.xdsPort,
	).Replace(s)
}

func (ph placeholders) routes() string { return filepath.Join(ph.dir, "routes.hcl") }

func wanfed(program string) contender {
	// All connections have the same source address: switch off the limit.
	return contender{name: "wanfed", role: subject, command: []string{
		program, "gateway", "--listen", "{listen}", "--routes", "{routes}", "--max-conns-per-source=-1", "--max-rate-per-source=0",
	}}
}

// parseProxy parses name=ip:port or name=command. Spaces separate the words of
// the command.
func parseProxy(s string) (contender, error) {
	name, target, ok := strings.Cut(s, "=")
	words := strings.Fields(target)
	if !ok || name == "" || len(words) == 0 {
		return contender{}, fmt.Errorf("proxy %q is neither name=ip:port nor name=command", s)
	}
	if _, err := netip.ParseAddrPort(words[0]); err == nil && len(words) == 1 {
		return contender{name: name, role: subject, addr: words[0]}, nil
	}
	if !strings.Contains(target, "{listen}") {
		return contender{}, fmt.Errorf("proxy %s: its command has no {listen}: put it where the listen address belongs",
			name)
	}
	return contender{name: name, role: subject, command: words}, nil
}

// haproxy returns HAProxy with additional global and default settings. maxconn
// and maxpipes fit into 20,000 open files: two sockets per connection and two
// ends per pipe.
func haproxy(name, global, defaults string) contender {
	command := []string{"haproxy", "-db", "-f", "{dir}/haproxy.cfg"}
	return contender{name: name, role: peer, command: command, files: map[string]string{
		"haproxy.cfg": `global
    nbthread 1
    maxconn 9700
    maxpipes 256
` + global + `defaults
    mode tcp
    timeout connect 5s
    timeout client 10m
    timeout server 10m
` + defaults + `frontend front
    bind {listen}
    tcp-request inspect-delay {hello}
    tcp-request content accept if { req.ssl_hello_type 1 }
    tcp-request content reject
    use_backend raw if { req.ssl_sni -i {rawname} }
    use_backend tls if { req.ssl_sni -m end {tlssuffix} }
backend raw
    server s {raw}
backend tls
    server s {tls}
`}}
}

// nginxModule is the stream module of Debian's nginx. Other builds include it
// in the program.
const nginxModule = "/usr/lib/nginx/modules/ngx_stream_module.so"

func nginx() contender {
	var module string
	if _, err := os.Stat(nginxModule); err == nil {
		module = "load_module " + nginxModule + ";\n"
	}
	command := []string{"nginx", "-c", "{dir}/nginx.conf"}
	return contender{name: "nginx", role: peer, command: command, files: map[string]string{
		"nginx.conf": module + `daemon off;
worker_processes 1;
worker_rlimit_nofile 20000;
pid {dir}/nginx.pid;
error_log {dir}/nginx.err crit;
events { worker_connections 19900; }
stream {
    map $ssl_preread_server_name $upstream {
        hostnames;
        {rawname} {raw};
        {tlsroute} {tls};
    }
    server {
        listen {listen} backlog=4096;
        ssl_preread on;
        preread_timeout {hello};
        proxy_timeout 10m;
        proxy_connect_timeout 5s;
        proxy_pass $upstream;
    }
}
`}}
}

// peers returns the proxies with which a gateway is compared. Envoy is left out
// if its binary is not installed.
func peers() []contender {
	all := []contender{
		haproxy("haproxy", "", ""),
		haproxy("haproxy-splice", "", "    option splice-auto\n"),
		haproxy("haproxy-tuned", "    tune.pipesize 1048576\n",
			"    option splice-request\n    option splice-response\n"),
		nginx(),
	}
	if binary, err := envoyBinary(); err == nil {
		all = append(all, envoy(binary))
	}
	return all
}

// packages are the Debian packages that contain the peers.
const packages = "haproxy nginx libnginx-mod-stream"

// checkTools returns an error that names the missing programs and how to
// install them.
func checkTools(cs []contender) error {
	var missing []string
	for _, c := range cs {
		if len(c.command) == 0 {
			continue
		}
		if _, err := exec.LookPath(c.command[0]); err != nil && !slices.Contains(missing, c.command[0]) {
			missing = append(missing, c.command[0])
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf(
		"missing programs: %s: run apt-get install %s, or choose other proxies with --peers (empty: none)",
		strings.Join(missing, ", "), packages)
}
