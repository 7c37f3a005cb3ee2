// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// errLoop says that a route leads to a listener of this very process. Forwarding there would go round until the limit.
var errLoop = errors.New("leads back to this gateway; take the address out of the route")

// Dialer reaches one of several addresses: the first at once, the next when the one before takes longer than it usually does or
// fails, all in parallel from then on (the manner of RFC 8305, section 5). The first that answers wins, the others are
// given up. The fields are not changed after the first use; methods may be called by anyone at any time.
type Dialer struct {
	// Dial connects to one address. It must return soon when ctx ends. Required.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Timeout bounds one attempt to connect; twice that bounds First. Required.
	Timeout time.Duration
	// Stagger is after how long without an answer the next address is tried too, at the latest. Required.
	Stagger time.Duration
	// Memory is how long an address that failed is tried last, at most: it is tried again beside one that works after an
	// eighth of that, then after longer pauses. Zero: not at all.
	Memory time.Duration

	evidence evidence
	most     atomic.Int64 // connections to one address; 0: any number
	attempts sync.WaitGroup
	own      []net.Addr // listeners of this process: connections to them are refused
}

// First connects to one of addrs (host:port; at least one), in this order but for those that failed lately, and returns its
// address too. The caller closes the connection. An error names every address with its fault.
func (d *Dialer) First(ctx context.Context, addrs []string) (net.Conn, string, error) {
	won, _, err := d.reach(ctx, addrs, inOrder, request{})
	d.evidence.closed(won.known) // the caller does not say when it is
	return won.conn, won.addr, err
}

// Wait returns when attempts that were given up have ended too. No First may begin while it waits.
func (d *Dialer) Wait() { d.attempts.Wait() }

// retry finds out whether an address that failed works again. Nobody waits for it.
func (d *Dialer) retry(ctx context.Context, addr string, hello []byte) {
	ctx, cancel := context.WithTimeout(ctx, min(2*d.Stagger+2*d.evidence.patience(addr, d.Stagger), d.Timeout))
	defer cancel()
	began := time.Now()
	conn, answer, err := d.ask(ctx, addr, hello)
	switch {
	case err == nil:
		d.evidence.worked(addr, time.Since(began))
		answer.free()
		conn.Close()
	case !errors.Is(ctx.Err(), context.Canceled):
		d.evidence.noAnswer(addr, 0, time.Now(), d.Memory)
	}
}

// ask connects to one address. If there is a hello it sends that and waits for the answer.
func (d *Dialer) ask(ctx context.Context, addr string, hello []byte) (net.Conn, answer, error) {
	conn, err := d.connect(ctx, addr)
	if err != nil || hello == nil {
		return conn, answer{}, err
	}
	tune(conn)
	unhook := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	var a answer
	if _, err = conn.Write(hello); err == nil {
		a, err = readAnswer(conn)
	}
	if !unhook() { // the deadline may be set
		err = ctx.Err()
	}
	if err != nil {
		a.free()
		conn.Close()
		return nil, answer{}, answerError(addr, err)
	}
	return conn, a, nil
}

func (d *Dialer) connect(ctx context.Context, addr string) (net.Conn, error) {
	one, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	conn, err := d.Dial(one, "tcp", addr)
	if err == nil && d.isOwn(conn) {
		conn.Close()
		err = errLoop
	}
	if err != nil {
		return nil, dialError(addr, err)
	}
	return conn, nil
}

func dialError(addr string, err error) error { return fmt.Errorf("dial %s: %w", addr, reason(err)) }

func answerError(addr string, err error) error {
	return fmt.Errorf("no answer to the ClientHello from %s: %w", addr, reason(err))
}

// reason leaves out of a network error what its context says too: the address.
func reason(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

// isOwn says whether the other end of a connection is a listener of this process.
func (d *Dialer) isOwn(c net.Conn) bool {
	remote, ok1 := c.RemoteAddr().(*net.TCPAddr)
	local, ok2 := c.LocalAddr().(*net.TCPAddr)
	return ok1 && ok2 && d.isOwnAddr(remote.AddrPort().Addr(), local.AddrPort().Addr(), remote.AddrPort().Port())
}

// ownPort says whether a listener of this process has this port.
func (d *Dialer) ownPort(port uint16) bool {
	for _, a := range d.own {
		if ln, ok := a.(*net.TCPAddr); ok && ln.Port == int(port) {
			return true
		}
	}
	return false
}

// isOwnAddr says whether a connection from local to remote leads to a listener of this process.
func (d *Dialer) isOwnAddr(remote, local netip.Addr, port uint16) bool {
	remote, local = remote.Unmap(), local.Unmap()
	for _, a := range d.own {
		ln, ok := a.(*net.TCPAddr)
		if !ok || ln.Port != int(port) {
			continue
		}
		ip := ln.AddrPort().Addr().Unmap()
		if ip == remote || (!ip.IsValid() || ip.IsUnspecified()) && local == remote {
			return true
		}
	}
	return false
}
