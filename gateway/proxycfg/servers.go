// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// attemptTimeout bounds TCP and TLS to one server.
const attemptTimeout = 3 * time.Second

// servers remembers where servers of the datacenter are.
type servers struct {
	configured []string

	mu      sync.Mutex
	learned []string
	good    string // worked last: tried first
}

func (s *servers) learn(addrs []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.learned = slices.Clone(addrs)
}

// order lists every address once: the last good one, the learned ones (they are alive), the configured ones.
func (s *servers) order() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, addr := range slices.Concat([]string{s.good}, s.learned, s.configured) {
		if addr != "" && !slices.Contains(out, addr) {
			out = append(out, addr)
		}
	}
	return out
}

func (s *servers) set(good string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.good = good
}

// dial connects to the first server that answers.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	var errs []error
	dc := c.cfg.Identity.Peer().DC
	for _, addr := range c.servers.order() {
		conn, err := c.dialOne(ctx, addr, dc)
		if err == nil {
			c.servers.set(addr)
			c.mu.Lock()
			if c.status.Server != addr {
				c.cfg.Logger.Info("connected to a server", "addr", addr)
			}
			c.status.Server = addr
			c.mu.Unlock()
			return conn, nil
		}
		errs = append(errs, fmt.Errorf("server %s: %s", addr, tlsutil.Explain(err)))
		if ctx.Err() != nil {
			break
		}
	}
	c.servers.set("")
	c.mu.Lock()
	c.status.Server = ""
	c.mu.Unlock()
	return nil, fmt.Errorf("no server of %s answers: %w", dc, errors.Join(errs...))
}

func (c *Client) dialOne(ctx context.Context, addr, dc string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	d := tls.Dialer{Config: c.cfg.Identity.ClientConfig(tlsutil.ServerName("", dc, c.cfg.Identity.Domain()), "h2")}
	return d.DialContext(ctx, "tcp", addr)
}
