// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
)

func newStatus() *cobra.Command {
	var detailed bool
	c := newRead(&cobra.Command{
		Use:   "status",
		Short: "Show how well a datacenter sees the others, and what to do",
		Long: `Show what a server knows of each datacenter: how many of its servers are alive and of its gateways healthy, how long
ago its federation state changed (Age) and was last known to be the primary's (Lag), what failed last, and what to do
about it. The second table has the hops: the ways to each other datacenter, in the order in which a connection would
try them now, with the smoothed round trip (RTT). With --detailed it also says when each last worked and failed, and where
its address is known from (Known), with the age of that where it is not of now.

The leader of a secondary also lists the types of which it has copies of the primary's records: how many, how many the
primary has of which this version of wanfed does not know the type, up to which of the primary's indexes, and how old
they are (Lag); with --detailed, what has come since the server started, too.

The state is ok, degraded (some servers or gateways are down) or unreachable (no server is alive for the one that
answers). The exit status is 0 in any case, as long as the server answers.`,
		Example: `  wanfed status
  wanfed status --at dc2
  wanfed status --detailed
  wanfed status --format json | jq '.Datacenters[] | select(.Advice)'`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, ask asker, out printer) error {
		s, err := ask.Status(cmd.Context(), ask.opts)
		if err != nil {
			return err
		}
		return out.print(s, func(w io.Writer) error { return writeStatus(w, s, detailed) })
	})
	addDetailed(c, &detailed, "when each hop worked and failed and who names it, and what has come of copies")
	return c
}

func writeStatus(w io.Writer, s api.Status, detailed bool) error {
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
	fmt.Fprintf(w, "Datacenter %s (primary %s): %d of %d datacenters ok\nNode %s, version %s, %s\n\n",
		printable(s.Datacenter), printable(s.PrimaryDatacenter), ok, len(s.Datacenters), printable(s.Node), printable(s.Version), printable(leader))
	if err := writeTable(w, rows); err != nil {
		return err
	}
	if err := writeHops(w, s, time.Now(), detailed); err != nil {
		return err
	}
	for _, d := range s.Datacenters {
		writeTrouble(w, d)
	}
	if err := writeReplicated(w, s, time.Now(), detailed); err != nil {
		return err
	}
	if len(s.Components) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	rows = [][]string{{"Component", "State", "Detail"}}
	for _, c := range s.Components {
		rows = append(rows, []string{c.Name, c.State, c.Detail})
	}
	return writeTable(w, rows)
}

// writeHops lists the ways to other datacenters.
func writeHops(w io.Writer, s api.Status, now time.Time, detailed bool) error {
	rows := [][]string{{"Datacenter", "Hop", "Via", "Used", "Health", "RTT"}}
	if detailed {
		rows[0] = append(rows[0], "Last Success", "Last Failure", "Known")
	}
	for _, d := range s.Datacenters {
		for _, h := range d.Paths {
			used := "-"
			if h.Used {
				used = "yes"
			}
			rtt := "-"
			if h.RTT != nil {
				rtt = time.Duration(*h.RTT * float64(time.Second)).Round(100 * time.Microsecond).String()
			}
			known := strings.Join(h.Sources, ", ")
			if h.KnowledgeAge != nil {
				known += ", " + age(h.KnowledgeAge) + " ago"
			}
			row := []string{d.Name, h.Address, h.Via, used, h.Health, rtt}
			if detailed {
				row = append(row, since(h.LastSuccess, now), since(h.LastFailure, now), cmp.Or(known, "-"))
			}
			rows = append(rows, row)
		}
	}
	if len(rows) == 1 {
		return nil
	}
	fmt.Fprintf(w, "\nMesh gateway mode %s\n\n", printable(s.MeshGatewayMode))
	return writeTable(w, rows)
}

// writeReplicated lists what is copied from the primary.
func writeReplicated(w io.Writer, s api.Status, now time.Time, detailed bool) error {
	if len(s.Replicated) == 0 {
		return nil
	}
	rows := [][]string{{"Copied Type", "Records", "Not Known", "Primary's Index", "Lag"}}
	if detailed {
		rows[0] = append(rows[0], "Last Change", "Changes", "Bytes")
	}
	for _, r := range s.Replicated {
		row := []string{
			r.Type, strconv.FormatUint(r.Records, 10), strconv.FormatUint(r.UnknownRecords, 10), strconv.FormatUint(r.PrimaryIndex, 10), age(r.Lag),
		}
		if detailed {
			row = append(row, since(r.LastChange, now), strconv.FormatUint(r.Changes, 10), strconv.FormatUint(r.ReceivedBytes, 10))
		}
		rows = append(rows, row)
	}
	fmt.Fprintln(w)
	return writeTable(w, rows)
}

// since is how long ago something was.
func since(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return age(api.SecondsPtr(now.Sub(t))) + " ago"
}

// writeTrouble says what failed last for a datacenter and what to do.
func writeTrouble(w io.Writer, d api.DatacenterStatus) {
	if d.LastError == "" && d.Advice == "" {
		return
	}
	fmt.Fprintf(w, "\n%s:\n", printable(d.Name))
	if d.LastError != "" {
		at := ""
		if !d.LastErrorAt.IsZero() {
			at = " (" + d.LastErrorAt.UTC().Format(time.RFC3339) + ")"
		}
		fmt.Fprintf(w, "  last error%s: %s\n", at, printable(d.LastError))
	}
	if d.Advice != "" {
		fmt.Fprintf(w, "  do: %s\n", printable(d.Advice))
	}
}

func role(d api.DatacenterStatus) string {
	roles := []string{"secondary"}
	if d.Primary {
		roles[0] = "primary"
	}
	if d.Own {
		roles = append(roles, "own")
	}
	return strings.Join(roles, ", ")
}
