// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// sourceAddrs is the number of loopback addresses from which clients connect.
// One address would run out of ports, and a limit per source address would
// count all connections as one.
const sourceAddrs = 8

// responseTimeout bounds the wait for the response on one connection.
const responseTimeout = 10 * time.Second

// client opens plain connections and handles them in an epoll loop.
type client struct {
	*loop
	spec       Spec
	to         unix.SockaddrInet4
	preamble   map[byte][]byte // by operation: ClientHello and request
	opened     uint64          // connections
	nextSource byte            // index of the next source address
	readBuf    []byte          // shared by all connections, valid during one read
}

// helloRandom is the offset of the random in a ClientHello: after the headers of
// record and message, and the version.
const helloRandom = 5 + 4 + 2

func newClient(s Spec) (*client, error) {
	addr, err := netip.ParseAddrPort(s.Addr)
	if err != nil || !addr.Addr().Is4() {
		return nil, fmt.Errorf("proxy address %q is not an IPv4 address with a port", s.Addr)
	}
	hello, err := recordHello(RawName)
	if err != nil {
		return nil, err
	}
	preamble := map[byte][]byte{}
	for _, op := range []byte{opRespond, opEcho, opSource} {
		preamble[op] = append(append([]byte(nil), hello...), request(op)...)
	}
	l, err := newLoop()
	if err != nil {
		return nil, err
	}
	to := unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	return &client{loop: l, spec: s, to: to, preamble: preamble, readBuf: make([]byte, 64<<10)}, nil
}

// dial starts a connection to the proxy. It does not wait until the connection
// is established.
func (c *client) dial() (*rawConn, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	c.nextSource = (c.nextSource + 1) % sourceAddrs
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 2 + c.nextSource}}))
	if err == nil {
		if err = unix.Connect(fd, &c.to); err == unix.EINPROGRESS {
			err = nil
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("dial %s: %w", c.spec.Addr, err)
	}
	return &rawConn{fd: fd, start: time.Now()}, nil
}

// open starts a connection, sends the ClientHello and the request for op, and
// registers h as its handler.
func (c *client) open(op byte, h handler) (*rawConn, error) {
	conn, err := c.dial()
	if err != nil {
		return nil, err
	}
	conn.handler, conn.op = h, op
	conn.buf = slices.Clone(c.preamble[op])
	c.opened++ // a gateway refuses the random of another open connection
	binary.BigEndian.PutUint64(conn.buf[helloRandom:], c.opened)
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

// flush writes the rest of conn.buf and reports whether all of it is written.
func (c *client) flush(conn *rawConn) (all bool, _ error) {
	n, err := unix.Write(conn.fd, conn.buf)
	if err != nil && !retryable(err) {
		return false, os.NewSyscallError("write", err)
	}
	conn.buf = conn.buf[max(n, 0):]
	return len(conn.buf) == 0, nil
}

// flushOn continues a ClientHello that could not be written at once because the
// connection was not established.
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

// receive reads available data. It returns io.ErrUnexpectedEOF at the end of
// the data, and 0, nil if no data is available.
func (c *client) receive(conn *rawConn, flags int) (int, error) {
	n, _, err := unix.Recvfrom(conn.fd, c.readBuf, flags)
	switch {
	case err == nil && n == 0:
		return 0, io.ErrUnexpectedEOF
	case err == nil:
		return n, nil
	case retryable(err):
		return 0, nil
	}
	return 0, os.NewSyscallError("recvfrom", err)
}

// readResponse reads available data and reports whether the whole response, of
// requestSize bytes, has been received.
func (c *client) readResponse(conn *rawConn, events uint32) (bool, error) {
	if err := c.flushOn(conn, events); err != nil {
		return false, err
	}
	if events&^unix.EPOLLOUT == 0 {
		return false, nil
	}
	n, err := c.receive(conn, 0)
	conn.received += n
	return conn.received >= requestSize, err
}

// opener opens connections, waits for one response on each, and keeps them open
// for the measurement that follows.
type opener struct {
	*client
	op       byte
	target   int
	tried    int
	opened   []*rawConn
	failed   int
	lastErr  error
	inFlight int
}

// Limits of an opener: how many connections wait for their response at the same
// time, and after how many failures it stops.
const (
	maxOpening      = 32
	maxOpenFailures = 20
)

// openAll opens n connections. After too many failures it returns those that
// are open, and an error that wraps the last failure.
func (c *client) openAll(ctx context.Context, op byte, n int) ([]*rawConn, error) {
	o := &opener{client: c, op: op, target: n}
	for range min(maxOpening, n) {
		o.openNext()
	}
	err := c.run(ctx, 10*time.Second+time.Duration(n)*time.Millisecond)
	switch {
	case err != nil:
		return nil, err
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case len(o.opened) < n && o.lastErr == nil:
		return o.opened, fmt.Errorf("%d of %d connections received no response", n-len(o.opened), n)
	case len(o.opened) < n:
		return o.opened, fmt.Errorf("opened %d of %d connections: %w", len(o.opened), n, o.lastErr)
	}
	return o.opened, nil
}

func (o *opener) openNext() {
	for o.tried < o.target && o.failed < maxOpenFailures {
		o.tried++
		_, err := o.client.open(o.op, o)
		if err == nil {
			o.inFlight++
			return
		}
		o.failed++
		o.lastErr = err
	}
	if o.inFlight == 0 {
		o.stop()
	}
}

func (o *opener) ready(c *rawConn, events uint32) {
	done, err := o.readResponse(c, events)
	if err == nil && !done {
		return
	}
	o.inFlight--
	if err != nil {
		o.failed++
		o.lastErr = err
		o.drop(c)
	} else {
		c.handler = idleHandler{o.loop}
		o.opened = append(o.opened, c)
	}
	o.openNext()
}

// idleHandler is the handler of an open connection on which no data is
// expected. It closes the connection on any event.
type idleHandler struct{ *loop }

func (p idleHandler) ready(c *rawConn, _ uint32) { p.drop(c) }
