// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Servers are the plain server and the TLS server behind a proxy.
type Servers struct {
	// RawAddr and TLSAddr are the addresses of the servers, on 127.0.0.1.
	RawAddr, TLSAddr string

	raw *os.File
	tls *net.TCPListener
	cfg *tls.Config
}

// Listen opens the sockets of the servers at two addresses of 127.0.0.1, whose
// ports may be 0. MakeCert must have written the certificate to dir. Serve
// closes the sockets.
func Listen(dir, raw, tls string) (*Servers, error) {
	cfg, err := serverTLS(dir)
	if err != nil {
		return nil, err
	}
	if _, err := RaiseFileLimit(); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{KeepAlive: -1}
	rawLn, err := lc.Listen(context.Background(), "tcp4", raw)
	if err != nil {
		return nil, err
	}
	defer rawLn.Close()
	tlsLn, err := lc.Listen(context.Background(), "tcp4", tls)
	if err != nil {
		return nil, err
	}
	f, err := rawLn.(*net.TCPListener).File() // a duplicated descriptor, for the loop
	if err != nil {
		return nil, errors.Join(err, tlsLn.Close())
	}
	return &Servers{
		RawAddr: rawLn.Addr().String(), TLSAddr: tlsLn.Addr().String(),
		raw: f, tls: tlsLn.(*net.TCPListener), cfg: cfg,
	}, nil
}

// Serve serves until ctx ends.
func (s *Servers) Serve(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serveRaw(ctx, s.raw) })
	g.Go(func() error { return serveTLS(ctx, s.tls, s.cfg) })
	return g.Wait()
}

// serveTLS serves each connection in its own goroutine.
func serveTLS(ctx context.Context, ln *net.TCPListener, cfg *tls.Config) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		<-ctx.Done()
		ln.Close()
	})
	for {
		c, err := ln.AcceptTCP()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		wg.Go(func() {
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			serveTLSConn(tls.Server(c, cfg))
		})
	}
}

// serveTLSConn serves one connection. It ignores errors, because the client
// detects them.
func serveTLSConn(c *tls.Conn) {
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	req := make([]byte, requestSize)
	if _, err := io.ReadFull(c, req); err != nil {
		return
	}
	switch req[0] {
	case opRespond:
		if _, err := c.Write(req); err == nil {
			_, _ = c.Read(req) // waits until the client closes
		}
	case opSource:
		_ = c.SetDeadline(time.Time{})
		for b := make([]byte, bulkSize); ; {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}
}

// rawServer is the plain server.
type rawServer struct {
	*loop
	readBuf []byte // shared by all connections, valid during one read
	bulk    []byte
}

// acceptor is the handler of the listening socket.
type acceptor struct{ *rawServer }

func serveRaw(ctx context.Context, f *os.File) error {
	fd, err := unix.Dup(int(f.Fd()))
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	f.Close()
	if err != nil {
		return os.NewSyscallError("dup", err)
	}
	l, err := newLoop()
	if err != nil {
		unix.Close(fd)
		return err
	}
	defer l.close()
	s := &rawServer{loop: l, readBuf: make([]byte, 64<<10), bulk: make([]byte, bulkSize)}
	if err := l.add(&rawConn{fd: fd, handler: acceptor{s}}, unix.EPOLLIN); err != nil {
		return err
	}
	return l.run(ctx, 24*time.Hour)
}

func (a acceptor) ready(c *rawConn, _ uint32) {
	for range 64 {
		fd, _, err := unix.Accept4(c.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
		case unix.EAGAIN, unix.EINTR, unix.ECONNABORTED:
			return
		default:
			a.fail(os.NewSyscallError("accept4", err))
			return
		}
		conn := &rawConn{fd: fd, handler: a.rawServer}
		if err := a.add(conn, unix.EPOLLIN); err != nil {
			a.fail(err)
		}
	}
}

// ready reads a request and serves it. It closes the connection of a client
// that breaks the protocol.
func (s *rawServer) ready(c *rawConn, events uint32) {
	if c.op == opSource {
		s.sendBulk(c, events)
		return
	}
	n, err := unix.Read(c.fd, s.readBuf)
	if err != nil && retryable(err) {
		return
	}
	if err != nil || n == 0 || c.op == opRespond { // no data may follow a request with one response
		s.drop(c)
		return
	}
	if c.op == opEcho {
		s.send(c, s.readBuf[:n])
		return
	}
	in := s.readBuf[:n]
	if c.buf != nil {
		c.buf = append(c.buf, in...)
		in = c.buf
	}
	req, ok := requestAfterHello(in)
	switch {
	case !ok:
		s.drop(c)
	case req == nil:
		c.buf = append([]byte(nil), in...)
	default:
		c.buf = nil
		s.serveRequest(c, req)
	}
}

func (s *rawServer) serveRequest(c *rawConn, req []byte) {
	c.op = req[0]
	switch c.op {
	case opRespond, opEcho:
		s.send(c, req)
	case opSource:
		if err := s.change(c, unix.EPOLLOUT); err != nil {
			s.fail(err)
		}
	default:
		s.drop(c)
	}
}

// send writes b, which must fit into the send buffer of the socket.
func (s *rawServer) send(c *rawConn, b []byte) {
	if n, err := unix.Write(c.fd, b); err != nil || n < len(b) {
		s.drop(c)
	}
}

// sendBulk writes bulk data.
func (s *rawServer) sendBulk(c *rawConn, events uint32) {
	if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		s.drop(c)
		return
	}
	if _, err := unix.Write(c.fd, s.bulk); err != nil && !retryable(err) {
		s.drop(c)
	}
}

// requestAfterHello returns the request that follows a ClientHello of one
// record; nil if it is incomplete. ok is false if in does not start with a
// ClientHello or is too long.
func requestAfterHello(in []byte) (req []byte, ok bool) {
	if in[0] != recordHandshake {
		return nil, false
	}
	if len(in) < recordHeader {
		return nil, true
	}
	size := recordHeader + int(in[3])<<8 + int(in[4])
	switch {
	case len(in) < size+requestSize:
		return nil, true
	case len(in) > size+requestSize:
		return nil, false
	}
	return in[size:], true
}
