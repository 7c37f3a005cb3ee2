// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Kind is a kind of load.
type Kind string

const (
	// Bulk receives data on Conns connections without pause. Figures: MBPerS,
	// CPUPerGB.
	Bulk Kind = "bulk"
	// Connect opens a connection, sends one request, waits for the response and
	// closes, Conns at a time. Figures: ConnPerS, CPUPerConn; P50 and P99 from
	// the dial to the response.
	Connect Kind = "connect"
	// Ping sends a message of 64 bytes on each of Conns open connections and
	// waits for its echo. It sends the next one at once, or every Interval. The
	// latency of a paced message starts at its scheduled time. Figures: P50,
	// P99, CPUPerMsg.
	Ping Kind = "ping"
	// Idle opens Conns connections, or as many as the proxy and the limit of
	// open files permit. Each carries one message in each direction. Figures:
	// Held, RSSPerConn, FDsPerConn.
	Idle Kind = "idle"
	// Stall opens Conns connections that send only the first byte of a
	// ClientHello. It also opens Rate complete connections per second, before
	// and while these are stalled. Figures of the complete connections: P50,
	// P99, P99Ratio, Lost. Figures of the stalled connections: Held,
	// RSSPerConn, GoneAfter, Left.
	Stall Kind = "stall"
	// Update opens Rate connections per second, and pings Conns open
	// connections every Interval, while routes change. Figures: P50, P99,
	// P99Ratio, Lost.
	Update Kind = "update"
	// HotRestart does the same as Update, while the proxy (process Routes.PID)
	// is hot restarted twice. SIGUSR2 makes the proxy start its new process.
	// Figures: P50, P99, P99Ratio, Lost, HotRestarts.
	HotRestart Kind = "hot-restart"
	// Drain opens Rate connections per second, pings Conns open connections
	// every Interval, and stops the proxy (process Routes.PID) by SIGTERM.
	// Figures: P50, P99, Lost, Refused, GoneAfter, Left.
	Drain Kind = "drain"
)

// Spec describes one run. Some fields apply only to some kinds.
type Spec struct {
	// Kind is the kind of load. Required.
	Kind Kind
	// Addr is the ip:port of the proxy, or of a server to measure without a
	// proxy. Required.
	Addr string
	// TLS selects the TLS server and full handshakes. Only for Bulk and
	// Connect.
	TLS bool
	// CertDir is the directory that MakeCert has filled. Required with TLS.
	CertDir string
	// Conns is the number of connections; at least 1.
	Conns int
	// Warmup is the time before the measurement. Duration is the measured time.
	// Duration is required.
	Warmup, Duration time.Duration
	// Interval is the time between messages of a connection; 0 sends the next
	// message at once.
	Interval time.Duration
	// Rate is the number of new connections per second.
	Rate int
	// Settle is how long connections are idle before memory is read.
	Settle time.Duration
	// HelloTimeout is how long the proxy waits for a ClientHello. Stall waits
	// some seconds longer.
	HelloTimeout time.Duration
	// PIDs are the processes of the proxy, whose CPU time and memory are
	// measured; none without a proxy. ServerPIDs are the processes that run
	// Serve.
	PIDs, ServerPIDs []int
	// DrainTime is how long a stopped proxy keeps its open connections.
	DrainTime time.Duration
	// Routes is the route file that Update changes. HotRestart and Drain also
	// send signals to its PID.
	Routes RouteFile
}

func (s Spec) validate() error {
	var errs []error
	rejectIf := func(invalid bool, text string) {
		if invalid {
			errs = append(errs, errors.New(text))
		}
	}
	rejectIf(s.Addr == "", "no proxy address")
	rejectIf(s.Conns < 1, "at least one connection is required")
	rejectIf(s.Duration <= 0, "the duration must be positive")
	rejectIf(s.TLS && s.Kind != Bulk && s.Kind != Connect, fmt.Sprintf("%s does not support TLS", s.Kind))
	rejectIf(s.TLS && s.CertDir == "", "TLS requires the directory of the certificate")
	changes := s.Kind == Update || s.Kind == HotRestart || s.Kind == Drain
	rejectIf((s.Kind == Stall || changes) && s.Rate < 1, fmt.Sprintf("%s requires a connection rate", s.Kind))
	rejectIf(changes && s.Interval <= 0, fmt.Sprintf("%s requires a message interval", s.Kind))
	rejectIf(changes && s.Routes.PID <= 0, fmt.Sprintf("%s requires a process to signal", s.Kind))
	return errors.Join(errs...)
}

// Run does one measurement and returns its figures. It takes Warmup, Duration
// and a few seconds more, and at most about a minute more if the proxy does not
// respond.
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
	return nil, fmt.Errorf("unknown kind of load %q", s.Kind)
}
