// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/wanfed/wanfed/gateway/internal/upstream"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// serverTimeout bounds the TCP and TLS handshakes with one server.
	serverTimeout = 3 * time.Second
	// serverDelay is the time without an answer after which the next server is
	// tried too.
	serverDelay = 250 * time.Millisecond
	// serverEjectFor bounds the time for which a server that failed is tried
	// last.
	serverEjectFor = 10 * time.Second
)

// serverAddrs returns the addresses of servers in the order in which they are
// tried: first the last address that worked, then the servers of the snapshot,
// then the configured addresses.
func (r *remote) serverAddrs() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, addr := range slices.Concat([]string{r.status.Server}, r.addrs, r.cfg.Servers) {
		if addr != "" && !slices.Contains(out, addr) {
			out = append(out, addr)
		}
	}
	return out
}

// newDialer returns a dialer that verifies that the peer is a server of this
// datacenter.
func newDialer(id *tlsutil.Identity) *upstream.Dialer {
	return &upstream.Dialer{
		Timeout: serverTimeout, AttemptDelay: serverDelay, EjectFor: serverEjectFor,
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialServer(ctx, id, addr, nil)
			if err != nil {
				return nil, describe(err)
			}
			return c, nil
		},
	}
}

// dialServer connects to a server of this datacenter. header is sent before the
// TLS handshake; nil: nothing.
func dialServer(ctx context.Context, id *tlsutil.Identity, addr string, header []byte) (net.Conn, error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if _, err := raw.Write(header); err != nil { // does not block: it fits into the buffer of a new socket
		raw.Close()
		return nil, err
	}
	c, err := id.Client(ctx, raw, tlsutil.ServerName("", id.Peer().DC, id.Domain()), "h2")
	if err != nil {
		return nil, err // not c: an interface with a nil pointer is not nil
	}
	return c, nil
}

// describe explains errors of TLS. It returns other errors unchanged.
func describe(err error) error {
	if text := tlsutil.DescribeError(err); text != err.Error() {
		return errors.New(text)
	}
	return err
}

// dial connects to the first server that answers. It wakes the heartbeat,
// because this server may not have the registration of the gateway.
func (r *remote) dial(ctx context.Context) (net.Conn, error) {
	conn, addr, err := r.dialer.DialFirst(ctx, r.serverAddrs())
	if err != nil {
		err = fmt.Errorf("no server of %s answers: %w", r.dc, err)
	}
	r.mu.Lock()
	r.dialErr = err
	r.mu.Unlock()
	r.setServer(addr)
	if err != nil {
		return nil, err
	}
	r.wakeHeartbeat()
	return conn, nil
}
