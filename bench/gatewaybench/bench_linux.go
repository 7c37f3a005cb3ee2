// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/wanfed/wanfed/bench/gatewaybench/load"
)

// bench measures every row with every contender.
type bench struct {
	self       string // path of this program, which also runs as child processes
	contenders []contender
	rows       []row
	rounds     int
	// noiseLimit is how many cores other processes may use during a run. A run
	// starts when they use fewer, or after quietTimeout. If they use more
	// during the run, it is repeated up to retries times. The result with the
	// least use counts.
	noiseLimit   float64
	quietTimeout time.Duration
	retries      int
	// rawServer and tlsServer are the addresses on which the servers listen.
	rawServer, tlsServer string
	proxyCore, loadCore  int
	dir                  string    // temporary files of all runs; the caller removes it
	progress             io.Writer // receives one line per run
}

// run is the result of measuring one contender in one row and round.
type run struct {
	row, contender string
	round          int
	figures        load.Figures
	err            error
}

// measure runs all rounds and returns the results. In each round, each row runs
// with all contenders in random order. Each run has fresh processes. measure
// returns early only when ctx ends. The results include failed runs.
func (b bench) measure(ctx context.Context) ([]run, error) {
	certs := filepath.Join(b.dir, "certs")
	if err := os.Mkdir(certs, 0o700); err != nil {
		return nil, err
	}
	if err := load.MakeCert(certs); err != nil {
		return nil, err
	}
	var runs []run
	for round := range b.rounds {
		for _, r := range b.rows {
			order := slices.Clone(b.contenders)
			rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			for _, c := range order {
				if !r.appliesTo(c) {
					continue
				}
				result := b.runQuiet(ctx, r, c, certs)
				if ctx.Err() != nil {
					return runs, ctx.Err()
				}
				result.round = round
				runs = append(runs, result)
				fmt.Fprintln(b.progress, result)
			}
		}
	}
	return runs, nil
}

func (r run) String() string {
	s := fmt.Sprintf("%s round %d  %-16s %-15s", time.Now().Format(time.TimeOnly), r.round+1, r.row, r.contender)
	for _, name := range []string{
		load.MBPerS, load.CPUPerGB, load.ConnPerS, load.CPUPerConn, load.CPUPerMsg, load.P50, load.P99,
		load.P99Ratio, load.Lost, load.RSSPerConn, load.Held, load.UserPart, load.Others,
	} {
		if v, ok := r.figures[name]; ok {
			s += fmt.Sprintf(" %s %s,", name, number(v))
		}
	}
	if r.err != nil {
		s += " failed: " + r.err.Error()
	}
	return s
}

// runQuiet measures c in row r. It repeats a run that other processes have
// disturbed, and returns the least disturbed result.
func (b bench) runQuiet(ctx context.Context, r row, c contender, certs string) run {
	var best run
	for try := 0; ; try++ {
		load.AwaitQuiet(ctx, b.noiseLimit, b.quietTimeout)
		f, err := b.runOnce(ctx, r, c, certs)
		if try == 0 || err == nil && (best.err != nil || f[load.Others] < best.figures[load.Others]) {
			best = run{row: r.name, contender: c.name, figures: f, err: err}
		}
		if try >= b.retries || ctx.Err() != nil || best.err == nil && best.figures[load.Others] <= b.noiseLimit {
			return best
		}
	}
}

// runOnce starts the servers and the contender, and measures once.
func (b bench) runOnce(ctx context.Context, r row, c contender, certs string) (_ load.Figures, err error) {
	ph := placeholders{}
	if ph.dir, err = os.MkdirTemp(b.dir, "run"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(ph.dir)
	servers, err := startServers(b.self, certs, b.loadCore, b.rawServer, b.tlsServer, &ph)
	if err != nil {
		return nil, err
	}
	defer servers.stop()
	s := r.spec
	s.CertDir, s.ServerPIDs = certs, []int{servers.pid()}
	switch {
	case c.addr != "":
		s.Addr = c.addr
	case c.role == direct && s.TLS:
		s.Addr = ph.tls
	case c.role == direct:
		s.Addr = ph.raw
	default:
		proxy, stop, err := b.startProxy(ctx, r, c, &ph)
		if err != nil {
			return nil, err
		}
		defer stop()
		s.Addr = ph.listen
		s.Routes = ph.routeFile(r, proxy.pid())
		if s.PIDs, err = load.ProcessTree(proxy.pid()); err != nil {
			return nil, err
		}
		if !r.endsProxy() {
			defer func() { err = errors.Join(err, proxy.checkRunning()) }()
		}
	}
	f, err := runLoad(ctx, b.self, b.loadCore, s, ph.dir)
	if err == nil && s.Kind == load.Update {
		f[updatesFigure], err = ph.updatesPerSecond(s)
	}
	return f, err
}

// checkRunning returns an error if the process has exited.
func (p *process) checkRunning() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s exited during the run (%v): %s", p.name, p.err, p.output())
	default:
		return nil
	}
}

func (ph placeholders) routeFile(r row, pid int) load.RouteFile {
	f := load.RouteFile{Path: ph.routes(), PID: pid, Raw: ph.raw, TLS: ph.tls, ChangesPerSecond: updatePerSecond}
	if r.spec.Kind == load.Update {
		f.ExtraRoutes = updateRoutes
	}
	return f
}

// updatesPerSecond returns the rate of route changes that the proxy has logged.
func (ph placeholders) updatesPerSecond(s load.Spec) (float64, error) {
	b, err := os.ReadFile(ph.proxyLog())
	return float64(bytes.Count(b, []byte("routes changed"))) / s.Duration.Seconds(), err
}

func (ph placeholders) proxyLog() string { return filepath.Join(ph.dir, "proxy.log") }

// startProxy starts a contender and waits until it listens. stop ends it.
func (b bench) startProxy(
	ctx context.Context, r row, c contender, ph *placeholders,
) (_ *process, stop func(), err error) {
	if ph.listen, err = freeAddr(); err != nil {
		return nil, nil, err
	}
	stopXDS := func() {}
	if c.xds {
		if ph.xdsPort, stopXDS, err = serveXDS(*ph); err != nil {
			return nil, nil, err
		}
	}
	p, err := b.startConfigured(ctx, r, c, ph)
	if err != nil {
		stopXDS()
		return nil, nil, err
	}
	return p, func() { p.stop(); stopXDS() }, nil
}

// startConfigured starts a contender when all placeholders have their values.
func (b bench) startConfigured(ctx context.Context, r row, c contender, ph *placeholders) (*process, error) {
	for name, text := range c.files {
		if err := os.WriteFile(filepath.Join(ph.dir, name), []byte(ph.expand(text)), 0o600); err != nil {
			return nil, err
		}
	}
	if err := ph.routeFile(r, 0).Write(false); err != nil {
		return nil, err
	}
	var words []string
	for _, w := range c.command {
		words = append(words, ph.expand(w))
	}
	p, err := startPinned(c.name, b.proxyCore, exec.Command(words[0], words[1:]...), ph.proxyLog())
	if err != nil {
		return nil, err
	}
	if err := p.waitListening(ctx, ph.listen); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}
