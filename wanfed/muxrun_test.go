// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

func TestMuxListener(t *testing.T) {
	a := newAuthority(t)
	m, err := NewMux(MuxConfig{Identity: a.server("srv1", "dc1")})
	if err != nil {
		t.Fatal(err)
	}
	servers := []tlsutil.Role{tlsutil.RoleServer}
	l, closed := m.Listener(ProtoRaft, servers, true), m.Listener(ProtoGRPC, servers, false)
	if l.Addr().String() != ProtoRaft {
		t.Errorf("address before Run: %v", l.Addr())
	}
	ln := listen(t)
	stop := background(t, func(ctx context.Context) error { return m.Run(ctx, ln) })
	dial := func(alpn string) *tls.Conn {
		c, err := tls.Dial("tcp", ln.Addr().String(), a.server("srv2", "dc1").ClientConfig("srv1.server.dc1.wanfed", alpn))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(5 * time.Second))
		return c
	}
	c := dial(ProtoRaft)
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if cs := s.(*tls.Conn).ConnectionState(); !cs.HandshakeComplete || cs.NegotiatedProtocol != ProtoRaft {
		t.Errorf("accepted in state %+v", cs)
	}
	if l.Addr().String() != ln.Addr().String() {
		t.Errorf("address: %v", l.Addr())
	}
	closed.Close()
	if _, err := closed.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept on a closed listener: %v", err)
	}
	if _, err := dial(ProtoGRPC).Read(make([]byte, 1)); err == nil {
		t.Error("a closed listener's protocol is still served")
	}
	waiting := dial(ProtoRaft) // nobody accepts it
	eventually(t, "handshake", 5*time.Second, func() bool { return m.Stats().Protocols[0].Open == 1 })
	stop()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after the end: %v", err)
	}
	if _, err := waiting.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("a connection that nobody accepted: %v", err)
	}
	// Who accepted a connection owns it: the mux's end does not close it.
	go s.Write([]byte("x"))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if got := m.Stats().Refused[string(notServed)]; got != 1 {
		t.Errorf("not_served = %d", got)
	}
}

// shortListener fails as a process without file descriptors does, twice; then for good, or never again.
type shortListener struct {
	net.Listener
	n    atomic.Int32
	last error
}

func (l *shortListener) Accept() (net.Conn, error) {
	switch {
	case l.n.Add(1) <= 2:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	case l.last != nil:
		return nil, l.last
	}
	return l.Listener.Accept()
}

func (l *shortListener) Close() error {
	if l.Listener == nil {
		return nil
	}
	return l.Listener.Close()
}

func (l *shortListener) Addr() net.Addr {
	if l.Listener == nil {
		return nameAddr("test")
	}
	return l.Listener.Addr()
}

func TestMuxBacksOff(t *testing.T) {
	a := newAuthority(t)
	id := a.server("srv1", "dc1")
	synctest.Test(t, func(t *testing.T) {
		m, err := NewMux(MuxConfig{Identity: id})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		broken := errors.New("broken")
		if err := m.Run(t.Context(), &shortListener{last: broken}); !errors.Is(err, broken) {
			t.Errorf("Run = %v", err)
		}
		if took := time.Since(start); took < 15*time.Millisecond || took > 15*time.Millisecond*5/4 {
			t.Errorf("backed off for %v, want 5 ms and 10 ms, each with up to a quarter of jitter", took)
		}
		if got := m.Stats().Refused[string(acceptError)]; got != 2 {
			t.Errorf("accept_error = %d", got)
		}
	})
}

func TestMuxSurvivesShortage(t *testing.T) {
	a := newAuthority(t)
	b := newMuxBedOn(t, a, &shortListener{Listener: listen(t)}, func(*MuxConfig) {})
	c, err := tls.Dial("tcp", b.addr, a.server("srv2", "dc1").ClientConfig("srv1.server.dc1.wanfed", "all/1"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	<-b.got
	if got := b.m.Stats().Refused[string(acceptError)]; got != 2 {
		t.Errorf("accept_error = %d", got)
	}
}
