// SPDX-License-Identifier: MPL-2.0

package subprocess

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"regexp"

	"github.com/wanfed/wanfed/tlsutil"
)

// GatewayConfig configures a gateway.
type GatewayConfig struct {
	// Program is the wanfed binary, after an optional wrapper such as "ip netns
	// exec <name>". Required.
	Program []string
	// Dir is the directory for the data and the log of the gateway.
	// StartGateway creates it if necessary. Required.
	Dir string
	// DC, Node and TLS are the identity of the gateway. Required.
	DC, Node string
	TLS      tlsutil.Files
	// Servers are addresses (host:port) of servers of the same datacenter.
	// Required.
	Servers []string
	// LAN and WAN are the listen addresses. Default "127.0.0.1:0": the system
	// chooses the port.
	LAN, WAN string
	// LogLevel is the log level. Default "info".
	LogLevel string
	// Envoy is the path of Envoy's binary, which then runs as the gateway.
	// Empty: the native gateway.
	Envoy string
	// Args are additional flags.
	Args []string
}

// GatewayReady is the content of the line that a gateway prints when it
// listens.
type GatewayReady struct {
	DC, Node string
	LAN, WAN string // host:port
}

func (r GatewayReady) String() string {
	return fmt.Sprintf("wanfed gateway %s/%s: lan %s, wan %s", r.DC, r.Node, r.LAN, r.WAN)
}

var gatewayReady = regexp.MustCompile(`^wanfed gateway ([^/\s]+)/([^/\s:]+): lan ([^\s,]+), wan ([^\s,]+)$`)

// ParseGatewayReady parses a line that GatewayReady.String has returned.
func ParseGatewayReady(line string) (GatewayReady, bool) {
	m := gatewayReady.FindStringSubmatch(line)
	if m == nil {
		return GatewayReady{}, false
	}
	return GatewayReady{DC: m[1], Node: m[2], LAN: m[3], WAN: m[4]}, true
}

// Gateway is a running gateway process.
type Gateway struct {
	*Process
	GatewayReady
}

// StartGateway starts a gateway and waits until it listens, or ctx ends. A
// listening gateway may have no routes yet.
func StartGateway(ctx context.Context, cfg GatewayConfig) (*Gateway, error) {
	p, ready, err := startReady(ctx, cfg.Program, cfg.Dir, cfg.DC, cfg.Node, cfg.args(), ParseGatewayReady)
	if err != nil {
		return nil, err
	}
	return &Gateway{Process: p, GatewayReady: ready}, nil
}

func (c GatewayConfig) args() []string {
	args := []string{"gateway"}
	if c.Envoy != "" {
		args = []string{"envoy", "run", "--envoy", c.Envoy}
	}
	args = append(args,
		"--dc", c.DC, "--node", c.Node, "--data-dir", filepath.Join(c.Dir, "data"),
		"--ca-file", c.TLS.CA, "--cert-file", c.TLS.Cert, "--key-file", c.TLS.Key,
		"--lan", cmp.Or(c.LAN, "127.0.0.1:0"), "--wan", cmp.Or(c.WAN, "127.0.0.1:0"),
	)
	for _, addr := range c.Servers {
		args = append(args, "--server", addr)
	}
	if c.LogLevel != "" {
		args = append(args, "--log-level", c.LogLevel)
	}
	return append(args, c.Args...)
}
