// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/tlsutil"
)

func main() {
	runFloorIfRequested()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := parseFlags(os.Args[1:], os.Stderr)
	if err != nil {
		os.Exit(2)
	}
	if err := s.run(ctx, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "storebench:", err)
		os.Exit(1)
	}
}

// settings are the values of the flags.
type settings struct {
	wanfed, etcd, rows, dir string
	rounds, changes         int
	measure, warm           time.Duration
}

func parseFlags(args []string, usage io.Writer) (settings, error) {
	var s settings
	fs := flag.NewFlagSet("storebench", flag.ContinueOnError)
	fs.SetOutput(usage)
	fs.StringVar(&s.wanfed, "wanfed", "../bin/wanfed", "`path` of the wanfed program whose store is measured")
	fs.StringVar(&s.etcd, "etcd", "etcd", "`path` of etcd to compare with (Debian package: etcd-server); empty: none")
	fs.StringVar(&s.rows, "rows", "",
		"comma-separated `names` of rows or groups to run, such as write,fanout/1000; empty: all")
	fs.StringVar(&s.dir, "dir", "", "`directory` on the disk to measure; empty: the directory of temporary files")
	fs.IntVar(&s.rounds, "rounds", 3, "number of rounds")
	fs.IntVar(&s.changes, "changes", 50, "minimum number of writes in fanout rows")
	fs.DurationVar(&s.measure, "for", 3*time.Second, "measured time per run")
	fs.DurationVar(&s.warm, "warm", time.Second, "time before the measurement of a run")
	if err := fs.Parse(args); err != nil {
		return s, err
	}
	if fs.NArg() > 0 || s.rounds < 1 || s.changes < 1 || s.measure <= 0 || s.warm < 0 {
		err := errors.New(
			"rounds, changes and for must be positive, warm must not be negative; arguments are not allowed")
		fmt.Fprintln(usage, err)
		return s, err
	}
	return s, nil
}

// run runs all rows with all contenders and prints the table to out. The
// contender that comes first changes with each round.
func (s settings) run(ctx context.Context, out, progress io.Writer) error {
	dir, err := os.MkdirTemp(s.dir, "storebench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	all, err := s.start(ctx, dir)
	defer func() {
		for _, c := range all {
			c.Kill()
		}
	}()
	if err != nil {
		return err
	}
	t := table{}
	for round := range s.rounds {
		for _, r := range s.selected() {
			for i := range all {
				c := all[(i+round)%len(all)]
				if c.isFloor() && !r.floor {
					continue
				}
				figures, err := r.run(ctx, c, s)
				if err != nil {
					return fmt.Errorf("run row %s with %s: %w", r.name, c.name, err)
				}
				t.add(r.name, c.name, figures)
				fmt.Fprintf(progress, "round %d of %d  %-16s %-8s %s\n", round+1, s.rounds, r.name, c.name,
					formatFigures(figures))
			}
		}
	}
	t.print(out, s.selected())
	return nil
}

func (s settings) selected() []row {
	return slices.DeleteFunc(allRows(), func(r row) bool {
		return s.rows != "" && !slices.ContainsFunc(strings.Split(s.rows, ","), func(p string) bool {
			return r.name == p || strings.HasPrefix(r.name, p+"/")
		})
	})
}

// start runs the contenders. The caller must kill the returned contenders, also
// after an error.
func (s settings) start(ctx context.Context, dir string) (all []*contender, err error) {
	pki, err := subprocess.NewPKI(filepath.Join(dir, "pki"), domain)
	if err != nil {
		return nil, err
	}
	files, err := pki.Issue(tlsutil.RoleOperator, "dc1", "cli")
	if err != nil {
		return nil, err
	}
	client, err := clientTLS(files)
	if err != nil {
		return nil, err
	}
	c, err := startWanfed(ctx, s.wanfed, dir, pki, client)
	if c != nil {
		all = append(all, c)
	}
	if err != nil {
		return all, err
	}
	if c, err = startFloor(ctx, dir, pki, client); c != nil {
		all = append(all, c)
	}
	if err != nil || s.etcd == "" {
		return all, err
	}
	c, err = startEtcd(ctx, s.etcd, dir, pki, client)
	if c != nil {
		all = append(all, c)
	}
	return all, err
}
