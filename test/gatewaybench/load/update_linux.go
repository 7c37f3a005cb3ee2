// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// RouteFile is a file of routes that a proxy reads again when it gets SIGHUP.
type RouteFile struct {
	// Path of the file.
	Path string
	// PID of the process to signal.
	PID int
	// Raw and TLS are the addresses of the servers.
	Raw, TLS string
	// More is how many further routes the file has, to other datacenters.
	More int
	// PerSecond is how often it changes.
	PerSecond int
}

// Write replaces the file; flip says whether FlipName is routed.
func (r RouteFile) Write(flip bool) error {
	var b strings.Builder
	route := func(match, to string) { fmt.Fprintf(&b, "route %q { to = [%q] }\n", match, to) }
	route(RawName, r.Raw)
	route(TLSRoute, r.TLS)
	for i := range r.More {
		route(fmt.Sprintf("*.server.other%d.wanfed", i), r.TLS)
	}
	if flip {
		route(FlipName, r.Raw)
	}
	if err := os.WriteFile(r.Path+".new", []byte(b.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(r.Path+".new", r.Path)
}

// flip changes the file PerSecond times a second until ctx ends, and leaves it with FlipName routed.
func (r RouteFile) flip(ctx context.Context) error {
	change := func(flip bool) error { return errors.Join(r.Write(flip), syscall.Kill(r.PID, syscall.SIGHUP)) }
	t := time.NewTicker(time.Second / time.Duration(r.PerSecond))
	defer t.Stop()
	for on := false; ; on = !on {
		select {
		case <-ctx.Done():
			return change(true)
		case <-t.C:
			if err := change(on); err != nil {
				return err
			}
		}
	}
}

// update compares good connections and open ones before and while routes change. A connection that is lost in either counts.
func (c *client) update(ctx context.Context) (Figures, error) {
	conns, err := c.openAll(ctx, opEcho, c.spec.Conns)
	if err != nil {
		return nil, err
	}
	p := c.newPinger(conns)
	p.start()
	before, _, err := c.good(ctx, p)
	if err != nil {
		return nil, err
	}
	fctx, cancel := context.WithTimeout(ctx, c.spec.For)
	defer cancel()
	var g errgroup.Group
	g.Go(func() error { return c.spec.Routes.flip(fctx) })
	during, sp, err := c.good(ctx, p)
	if err = errors.Join(err, g.Wait()); err != nil {
		return nil, err
	}
	f := during.compare(before, sp)
	f[Lost] += float64(p.lost)
	if f[Lost] > 0 {
		return f, fmt.Errorf("%v connections were lost: %w", f[Lost], errors.Join(during.last, p.last))
	}
	return f, c.flipped(ctx)
}

// flipped waits until FlipName is routed, which it is after the last change.
func (c *client) flipped(ctx context.Context) error {
	hello, err := recordHello(FlipName)
	if err != nil {
		return err
	}
	c.first[opAnswer] = append(hello, request(opAnswer)...)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		if conns, err := c.openAll(ctx, opAnswer, 1); err == nil {
			c.drop(conns[0])
			return nil
		}
	}
	return errors.New("the last change of routes did not take effect within 2 s")
}
