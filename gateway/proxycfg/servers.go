// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/internal/proxyproto"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// attemptTimeout bounds TCP and TLS to one server.
	attemptTimeout = 3 * time.Second
	// serverStagger is after how long without an answer the next server is tried too.
	serverStagger = 250 * time.Millisecond
	// serverMemory is how long a server that failed is tried last.
	serverMemory = 10 * time.Second
)

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
	// A datacenter's gateways should not all choose the same server.
	rand.Shuffle(len(s.learned), func(i, j int) { s.learned[i], s.learned[j] = s.learned[j], s.learned[i] })
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

// newDialer makes what connects to servers. It checks that a server of the own datacenter answers. With proxyHeader it says first that
// the connection is the gateway's own.
func newDialer(id *tlsutil.Identity, proxyHeader bool) *gateway.Dialer {
	return &gateway.Dialer{
		Timeout: attemptTimeout, Stagger: serverStagger, Memory: serverMemory,
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			raw, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, plain(err)
			}
			c := tls.Client(raw, id.ClientConfig(tlsutil.ServerName("", id.Peer().DC, id.Domain()), "h2"))
			if proxyHeader { // it fits into the buffer of a new socket
				_, err = raw.Write(proxyproto.Append(nil, netip.AddrPort{}, netip.AddrPort{}))
			}
			if err == nil {
				err = c.HandshakeContext(ctx)
			}
			if err != nil {
				raw.Close()
				return nil, plain(err)
			}
			return c, nil
		},
	}
}

// plain leaves out of a failed dial what the dialer says too: the address.
func plain(err error) error {
	text := tlsutil.DescribeError(err)
	if op, ok := errors.AsType[*net.OpError](err); ok && text == err.Error() {
		return op.Err
	}
	return errors.New(text)
}

// dial connects to the first server that answers and wakes the heartbeat: the servers may not know this gateway any more.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	conn, addr, err := c.dialer.First(ctx, c.servers.order())
	if err != nil {
		err = fmt.Errorf("no server of %s answers: %w", c.cfg.Identity.Peer().DC, err)
	}
	c.servers.set(addr)
	c.mu.Lock()
	changed := c.status.Server != addr
	c.status.Server, c.noDial = addr, err
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if changed {
		c.cfg.Logger.Info("connected to a server", "addr", addr)
	}
	select {
	case c.connected <- struct{}{}:
	default:
	}
	return conn, nil
}
