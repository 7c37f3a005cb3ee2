// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api/pb"
)

func newKeyringList() *cobra.Command {
	var where keyringCall
	var show bool
	var f format = formatTable
	c := &cobra.Command{
		Use:   "list",
		Short: "List which server has which keys",
		Long: `Ask every server of the federation for its keys, by way of one server of datacenter --dc, and list which has which: a
server that did not answer, or has other keys than the one that was called, is told in the last column. The node "*"
stands for a datacenter of which no server is known by name.

Keys are shown by fingerprint; with --show-keys also those of the called server themselves. The exit status is 0 in any
case, as long as that server answers.`,
		Example: `  wanfed keyring list --dc dc1 --server 10.0.0.5:8300
  wanfed keyring list --dc dc1 --server 10.0.0.5:8300 --format json | jq '.Servers[] | select(.Trouble)'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return where.do(cmd, func(ctx context.Context, c pb.KeyringServiceClient) error {
				report, err := c.List(ctx, &pb.ListKeyringRequest{ShowKeys: show})
				if err != nil {
					return err
				}
				view := keyringView(report)
				return printer{cmd.OutOrStdout(), f}.print(view, func(w io.Writer) error {
					if err := writeTable(w, serverRows(report)); err != nil || len(view.Keys) == 0 {
						return err
					}
					fmt.Fprintln(w)
					return writeTable(w, keyRows(view, show))
				})
			})
		},
	}
	where.addFlags(c, "the `datacenter` to call")
	c.Flags().BoolVar(&show, "show-keys", false, "show the keys themselves")
	c.Flags().Var(&f, "format", "table or json")
	_ = c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{formatTable, formatJSON}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// keyringJSON is what list prints as JSON.
type keyringJSON struct {
	Version uint64 // of the called server's ring
	Keys    []keyJSON
	Servers []serverKeysJSON
}

type keyJSON struct {
	Fingerprint string
	Key         string `json:",omitempty"` // base64; only with --show-keys
	Servers     int    // that have it
	PrimaryOn   int    // that encrypt with it
}

type serverKeysJSON struct {
	Datacenter, Node, Member string
	Answered                 bool
	Version                  uint64
	Primary                  string
	Keys                     []string // fingerprints, the primary first
	AcceptsPlain, SendsPlain bool
	Trouble                  string `json:",omitempty"`
}

func keyringView(report *pb.KeyringReport) keyringJSON {
	out := keyringJSON{Version: report.Version, Keys: []keyJSON{}, Servers: []serverKeysJSON{}}
	add := func(fingerprint string) *keyJSON {
		i := slices.IndexFunc(out.Keys, func(k keyJSON) bool { return k.Fingerprint == fingerprint })
		if i < 0 {
			i = len(out.Keys)
			out.Keys = append(out.Keys, keyJSON{Fingerprint: fingerprint})
		}
		return &out.Keys[i]
	}
	for i, fingerprint := range report.Fingerprints {
		if k := add(fingerprint); i < len(report.Keys) {
			k.Key = report.Keys[i]
		}
	}
	for _, s := range report.Servers {
		for i, fingerprint := range s.Fingerprints {
			k := add(fingerprint)
			k.Servers++
			if i == 0 {
				k.PrimaryOn++
			}
		}
		keys := s.Fingerprints
		if keys == nil {
			keys = []string{}
		}
		out.Servers = append(out.Servers, serverKeysJSON{
			Datacenter: s.Datacenter, Node: s.Node, Member: s.Member, Answered: s.Error == "", Version: s.Version, Primary: primaryOf(s),
			Keys: keys, AcceptsPlain: s.AcceptsPlain, SendsPlain: s.SendsPlain, Trouble: troubleOf(s, report),
		})
	}
	return out
}

func primaryOf(s *pb.ServerKeyring) string {
	if len(s.Fingerprints) == 0 {
		return ""
	}
	return s.Fingerprints[0]
}

// troubleOf says what is wrong with one server's keys, beside those of the called one; empty: nothing.
func troubleOf(s *pb.ServerKeyring, report *pb.KeyringReport) string {
	var all []string
	switch {
	case s.Error != "":
		return "no answer: " + s.Error
	case len(s.Fingerprints) == 0 && len(report.Fingerprints) == 0:
		return ""
	case len(s.Fingerprints) == 0:
		return "gossip is not encrypted"
	case len(report.Fingerprints) == 0:
		return "gossip is encrypted"
	case s.Fingerprints[0] != report.Fingerprints[0]:
		all = append(all, "another primary")
	}
	for _, k := range report.Fingerprints {
		if !slices.Contains(s.Fingerprints, k) {
			all = append(all, "misses "+k)
		}
	}
	for _, k := range s.Fingerprints {
		if !slices.Contains(report.Fingerprints, k) {
			all = append(all, "also has "+k)
		}
	}
	if s.SendsPlain {
		all = append(all, "sends plain gossip")
	}
	if s.AcceptsPlain {
		all = append(all, "accepts plain gossip")
	}
	return strings.Join(all, "; ")
}

func serverRows(report *pb.KeyringReport) [][]string {
	rows := [][]string{{"Datacenter", "Node", "Member", "Version", "Primary", "Keys", "Trouble"}}
	for _, s := range report.Servers {
		version, keys := "-", "-"
		if s.Error == "" {
			version, keys = fmt.Sprint(s.Version), fmt.Sprint(len(s.Fingerprints))
		}
		rows = append(rows, []string{s.Datacenter, s.Node, s.Member, version, or(primaryOf(s), "-"), keys, or(troubleOf(s, report), "-")})
	}
	return rows
}

func keyRows(view keyringJSON, show bool) [][]string {
	answered := 0
	for _, s := range view.Servers {
		if s.Answered {
			answered++
		}
	}
	rows := [][]string{{"Key", "Installed on", "Primary on"}}
	if show {
		rows[0] = append(rows[0], "Secret")
	}
	for _, k := range view.Keys {
		row := []string{k.Fingerprint, fmt.Sprintf("%d/%d", k.Servers, answered), fmt.Sprintf("%d/%d", k.PrimaryOn, answered)}
		if show {
			row = append(row, or(k.Key, "-"))
		}
		rows = append(rows, row)
	}
	return rows
}
