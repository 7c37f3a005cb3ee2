// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// memListener is a listener without a socket, for tests in fake time. Accept
// returns the values from conns and errs.
type memListener struct {
	conns  chan net.Conn
	errs   chan error
	closed chan struct{}
}

func newMemListener() *memListener {
	return &memListener{make(chan net.Conn), make(chan error), make(chan struct{})}
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case err := <-l.errs:
		return nil, err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *memListener) Close() error   { close(l.closed); return nil }
func (l *memListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (l *memListener) connect() net.Conn {
	c, s := net.Pipe()
	l.conns <- s
	return c
}

// fake runs f in fake time with a proxy on a memory listener.
func fake(t *testing.T, cfg Config, f func(t *testing.T, l *memListener, s *Listener)) {
	testutil.Bubble(t, func(t *testing.T) {
		cfg.Logger = slog.New(slog.DiscardHandler)
		p, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		l := newMemListener()
		s := NewListener("wan", l)
		ctx, cancel := context.WithCancel(t.Context())
		errc := make(chan error, 1)
		go func() { errc <- p.Run(ctx, s) }()
		f(t, l, s)
		cancel()
		if err := <-errc; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

func TestHelloTimeout_BytewiseHello(t *testing.T) {
	fake(t, Config{}, func(t *testing.T, l *memListener, s *Listener) {
		hello := goHello(t, &tls.Config{ServerName: "slow.example"})
		began := time.Now()
		c := l.connect()
		var wg sync.WaitGroup
		defer wg.Wait()
		defer c.Close()
		wg.Go(func() {
			for i := range hello { // one byte every 10 ms takes 15 s
				if _, err := c.Write(hello[i : i+1]); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("Read() = %v, want %v", err, io.EOF)
		}
		if d := time.Since(began); d != 5*time.Second {
			t.Errorf("time until the close = %v, want 5s", d)
		}
		if n := s.Stats().Refused[ReasonHelloTimeout]; n != 1 {
			t.Errorf("hello_timeout = %d, want 1", n)
		}
	})
}

func TestLimit_ShedsSilentConnection(t *testing.T) {
	fake(t, Config{MaxConns: 2}, func(t *testing.T, l *memListener, s *Listener) {
		first := l.connect()
		time.Sleep(time.Millisecond) // first is the oldest
		second := l.connect()
		defer second.Close()
		synctest.Wait()
		early := l.connect()
		if _, err := early.Read(make([]byte, 1)); err == nil {
			t.Error("Read() of a connection at the limit = nil, want an error")
		}
		time.Sleep(time.Second)
		third := l.connect()
		defer third.Close()
		if _, err := first.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("Read() of the oldest silent connection = %v, want %v", err, io.EOF)
		}
		synctest.Wait()
		st := s.Stats()
		if st.Active != 2 || st.Refused[ReasonLimit] != 2 || st.Refused[ReasonHelloCut] != 0 {
			t.Errorf("Stats() = %+v, want 2 active and 2 refused for limit", st)
		}
	})
}

func TestAccept_BacksOff(t *testing.T) {
	fake(t, Config{}, func(t *testing.T, l *memListener, s *Listener) {
		began := time.Now()
		for range 10 { // pauses of 5, 10, ... 640, 1000, 1000 ms between them
			l.errs <- &net.OpError{Op: "accept", Err: &wrapped{syscall.EMFILE}}
		}
		c := l.connect()
		c.Close()
		want := (5 + 10 + 20 + 40 + 80 + 160 + 320 + 640 + 1000 + 1000) * time.Millisecond
		if d := time.Since(began); d != want {
			t.Errorf("time of ten failed accepts = %v, want %v", d, want)
		}
		synctest.Wait()
		if n := s.Stats().Accepted; n != 1 {
			t.Errorf("Accepted after the failures = %d, want 1", n)
		}
	})
}

// wrapped wraps an error, as os.SyscallError does.
type wrapped struct{ error }

func (w *wrapped) Unwrap() error { return w.error }

func TestRun_EndsWithBrokenListener(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		p, err := New(Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		broken, working := newMemListener(), newMemListener()
		errc := make(chan error, 1)
		go func() {
			errc <- p.Run(t.Context(), NewListener("lan", broken), NewListener("wan", working))
		}()
		want := errors.New("broken")
		broken.errs <- want
		if err := <-errc; !errors.Is(err, want) || !strings.Contains(err.Error(), "listener lan") {
			t.Errorf("Run() = %v, want %v of listener lan", err, want)
		}
	})
}

func TestRun_DrainEnds(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		p, err := New(Config{Logger: slog.New(slog.DiscardHandler), Drain: 3 * time.Second, HelloTimeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		l := newMemListener()
		ctx, cancel := context.WithCancel(t.Context())
		errc := make(chan error, 1)
		s := NewListener("lan", l)
		go func() { errc <- p.Run(ctx, s) }()
		c := l.connect()
		defer c.Close()
		synctest.Wait() // until c is admitted
		began := time.Now()
		cancel()
		if err := <-errc; err != nil || time.Since(began) != 3*time.Second {
			t.Errorf("Run() = %v after %v, want nil after 3s", err, time.Since(began))
		}
		for r := range reasons {
			if n := s.Stats().Refused[r]; n != 0 {
				t.Errorf("refused for %v after Run = %d, want 0", r, n)
			}
		}
	})
}
