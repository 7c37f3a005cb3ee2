// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
)

func newResourceWatch() *cobra.Command {
	c := newResourceCommand(&cobra.Command{
		Use:   "watch TYPE",
		Short: "Follow the resources of a type",
		Long: `Print the resources of a type, and then every change, until SIGINT or SIGTERM. It fails when the server ends the watch or
is lost; a new one begins with what is there then. With --format json each event is a line of JSON.`,
		Example: `  wanfed resource watch node
  wanfed resource watch node --prefix web --format json | jq -c 'select(.event == "delete").resource.id.name'`,
		Args: typeArg,
	}, func(ctx context.Context, args []string, ask *resourceAsker, out printer) error {
		typ, err := ask.typeOf(ctx, args[0])
		if err != nil {
			return err
		}
		n := 0
		for ev, err := range ask.WatchResources(ctx, typ, ask.tenancy(), ask.options()) {
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return plainRefusal(err)
			}
			if n++; ev.Type == api.EventEndOfSnapshot {
				n--
			}
			if err := printEvent(out, ev, n); err != nil {
				return err
			}
		}
		return nil
	})
	addTenancy(c, ", * for all")
	c.Flags().String("prefix", "", "only names that begin with `text`")
	return c
}

// printEvent prints one event; n is how many resources came before the snapshot's end.
func printEvent(out printer, ev api.ResourceEvent, n int) error {
	if out.format == formatJSON {
		enc := json.NewEncoder(out.w)
		enc.SetEscapeHTML(false)
		return enc.Encode(ev)
	}
	if ev.Type == api.EventEndOfSnapshot {
		_, err := fmt.Fprintf(out.w, "these are all: %d; from now on changes\n", n)
		return err
	}
	_, err := fmt.Fprintf(out.w, "%s  %s  version %s  %s\n", ev.Type, show(ev.Resource.ID), ev.Resource.Version, printable(summary(ev.Resource.Data)))
	return err
}
