// SPDX-License-Identifier: MPL-2.0

package reactor

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/gateway/internal/sockets"
	"github.com/wanfed/wanfed/gateway/internal/upstream"
)

// echoHandler forwards each connection to one address after its first line,
// and sends the end of each session to ends.
type echoHandler struct {
	addr string
	ends chan End
	up   atomic.Int64
}

func (h *echoHandler) Accept(_ netip.AddrPort, _ time.Time, reserve func() bool) Session {
	if !reserve() {
		return nil
	}
	return &echoSession{h}
}

func (h *echoHandler) RefuseNoFiles(netip.AddrPort) {}

type echoSession struct{ *echoHandler }

func (s *echoSession) Receive(in []byte, _ time.Time) (Request, error) {
	if !bytes.Contains(in, []byte("\n")) {
		return Request{}, ErrNeedMore
	}
	return Request{Addrs: []string{s.addr}, Start: upstream.InOrder, Hello: in}, nil
}

func (s *echoSession) HoldHello(int) error              { return nil }
func (s *echoSession) Wait(func(error))                 {}
func (s *echoSession) NewUpstreams() []string           { return nil }
func (s *echoSession) Connected(string, int, time.Time) {}
func (s *echoSession) Count(up, _ int)                  { s.up.Add(int64(up)) }
func (s *echoSession) Fail(error, int) []byte           { return []byte("failed") }
func (s *echoSession) Close(end End)                    { s.ends <- end }

func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// startEngine serves a listener with h, and returns the address of the
// listener. stop ends Serve without a drain time and returns its result.
func startEngine(t *testing.T, h *echoHandler) (addr string, stop func() error) {
	t.Helper()
	ln := listen(t)
	e := New(Config{
		Listeners: []Listener{{Listener: ln, Name: "test", Handler: h}},
		Dialer: &upstream.Dialer{
			Dial: (&net.Dialer{}).DialContext, Timeout: 5 * time.Second, AttemptDelay: 250 * time.Millisecond,
		},
		HelloTimeout: 5 * time.Second, ShedAfter: time.Second, MaxConns: func() int { return 10 }, MaxPipes: 4,
		Reserve: &sockets.ReserveFD{}, Logger: slog.New(slog.DiscardHandler),
		Drain: func(wait, stop func()) { stop(); wait() },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Serve(ctx) }()
	return ln.Addr().String(), func() error { cancel(); return <-done }
}

func connect(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	return c.(*net.TCPConn)
}

func TestServe_Relays(t *testing.T) {
	echo := listen(t)
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { io.Copy(c, c); c.Close() }()
		}
	}()
	h := &echoHandler{addr: echo.Addr().String(), ends: make(chan End, 2)}
	addr, stop := startEngine(t, h)

	c := connect(t, addr)
	c.Write([]byte("one "))
	c.Write([]byte("line\nand more"))
	c.CloseWrite()
	const want = "one line\nand more"
	if got, err := io.ReadAll(c); string(got) != want || err != nil {
		t.Errorf("ReadAll() = %q, %v; want %q", got, err, want)
	}
	if got := <-h.ends; got != EndDone || h.up.Load() != int64(len(want)) {
		t.Errorf("Close(%q) after %d bytes up, want %q after %d", got, h.up.Load(), EndDone, len(want))
	}

	open := connect(t, addr)
	open.Write([]byte("line\n"))
	if _, err := io.ReadFull(open, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Errorf("Serve() = %v, want nil", err)
	}
	if got := <-h.ends; got != EndStopped {
		t.Errorf("Close(%q) of an open connection at the end of Serve, want %q", got, EndStopped)
	}
}

// No upstream listens: the client receives the bytes of Session.Fail.
func TestServe_FailsWithoutUpstream(t *testing.T) {
	dead := listen(t)
	dead.Close()
	h := &echoHandler{addr: dead.Addr().String(), ends: make(chan End, 1)}
	addr, stop := startEngine(t, h)
	c := connect(t, addr)
	c.Write([]byte("line\n"))
	if got, err := io.ReadAll(c); string(got) != "failed" || err != nil {
		t.Errorf("ReadAll() = %q, %v; want %q", got, err, "failed")
	}
	if err := stop(); err != nil {
		t.Errorf("Serve() = %v, want nil", err)
	}
}

func TestNew_RefusesOtherListeners(t *testing.T) {
	ln, err := net.Listen("unix", t.TempDir()+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if e := New(Config{Listeners: []Listener{{Listener: ln}}}); e != nil {
		t.Errorf("New() for a Unix socket = %v, want nil", e)
	}
}
