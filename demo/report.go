// SPDX-License-Identifier: MPL-2.0

package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/wanfed/wanfed/internal/subprocess"
)

// Report is the JSON output of a demo.
type Report struct {
	Datacenters []DatacenterReport `json:"datacenters"` // the primary first
	Dir         string             `json:"dir"`         // directory of certificates, data and logs
	// TimingsMS has the milliseconds from the start of the first process until
	// the completion of each step. The steps are "servers", "gateways",
	// "members", "states" and "request".
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

// OperatorReport has the certificate of a datacenter's operator, who may write
// resources by HTTPS.
type OperatorReport struct {
	CAFile   string `json:"ca_file"`
	CertFile string `json:"cert_file"`
	KeyFile  string `json:"key_file"`
}

// ServerReport is one server.
type ServerReport struct {
	Node string `json:"node"`
	RPC  string `json:"rpc"`  // host:port of the server port
	HTTP string `json:"http"` // URL
	PID  int    `json:"pid"`
}

// GatewayReport is one gateway with its addresses, host:port.
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

// show prints the complete federation: as JSON, or with commands that call a
// server of the last datacenter.
func (f *federation) show(ctx context.Context) error {
	r := f.report()
	if f.cfg.JSON {
		return json.NewEncoder(f.cfg.Out).Encode(r)
	}
	var b bytes.Buffer
	if err := f.runCommands(ctx, &b, r.Datacenters[len(r.Datacenters)-1].HTTP); err != nil {
		return err
	}
	if !f.cfg.Once {
		fmt.Fprintln(&b)
		writeHints(&b, f.cfg.Program, r)
		if f.sync != nil {
			fmt.Fprintf(&b, `The sync daemon of %s writes the gateways of all datacenters to a file. Stop or start a
gateway as above, and a run follows:
  cat %s
  %s task history %s --http-addr %s
`, r.Datacenters[0].Name, f.syncFile(), f.cfg.Program, syncTask, r.Datacenters[0].HTTP)
		}
		fmt.Fprintf(&b, "Logs: %s/<dc>/<node>/log\nCtrl-C stops everything.\n", r.Dir)
	}
	_, err := b.WriteTo(f.cfg.Out)
	return err
}

// runCommands runs commands that print the federation as the server at httpAddr
// sees it. It writes the commands and their output to w.
func (f *federation) runCommands(ctx context.Context, w io.Writer, httpAddr string) error {
	for _, command := range []string{"members --wan", "federation gateways"} {
		args := strings.Fields(command + " --http-addr " + httpAddr)
		fmt.Fprintf(w, "\n$ %s %s\n", f.cfg.Program, strings.Join(args, " "))
		cmd := exec.CommandContext(ctx, f.cfg.Program, args...)
		cmd.Env = subprocess.Environ()
		cmd.Stdout, cmd.Stderr = w, f.cfg.Err
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("run wanfed %s: %w", command, err)
		}
	}
	return nil
}

// writeHints prints commands for experiments while the demo runs.
func writeHints(w io.Writer, program string, r Report) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "Datacenter\tHTTP\tGateway PID")
	for _, dc := range r.Datacenters {
		fmt.Fprintf(tw, "%s\t%s\t%d\n", dc.Name, dc.HTTP, dc.Gateways[0].PID)
	}
	tw.Flush()
	// The hints stop the gateway of the first secondary. Its servers then reach
	// the primary directly, by the configured primary_gateways. The primary and
	// all other secondaries therefore learn that the gateway is stopped. The
	// observer shows this. It is the last datacenter, or the primary if there
	// are only two datacenters.
	first, second, observer := r.Datacenters[0], r.Datacenters[1], r.Datacenters[0]
	if n := len(r.Datacenters); n > 2 {
		observer = r.Datacenters[n-1]
	}
	fmt.Fprintf(w, `
Try:
  %[1]s status --http-addr %[2]s
  %[1]s members --wan --http-addr %[2]s
  curl '%[3]s/v1/status/leader?dc=%[4]s'
Stop the gateway of %[4]s, list the gateways in %[5]s, and start it again with the command that appears here:
  kill %[6]d; %[1]s federation gateways --http-addr %[2]s
Suspend it, and resume it:
  kill -STOP %[6]d; kill -CONT %[6]d
Act as the operator of %[7]s, who may write resources in all datacenters:
  export WANFED_HTTP_ADDR=%[8]s
  export WANFED_CA_FILE=%[9]s WANFED_CERT_FILE=%[10]s WANFED_KEY_FILE=%[11]s
  export DC2=%[12]s
  %[1]s resource types
`, program, observer.HTTP, first.HTTP, second.Name, observer.Name, second.Gateways[0].PID,
		first.Name, "https://"+strings.TrimPrefix(first.HTTP, "http://"),
		first.Operator.CAFile, first.Operator.CertFile, first.Operator.KeyFile, second.HTTP)
}

// follow reports each process and each run of the sync daemon that ends, until all
// processes have ended or ctx ends.
func (f *federation) follow(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var runs, wg sync.WaitGroup
	defer runs.Wait()
	defer cancel()
	if f.sync != nil {
		runs.Go(func() { f.followRuns(ctx) })
	}
	for _, p := range f.processes() {
		wg.Go(func() {
			select {
			case <-p.Done():
				f.prog.printf("%s (pid %d) has ended: %s; start it again with:\n  %s",
					p.Name(), p.Pid(), exitStatus(p), commandOf(p))
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
		case w == "--"+subprocess.StopOnEOF: // a shell does not hold stdin open
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

// explain prints the unmet conditions of each server, and the end of each log.
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
