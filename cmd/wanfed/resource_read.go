// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
)

func newResourceTypes() *cobra.Command {
	c := newResourceCommand(&cobra.Command{
		Use:   "types",
		Short: "List the types of resources that a server knows",
		Long: `List the types of resources that a server knows: the scope in which their resources live, whether they are federated
(owned by the primary datacenter, and copied to all), and the protobuf message of their data. The server describes all of
them, with their fields, at /api/openapi.json.`,
		Example: `  wanfed resource types
  curl http://127.0.0.1:8500/api/openapi.json | jq '.components.schemas["wanfed.v1.Node"]'`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, func(ctx context.Context, _ []string, ask *resourceAsker, out printer) error {
		if ask.opts.Datacenter != "" {
			return usagef("--at is not for types: set --http-addr to a server of %s", ask.opts.Datacenter)
		}
		types, err := ask.ResourceTypes(ctx)
		if err != nil {
			return err
		}
		return out.print(types, func(w io.Writer) error {
			rows := [][]string{{"Type", "Scope", "Federated", "Message"}}
			for _, t := range types {
				rows = append(rows, []string{t.Type.String(), t.Scope, strconv.FormatBool(t.Federated), t.Message})
			}
			return writeTable(w, rows)
		})
	})
	return c
}

func newResourceRead() *cobra.Command {
	c := newResourceCommand(&cobra.Command{
		Use:   "read TYPE NAME",
		Short: "Show one resource",
		Example: `  wanfed resource read node web1
  wanfed resource read catalog/v1/Node web1 --at dc2 --format json | jq .data`,
		Args: typeAndName,
	}, func(ctx context.Context, args []string, ask *resourceAsker, out printer) error {
		id, err := ask.id(ctx, args)
		if err != nil {
			return err
		}
		r, err := ask.ReadResource(ctx, id, ask.options())
		if err != nil {
			return plainRefusal(err)
		}
		return out.print(r, func(w io.Writer) error { return writeResource(w, r) })
	})
	addTenancy(c, "")
	addConsistent(c)
	c.Flags().String("uid", "", "only the resource that has this `uid`")
	return c
}

func writeResource(w io.Writer, r api.Resource) error {
	rows := [][]string{{"Type:", r.ID.Type.String()}, {"Name:", r.ID.Name}}
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name + ":", value})
		}
	}
	add("Partition", r.ID.Tenancy.Partition)
	add("Namespace", r.ID.Tenancy.Namespace)
	add("UID", r.ID.UID)
	add("Version", r.Version)
	add("Generation", r.Generation)
	if r.Owner != nil {
		add("Owner", r.Owner.Type.String()+" "+r.Owner.Name)
	}
	for _, key := range slices.Sorted(maps.Keys(r.Metadata)) {
		add("Metadata", key+" = "+r.Metadata[key])
	}
	if err := writeTable(w, rows); err != nil {
		return err
	}
	if len(r.Status) > 0 {
		fmt.Fprintln(w)
		if err := writeTable(w, statusRows(r)); err != nil {
			return err
		}
	}
	var data bytes.Buffer
	if err := json.Indent(&data, r.Data, "", "  "); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nData:\n%s\n", printableLines(data.String()))
	return err
}

func statusRows(r api.Resource) [][]string {
	rows := [][]string{{"Status", "Condition", "State", "Of this data", "Updated", "Message"}}
	for _, key := range slices.Sorted(maps.Keys(r.Status)) {
		s := r.Status[key]
		current, updated := strconv.FormatBool(s.ObservedGeneration == r.Generation), "-"
		if !s.UpdatedAt.IsZero() {
			updated = s.UpdatedAt.UTC().Format(time.RFC3339)
		}
		if len(s.Conditions) == 0 {
			rows = append(rows, []string{key, "-", "-", current, updated, ""})
		}
		for _, c := range s.Conditions {
			rows = append(rows, []string{key, c.Type, strings.ToLower(strings.TrimPrefix(c.State, "STATE_")), current, updated, cmp.Or(c.Message, c.Reason)})
		}
	}
	return rows
}

// printableLines is printable for text of several lines.
func printableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = printable(line)
	}
	return strings.Join(lines, "\n")
}

func newResourceList() *cobra.Command {
	c := newResourceCommand(&cobra.Command{
		Use:   "list TYPE",
		Short: "List the resources of a type",
		Example: `  wanfed resource list node
  wanfed resource list node --prefix web --at dc2
  wanfed resource list catalog/v1/Node --namespace '*' --format json`,
		Args: typeArg,
	}, func(ctx context.Context, args []string, ask *resourceAsker, out printer) error {
		typ, err := ask.typeOf(ctx, args[0])
		if err != nil {
			return err
		}
		return printResources(out, false, ask.Resources(ctx, typ, ask.tenancy(), ask.options()))
	})
	addTenancy(c, ", * for all")
	addConsistent(c)
	c.Flags().String("prefix", "", "only names that begin with `text`")
	return c
}

