// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/bench/gatewaybench/load"
)

func main() {
	runtime.LockOSThread() // child processes are killed when this thread ends
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := dispatch(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "gatewaybench:", err)
		os.Exit(1)
	}
}

func dispatch(ctx context.Context, args []string, out, progress io.Writer) error {
	if isChild(args) {
		return runChild(ctx, args, out)
	}
	s, err := parseFlags(args, progress)
	if err != nil {
		return err
	}
	return s.run(ctx, out, progress)
}

func isChild(args []string) bool {
	return len(args) > 0 && (args[0] == childServers || args[0] == childLoad)
}

// settings are the values of the flags.
type settings struct {
	program, rows, peers, format string
	servers                      string
	proxies                      []contender
	rounds, retries              int
	noiseLimit                   float64
	quietTimeout                 time.Duration
	timing                       timing
	direct, quiet                bool
}

const directName = "direct"

func parseFlags(args []string, usage io.Writer) (settings, error) {
	var s settings
	fs := flag.NewFlagSet("gatewaybench", flag.ContinueOnError)
	fs.SetOutput(usage)
	fs.StringVar(&s.program, "wanfed", "../bin/wanfed",
		"`path` of the wanfed program whose gateway is measured; empty: none")
	fs.StringVar(&s.rows, "rows", "",
		"comma-separated `prefixes` of the rows to run, such as bulk/raw,idle; empty: all")
	fs.StringVar(&s.peers, "peers", "haproxy,haproxy-splice,haproxy-tuned,nginx,envoy",
		"comma-separated `names` of proxies to compare with; empty: none")
	fs.Func("proxy", "another proxy to measure: `name=command`, or name=ip:port of a running proxy; repeatable. "+
		"Placeholders in the command: {listen}, the listen address; {routes}, a route file of "+
		"wanfed gateway; {raw} and {tls}, the servers", func(v string) error {
		c, err := parseProxy(v)
		s.proxies = append(s.proxies, c)
		return err
	})
	fs.StringVar(&s.servers, "servers", "127.0.0.1:0,127.0.0.1:0",
		"listen `addresses` of the plain server and the TLS server, for a running proxy")
	fs.StringVar(&s.format, "format", "table", "output `format`: table (Markdown) or json")
	fs.IntVar(&s.rounds, "rounds", 5, "number of rounds")
	fs.DurationVar(&s.timing.measure, "for", 2*time.Second, "measured time per run")
	fs.DurationVar(&s.timing.warm, "warm", 500*time.Millisecond, "time before the measurement of a run")
	fs.DurationVar(&s.timing.settle, "settle", 2*time.Second, "time until the memory of idle connections is read")
	fs.IntVar(&s.timing.idle, "idle", 9500, "number of idle connections")
	fs.IntVar(&s.timing.stalls, "stalls", 5000, "number of stalled connections")
	fs.IntVar(&s.timing.restartConns, "handed", 10000, "number of connections during hot restarts")
	fs.Float64Var(&s.noiseLimit, "noisy", 0.2, "number of cores that other processes may use during a run")
	fs.DurationVar(&s.quietTimeout, "patience", 10*time.Second,
		"maximum wait for other processes to use fewer cores before a run")
	fs.IntVar(&s.retries, "retries", 1, "number of repetitions of a run that other processes disturbed")
	fs.BoolVar(&s.direct, "direct", true, "also measure without a proxy")
	fs.BoolVar(&s.quiet, "quiet", false, "do not print progress to stderr")
	if err := fs.Parse(args); err != nil {
		return s, err
	}
	var errs []error
	if fs.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unknown argument %q", fs.Arg(0)))
	}
	if s.format != "table" && s.format != "json" {
		errs = append(errs, fmt.Errorf("format %q is neither table nor json", s.format))
	}
	t := s.timing
	if s.rounds < 1 || t.measure <= 0 || t.warm < 0 || t.idle < 1 || t.stalls < 1 || t.restartConns < 1 {
		errs = append(errs,
			errors.New("rounds, for, idle, stalls and handed must be positive; warm must not be negative"))
	}
	return s, errors.Join(errs...)
}

// contenders returns the subjects, then the peers, then the direct connection.
// It writes a line to progress if there is no Envoy.
func (s settings) contenders(progress io.Writer) ([]contender, error) {
	var all []contender
	if s.program != "" {
		all = append(all, wanfed(s.program))
	}
	all = append(all, s.proxies...)
	if len(all) == 0 {
		return nil, errors.New("no proxy to measure: set --wanfed or --proxy")
	}
	names := strings.FieldsFunc(s.peers, func(r rune) bool { return r == ',' })
	for _, p := range peers() {
		if i := slices.Index(names, p.name); i >= 0 {
			names = slices.Delete(names, i, i+1)
			all = append(all, p)
		}
	}
	if i := slices.Index(names, envoyName); i >= 0 {
		names = slices.Delete(names, i, i+1)
		fmt.Fprintln(progress, "no Envoy, so it is not measured: set WANFED_ENVOY to its binary")
	}
	if len(names) > 0 {
		return nil, fmt.Errorf("unknown peers %s", strings.Join(names, ", "))
	}
	if s.direct {
		all = append(all, contender{name: directName, role: direct})
	}
	return all, checkTools(all)
}

func (s settings) run(ctx context.Context, out, progress io.Writer) (err error) {
	b := bench{
		rounds: s.rounds, noiseLimit: s.noiseLimit, quietTimeout: s.quietTimeout, retries: s.retries,
		progress: progress,
	}
	if s.quiet {
		b.progress = io.Discard
	}
	if b.contenders, err = s.contenders(progress); err != nil {
		return err
	}
	if b.rows, err = selectRows(rows(s.timing), s.rows); err != nil {
		return err
	}
	var ok bool
	if b.rawServer, b.tlsServer, ok = strings.Cut(s.servers, ","); !ok {
		return fmt.Errorf("servers %q are not two addresses separated by a comma", s.servers)
	}
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if b.proxyCore, b.loadCore, err = cores(); err != nil {
		return err
	}
	if _, err := load.RaiseFileLimit(); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "gatewaybench"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	runs, err := b.measure(ctx)
	if len(runs) == 0 {
		return err
	}
	rep := newReport(machine(), b, runs) // also after an early end
	if s.format == "json" {
		return errors.Join(err, rep.writeJSON(out))
	}
	return errors.Join(err, rep.writeTable(out))
}

// machine returns a description of this machine.
func machine() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err.Error()
	}
	text := func(b []byte) string { return string(bytes.TrimRight(b, "\x00")) }
	return fmt.Sprintf("%d cores, %s %s, %s", runtime.NumCPU(), text(u.Sysname[:]), text(u.Release[:]),
		runtime.Version())
}
