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

// RouteFile is a file of routes that a proxy reads again when it gets SIGHUP.
type RouteFile struct {
	// Path of the file.
	Path string
	// PID of the process to signal.
	PID int
	// Raw and TLS are the addresses of the servers.
	Raw, TLS string
	// More is how many further routes the file has, to other datacenters.
	ExtraRoutes int
	// ChangesPerSecond is how often it changes.
	ChangesPerSecond int
}

// Write replaces the file; flip says whether FlipName is routed.
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

// flipper changes the file ChangesPerSecond times a second, in the loop of the client: all that it costs there is two system calls. The
// times are random, so that they neither meet nor miss the connections, which come at regular ones.
type flipper struct {
	file              RouteFile
	periodStart, next time.Time
	period            time.Duration
	on                bool // FlipName is routed
	err               error
}

func (r RouteFile) newFlipper() (*flipper, error) {
	other := r
	other.Path = r.swapPath()
	now := time.Now()
	return &flipper{file: r, periodStart: now, next: now, period: time.Second / time.Duration(r.ChangesPerSecond)}, errors.Join(r.Write(false), other.Write(true))
}

// other is the file that takes the place of the one at Path.
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
	f.on = !f.on
	swap := unix.Renameat2(unix.AT_FDCWD, f.file.Path, unix.AT_FDCWD, f.file.swapPath(), unix.RENAME_EXCHANGE)
	f.err = errors.Join(f.err, swap, unix.Kill(f.file.PID, unix.SIGHUP))
}

// end leaves the file with FlipName routed.
func (f *flipper) end() error {
	if !f.on {
		f.flip()
	}
	return f.err
}

// update compares good connections and open ones before and while routes change. A connection that is lost in either counts.
func (c *client) update(ctx context.Context) (Figures, error) {
	conns, err := c.openAll(ctx, opEcho, c.spec.Conns)
	if err != nil {
		return nil, err
	}
	p := c.newPinger(conns)
	p.start()
	before, _, err := c.openGood(ctx, p)
	if err != nil {
		return nil, err
	}
	change, err := c.spec.Routes.newFlipper()
	if err != nil {
		return nil, err
	}
	during, sp, err := c.openGood(ctx, p, change)
	if err = errors.Join(err, change.end()); err != nil {
		return nil, err
	}
	f := during.compare(before, sp)
	f[Lost] += float64(p.lost)
	if f[Lost] > 0 {
		return f, fmt.Errorf("%v connections were lost: %w", f[Lost], errors.Join(during.lastErr, p.lastErr))
	}
	return f, c.awaitFlip(ctx)
}

// flipped waits until FlipName is routed, which it is after the last change.
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
	return errors.New("the last change of routes did not take effect within 2 s")
}