func newResourceOwned() *cobra.Command {
	c := newResourceCommand(&cobra.Command{
		Use:   "list-by-owner TYPE NAME",
		Short: "List the resources that a resource owns",
		Long: `List the resources, of any type, that a resource owns: they are deleted with it. With --uid also what a deleted one has left, as
long as that is there.`,
		Example: `  wanfed resource list-by-owner node web1`,
		Args:    typeAndName,
	}, func(ctx context.Context, args []string, ask *resourceAsker, out printer) error {
		id, err := ask.id(ctx, args)
		if err != nil {
			return err
		}
		return printResources(out, true, ask.OwnedResources(ctx, id, ask.options()))
	})
	addTenancy(c, "")
	addConsistent(c)
	c.Flags().String("uid", "", "of the resource that has, or had, this `uid`")
	return c
}

// printResources prints a list: as JSON while it comes, as a table when it is complete.
func printResources(out printer, mixed bool, all iter.Seq2[api.Resource, error]) error {
	if out.format == formatJSON {
		return printJSONList(out.w, all)
	}
	var rows [][]string
	elsewhere := false
	for r, err := range all {
		if err != nil {
			return plainRefusal(err)
		}
		elsewhere = elsewhere || !inDefault(r.ID.Tenancy)
		rows = append(rows, []string{
			r.ID.Type.String(), orDefault(r.ID.Tenancy.Partition), orDefault(r.ID.Tenancy.Namespace), r.ID.Name, r.Version, summary(r.Data),
		})
	}
	rows = slices.Insert(rows, 0, []string{"Type", "Partition", "Namespace", "Name", "Version", "Data"})
	for i, row := range rows { // without the columns that say nothing
		short := row[3:]
		if elsewhere {
			short = row[1:]
		}
		if mixed {
			short = append([]string{row[0]}, short...)
		}
		rows[i] = short
	}
	return writeTable(out.w, rows)
}

// maxSummary bounds what a list shows of data, in characters.
const maxSummary = 72

func summary(data json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, data) != nil {
		return ""
	}
	runes := []rune(b.String())
	if len(runes) > maxSummary {
		return string(runes[:maxSummary-1]) + "…"
	}
	return string(runes)
}

func printJSONList(w io.Writer, all iter.Seq2[api.Resource, error]) error {
	before := "[\n  "
	for r, err := range all {
		if err != nil {
			return plainRefusal(err)
		}
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetIndent("  ", "  ")
		enc.SetEscapeHTML(false)
		if err := enc.Encode(r); err != nil {
			return err
		}
		if _, err := fmt.Fprint(w, before, strings.TrimSuffix(b.String(), "\n")); err != nil {
			return err
		}
		before = ",\n  "
	}
	end := "\n]\n"
	if strings.HasPrefix(before, "[") {
		end = "[]\n"
	}
	_, err := io.WriteString(w, end)
	return err
}

func newResourceDelete() *cobra.Command {
	c := newResourceWrite(&cobra.Command{
		Use:   "delete TYPE NAME",
		Short: "Delete a resource and what it owns",
		Long: `Delete a resource and what it owns. One that has finalizers is only marked, and goes when whoever set them has removed the
last. That there is none is no error.`,
		Example: `  wanfed resource delete node web1
  wanfed resource delete node web1 --version 12   # only if that is stored`,
		Args: typeAndName,
	}, func(ctx context.Context, args []string, ask *resourceAsker, out printer) error {
		id, err := ask.id(ctx, args)
		if err != nil {
			return err
		}
		return deleteResource(ctx, ask, out, id)
	})
	addTenancy(c, "")
	c.Flags().String("version", "", "delete it only if this `version` is stored")
	c.Flags().String("uid", "", "only the resource that has this `uid`")
	return c
}

func deleteResource(ctx context.Context, ask *resourceAsker, out printer, id api.ResourceID) error {
	look := api.ResourceOptions{Datacenter: ask.opts.Datacenter, Consistent: true, UID: ask.flag("uid")}
	r, err := ask.ReadResource(ctx, id, look)
	none := answered(err, http.StatusNotFound)
	if err == nil {
		id.Type = r.ID.Type // in its own spelling
	} else if !none {
		return plainRefusal(err)
	}
	if err := ask.DeleteResource(ctx, id, ask.options()); err != nil {
		return plainRefusal(err)
	}
	outcome := "deleted"
	if none {
		outcome = "was not there"
	} else if r, err := ask.ReadResource(ctx, id, look); err == nil && r.Metadata["deletionTimestamp"] != "" {
		outcome = "marked for deletion: it goes when these finalizers are removed: " + printable(r.Metadata["finalizers"])
	}
	return out.print(map[string]any{"id": id, "outcome": outcome}, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s: %s\n", show(id), outcome)
		return err
	})
}
