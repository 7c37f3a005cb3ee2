// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// sourceAddrs is over how many addresses of the loopback network clients are spread, so that the ports of one do not run out
// and limits per source do not count all as one.
const sourceAddrs = 8

// answerTime bounds the wait for the answer of one connection that must get one.
const answerTime = 10 * time.Second

// client opens plain connections in a loop.
type client struct {
	*loop
	spec  Spec
	to    unix.SockaddrInet4
	first map[byte][]byte // by operation: the hello and the request
	next  byte            // of the source addresses
	in    []byte          // shared by all connections, for one read
}

func newClient(s Spec) (*client, error) {
	addr, err := netip.ParseAddrPort(s.Addr)
	if err != nil || !addr.Addr().Is4() {
		return nil, fmt.Errorf("proxy address %q is not an IPv4 address and a port", s.Addr)
	}
	hello, err := recordHello(RawName)
	if err != nil {
		return nil, err
	}
	first := map[byte][]byte{}
	for _, op := range []byte{opAnswer, opEcho, opSource} {
		first[op] = append(append([]byte(nil), hello...), request(op)...)
	}
	l, err := newLoop()
	if err != nil {
		return nil, err
	}
	return &client{loop: l, spec: s, to: unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}, first: first,
		in: make([]byte, 64<<10)}, nil
}

// dial begins a connection.
func (c *client) dial() (*rawConn, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	c.next = (c.next + 1) % sourceAddrs
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 2 + c.next}}))
	if err == nil {
		if err = unix.Connect(fd, &c.to); err == unix.EINPROGRESS {
			err = nil
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("dial %s: %w", c.spec.Addr, err)
	}
	return &rawConn{fd: fd, began: time.Now()}, nil
}

// open begins a connection, sends what comes first and lets h know from then on.
func (c *client) open(op byte, h handler) (*rawConn, error) {
	conn, err := c.dial()
	if err != nil {
		return nil, err
	}
	conn.handler, conn.op = h, op
	conn.buf = c.first[op]
	events := uint32(unix.EPOLLIN)
	if sent, err := c.flush(conn); err != nil {
		unix.Close(conn.fd)
		return nil, err
	} else if !sent {
		events |= unix.EPOLLOUT
	}
	if err := c.add(conn, events); err != nil {
		unix.Close(conn.fd)
		return nil, err
	}
	return conn, nil
}

// flush writes what is still to be written.
func (c *client) flush(conn *rawConn) (all bool, _ error) {
	n, err := unix.Write(conn.fd, conn.buf)
	if err != nil && !again(err) {
		return false, os.NewSyscallError("write", err)
	}
	conn.buf = conn.buf[max(n, 0):]
	return len(conn.buf) == 0, nil
}

// flushOn goes on with a hello that could not be sent at once, since the connection was not established.
func (c *client) flushOn(conn *rawConn, events uint32) error {
	if len(conn.buf) == 0 || events&unix.EPOLLOUT == 0 {
		return nil
	}
	all, err := c.flush(conn)
	if err == nil && all {
		err = c.change(conn, unix.EPOLLIN)
	}
	return err
}

// receive reads what has come. It returns io.ErrUnexpectedEOF at the end and 0, nil if nothing has come.
func (c *client) receive(conn *rawConn, flags int) (int, error) {
	n, _, err := unix.Recvfrom(conn.fd, c.in, flags)
	switch {
	case err == nil && n == 0:
		return 0, io.ErrUnexpectedEOF
	case err == nil:
		return n, nil
	case again(err):
		return 0, nil
	}
	return 0, os.NewSyscallError("recvfrom", err)
}

// answered reads on and says whether the whole answer, of requestSize bytes, has come.
func (c *client) answered(conn *rawConn, events uint32) (bool, error) {
	if err := c.flushOn(conn, events); err != nil {
		return false, err
	}
	if events&^unix.EPOLLOUT == 0 {
		return false, nil
	}
	n, err := c.receive(conn, 0)
	conn.got += n
	return conn.got >= requestSize, err
}

// opener opens connections that each await one answer and stay open then: those that the measured part begins with.
type opener struct {
	*client
	op     byte
	want   int
	tried  int
	open   []*rawConn
	failed int
	last   error
	flying int
}

// Bounds of an opener: how many connections await their answer at a time, and with how many failures it gives up.
const (
	openAtATime = 32
	openFaults  = 20
)

// openAll opens n connections; fewer if failures are many, of which the last is the error then.
func (c *client) openAll(ctx context.Context, op byte, n int) ([]*rawConn, error) {
	o := &opener{client: c, op: op, want: n}
	for range min(openAtATime, n) {
		o.more()
	}
	err := c.run(ctx, 10*time.Second+time.Duration(n)*time.Millisecond)
	c.err = nil
	switch {
	case err != nil:
		return nil, err
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case len(o.open) < n && o.last == nil:
		return o.open, fmt.Errorf("%d of %d connections got no answer", n-len(o.open), n)
	case len(o.open) < n:
		return o.open, fmt.Errorf("opened %d of %d connections: %w", len(o.open), n, o.last)
	}
	return o.open, nil
}

func (o *opener) more() {
	for o.tried < o.want && o.failed < openFaults {
		o.tried++
		_, err := o.client.open(o.op, o)
		if err == nil {
			o.flying++
			return
		}
		o.failed++
		o.last = err
	}
	if o.flying == 0 {
		o.fail(errStop)
	}
}

func (o *opener) ready(c *rawConn, events uint32) {
	done, err := o.answered(c, events)
	if err == nil && !done {
		return
	}
	o.flying--
	if err != nil {
		o.failed++
		o.last = err
		o.drop(c)
	} else {
		c.handler = parked{o.loop}
		o.open = append(o.open, c)
	}
	o.more()
}

// parked is the handler of an open connection on which nothing is expected but its end.
type parked struct{ *loop }

func (p parked) ready(c *rawConn, _ uint32) { p.drop(c) }
