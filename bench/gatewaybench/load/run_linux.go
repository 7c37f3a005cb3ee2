// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Kind is what a run does with the connections.
type Kind string

const (
	// Bulk receives data without end on Conns connections: MBPerS, CPUPerGB.
	Bulk Kind = "bulk"
	// Connect opens a connection, sends one request, awaits the answer and closes, Conns at a time: ConnPerS, CPUPerConn,
	// P50 and P99 from the dial to the answer.
	Connect Kind = "connect"
	// Ping sends a message of 64 bytes and awaits its echo on Conns open connections, again at once or each Interval: P50, P99,
	// CPUPerMsg. A paced message counts from when it was due.
	Ping Kind = "ping"
	// Idle opens Conns connections, or as many as the proxy and this process may: Held, RSSPerConn, FDsPerConn. Each has
	// carried a message each way.
	Idle Kind = "idle"
	// Stall opens Conns connections that send one byte of a hello and no more, and Rate good ones a second before and
	// meanwhile: P50 and P99 of the good ones, P99Ratio, Lost; Held, RSSPerConn, GoneAfter and Left of the others.
	Stall Kind = "stall"
	// Update opens Rate connections a second and pings Conns open ones each Interval, while routes change: P50, P99,
	// P99Ratio, Lost.
	Update Kind = "update"
	// Handover does as Update, while the proxy's process (Routes.PID) is replaced, twice, by one that it starts at SIGUSR2: P50,
	// P99, P99Ratio, Lost, Handovers.
	HotRestart Kind = "handover"
	// Drain opens Rate connections a second and pings Conns open ones each Interval, and stops the proxy (Routes.PID) by
	// SIGTERM: P50, P99, Lost, Refused, GoneAfter, Left.
	Drain Kind = "drain"
)

// Spec is one run. Not all fields count for each Kind.
type Spec struct {
	Kind Kind
	// Addr is the proxy, or a server of Servers for no proxy. ip:port; required.
	Addr string
	// TLS makes a whole handshake with the TLS server. Only for Bulk and Connect.
	TLS bool
	// CertDir is the folder of MakeCert. Required with TLS.
	CertDir string
	Conns   int
	// Warm goes before the measured time For. Both required.
	Warmup, Duration time.Duration
	// Interval is between messages of a connection; 0: the next one at once.
	Interval time.Duration
	// Rate is connections a second.
	Rate int
	// Settle is how long connections are left alone before memory is read.
	Settle time.Duration
	// HelloTimeout is what the proxy allows; Stall waits some seconds longer.
	HelloTimeout time.Duration
	// PIDs are the proxy's processes, for CPU and memory; none for no proxy. ServerPIDs are those of Serve.
	PIDs, ServerPIDs []int
	// DrainTime is how long the proxy lets open connections go on when it is stopped.
	DrainTime time.Duration
	// Routes is what Update changes. Its PID is signalled by Handover and Drain too.
	Routes RouteFile
}

func (s Spec) validate() error {
	var errs []error
	fault := func(wrong bool, text string) {
		if wrong {
			errs = append(errs, errors.New(text))
		}
	}
	fault(s.Addr == "", "no address of a proxy is given")
	fault(s.Conns < 1, "at least one connection is needed")
	fault(s.Duration <= 0, "the measured time must be positive")
	fault(s.TLS && s.Kind != Bulk && s.Kind != Connect, fmt.Sprintf("there is no %s over TLS", s.Kind))
	fault(s.TLS && s.CertDir == "", "TLS needs the servers' certificate")
	changes := s.Kind == Update || s.Kind == HotRestart || s.Kind == Drain
	fault((s.Kind == Stall || changes) && s.Rate < 1, fmt.Sprintf("%s needs a rate of connections", s.Kind))
	fault(changes && s.Interval <= 0, fmt.Sprintf("%s needs an interval of messages", s.Kind))
	fault(changes && s.Routes.PID <= 0, fmt.Sprintf("%s needs a process to signal", s.Kind))
	return errors.Join(errs...)
}

// Run does what s says. It takes Warm and For and a few seconds more; with a proxy that does not answer at most a minute.
func Run(ctx context.Context, s Spec) (Figures, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	if _, err := RaiseFileLimit(); err != nil {
		return nil, err
	}
	switch {
	case s.TLS && s.Kind == Bulk:
		return s.bulkTLS(ctx)
	case s.TLS:
		return s.connectTLS(ctx)
	}
	c, err := newClient(s)
	if err != nil {
		return nil, err
	}
	defer c.close()
	switch s.Kind {
	case Bulk:
		return c.bulk(ctx)
	case Connect:
		return c.connect(ctx)
	case Ping:
		return c.ping(ctx)
	case Idle:
		return c.idle(ctx)
	case Stall:
		return c.stall(ctx)
	case Update:
		return c.update(ctx)
	case HotRestart:
		return c.hotRestart(ctx)
	case Drain:
		return c.drain(ctx)
	}
	return nil, fmt.Errorf("%q is no kind of load", s.Kind)
}
