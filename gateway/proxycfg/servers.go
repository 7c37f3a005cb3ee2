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

	"github.com/wanfed/wanfed/gateway/internal/upstream"
	"github.com/wanfed/wanfed/internal/proxyproto"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// serverTimeout bounds TCP and TLS to one server.
	serverTimeout = 3 * time.Second
	// serverDelay is the time without an answer after which the next server is
	// tried too.
	serverDelay = 250 * time.Millisecond
	// serverEjectFor is the time for which a server that failed is tried last.
	serverEjectFor = 10 * time.Second
)

// serverList contains the addresses of servers of the datacenter.
type serverList struct {
	configured []string

	mu      sync.Mutex
	learned []string // from the snapshot
	last    string   // worked last: it is tried first
}

func (s *serverList) learn(addrs []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.learned = slices.Clone(addrs)
	// The gateways of a datacenter should not all choose the same server.
	rand.Shuffle(len(s.learned), func(i, j int) { s.learned[i], s.learned[j] = s.learned[j], s.learned[i] })
}

// order returns every address once: first the last address that worked, then
// the addresses of live servers in the snapshot, then the configured addresses.
func (s *serverList) order() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, addr := range slices.Concat([]string{s.last}, s.learned, s.configured) {
		if addr != "" && !slices.Contains(out, addr) {
			out = append(out, addr)
		}
	}
	return out
}

func (s *serverList) setLast(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = addr
}

// newDialer returns a dialer that verifies that the peer is a server of this
// datacenter. With proxyHeader, a connection begins with a PROXY header which
// marks it as the gateway's own.
func newDialer(id *tlsutil.Identity, proxyHeader bool) *upstream.Dialer {
	return &upstream.Dialer{
		Timeout: serverTimeout, AttemptDelay: serverDelay, EjectFor: serverEjectFor,
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			raw, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, withoutAddr(err)
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
				return nil, withoutAddr(err)
			}
			return c, nil
		},
	}
}

// withoutAddr removes the address from the error of a dial: the dialer adds it.
func withoutAddr(err error) error {
	text := tlsutil.DescribeError(err)
	if op, ok := errors.AsType[*net.OpError](err); ok && text == err.Error() {
		return op.Err
	}
	return errors.New(text)
}

// dial connects to the first server that answers, and wakes the heartbeat: the
// server may not have this gateway registered.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	conn, addr, err := c.dialer.DialFirst(ctx, c.servers.order())
	if err != nil {
		err = fmt.Errorf("no server of %s answers: %w", c.cfg.Identity.Peer().DC, err)
	}
	c.servers.setLast(addr)
	c.mu.Lock()
	changed := c.status.Server != addr
	c.status.Server, c.dialErr = addr, err
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
