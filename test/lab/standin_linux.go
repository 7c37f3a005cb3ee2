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

// Manners say how a StandIn treats a connection.
type Manners string

const (
	// Silent takes what is sent and never answers.
	Silent Manners = "silent"
	// HangUp closes when the client has said the first thing.
	HangUp Manners = "hang up"
	// Trickle answers with a TLS record that looks right and comes in at a byte per second.
	Trickle Manners = "trickle"
)

// StandIn listens in a gateway's place.
type StandIn struct {
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	accepted atomic.Int64
}

// StandIn listens on both addresses of a gateway whose process does not run. The test's end stops it.
func (n *Node) StandIn(m Manners) *StandIn {
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
				s.wg.Go(func() { m.treat(ctx, c) })
			}
		})
	}
	return s
}

// Accepted counts the connections so far.
func (s *StandIn) Accepted() int { return int(s.accepted.Load()) }

// Stop closes all. It may be called more than once.
func (s *StandIn) Stop() {
	s.cancel()
	s.wg.Wait()
}

// treat owns c and ends with ctx.
func (m Manners) treat(ctx context.Context, c net.Conn) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	buf := make([]byte, 4096)
	if _, err := c.Read(buf); err != nil || m == HangUp {
		return
	}
	if m == Trickle {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		// A handshake record of TLS (RFC 8446 section 5.1) with a ServerHello, both as long as they may be.
		answer := append([]byte{22, 3, 3, 0x40, 0x00, 2, 0, 0x3f, 0xfc}, make([]byte, 16<<10)...)
		for i := range answer {
			if _, err := c.Write(answer[i : i+1]); err != nil {
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
	err = in(ns, func() error {
		ln, err = net.Listen("tcp", addr)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", ns, err)
	}
	return ln, nil
}
