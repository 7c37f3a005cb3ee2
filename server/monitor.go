// SPDX-License-Identifier: MPL-2.0

package server

import (
	"errors"
	"fmt"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/wanfed/wanfed/internal/monitor"
	"github.com/wanfed/wanfed/tlsutil"
)

// listenMonitor opens the listener of the monitor address, if it is set.
func (c *components) listenMonitor(id *tlsutil.Identity) (err error) {
	if c.cfg.MonitorAddr == "" {
		return nil
	}
	c.monitor, err = monitor.Listen(monitor.Config{
		Addr: c.cfg.MonitorAddr, TokenFile: c.cfg.MonitorTokenFile, Identity: id, Ready: c.ready, Logger: c.logger,
		// buildHTTP sets c.metrics before the monitor runs.
		Metrics: prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return c.metrics.Gather() }),
	}, func(addr string) (net.Listener, error) { return listen(addr, "--monitor-addr") })
	if err == nil {
		c.addrs.Monitor = c.monitor.URL()
	}
	return err
}

// ready returns nil while this server can serve requests, and the reason
// otherwise. A secondary without its primary is ready, because it serves its
// replicas.
func (c *components) ready() error {
	select {
	case <-c.loaded:
	default:
		return errors.New("starting: the store applies its log")
	}
	if err := c.store.WriteError(); err != nil {
		return fmt.Errorf("cannot write the log: %w", err)
	}
	if _, ok := c.store.Leader(); !ok {
		return errors.New("no leader")
	}
	return nil
}

// requestMetrics measures the requests that a server serves and forwards.
type requestMetrics struct{ http, calls, forwarded *monitor.Requests }

func newRequestMetrics() requestMetrics {
	return requestMetrics{monitor.NewHTTPRequests(), monitor.NewCalls(), monitor.NewForwarded()}
}

func (m requestMetrics) register(r prometheus.Registerer) error {
	return errors.Join(r.Register(m.http), r.Register(m.calls), r.Register(m.forwarded))
}
