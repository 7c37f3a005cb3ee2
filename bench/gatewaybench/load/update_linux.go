// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// RouteFile is the route file of a proxy. The proxy reads it again on SIGHUP.
type RouteFile struct {
	// Path is the path of the file.
	Path string
	// PID is the process to signal.
	PID int
	// Raw and TLS are the addresses of the servers.
	Raw, TLS string
	// ExtraRoutes is the number of additional routes, to other datacenters.
	ExtraRoutes int
	// ChangesPerSecond is how many times per second the file changes.
	ChangesPerSecond int
}

// Write replaces the file. It contains a route of FlipName if flip is true.
func (r RouteFile) Write(flip bool) error {
	var b strings.Builder
	route := func(match, to string) { fmt.Fprintf(&b, "route %q { to = [%q] }\n", match, to) }
	route(RawName, r.Raw)
	route(TLSRoute, r.TLS)
	for i := range r.ExtraRoutes {
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

// flipper changes the file ChangesPerSecond times per second, in the loop of
// the client. A change costs two system calls. Changes happen at random times,
// because the new connections have a regular schedule.
type flipper struct {
	file              RouteFile
	periodStart, next time.Time
	period            time.Duration
	flipped           bool // FlipName has a route
	err               error
}

func (r RouteFile) newFlipper() (*flipper, error) {
	other := r
	other.Path = r.swapPath()
	if err := errors.Join(r.Write(false), other.Write(true)); err != nil {
		return nil, err
	}
	now := time.Now()
	return &flipper{file: r, periodStart: now, next: now, period: time.Second / time.Duration(r.ChangesPerSecond)}, nil
}

// swapPath returns the path of the second file, which is exchanged with the
// first.
func (r RouteFile) swapPath() string { return r.Path + ".other" }

func (f *flipper) tick(now time.Time) time.Time {
	for !f.next.After(now) {
		f.flip()
		f.periodStart = f.periodStart.Add(f.period)
		f.next = f.periodStart.Add(rand.N(f.period))
	}
	return f.next
}

func (f *flipper) flip() {
	f.flipped = !f.flipped
	swap := unix.Renameat2(unix.AT_FDCWD, f.file.Path, unix.AT_FDCWD, f.file.swapPath(), unix.RENAME_EXCHANGE)
	f.err = errors.Join(f.err, swap, unix.Kill(f.file.PID, unix.SIGHUP))
}

// end leaves a file in place that has a route of FlipName.
func (f *flipper) end() error {
	if !f.flipped {
		f.flip()
	}
	return f.err
}

// update compares new and open connections before and during route changes. A
// connection that is lost in either period counts as lost.
func (c *client) update(ctx context.Context) (Figures, error) {
	conns, err := c.openAll(ctx, opEcho, c.spec.Conns)
	if err != nil {
		return nil, err
	}
	p := c.newPinger(conns)
	p.start()
	before, _, err := c.openComplete(ctx, p)
	if err != nil {
		return nil, err
	}
	change, err := c.spec.Routes.newFlipper()
	if err != nil {
		return nil, err
	}
	during, sp, err := c.openComplete(ctx, p, change)
	if err = errors.Join(err, change.end()); err != nil {
		return nil, err
	}
	f := during.compare(before, sp)
	f[Lost] += float64(p.lost)
	if f[Lost] > 0 {
		return f, fmt.Errorf("%v connections lost: %w", f[Lost], errors.Join(during.lastErr, p.lastErr))
	}
	return f, c.awaitFlip(ctx)
}

// awaitFlip waits until FlipName is routed, as the last change requires.
func (c *client) awaitFlip(ctx context.Context) error {
	hello, err := recordHello(FlipName)
	if err != nil {
		return err
	}
	c.preamble[opRespond] = append(hello, request(opRespond)...)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		if conns, err := c.openAll(ctx, opRespond, 1); err == nil {
			c.drop(conns[0])
			return nil
		}
	}
	return errors.New("the last route change did not take effect within 2 s")
}
