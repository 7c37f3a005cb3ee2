// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wanfed/wanfed/gateway/internal/reactor"
	"github.com/wanfed/wanfed/gateway/internal/sockets"
	"github.com/wanfed/wanfed/gateway/internal/upstream"
	"github.com/wanfed/wanfed/internal/ratelog"
)

// Config configures a Proxy. Each field documents what its zero value means.
type Config struct {
	// MaxConns bounds the client connections of all listeners together. Default
	// 65536, or less if the process may not open enough files. Each connection
	// needs two files.
	MaxConns int
	// MaxPerUpstream bounds the connections to one upstream address, including
	// those that are still being opened. At the limit the next address of the
	// route is used. Default: no limit.
	MaxPerUpstream int
	// HelloTimeout bounds the time from the accept to the complete ClientHello.
	// Default 5 s.
	HelloTimeout time.Duration
	// DialTimeout bounds one attempt to connect to an upstream address. All
	// attempts for one client together, including the wait for the first TLS
	// record of an upstream, take at most twice as long. Default 5 s.
	DialTimeout time.Duration
	// Drain is the time for which open connections continue after the context
	// of Run has ended. Default 2 s; negative: none.
	Drain time.Duration
	// AccessLog receives a line of JSON when a connection ends. Default: none.
	AccessLog io.Writer
	// AccessLogSample is n to log one of every n connections. Default 1: every
	// connection. Negative: none until SetAccessLogSample.
	AccessLogSample int
	// Dial connects to an upstream. It must return soon when ctx ends. Default:
	// a net.Dialer. If Dial is set, the portable engine is used, because the
	// event loops open their connections themselves.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// DialFailed is called with an upstream address (host:port) that failed, or
	// that answered later than another one. While the address fails, calls are at
	// least 1.25 s apart, and later 10 s. It must not block. Default: none.
	DialFailed func(addr string)
	// Logger receives log lines. Default: slog.Default().
	Logger *slog.Logger

	portable     bool          // forces the portable engine
	attemptDelay time.Duration // of upstream.Dialer; default 250 ms
	ejectFor     time.Duration // of upstream.Dialer; default 10 s
}

func (c Config) validate() error {
	if c.MaxConns < 0 || c.MaxPerUpstream < 0 || c.HelloTimeout < 0 || c.DialTimeout < 0 {
		return fmt.Errorf("MaxConns (%d), MaxPerUpstream (%d), HelloTimeout (%v) and DialTimeout (%v) must not be "+
			"negative",
			c.MaxConns, c.MaxPerUpstream, c.HelloTimeout, c.DialTimeout)
	}
	return nil
}

// Proxy forwards TLS connections by SNI. All methods except Run are safe for
// concurrent use.
type Proxy struct {
	log          *slog.Logger
	refusals     *ratelog.Logger[Reason]
	helloTimeout time.Duration
	dialer       *upstream.Dialer
	listeners    atomic.Pointer[[]*Listener] // of Run, for refusedClass
	maxConns     atomic.Int64
	hellos       helloMemory
	unfinished   *unfinishedHellos
	forwarded    *forwardedHellos
	shedAfter    time.Duration // age from which a connection without a complete ClientHello may be closed for a new one
	drain        drain
	access       *accessLog
	reserve      sockets.ReserveFD // a file to close when the process is out of files
	portable     bool              // uses the portable engine on every system
}

// New checks cfg and returns a Proxy. It starts nothing.
func New(cfg Config) (*Proxy, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	log := cmp.Or(cfg.Logger, slog.Default())
	p := &Proxy{
		log:          log,
		refusals:     ratelog.New[Reason](log),
		helloTimeout: cmp.Or(cfg.HelloTimeout, 5*time.Second),
		drain:        drain{time: cmp.Or(cfg.Drain, 2*time.Second)},
		forwarded:    newForwardedHellos(),
		unfinished:   newUnfinishedHellos(maxUnfinished),
		access:       newAccessLog(cfg.AccessLog, cmp.Or(cfg.AccessLogSample, 1)),
		portable:     cfg.portable || cfg.Dial != nil,
		dialer: &upstream.Dialer{
			Dial:         cfg.Dial,
			Timeout:      cmp.Or(cfg.DialTimeout, 5*time.Second),
			AttemptDelay: cmp.Or(cfg.attemptDelay, 250*time.Millisecond),
			EjectFor:     cmp.Or(cfg.ejectFor, 10*time.Second),
			Ejected:      cfg.DialFailed,
		},
	}
	p.shedAfter = p.helloTimeout / 10
	p.hellos.max.Store(maxHelloMemory)
	p.SetMaxConns(cfg.MaxConns)
	p.SetMaxPerUpstream(cfg.MaxPerUpstream)
	if p.dialer.Dial == nil {
		p.dialer.Dial = p.dial
	}
	return p, nil
}

// engine forwards connections.
type engine interface {
	// Serve accepts connections until ctx ends and then closes the listeners.
	// Open connections continue for the drain time. Serve joins its goroutines
	// and returns the error of a listener, or nil.
	Serve(ctx context.Context) error
}

