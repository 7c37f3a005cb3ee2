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
		Long: `List what a running gateway routes by: for each side, which server names go to which addresses. An exact name wins over
a wildcard. Connections share the addresses of a route, unless it says that the others are for when the first fails.

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
func readRoutesOf(ctx context.Context, addr string) (map[string][]gateway.Route, error) {
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
	var routes map[string][]gateway.Route
	err = json.NewDecoder(io.LimitReader(resp.Body, maxRoutes)).Decode(&routes)
	if resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	if err != nil {
		return nil, fmt.Errorf("%s does not answer as a gateway: %w", addr, err)
	}
	return routes, nil
}

// routeRows are the rows of the table.
func routeRows(routes map[string][]gateway.Route) [][]string {
	rows := [][]string{{"Side", "Name", "Addresses", "Use", "Protocols"}}
	for _, side := range slices.Sorted(maps.Keys(routes)) {
		for _, r := range routes[side] {
			use := "shared"
			if r.Ordered {
				use = "first"
			}
			if len(r.To) == 1 {
				use = "-"
			}
			rows = append(rows, []string{side, r.Match, strings.Join(r.To, ", "), use, or(strings.Join(r.Protocols, ", "), "any")})
		}
	}
	return rows
}
