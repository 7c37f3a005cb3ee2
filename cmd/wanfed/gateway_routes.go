// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/gateway"
)

const (
	adminTimeout = 10 * time.Second
	maxRoutes    = 256 << 20 // bytes of JSON
)

func newGatewayRoutes() *cobra.Command {
	var f format = formatTable
	cmd := &cobra.Command{
		Use:   "routes",
		Short: "List what a running gateway routes by",
		Long: `List what a running gateway routes by: for each listener, which server names go to which addresses. An exact name wins over
a wildcard. A connection goes to the address of its route that has the fewest open, unless the route says that the others
are for when the first fails. Open are the connections to each address now, those of other routes to it included.

The gateway answers at its admin address: --admin-addr, or WANFED_ADMIN_ADDR, or admin_addr in its --config-file.`,
		Example: `  wanfed gateway routes --admin-addr 127.0.0.1:9102
  wanfed gateway routes --config-file /etc/wanfed/gateway.hcl --format json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			addr, err := adminAddr(cmd)
			if err != nil {
				return err
			}
			routes, err := readRoutesOf(cmd.Context(), addr)
			if err != nil {
				return err
			}
			return printer{cmd.OutOrStdout(), f}.print(routes, func(w io.Writer) error { return writeTable(w, routeRows(routes)) })
		},
	}
	cmd.Flags().String("admin-addr", "", "host:port of the gateway's admin address (WANFED_ADMIN_ADDR)")
	cmd.Flags().String(configFileFlag, "", "HCL (or .json) `file` of the gateway's settings")
	cmd.Flags().Var(&f, "format", "table or json")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{formatTable, formatJSON}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// adminAddr is where flags, environment or the gateway's own settings say that it answers.
func adminAddr(cmd *cobra.Command) (string, error) {
	s := defaultGatewaySettings()
	if path := setting(cmd, configFileFlag); path != "" {
		if err := readSettings(path, &s); err != nil {
			return "", usageError{err}
		}
	}
	s.AdminAddr = or(setting(cmd, "admin-addr"), s.AdminAddr)
	if s.AdminAddr == "" {
		return "", usagef("say where the gateway answers, as its settings do: --admin-addr 127.0.0.1:9102")
	}
	if err := s.checkAdmin(); err != nil {
		return "", usageError{err}
	}
	return s.AdminAddr, nil
}

// readRoutesOf asks a running gateway.
func readRoutesOf(ctx context.Context, addr string) (map[string][]shownRoute, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/routes", nil)
	if err != nil {
		return nil, err
	}
	// No proxy from the environment: the address is of this machine.
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("no gateway answers at %s: %w; does it run, with that --admin-addr?", addr, err)
	}
	defer resp.Body.Close()
	var routes map[string][]shownRoute
	err = json.NewDecoder(io.LimitReader(resp.Body, maxRoutes)).Decode(&routes)
	if resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	if err != nil {
		return nil, fmt.Errorf("%s does not answer as a gateway: %w", addr, err)
	}
	return routes, nil
}

// shownRoute is a route as GET /routes tells it.
type shownRoute struct {
	gateway.Route
	// Open are the connections to each address of To, in the same order, those of other routes and listeners included.
	Open []int `json:"open"`
}

// shownRoutes are the routes of each listener, by its name. open are the connections to addresses that have any.
func shownRoutes(listeners []*gateway.Listener, open map[string]int) map[string][]shownRoute {
	out := make(map[string][]shownRoute, len(listeners))
	for _, s := range listeners {
		list := []shownRoute{}
		for _, r := range s.Table().Routes() {
			shown := shownRoute{Route: r, Open: make([]int, len(r.To))}
			for n, addr := range r.To {
				shown.Open[n] = open[addr]
			}
			list = append(list, shown)
		}
		out[s.Name()] = list
	}
	return out
}

// routeRows are the rows of the table.
func routeRows(routes map[string][]shownRoute) [][]string {
	rows := [][]string{{"Listener", "Name", "Addresses", "Open", "Use", "Protocols"}}
	for _, listener := range slices.Sorted(maps.Keys(routes)) {
		for _, r := range routes[listener] {
			use := "shared"
			open := make([]string, len(r.Open))
			for n := range r.Open {
				open[n] = strconv.Itoa(r.Open[n])
			}
			if r.Ordered {
				use = "first"
			}
			if len(r.To) == 1 {
				use = "-"
			}
			rows = append(rows, []string{listener, r.Match, strings.Join(r.To, ", "), strings.Join(open, ", "), use, or(strings.Join(r.Protocols, ", "), "any")})
		}
	}
	return rows
}