// Run serves the listeners until ctx ends. Then it closes their sockets, lets
// open connections continue for Config.Drain, closes the remaining connections
// and returns nil. It returns an error if a listener fails. Run may be called
// once.
func (p *Proxy) Run(ctx context.Context, listeners ...*Listener) error {
	if err := CheckFiles(p.MaxConns()); err != nil {
		p.log.Warn("the limit of connections exceeds the limit of open files", "err", err)
	}
	for _, l := range listeners {
		p.dialer.Own = append(p.dialer.Own, l.Addrs()...)
	}
	p.reserve.Open()
	defer p.reserve.Close()
	defer p.access.start()()
	p.listeners.Store(&listeners)
	err := p.newEngine(listeners).Serve(ctx)
	p.dialer.Wait()
	return err
}

func (p *Proxy) newEngine(listeners []*Listener) engine {
	if !p.portable {
		var all []reactor.Listener
		for _, l := range listeners {
			for _, socket := range l.sockets {
				all = append(all, reactor.Listener{Listener: socket, Name: l.name, Handler: handler{p, l}})
			}
		}
		if e := reactor.New(reactor.Config{
			Listeners: all, Dialer: p.dialer, HelloTimeout: p.helloTimeout, ShedAfter: p.shedAfter,
			MaxConns: p.MaxConns, MaxPipes: maxPipes(), Reserve: &p.reserve, Drain: p.drain.run, Logger: p.log,
		}); e != nil {
			return e
		}
	}
	return newPortableEngine(p, listeners)
}

// UpstreamConns returns the number of open connections by upstream address, of
// all listeners together. Addresses without connections are absent.
func (p *Proxy) UpstreamConns() map[string]int { return p.dialer.Conns() }

const (
	defaultMaxConns = 65536
	filesPerConn    = 2  // two sockets
	filesPerPipe    = 2  // two ends
	otherFiles      = 64 // listeners, logs
	extraFraction   = 32 // 1/extraFraction of all files is reserved for concurrent dials and for pipes
)

// MaxConns returns the limit of client connections in force.
func (p *Proxy) MaxConns() int { return int(p.maxConns.Load()) }

// SetMaxConns changes Config.MaxConns; 0 is its default. Open connections stay,
// even if they are more than n.
func (p *Proxy) SetMaxConns(n int) {
	files := sockets.MaxFiles()
	possible := (files - files/extraFraction - otherFiles) / filesPerConn
	p.maxConns.Store(int64(cmp.Or(n, max(1, min(defaultMaxConns, possible)))))
}

// SetMaxPerUpstream changes Config.MaxPerUpstream. Open connections stay, and
// count towards the new limit.
func (p *Proxy) SetMaxPerUpstream(n int) { p.dialer.SetMaxConns(n) }

// maxPipes returns the limit of pipes. Half of the extra files are for pipes.
func maxPipes() int { return min(max(16, sockets.MaxFiles()/extraFraction/2/filesPerPipe), 1024) }

// MaxFiles returns the number of files and sockets that this process may have
// open: the hard limit of the system (RLIMIT_NOFILE). The Go runtime raises the
// soft limit to the hard limit. On systems other than Linux the limit is not
// read, and MaxFiles returns 1<<30.
func MaxFiles() int { return sockets.MaxFiles() }

// CheckFiles returns an error unless this process may open the files that n
// client connections need.
func CheckFiles(n int) error {
	files, need := sockets.MaxFiles(), otherFiles+filesPerConn*n
	if files >= need {
		return nil
	}
	return fmt.Errorf("%d connections need %d open files, and this process may have %d: "+
		"raise the limit (ulimit -n %d; LimitNOFILE=%d in a unit of systemd), or allow at most %d connections",
		n, need, files, need, need, max(0, (files-otherFiles)/filesPerConn))
}

// drain measures the time for which connections continue after the context of
// Run has ended.
type drain struct {
	mu    sync.Mutex
	time  time.Duration
	timer *time.Timer // nil: no drain has begun
}

// SetDrain changes Config.Drain. During a drain, connections continue for d
// from now on.
func (p *Proxy) SetDrain(d time.Duration) {
	p.drain.mu.Lock()
	defer p.drain.mu.Unlock()
	p.drain.time = d
	if p.drain.timer != nil && p.drain.timer.Stop() { // otherwise it has expired
		p.drain.timer.Reset(d)
	}
}

// run calls wait, which waits for the open connections. When the drain time is
// over, run calls stop, which ends the connections.
func (d *drain) run(wait, stop func()) {
	stopped := make(chan struct{})
	d.mu.Lock()
	d.timer = time.AfterFunc(d.time, func() { stop(); close(stopped) })
	d.mu.Unlock()
	wait()
	d.mu.Lock()
	running := d.timer.Stop()
	d.mu.Unlock()
	if !running {
		<-stopped
	}
}
