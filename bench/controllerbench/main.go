// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "controllerbench:", err)
		os.Exit(1)
	}
}

// contenders have a function that runs one round in this process.
var contenders = map[string]func(ctx context.Context, n int, p *probe) error{
	"wanfed":             runWanfed,
	"controller-runtime": runControllerRuntime,
}

// fanout is the number of items of a class, and changes the number of measured
// changes.
const (
	fanout  = 1000
	changes = 30
	workers = 2
)

var rows = []struct{ name, unit string }{
	{"start", "ms"}, {"start/all", "ms"}, {"reconciles", "1/s"}, {"memory", "B"}, {"change/first", "ms"},
	{"change/last", "ms"}, {"lookup", "ms"}, {"scan", "ms"},
}

// run prints a table with the medians of all rounds, or with -contender the
// figures of one run in this process, as JSON.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	fs := flag.NewFlagSet("controllerbench", flag.ContinueOnError)
	fs.SetOutput(progress)
	n := fs.Int("n", 100_000, "number of items")
	rounds := fs.Int("rounds", 3, "number of rounds")
	child := fs.String("contender", "", "`name` of a contender to run once in this process; empty: all, in turns")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *n < fanout || *rounds < 1 {
		return fmt.Errorf("n must be at least %d, and rounds at least 1", fanout)
	}
	if *child != "" {
		p := newProbe(*n)
		if err := contenders[*child](ctx, *n, p); err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(p.figures)
	}
	names := []string{"wanfed", "controller-runtime"}
	all := map[string]map[string][]float64{} // by row and contender
	for round := range *rounds {
		for i := range names {
			name := names[(i+round)%len(names)]
			figures, err := runChild(ctx, name, *n)
			if err != nil {
				return fmt.Errorf("run %s: %w", name, err)
			}
			fmt.Fprintf(progress, "round %d of %d  %s: %v\n", round+1, *rounds, name, figures)
			for row, v := range figures {
				if all[row] == nil {
					all[row] = map[string][]float64{}
				}
				all[row][name] = append(all[row][name], v)
			}
		}
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "row\t%s\t%s\tunit\t\n", names[0], names[1])
	for _, r := range rows {
		fmt.Fprintf(tw, "%s\t%.2f\t%.2f\t%s\t\n", r.name, median(all[r.name][names[0]]), median(all[r.name][names[1]]), r.unit)
	}
	return tw.Flush()
}

// runChild runs one round of a contender in a new process.
func runChild(ctx context.Context, name string, n int) (map[string]float64, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe, "-contender", name, "-n", strconv.Itoa(n))
	cmd.Env = append(os.Environ(), "KUBE_FEATURE_WatchListClient=false") // the source in memory does not support it
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var figures map[string]float64
	return figures, json.Unmarshal(b, &figures)
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[len(v)/2]
}

// probe measures one round.
type probe struct {
	n       int
	figures map[string]float64

	mu          sync.Mutex
	reconciles  int
	first, last time.Time
	want        int           // number of reconciles after which reached is closed
	reached     chan struct{} // replaced by expect
}

func newProbe(n int) *probe { return &probe{n: n, figures: map[string]float64{}} }

// expect starts the measurement of n reconciles. The result waits for them.
func (p *probe) expect(n int) (wait func(ctx context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reconciles, p.want = 0, n
	reached := make(chan struct{})
	p.reached = reached
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		select {
		case <-reached:
			return nil
		case <-ctx.Done():
			p.mu.Lock()
			defer p.mu.Unlock()
			return fmt.Errorf("%d of %d reconciles: %w", p.reconciles, n, ctx.Err())
		}
	}
}

// reconciled is called at the start of each reconcile.
func (p *probe) reconciled() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reconciles == 0 {
		p.first = time.Now()
	}
	if p.reconciles++; p.reconciles == p.want {
		p.last = time.Now()
		close(p.reached)
	}
}

// heap returns the bytes that are in use after a garbage collection.
func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// measure runs all rows. start starts the runtime. change writes a class.
// lookup and scan return the number of items that they find.
func (p *probe) measure(ctx context.Context, start func(), change func(i int) error, lookup, scan func() (int, error)) error {
	before := heap()
	wait := p.expect(p.n)
	begin := time.Now()
	start()
	if err := wait(ctx); err != nil {
		return err
	}
	p.figures["start"] = ms(p.first.Sub(begin))
	p.figures["start/all"] = ms(p.last.Sub(begin))
	p.figures["reconciles"] = float64(p.n-1) / p.last.Sub(p.first).Seconds()
	time.Sleep(500 * time.Millisecond) // late events of the start
	p.figures["memory"] = (heap() - before) / float64(p.n)

	var first, last []float64
	for i := range changes {
		wait := p.expect(fanout)
		begin := time.Now()
		if err := change(i); err != nil {
			return err
		}
		if err := wait(ctx); err != nil {
			return err
		}
		first, last = append(first, ms(p.first.Sub(begin))), append(last, ms(p.last.Sub(begin)))
		time.Sleep(20 * time.Millisecond)
	}
	p.figures["change/first"], p.figures["change/last"] = median(first), median(last)
	for name, query := range map[string]func() (int, error){"lookup": lookup, "scan": scan} {
		var took []float64
		for range changes {
			begin := time.Now()
			n, err := query()
			took = append(took, ms(time.Since(begin)))
			if err != nil || n != fanout {
				return fmt.Errorf("%s found %d items, want %d: %w", name, n, fanout, err)
			}
		}
		p.figures[name] = median(took)
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// classOf returns the class of item i of n.
func classOf(i, n int) string { return fmt.Sprintf("class-%d", i%(n/fanout)) }

// payload is the data of an item besides its class.
const payload = "a value of one hundred bytes, as settings of a service have them, such as ports, addresses and tags....."
