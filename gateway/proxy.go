// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"time"
)

// Config is what a Proxy is told. The zero value of each field is its default.
type Config struct {
	// MaxConns bounds the client connections of all sides together. Default 65536, or less where the process may not have
	// two files open for each, and some more.
	MaxConns int
	// MaxPerUpstream bounds the connections to one upstream address, those that are being made included. Who would be one too many
	// goes to the next address of the route. Default: any number.
	MaxPerUpstream int
	// HelloTimeout is how long a client may take, from its connection on, to send its whole ClientHello. Default 5 s.
	HelloTimeout time.Duration
	// DialTimeout bounds one attempt to connect to an upstream address; twice that all attempts for a client, with the wait for
	// an answer. Default 5 s.
	DialTimeout time.Duration
	// attemptDelay is after how long without an answer the next address is tried too, at the latest: an address that usually
	// answers sooner is given 50 ms more than that. Default 250 ms.
	attemptDelay time.Duration
	// ejectFor is how long an address that failed is tried last, at most; see Dialer.Memory. Default 10 s.
	ejectFor time.Duration
	// Drain is how long open connections may go on after the context of Run has ended. Default 2 s; negative: not at all.
	Drain time.Duration
	// AccessLog gets a line of JSON for each connection that AccessSample chooses, when it ends. Default: nobody does.
	AccessLog io.Writer
	// AccessSample has one of so many connections noted in AccessLog. Default: each; negative: none, until SetAccessSample.
	AccessLogSample int
	// Dial connects to an upstream. Default: a net.Dialer. It must return soon when ctx ends. Only *net.TCPConn are spliced.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Engine moves the bytes. Default: the best that this system and the listeners allow.
	Engine Engine
	// Logger. Default: slog.Default().
	Logger *slog.Logger
}

func (c Config) validate() error {
	var errs []error
	if c.MaxConns < 0 {
		errs = append(errs, fmt.Errorf("limit of %d connections is negative", c.MaxConns))
	}
	if c.MaxPerUpstream < 0 {
		errs = append(errs, fmt.Errorf("limit of %d connections to an upstream is negative", c.MaxPerUpstream))
	}
	for name, d := range map[string]time.Duration{"hello timeout": c.HelloTimeout, "dial timeout": c.DialTimeout,
		"dial stagger": c.attemptDelay, "failure memory": c.ejectFor} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s %v is negative", name, d))
		}
	}
	if err := c.Engine.check(); err != nil {
		errs = append(errs, err)
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

// boundSocket is one socket of a listener.
type boundSocket struct {
	net.Listener
	owner *Listener
}

// Proxy forwards TLS connections by SNI.
type Proxy struct {
	log          *slog.Logger
	refusals     refusalLog
	helloTimeout time.Duration
	dialTimeout  time.Duration
	dialer       Dialer
	maxConns     atomic.Int64
	hellos       helloMemory
	grace        time.Duration // a connection without a hello older than this makes room for a new one
	drain        drain
	access       *accessLog
	spare        spare
	kind         Engine
	custom       bool // connections to upstreams are made by Config.Dial
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
		access:       newAccessLog(cfg.AccessLog, orDefault(cfg.AccessLogSample, 1)),
		grace:        hello / 10,
		kind:         cfg.Engine,
		custom:       cfg.Dial != nil,
	}
	p.SetMaxConns(cfg.MaxConns)
	p.hellos.max.Store(maxHelloMemory)
	p.SetMaxPerUpstream(cfg.MaxPerUpstream)
	p.dialer.Dial, p.dialer.Timeout = cfg.Dial, p.dialTimeout
	p.dialer.Stagger = orDefault(cfg.attemptDelay, 250*time.Millisecond)
	p.dialer.Memory = orDefault(cfg.ejectFor, 10*time.Second)
	if p.dialer.Dial == nil {
		p.dialer.Dial = (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1}).DialContext
	}
	return p, nil
}

// Run serves the listeners until ctx ends, then closes them, lets open connections go on for Config.Drain, closes those too
// and returns nil. It returns an error if a listener fails. It may be called once.
func (p *Proxy) Run(ctx context.Context, listeners ...*Listener) error {
	var sockets []boundSocket
	for _, l := range listeners {
		for _, socket := range l.sockets {
			sockets = append(sockets, boundSocket{socket, l})
			p.dialer.own = append(p.dialer.own, socket.Addr())
		}
	}
	defer p.begin()()
	err := p.chooseEngine(sockets).serve(ctx, sockets)
	p.dialer.Wait()
	return err
}
