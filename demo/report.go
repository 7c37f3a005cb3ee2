// SPDX-License-Identifier: MPL-2.0

package demo

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/subprocess"
)

// Report is the JSON output of a demo.
type Report struct {
	Datacenters []DatacenterReport `json:"datacenters"` // the primary first
	Dir         string             `json:"dir"`         // of certificates, data and logs
	// TimingsMS has the milliseconds from the start of the first process until all
	// processes had reached a step: "servers" and "gateways" listen, "members" are
	// alive, "states" are everywhere, every other datacenter answered a "request".
	TimingsMS map[string]int64 `json:"timings_ms"`
}

// DatacenterReport is one datacenter of a Report.
type DatacenterReport struct {
	Name     string          `json:"name"`
	HTTP     string          `json:"http"` // URL of the first server
	Servers  []ServerReport  `json:"servers"`
	Gateways []GatewayReport `json:"gateways"`
	Operator OperatorReport  `json:"operator"`
}

// OperatorReport has the certificate of a datacenter's operator, which may write
// resources by HTTPS.
type OperatorReport struct {
	CAFile   string `json:"ca_file"`
	CertFile string `json:"cert_file"`
	KeyFile  string `json:"key_file"`
}

// ServerReport is one server with the address of its TLS port and its HTTP URL.
type ServerReport struct {
	Node string `json:"node"`
	RPC  string `json:"rpc"`
	HTTP string `json:"http"`
	PID  int    `json:"pid"`
}

// GatewayReport is one gateway with its addresses.
type GatewayReport struct {
	Node string `json:"node"`
	LAN  string `json:"lan"`
	WAN  string `json:"wan"`
	PID  int    `json:"pid"`
}

// report describes a federation that is complete.
func (f *federation) report() Report {
	r := Report{Dir: f.dir, TimingsMS: f.prog.timings()}
	for _, dc := range f.dcs {
		servers, gw := dc.running()
		d := DatacenterReport{
			Name: dc.name, HTTP: servers[0].HTTP,
			Gateways: []GatewayReport{{Node: gw.Node, LAN: gw.LAN, WAN: gw.WAN, PID: gw.Pid()}},
			Operator: OperatorReport{CAFile: dc.operator.CA, CertFile: dc.operator.Cert, KeyFile: dc.operator.Key},
		}
		for _, s := range servers {
			d.Servers = append(d.Servers, ServerReport{Node: s.Node, RPC: s.Addr, HTTP: s.HTTP, PID: s.Pid()})
		}
		r.Datacenters = append(r.Datacenters, d)
	}
	return r
}

// show prints the complete federation: as JSON, or as tables with the answers of a
// server of the last datacenter.
func (f *federation) show(ctx context.Context) error {
	r := f.report()
	if f.cfg.JSON {
		return json.NewEncoder(f.cfg.Out).Encode(r)
	}
	last := f.dcs[len(f.dcs)-1]
	servers, _ := last.running()
	c, err := client(servers[0])
	if err != nil {
		return err
	}
	defer c.Close()
	members, err := c.Members(ctx, true, api.QueryOptions{})
	if err != nil {
		return err
	}
	states, _, err := c.FederationStates(ctx, api.QueryOptions{})
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\nMembers of the WAN pool, as %s sees them:\n", servers[0].Name())
	writeMembers(&b, members)
	fmt.Fprintf(&b, "\nFederation states, as %s has them:\n", servers[0].Name())
	writeStates(&b, states)
	if !f.cfg.Once {
		fmt.Fprintln(&b)
		writeHints(&b, f.cfg.Program, r)
	}
	_, err = io.WriteString(f.cfg.Out, b.String())
	return err
}

func table(w io.Writer, write func(w io.Writer)) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	write(tw)
	tw.Flush()
}

func writeMembers(w io.Writer, members []api.Member) {
	slices.SortFunc(members, func(a, b api.Member) int {
		return cmp.Or(cmp.Compare(a.Datacenter(), b.Datacenter()), cmp.Compare(a.Name, b.Name))
	})
	table(w, func(w io.Writer) {
		fmt.Fprintln(w, "NODE\tADDRESS\tSTATUS\tDC")
		for _, m := range members {
			fmt.Fprintf(w, "%s\t%s:%d\t%s\t%s\n", m.Name, m.Addr, m.Port, m.Status, m.Datacenter())
		}
	})
}

