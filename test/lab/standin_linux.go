// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Behaviour selects how a StandIn treats a connection.
type Behaviour string

const (
	// Silent reads and never responds.
	Silent Behaviour = "silent"
	// HangUp closes the connection after the first read.
	HangUp Behaviour = "hang up"
	// Trickle responds with a plausible TLS record, one byte per second.
	Trickle Behaviour = "trickle"
)

// StandIn listens in place of a gateway.
type StandIn struct {
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	accepted atomic.Int64
}

// StandIn listens on both addresses of a gateway whose process does not run,
// until the test ends.
func (n *Node) StandIn(b Behaviour) *StandIn {
	t := n.dc.lab.t
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &StandIn{cancel: cancel}
	t.Cleanup(s.Stop)
	for _, addr := range []string{n.LANAddr(), n.WANAddr()} {
		ln, err := ListenIn(n.NS, addr)
		if err != nil {
			t.Fatalf("stand in for %s/%s: %v", n.dc.Name, n.Name, err)
		}
		s.wg.Go(func() {
			<-ctx.Done()
			ln.Close()
		})
		s.wg.Go(func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					if !errors.Is(err, net.ErrClosed) {
						t.Errorf("stand-in for %s/%s: %v", n.dc.Name, n.Name, err)
					}
					return
				}
				s.accepted.Add(1)
				s.wg.Go(func() { b.serve(ctx, c) })
			}
		})
	}
	return s
}

// Accepted returns the number of connections so far.
func (s *StandIn) Accepted() int { return int(s.accepted.Load()) }

// Stop closes the listeners and all connections. It may be called more than
// once.
func (s *StandIn) Stop() {
	s.cancel()
	s.wg.Wait()
}

// serve owns c. It ends with ctx.
func (b Behaviour) serve(ctx context.Context, c net.Conn) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	buf := make([]byte, 4096)
	if _, err := c.Read(buf); err != nil || b == HangUp {
		return
	}
	if b == Trickle {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		// A TLS handshake record (RFC 8446 section 5.1) with a ServerHello,
		// both of the largest permitted size.
		response := append([]byte{22, 3, 3, 0x40, 0x00, 2, 0, 0x3f, 0xfc}, make([]byte, 16<<10)...)
		for i := range response {
			if _, err := c.Write(response[i : i+1]); err != nil {
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}
	for {
		if _, err := c.Read(buf); err != nil {
			return
		}
	}
}

// ListenIn listens inside a namespace. addr is an IP address with a port.
func ListenIn(ns, addr string) (ln net.Listener, err error) {
	err = In(ns, func() error {
		ln, err = net.Listen("tcp", addr)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", ns, err)
	}
	return ln, nil
}
