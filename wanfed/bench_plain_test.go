// SPDX-License-Identifier: MPL-2.0

package wanfed_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// plainPool is the transport with which benchmarks compare the tunnel. It works
// like the transport of Consul: it has a pool of idle TLS connections per node.
// The sender of a packet takes the last used connection, or dials. It writes a
// u32 length and the body, and puts the connection into the pool. Each
// concurrent packet therefore needs a connection, and senders wait for dials
// and for peers.
type plainPool struct {
	id      *tlsutil.Identity
	gateway string

	mu    sync.Mutex
	idle  map[string][]*tls.Conn // by node; last in, first out
	all   []*tls.Conn
	dials int
}

func newPlainPool(id *tlsutil.Identity, gateway string) *plainPool {
	return &plainPool{id: id, gateway: gateway, idle: map[string][]*tls.Conn{}}
}

// send writes one packet to a node.
func (p *plainPool) send(node, dc string, packet []byte) error {
	c, err := p.acquire(node, dc)
	if err != nil {
		return err
	}
	var head [4]byte
	binary.BigEndian.PutUint32(head[:], uint32(len(packet)))
	if _, err := c.Write(head[:]); err != nil {
		return err
	}
	if _, err := c.Write(packet); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle[node+"."+dc] = append(p.idle[node+"."+dc], c)
	return nil
}

func (p *plainPool) acquire(node, dc string) (*tls.Conn, error) {
	if c := p.takeIdle(node + "." + dc); c != nil {
		return c, nil
	}
	return p.dial(node, dc, wanfed.ProtoConsulPacket)
}

func (p *plainPool) takeIdle(name string) *tls.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := p.idle[name]
	if len(idle) == 0 {
		return nil
	}
	p.idle[name] = idle[:len(idle)-1]
	return idle[len(idle)-1]
}

// dial opens a connection to a node.
func (p *plainPool) dial(node, dc, alpn string) (*tls.Conn, error) {
	d := tls.Dialer{
		NetDialer: &net.Dialer{Timeout: 10 * time.Second},
		Config:    p.id.ClientConfig(tlsutil.ServerName(node, dc, p.id.Domain()), alpn),
	}
	c, err := d.Dial("tcp", p.gateway)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dials++
	p.all = append(p.all, c.(*tls.Conn))
	return c.(*tls.Conn), nil
}

func (p *plainPool) dialed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dials
}

// close closes all connections, including connections in use.
func (p *plainPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.all {
		c.NetConn().Close()
	}
}

// plainPackets returns the receiver of plainPool's packets. It reads length and
// body separately and waits until ch takes the packet, like
// NetTransport.IngestPacket of memberlist.
func plainPackets(ch chan<- []byte) wanfed.Handler {
	return func(ctx context.Context, c *tls.Conn, _ tlsutil.Peer) {
		defer c.Close()
		for {
			var head [4]byte
			c.SetReadDeadline(time.Now().Add(2 * time.Minute))
			if _, err := io.ReadFull(c, head[:]); err != nil {
				return
			}
			c.SetReadDeadline(time.Time{})
			var body bytes.Buffer
			if _, err := io.Copy(&body, io.LimitReader(c, int64(binary.BigEndian.Uint32(head[:])))); err != nil {
				return
			}
			select {
			case ch <- body.Bytes():
			case <-ctx.Done():
				return
			}
		}
	}
}

// plainStreams is the receiver of plainPool's streams. A connection is one
// stream, and plainStreams reads it until EOF.
func plainStreams(_ context.Context, c *tls.Conn, _ tlsutil.Peer) {
	defer c.Close()
	_, _ = io.Copy(io.Discard, c)
}
