// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/output"
)

// serverInfo is the JSON of wanfed info.
type serverInfo struct {
	Datacenter        string            `json:"datacenter"`
	Node              string            `json:"node"`
	PrimaryDatacenter string            `json:"primary_datacenter"`
	Version           string            `json:"version"`
	Commit            string            `json:"commit,omitempty"`
	Go                string            `json:"go"`
	Platform          string            `json:"platform"`
	StartedAt         time.Time         `json:"started_at"`
	Uptime            float64           `json:"uptime"` // seconds
	PID               int64             `json:"pid"`
	RaftRole          string            `json:"raft_role"` // leader or follower
	Leader            string            `json:"leader"`    // empty: unknown
	Voters            int32             `json:"voters"`
	LastIndex         uint64            `json:"last_index"`
	Goroutines        int64             `json:"goroutines"`
	Processors        int64             `json:"processors"`
	HeapBytes         uint64            `json:"heap_bytes"`
	ResidentBytes     uint64            `json:"resident_bytes"` // 0: unknown
	OpenFiles         uint64            `json:"open_files"`     // 0: unknown
	MaxOpenFiles      uint64            `json:"max_open_files"` // 0: unknown
	Listeners         map[string]string `json:"listeners"`
	Files             map[string]uint64 `json:"files"` // sizes in the data directory, in bytes
	Certificates      []certificateInfo `json:"certificates"`
	Settings          map[string]string `json:"settings"`
}

type certificateInfo struct {
	Name     string    `json:"name"`
	CA       bool      `json:"ca"`
	NotAfter time.Time `json:"not_after"`
	DaysLeft int       `json:"days_left"`
}

func newInfo() *cobra.Command {
	var o operator
	c := addOperatorRead(&cobra.Command{
		Use:   "info",
		Short: "Describe the server that responds",
		Long: `Describe the server that responds, on one page: version, uptime, Raft role, memory,
addresses, sizes in the data directory, certificates and settings. It shows the
paths of keys, but no key. --node names another server of the datacenter.

The command needs the certificate of an operator. "wanfed status" shows the health
of the federation.`,
		Example: `  wanfed info
  wanfed info --node srv2 --output json | jq .settings`,
	}, &o, "info", func(ctx context.Context, cc *grpc.ClientConn) (*pb.DescribeServerResponse, error) {
		return pb.NewOperatorServiceClient(cc).DescribeServer(ctx, &pb.DescribeServerRequest{})
	}, func(out output.Printer, resp *pb.DescribeServerResponse) error {
		return out.Print(infoOf(resp), func() error { return printServerInfo(out, resp) })
	})
	o.addNodeFlag(c)
	return c
}

func infoOf(r *pb.DescribeServerResponse) serverInfo {
	i := serverInfo{
		Datacenter: r.Datacenter, Node: r.Node, PrimaryDatacenter: r.PrimaryDatacenter, Version: r.Version, Commit: r.Commit,
		Go: r.GoVersion, Platform: r.Platform, StartedAt: r.StartedAt.AsTime(),
		Uptime: r.Now.AsTime().Sub(r.StartedAt.AsTime()).Seconds(), PID: r.Pid,
		RaftRole: r.RaftRole, Leader: r.Leader, Voters: r.Voters, LastIndex: r.LastIndex,
		Goroutines: r.Goroutines, Processors: r.Processors, HeapBytes: r.HeapBytes, ResidentBytes: r.ResidentBytes,
		OpenFiles: r.OpenFiles, MaxOpenFiles: r.MaxOpenFiles,
		Listeners: map[string]string{}, Files: map[string]uint64{}, Certificates: []certificateInfo{},
		Settings: map[string]string{},
	}
	for _, l := range r.Listeners {
		i.Listeners[l.Name] = l.Value
	}
	for _, f := range r.Files {
		i.Files[f.Name] = f.Bytes
	}
	for _, c := range r.Certificates {
		end := c.NotAfter.AsTime()
		days := int(end.Sub(r.Now.AsTime()).Hours() / 24)
		i.Certificates = append(i.Certificates, certificateInfo{c.Name, c.Ca, end, days})
	}
	for _, s := range r.Settings {
		i.Settings[s.Name] = s.Value
		if text, err := strconv.Unquote(s.Value); err == nil {
			i.Settings[s.Name] = text
		}
	}
	return i
}

func printServerInfo(out output.Printer, r *pb.DescribeServerResponse) error {
	i := infoOf(r)
	build := i.Go + ", " + i.Platform
	if i.Commit != "" {
		build = "commit " + i.Commit + ", " + build
	}
	unknown := func(n uint64, text string) string {
		if n == 0 {
			return "-"
		}
		return text
	}
	rows := [][]string{
		{"Server:", fmt.Sprintf("%s of %s (primary %s)", i.Node, i.Datacenter, i.PrimaryDatacenter)},
		{"Version:", fmt.Sprintf("%s (%s)", i.Version, build)},
		{"Uptime:", fmt.Sprintf("%s, since %s", output.Age(&i.Uptime), output.Timestamp(i.StartedAt))},
		{"Process:", fmt.Sprintf("pid %d, %d goroutines, %d processors", i.PID, i.Goroutines, i.Processors)},
		{"Memory:", fmt.Sprintf("%s resident, %s of heap", unknown(i.ResidentBytes, output.Size(int64(i.ResidentBytes))),
			unknown(i.HeapBytes, output.Size(int64(i.HeapBytes))))},
		{"Open files:", unknown(i.OpenFiles, fmt.Sprintf("%d of %d", i.OpenFiles, i.MaxOpenFiles))},
		{"Raft:", fmt.Sprintf("%s, leader %s, voters %d", i.RaftRole, cmp.Or(i.Leader, "unknown"), i.Voters)},
		{"Last index:", index(i.LastIndex)},
	}
	for _, l := range r.Listeners {
		rows = append(rows, []string{"Listens:", l.Name + " " + l.Value})
	}
	if err := output.WriteFields(out.W, rows); err != nil {
		return err
	}
	certificates := [][]string{{"Certificate", "Valid Until", "Days", "CA"}}
	for _, c := range i.Certificates {
		certificates = append(certificates, []string{
			c.Name, output.Timestamp(c.NotAfter), strconv.Itoa(c.DaysLeft), strconv.FormatBool(c.CA),
		})
	}
	files := [][]string{{"Data", "Size"}}
	for _, f := range r.Files {
		files = append(files, []string{f.Name, output.Size(int64(f.Bytes))})
	}
	settings := [][]string{{"Setting", "Value"}}
	for _, s := range r.Settings {
		settings = append(settings, []string{s.Name, s.Value})
	}
	for _, table := range [][][]string{certificates, files, settings} {
		if len(table) == 1 {
			continue
		}
		fmt.Fprintln(out.W)
		if err := out.Table(table); err != nil {
			return err
		}
	}
	return nil
}
