// SPDX-License-Identifier: MPL-2.0

package subprocess

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/wanfed/wanfed/tlsutil"
)

// ServerConfig says what server to start. Empty fields are left to the server's own defaults unless said otherwise.
type ServerConfig struct {
	// Program is the wanfed binary, with what comes before it, such as "ip netns exec <name>". Required.
	Program []string
	// Dir is the server's own folder: data and log go there. Made if absent. Required.
	Dir string
	// DC, Node and TLS are who it is. Required.
	DC, Node string
	TLS      tlsutil.Files
	// PrimaryDC and PrimaryGateways (host:port) are for servers of a secondary.
	PrimaryDC       string
	PrimaryGateways []string
	// Bind is the IP address of the server port. Default "127.0.0.1".
	Bind string
	// Port of the server port. 0: the system chooses.
	Port int
	// HTTPAddr. Default "127.0.0.1:0".
	HTTPAddr string
	// BootstrapExpect and RetryJoin (host:port) are for more than one server in a datacenter.
	BootstrapExpect int
	RetryJoin       []string
	// LogLevel. Default "info".
	LogLevel string
	// Args are further flags.
	Args []string
}

// ServerReady is the line by which a server says where it listens.
type ServerReady struct {
	DC, Node string
	Addr     string // host:port of the server port
	HTTP     string // URL
}

func (r ServerReady) String() string {
	return fmt.Sprintf("wanfed server %s/%s: server port %s, http %s", r.DC, r.Node, r.Addr, r.HTTP)
}

var serverReady = regexp.MustCompile(`^wanfed server ([^/\s]+)/([^/\s:]+): server port ([^\s,]+), http ([^\s,]+)$`)

// ParseServerReady reads what ServerReady.String gives.
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

// StartServer starts a server and waits until it listens; ctx bounds the wait. Listening is not yet having a leader.
func StartServer(ctx context.Context, cfg ServerConfig) (*Server, error) {
	pc, err := config(cfg.Program, cfg.Dir, cfg.DC, cfg.Node, cfg.args())
	if err != nil {
		return nil, err
	}
	pc.Ready = func(line string) bool { _, ok := ParseServerReady(line); return ok }
	p, err := Start(ctx, pc)
	if err != nil {
		return nil, err
	}
	ready, _ := ParseServerReady(p.Line())
	return &Server{Process: p, ServerReady: ready}, nil
}

func (c ServerConfig) args() []string {
	args := []string{"server",
		"--dc", c.DC, "--node", c.Node, "--data-dir", filepath.Join(c.Dir, "data"),
		"--ca-file", c.TLS.CA, "--cert-file", c.TLS.Cert, "--key-file", c.TLS.Key,
		"--bind", or(c.Bind, "127.0.0.1"), "--port", strconv.Itoa(c.Port), "--http-addr", or(c.HTTPAddr, "127.0.0.1:0"),
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

// config is what servers and gateways have in common.
func config(program []string, dir, dc, node string, args []string) (Config, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Config{}, fmt.Errorf("make the folder of %s/%s: %w", dc, node, err)
	}
	return Config{
		Name:    dc + "/" + node,
		Command: slices.Concat(program, args, []string{"--" + StopOnEOF}),
		LogPath: filepath.Join(dir, "log"),
	}, nil
}

func or(s, byDefault string) string {
	if s == "" {
		return byDefault
	}
	return s
}
