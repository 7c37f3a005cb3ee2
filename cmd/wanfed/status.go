// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/output"
)

func newStatus() *cobra.Command {
	var o statusOptions
	c := addReadFlags(&cobra.Command{
		Use:   "status",
		Short: "Show the health of the federation",
		Long: `Show the health of each datacenter as one server sees it. The first line is the
state of the federation with the most important cause. The first table has the
number of alive servers and of healthy gateways, the time since the federation
state changed (Age) and since the replica was last equal to the primary (Lag). The
cause, the remedy and the last error of each datacenter follow.

The state is:

  ok           paths in both directions work, and servers and gateways are up
  degraded     some servers or gateways are down, or an operator should act
  one way      a path to the datacenter works, but none back
  unreachable  no path works
  unknown      no path has a result of the last three probe intervals

The second table has the paths to each other datacenter in the order in which a
connection tries them, with the smoothed round trip time (RTT). With --output
wide it also has the times of the last success and failure, and the sources of
the address (Known).

The leader of a secondary also lists the replicated types: the number of
replicas, the number of resources of the primary whose type this version does not
support, the index of the primary, and the time since the replicas were last
equal (Lag). With --output wide it also lists the changes since the server
started.

The exit status is 0 if the server responds. With --exit-code and --wait it is 1
unless the state of every datacenter is ok. These are the datacenters that the
server knows: a primary without secondaries is ok by itself. To wait for a new
datacenter, run the command there.`,
		Example: `  wanfed status
  wanfed status --datacenter dc2
  wanfed status --wait 1m
  wanfed status --output wide
  wanfed status --output json | jq '.datacenters[] | select(.advice)'`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, cl client, out output.Printer) error {
		return o.run(cmd.Context(), cl, out)
	})
	c.Flags().BoolVar(&o.exitCode, "exit-code", false, "exit with status 1 unless every datacenter is ok")
	c.Flags().DurationVar(&o.wait, "wait", 0, "`duration` to wait until every datacenter is ok, such as 1m")
	c.Flags().BoolVar(&o.watch, "watch", false, "print the status every 2 s until interrupted")
	return c
}

const (
	watchInterval = 2 * time.Second        // of --watch
	waitInterval  = 500 * time.Millisecond // of the requests of --wait
)

// statusOptions are the flags of the command status.
type statusOptions struct {
	exitCode bool
	wait     time.Duration // 0: print the status once
	watch    bool
}

func (o statusOptions) run(ctx context.Context, cl client, out output.Printer) error {
	if o.watch && (o.exitCode || o.wait != 0) {
		return usagef("--watch cannot be combined with --wait or --exit-code")
	}
	if err := checkDuration("wait", o.wait, 0, 0); err != nil {
		return err
	}
	for {
		s, err := o.get(ctx, cl)
		if o.watch && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if err := out.Print(s, func() error { return printStatus(out, s, time.Now()) }); err != nil {
			return err
		}
		if !o.watch {
			if (o.exitCode || o.wait > 0) && !s.OK() {
				return fmt.Errorf("the federation is not ok: %s", output.Printable(cmp.Or(s.Headline,
					"see the states of the datacenters")))
			}
			return nil
		}
		if backoff.Sleep(ctx, watchInterval, nil); ctx.Err() != nil {
			return nil
		}
		if out.Format != output.JSON {
			fmt.Fprintf(out.W, "\n--- %s\n", output.Timestamp(time.Now()))
		}
	}
}

// get returns the status. With --wait it repeats the request until every
// datacenter is ok or the duration has passed.
func (o statusOptions) get(ctx context.Context, cl client) (s api.Status, err error) {
	deadline := time.Now().Add(o.wait)
	for {
		s, err = cl.Status(ctx, cl.opts)
		if err == nil && s.OK() || time.Until(deadline) <= 0 || ctx.Err() != nil {
			return s, err
		}
		backoff.Sleep(ctx, waitInterval, nil)
	}
}