func writeStates(w io.Writer, states []api.FederationState) {
	table(w, func(w io.Writer) {
		fmt.Fprintln(w, "DC\tGATEWAY\tLAN\tWAN\tHEALTH\tUPDATED")
		for _, s := range states {
			for _, g := range s.MeshGateways {
				health := "passing"
				if !g.Healthy() {
					health = "critical"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", s.Datacenter, g.Node.Node, taggedOf(g, "lan"), wanOf(g),
					health, s.UpdatedAt.Local().Format("15:04:05.000"))
			}
		}
	})
}

// writeHints prints commands for experiments while the demo runs.
func writeHints(w io.Writer, program string, r Report) {
	table(w, func(w io.Writer) {
		fmt.Fprintln(w, "DC\tHTTP\tGATEWAY PID")
		for _, dc := range r.Datacenters {
			fmt.Fprintf(w, "%s\t%s\t%d\n", dc.Name, dc.HTTP, dc.Gateways[0].PID)
		}
	})
	// The hints stop the gateway of a secondary. Its datacenter still reaches the
	// primary by the configured addresses, so all datacenters receive the
	// change. With three or more datacenters, the third one watches.
	first, second, watch := r.Datacenters[0], r.Datacenters[1], r.Datacenters[0]
	if n := len(r.Datacenters); n > 2 {
		watch = r.Datacenters[n-1]
	}
	fmt.Fprintf(w, `
Try:
  %[1]s status --http-addr %[2]s
  %[1]s members --wan --http-addr %[2]s
  curl '%[3]s/v1/status/leader?dc=%[4]s'
Stop the gateway of %[4]s, watch it go in %[5]s, and start it again with the command that appears here:
  kill %[6]d; %[1]s federation gateways --http-addr %[2]s
Suspend it, and resume it:
  kill -STOP %[6]d; kill -CONT %[6]d
Act as the operator of %[8]s, who may write resources in all datacenters:
  export WANFED_HTTP_ADDR=%[9]s
  export WANFED_CA_FILE=%[10]s WANFED_CERT_FILE=%[11]s WANFED_KEY_FILE=%[12]s
  export DC2=%[13]s
  %[1]s resource types
Logs: %[7]s/<dc>/<node>/log
Ctrl-C stops everything.
`, program, watch.HTTP, first.HTTP, second.Name, watch.Name, second.Gateways[0].PID, r.Dir,
		first.Name, "https://"+strings.TrimPrefix(first.HTTP, "http://"), first.Operator.CAFile, first.Operator.CertFile, first.Operator.KeyFile, second.HTTP)
}

// follow prints each process that ends, until all have ended or ctx ends.
func (f *federation) follow(ctx context.Context) {
	var wg sync.WaitGroup
	for _, p := range f.processes() {
		wg.Go(func() {
			select {
			case <-p.Done():
				f.prog.printf("%s (pid %d) has ended: %s; start it again with:\n  %s", p.Name(), p.Pid(), endOf(p), commandOf(p))
			case <-ctx.Done():
			}
		})
	}
	wg.Wait()
}

// commandOf returns the shell command that starts the process again.
func commandOf(p *subprocess.Process) string {
	var words []string
	for _, w := range p.Command() {
		switch {
		case w == "--"+subprocess.StopOnEOF: // for processes whose parent holds their stdin
			continue
		case strings.ContainsAny(w, " \t\"'\\$*?;&|<>()[]{}#~"):
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

// logLines is the number of lines of each log that a failure shows.
const logLines = 15

// explain prints what each server was still missing, and the end of each log.
func (f *federation) explain(w io.Writer) {
	f.mu.Lock()
	for _, p := range f.processes() {
		if m := f.missing[p.Name()]; m != "" {
			fmt.Fprintf(w, "%s is missing: %s\n", p.Name(), m)
		}
	}
	f.mu.Unlock()
	for _, p := range f.processes() {
		fmt.Fprintf(w, "--- end of the log of %s\n%s\n", p.Name(), strings.Join(p.Tail(logLines), "\n"))
	}
}
