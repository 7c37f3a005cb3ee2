// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "xdsbench:", err)
		os.Exit(1)
	}
}

// load is the size of a run.
type load struct {
	proxies, datacenters, changes int
	// limit is the maximum time of each phase of a contender.
	limit time.Duration
	// settle is the time in which a server processes the last answers and frees
	// its buffers.
	settle time.Duration
}

var names = []string{"wanfed", "snapshot", "snapshot-shared", "linear"}

var rows = []struct{ name, unit string }{
	{"start/bytes", "MB"}, {"start/cpu", "s"}, {"start/time", "s"}, {"memory/proxy", "KiB"}, {"rss", "MiB"},
	{"change/count", "1"}, {"change/bytes", "kB"}, {"change/of full", "%"},
	{"change/cpu", "ms"}, {"change/first", "ms"}, {"change/last", "ms"},
	{"reconnect/bytes", "kB"}, {"reconnect/cpu", "ms"}, {"reconnect/last", "ms"},
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	fs := flag.NewFlagSet("xdsbench", flag.ContinueOnError)
	fs.SetOutput(progress)
	l := load{settle: time.Second}
	fs.IntVar(&l.proxies, "proxies", 1000, "number of proxies")
	fs.IntVar(&l.datacenters, "datacenters", 1000, "number of other datacenters")
	fs.IntVar(&l.changes, "changes", 20, "maximum number of measured changes")
	fs.DurationVar(&l.limit, "limit", 5*time.Minute, "maximum time of each phase of a contender")
	rounds := fs.Int("rounds", 3, "number of rounds")
	only := fs.String("only", "", "`name` of the only contender to run")
	child := fs.String("contender", "", "`name` of a contender to serve in this process")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if l.proxies < 1 || l.datacenters < 1 || l.changes < 1 || *rounds < 1 || l.limit <= 0 {
		return errors.New("proxies, datacenters, changes and rounds must be at least 1, and limit positive")
	}
	if *child != "" {
		return serve(ctx, *child, l, os.Stdin, out)
	}
	figures := map[[2]string][]float64{} // by row and contender
	var stopped []string
	for round := range *rounds {
		for i := range names {
			name := names[(i+round)%len(names)]
			if *only != "" && name != *only {
				continue
			}
			got, err := runChild(ctx, name, l)
			if err != nil {
				return fmt.Errorf("run %s: %w", name, err)
			}
			fmt.Fprintf(progress, "round %d of %d  %s: %v\n", round+1, *rounds, name, got)
			if got.stopped != "" {
				stopped = append(stopped, fmt.Sprintf("%s, round %d: %s", name, round+1, got.stopped))
			}
			for row, v := range got.figures {
				key := [2]string{row, name}
				figures[key] = append(figures[key], v)
			}
		}
	}
	print(out, figures, stopped)
	return nil
}

// print prints the median of each row and contender as a table in Markdown, and
// the contenders that exceeded the limit.
func print(out io.Writer, figures map[[2]string][]float64, stopped []string) {
	fmt.Fprint(out, "| row |")
	for _, name := range names {
		fmt.Fprintf(out, " %s |", name)
	}
	fmt.Fprint(out, "\n| --- | --- | --- | --- | --- |\n")
	for _, r := range rows {
		fmt.Fprintf(out, "| %s, %s |", r.name, r.unit)
		for _, name := range names {
			if v := figures[[2]string{r.name, name}]; len(v) > 0 {
				fmt.Fprintf(out, " %.3g |", median(v))
			} else {
				fmt.Fprint(out, " |")
			}
		}
		fmt.Fprintln(out)
	}
	for _, s := range stopped {
		fmt.Fprintf(out, "\n%s\n", s)
	}
}

// median returns the median of values, which must not be empty.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// runChild starts a contender as a process and measures it.
func runChild(ctx context.Context, name string, l load) (result, error) {
	exe, err := os.Executable()
	if err != nil {
		return result{}, err
	}
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	cmd := exec.CommandContext(ctx, exe, "-contender", name, "-proxies", strconv.Itoa(l.proxies), "-datacenters",
		strconv.Itoa(l.datacenters))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return result{}, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return result{}, err
	}
	if err := cmd.Start(); err != nil {
		return result{}, err
	}
	got, err := measure(ctx, l, in, out)
	in.Close() // ends the process
	if got.stopped != "" {
		kill() // it is busy
		_ = cmd.Wait()
		return got, nil
	}
	return got, errors.Join(err, cmd.Wait())
}
