// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
)

func newStatus() *cobra.Command {
	return addReadFlags(&cobra.Command{
		Use:   "status",
		Short: "Show the health of the federation",
		Long: `Show the health of each datacenter as one server sees it: the number of alive
servers and of healthy gateways, the time since the federation state changed (Age)
and since the replica was last equal to the primary (Lag), the last error and the
remedy.

The second table has the paths to each other datacenter in the order in which a
connection tries them, with the smoothed round trip time (RTT). With --output
wide it also has the times of the last success and failure, and the sources of
the address (Known).

The leader of a secondary also lists the replicated types: the number of
replicas, the number of resources of the primary whose type this version does not
support, the index of the primary, and the time since the replicas were last
equal (Lag). With --output wide it also lists the changes since the server
started.

The state is ok, degraded (some servers or gateways are down) or unreachable (no
server is alive). The exit status is 0 if the server responds.`,
		Example: `  wanfed status
  wanfed status --datacenter dc2
  wanfed status --output wide
  wanfed status --output json | jq '.datacenters[] | select(.advice)'`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, cl client, out printer) error {
		s, err := cl.Status(cmd.Context(), cl.opts)
		if err != nil {
			return err
		}
		return out.print(s, func() error { return printStatus(out, s, time.Now()) })
	})
}

func printStatus(out printer, s api.Status, now time.Time) error {
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
			age(d.RecordAge), age(d.ReplicationLag),
		})
	}
	fmt.Fprintf(out.w, "Datacenter %s (primary %s): %d of %d datacenters ok\nNode %s, version %s, %s\n\n",
		printable(s.Datacenter), printable(s.PrimaryDatacenter), ok, len(s.Datacenters),
		printable(s.Node), printable(s.Version), printable(leader))
	if err := out.table(rows); err != nil {
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
	fmt.Fprintln(out.w)
	rows = [][]string{{"Component", "State", "Detail"}}
	for _, c := range s.Components {
		rows = append(rows, []string{c.Name, c.State, c.Detail})
	}
	return out.table(rows)
}

func printPaths(out printer, s api.Status, now time.Time) error {
	rows := [][]string{{"Datacenter", "Path", "Via", "Used", "Health", "RTT"}}
	if out.wide() {
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
			if out.wide() {
				known := strings.Join(p.Sources, ", ")
				if p.KnowledgeAge != nil {
					known += ", " + age(p.KnowledgeAge) + " ago"
				}
				row = append(row, ago(p.LastSuccess, now), ago(p.LastFailure, now), cmp.Or(known, "-"))
			}
			rows = append(rows, row)
		}
	}
	if len(rows) == 1 {
		return nil
	}
	fmt.Fprintf(out.w, "\nMesh gateway mode %s\n\n", printable(s.MeshGatewayMode))
	return out.table(rows)
}

func printReplicated(out printer, s api.Status, now time.Time) error {
	if len(s.Replicated) == 0 {
		return nil
	}
	rows := [][]string{{"Replicated Type", "Replicas", "Unknown", "Primary Index", "Lag"}}
	if out.wide() {
		rows[0] = append(rows[0], "Last Change", "Changes", "Bytes")
	}
	for _, r := range s.Replicated {
		row := []string{r.Type, index(r.Records), index(r.UnknownRecords), index(r.PrimaryIndex), age(r.Lag)}
		if out.wide() {
			row = append(row, ago(r.LastChange, now), index(r.Changes), index(r.ReceivedBytes))
		}
		rows = append(rows, row)
	}
	fmt.Fprintln(out.w)
	return out.table(rows)
}

// ago formats the time since t, or "-" for the zero time.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return age(api.SecondsPtr(now.Sub(t))) + " ago"
}

// printProblems prints the last error and the remedy of a datacenter.
func printProblems(out printer, d api.DatacenterStatus) {
	if d.LastError == "" && d.Advice == "" {
		return
	}
	fmt.Fprintf(out.w, "\n%s:\n", printable(d.Name))
	if d.LastError != "" {
		at := ""
		if !d.LastErrorAt.IsZero() {
			at = " (" + timestamp(d.LastErrorAt) + ")"
		}
		fmt.Fprintf(out.w, "  last error%s: %s\n", at, printable(d.LastError))
	}
	if d.Advice != "" {
		fmt.Fprintf(out.w, "  advice: %s\n", printable(d.Advice))
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
