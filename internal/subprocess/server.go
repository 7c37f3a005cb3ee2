// SPDX-License-Identifier: MPL-2.0

package subprocess

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/wanfed/wanfed/tlsutil"
)

// ServerConfig configures a server. For an empty field, the server uses its own
// default unless the field documents another default.
type ServerConfig struct {
	// Program is the wanfed binary, after an optional wrapper such as "ip netns
	// exec <name>". Required.
	Program []string
	// Dir is the directory for the data and the log of the server. StartServer
	// creates it if necessary. Required.
	Dir string
	// DC, Node and TLS are the identity of the server. Required.
	DC, Node string
	TLS      tlsutil.Files
	// PrimaryDC and PrimaryGateways (host:port) are the primary and its
	// gateways, for a server of a secondary.
	PrimaryDC       string
	PrimaryGateways []string
	// Bind is the IP address of the server port. Default "127.0.0.1".
	Bind string
	// Port is the server port. 0 means that the system chooses a port.
	Port int
	// HTTPAddr is the address of the HTTP API. Default "127.0.0.1:0".
	HTTPAddr string
	// BootstrapExpect and RetryJoin (host:port) are the number and the
	// addresses of the servers in a datacenter of several servers.
	BootstrapExpect int
	RetryJoin       []string
	// LogLevel is the log level. Default "info".
	LogLevel string
	// Args are additional flags.
	Args []string
}

// ServerReady is the content of the line that a server prints when it listens.
type ServerReady struct {
	DC, Node string
	Addr     string // host:port of the server port
	HTTP     string // URL of the HTTP API
}

func (r ServerReady) String() string {
	return fmt.Sprintf("wanfed server %s/%s: server port %s, http %s", r.DC, r.Node, r.Addr, r.HTTP)
}

var serverReady = regexp.MustCompile(`^wanfed server ([^/\s]+)/([^/\s:]+): server port ([^\s,]+), http ([^\s,]+)$`)

// ParseServerReady parses a line that ServerReady.String has returned.
func ParseServerReady(line string) (ServerReady, bool) {
	m := serverReady.FindStringSubmatch(line)
	if m == nil {
		return ServerReady{}, false
	}
	return ServerReady{DC: m[1], Node: m[2], Addr: m[3], HTTP: m[4]}, true
}

// Server is a running server process.
type Server struct {
	*Process
	ServerReady
}

// StartServer starts a server and waits until it listens, or ctx ends. A
// listening server may have no leader yet.
func StartServer(ctx context.Context, cfg ServerConfig) (*Server, error) {
	p, ready, err := startReady(ctx, cfg.Program, cfg.Dir, cfg.DC, cfg.Node, cfg.args(), ParseServerReady)
	if err != nil {
		return nil, err
	}
	return &Server{Process: p, ServerReady: ready}, nil
}

func (c ServerConfig) args() []string {
	args := []string{"server",
		"--dc", c.DC, "--node", c.Node, "--data-dir", filepath.Join(c.Dir, "data"),
		"--ca-file", c.TLS.CA, "--cert-file", c.TLS.Cert, "--key-file", c.TLS.Key,
		"--bind", cmp.Or(c.Bind, "127.0.0.1"), "--port", strconv.Itoa(cmp.Or(c.Port, -1)),
		"--http-addr", cmp.Or(c.HTTPAddr, "127.0.0.1:0"),
	}
	if c.PrimaryDC != "" {
		args = append(args, "--primary-datacenter", c.PrimaryDC)
	}
	for _, addr := range c.PrimaryGateways {
		args = append(args, "--primary-gateway", addr)
	}
	if c.BootstrapExpect != 0 {
		args = append(args, "--bootstrap-expect", strconv.Itoa(c.BootstrapExpect))
	}
	for _, addr := range c.RetryJoin {
		args = append(args, "--retry-join", addr)
	}
	if c.LogLevel != "" {
		args = append(args, "--log-level", c.LogLevel)
	}
	return append(args, c.Args...)
}

// startReady starts a server or gateway, and waits for a line that parse
// accepts.
func startReady[T any](
	ctx context.Context, program []string, dir, dc, node string, args []string, parse func(line string) (T, bool),
) (p *Process, ready T, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, ready, fmt.Errorf("create the directory of %s/%s: %w", dc, node, err)
	}
	p, err = Start(ctx, Config{
		Name:    dc + "/" + node,
		Command: slices.Concat(program, args, []string{"--" + StopOnEOF}),
		LogPath: filepath.Join(dir, "log"),
		Ready:   func(line string) bool { _, ok := parse(line); return ok },
	})
	if err == nil {
		ready, _ = parse(p.Line())
	}
	return p, ready, err
}
