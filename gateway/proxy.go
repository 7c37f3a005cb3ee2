// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// Config is what a Proxy is told. The zero value of each field is its default.
type Config struct {
	// MaxConns bounds the client connections of all sides together. Default 65536, or less where the process may not have
	// six files open for each.
	MaxConns int
	// HelloTimeout is how long a client may take, from its connection on, to send its whole ClientHello. Default 5 s.
	HelloTimeout time.Duration
	// DialTimeout bounds one attempt to connect to an upstream address; twice that all attempts for a client, with the wait for
	// an answer. Default 5 s.
	DialTimeout time.Duration
	// DialStagger is after how long without an answer the next address is tried too, at the latest: an address that usually
	// answers sooner is given 50 ms more than that. Default 250 ms.
	DialStagger time.Duration
	// FailureMemory is how long an address that failed is tried last, at most; see Dialer.Memory. Default 10 s.
	FailureMemory time.Duration
	// Drain is how long open connections may go on after the context of Run has ended. Default 2 s; negative: not at all.
	Drain time.Duration
	// AccessLog gets a line of JSON for each connection that AccessSample chooses, when it ends. Default: nobody does.
	AccessLog io.Writer
	// AccessSample has one of so many connections noted in AccessLog. Default: each; negative: none, until SetAccessSample.
	AccessSample int
	// Dial connects to an upstream. Default: a net.Dialer. It must return soon when ctx ends. Only *net.TCPConn are spliced.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Logger. Default: slog.Default().
	Logger *slog.Logger
}

func (c Config) validate() error {
	var errs []error
	if c.MaxConns < 0 {
		errs = append(errs, fmt.Errorf("limit of %d connections is negative", c.MaxConns))
	}
	for name, d := range map[string]time.Duration{"hello timeout": c.HelloTimeout, "dial timeout": c.DialTimeout,
		"dial stagger": c.DialStagger, "failure memory": c.FailureMemory} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s %v is negative", name, d))
		}
	}
	return errors.Join(errs...)
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// Listener is a place where clients connect, and the side it belongs to. Several may share one side.
type Listener struct {
	net.Listener
	Side *Side
}

// Proxy forwards TLS connections by SNI.
type Proxy struct {
	log          *slog.Logger
	refusals     refusalLog
	helloTimeout time.Duration
	dialTimeout  time.Duration
	dialer       Dialer
	maxConns     atomic.Int64
	drain        drain
	access       *accessLog
	spare        spare
	conns        conns
	serving      sync.WaitGroup
}

// New checks cfg and makes a Proxy. It starts nothing.
func New(cfg Config) (*Proxy, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	log := orDefault(cfg.Logger, slog.Default())
	hello := orDefault(cfg.HelloTimeout, 5*time.Second)
	p := &Proxy{
		log:          log,
		refusals:     refusalLog{log: log},
		helloTimeout: hello,
		dialTimeout:  orDefault(cfg.DialTimeout, 5*time.Second),
		drain:        drain{time: orDefault(cfg.Drain, 2*time.Second)},
		access:       newAccessLog(cfg.AccessLog, orDefault(cfg.AccessSample, 1)),
		conns: conns{
			grace: hello / 10,
			open:  map[*conn]struct{}{},
		},
	}
	p.conns.max = &p.maxConns
	p.SetMaxConns(cfg.MaxConns)
	p.dialer.Dial, p.dialer.Timeout = cfg.Dial, p.dialTimeout
	p.dialer.Stagger = orDefault(cfg.DialStagger, 250*time.Millisecond)
	p.dialer.Memory = orDefault(cfg.FailureMemory, 10*time.Second)
	if p.dialer.Dial == nil {
		p.dialer.Dial = (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1}).DialContext
	}
	return p, nil
}

// Run serves the listeners until ctx ends, then closes them, lets open connections go on for Config.Drain, closes those too
// and returns nil. It returns an error if a listener fails. It may be called once.
func (p *Proxy) Run(ctx context.Context, listeners ...Listener) error {
	for _, l := range listeners {
		p.dialer.own = append(p.dialer.own, l.Addr())
	}
	defer p.begin()()
	// Connections outlive ctx by the drain.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	accepting, accepted := errgroup.WithContext(ctx)
	for _, l := range listeners {
		accepting.Go(func() error { return p.accept(accepted, serving, l) })
	}
	accepting.Go(func() error {
		<-accepted.Done()
		for _, l := range listeners {
			l.Close()
		}
		return nil
	})
	err := accepting.Wait()

	done := make(chan struct{})
	go func() {
		p.serving.Wait()
		close(done)
	}()
	over, endDrain := p.drain.begin()
	defer endDrain()
	select {
	case <-done:
	case <-over:
	}
	stop()
	p.conns.closeAll()
	<-done
	p.dialer.Wait()
	return err
}

// Limits of the pause after a failed Accept.
const (
	minPause = 5 * time.Millisecond
	maxPause = time.Second
)

// accept takes connections from l until ctx ends and serves them under the context serving.
func (p *Proxy) accept(ctx, serving context.Context, l Listener) error {
	pause := minPause
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			if c != nil {
				c.Close()
			}
			return nil
		}
		if err == nil {
			pause = minPause
			p.serving.Go(func() { p.serve(serving, l.Side, c) })
			continue
		}
		if !passing(err) {
			return fmt.Errorf("accept on %s (%s side): %w", l.Addr(), l.Side.name, err)
		}
		if noFiles(err) && p.shed(l) {
			continue
		}
		p.log.Warn("cannot accept connections for now", "side", l.Side.name, "addr", l.Addr().String(), "err", err, "pause", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

// passing says whether Accept may work again after this error: the process or the system has run out of something, or the
// error belongs to a connection that came and went (accept(2), "Error handling"). Errors of the listener itself stay.
func passing(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	switch errno {
	case syscall.EBADF, syscall.EINVAL, syscall.ENOTSOCK, syscall.EOPNOTSUPP, syscall.EFAULT:
		return false
	}
	return true
}