func printStatus(out output.Printer, s api.Status, now time.Time) error {
	leader := "no leader"
	if s.Leader != "" {
		leader = "leader " + s.Leader
	}
	ok := 0
	rows := [][]string{{"Datacenter", "Role", "State", "Servers", "Gateways", "Age", "Lag"}}
	for _, d := range s.Datacenters {
		if d.Health() == api.HealthOK {
			ok++
		}
		rows = append(rows, []string{
			d.Name, role(d), string(d.Health()),
			fmt.Sprintf("%d/%d alive", d.ServersAlive, d.ServersKnown),
			fmt.Sprintf("%d/%d healthy", d.GatewaysHealthy, d.GatewaysKnown),
			output.Age(d.RecordAge), output.Age(d.ReplicationLag),
		})
	}
	if s.Headline != "" {
		fmt.Fprintln(out.W, out.Wrap(output.Printable(s.Headline), 2)+"\n")
	}
	fmt.Fprintf(out.W, "Datacenter %s (primary %s): %d of %d datacenters ok\nNode %s, version %s, %s\n\n",
		output.Printable(s.Datacenter), output.Printable(s.PrimaryDatacenter), ok, len(s.Datacenters),
		output.Printable(s.Node), output.Printable(s.Version), output.Printable(leader))
	if err := out.Table(rows); err != nil {
		return err
	}
	if err := printPaths(out, s, now); err != nil {
		return err
	}
	for _, d := range s.Datacenters {
		printProblems(out, d)
	}
	if err := printReplicated(out, s, now); err != nil {
		return err
	}
	if len(s.Components) == 0 {
		return nil
	}
	fmt.Fprintln(out.W)
	rows = [][]string{{"Component", "State", "Detail"}}
	for _, c := range s.Components {
		rows = append(rows, []string{c.Name, c.State, c.Detail})
	}
	return out.Table(rows)
}

func printPaths(out output.Printer, s api.Status, now time.Time) error {
	rows := [][]string{{"Datacenter", "Path", "Via", "Used", "Health", "RTT"}}
	if out.IsWide() {
		rows[0] = append(rows[0], "Last Success", "Last Failure", "Known")
	}
	for _, d := range s.Datacenters {
		for _, p := range d.Paths {
			used, rtt := "-", "-"
			if p.Used {
				used = "yes"
			}
			if p.RTT != nil {
				rtt = time.Duration(*p.RTT * float64(time.Second)).Round(100 * time.Microsecond).String()
			}
			row := []string{d.Name, p.Address, p.Via, used, p.Health, rtt}
			if out.IsWide() {
				known := strings.Join(p.Sources, ", ")
				if p.KnowledgeAge != nil {
					known += ", " + output.Age(p.KnowledgeAge) + " ago"
				}
				row = append(row, ago(p.LastSuccess, now), ago(p.LastFailure, now), cmp.Or(known, "-"))
			}
			rows = append(rows, row)
		}
	}
	if len(rows) == 1 {
		return nil
	}
	fmt.Fprintf(out.W, "\nMesh gateway mode %s\n\n", output.Printable(s.MeshGatewayMode))
	return out.Table(rows)
}

func printReplicated(out output.Printer, s api.Status, now time.Time) error {
	if len(s.Replicated) == 0 {
		return nil
	}
	rows := [][]string{{"Replicated Type", "Replicas", "Unknown", "Primary Index", "Lag"}}
	if out.IsWide() {
		rows[0] = append(rows[0], "Last Change", "Changes", "Bytes")
	}
	for _, r := range s.Replicated {
		row := []string{r.Type, index(r.Records), index(r.UnknownRecords), index(r.PrimaryIndex), output.Age(r.Lag)}
		if out.IsWide() {
			row = append(row, ago(r.LastChange, now), index(r.Changes), index(r.ReceivedBytes))
		}
		rows = append(rows, row)
	}
	fmt.Fprintln(out.W)
	return out.Table(rows)
}

// ago formats the time since t, or "-" for the zero time.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return output.Age(api.SecondsPtr(now.Sub(t))) + " ago"
}

// printProblems prints the cause, the remedy and the last error of a
// datacenter.
func printProblems(out output.Printer, d api.DatacenterStatus) {
	if d.LastError == "" && d.Advice == "" && d.Cause == "" {
		return
	}
	fmt.Fprintf(out.W, "\n%s:\n", output.Printable(d.Name))
	if d.Cause != "" {
		fmt.Fprintln(out.W, out.Wrap("  cause: "+output.Printable(d.Cause), 4))
	}
	if d.Advice != "" {
		fmt.Fprintln(out.W, out.Wrap("  advice: "+output.Printable(d.Advice), 4))
	}
	if d.LastError != "" {
		at := ""
		if !d.LastErrorAt.IsZero() {
			at = " (" + output.Timestamp(d.LastErrorAt) + ")"
		}
		fmt.Fprintln(out.W, out.Wrap(fmt.Sprintf("  last error%s: %s", at, output.Printable(d.LastError)), 4))
	}
}

func role(d api.DatacenterStatus) string {
	role := "secondary"
	if d.Primary {
		role = "primary"
	}
	if d.Own {
		role += ", local"
	}
	return role
}
