// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/settings"
)

func newResource() *cobra.Command {
	c := newGroup("resource", "Read, write and watch resources of any type",
		newResourceApply(), newResourceRead(), newResourceList(), newResourceOwned(), newResourceDelete(),
		newResourceWatch(), newResourceTypes())
	c.Long = `Read, write and watch resources of any type.

All durable data of wanfed are resources of registered types, see: wanfed
resource types. A type is written as group/version/Kind, such as catalog/v1/Node.
If the kind is unique, the kind is enough, in upper or lower case: node.

Every server serves reads. Writes need HTTPS and the certificate of an operator.
Set both once for a shell:
  export WANFED_HTTP_ADDR=https://127.0.0.1:8500
  export WANFED_CA_FILE=wanfed-agent-ca.pem
  export WANFED_CERT_FILE=dc1-operator-wanfed-0.pem
  export WANFED_KEY_FILE=dc1-operator-wanfed-0-key.pem`
	c.Example = `  wanfed resource types
  wanfed resource apply -f web1.hcl
  wanfed resource read node web1
  wanfed resource list node --datacenter dc2`
	return c
}

// resourceRun runs a resource command and prints to out.
type resourceRun func(ctx context.Context, args []string, cl *resourceClient, out output.Printer) error

// addResourceFlags is addReadFlags for resource commands. The first argument of
// some is a TYPE.
func addResourceFlags(c *cobra.Command, run resourceRun) *cobra.Command {
	hasType := strings.Contains(c.Use, " TYPE")
	if c.ValidArgsFunction == nil && hasType {
		c.ValidArgsFunction = completeArgs(completeTypes)
	}
	return addReadFlags(c, func(cmd *cobra.Command, args []string, cl client, out output.Printer) error {
		r := &resourceClient{client: cl, cmd: cmd}
		err := run(cmd.Context(), args, r, out)
		if err != nil && hasType {
			err = r.checkType(cmd.Context(), args[0], err)
		}
		return err
	})
}

// addResourceWriteFlags is addResourceFlags for commands that write.
func addResourceWriteFlags(c *cobra.Command, run resourceRun) *cobra.Command {
	return addResourceFlags(c, func(ctx context.Context, args []string, cl *resourceClient, out output.Printer) error {
		if err := requireHTTPS(cl.cmd); err != nil {
			return err
		}
		return run(ctx, args, cl, out)
	})
}

// requireHTTPS returns an error if the flags of cmd do not permit writes.
func requireHTTPS(cmd *cobra.Command) error {
	addr := settings.FlagOrEnv(cmd.Flags(), "http-addr")
	if strings.HasPrefix(addr, "https://") {
		return nil
	}
	return usagef("a write needs HTTPS and the certificate of an operator: "+
		"set --http-addr https://%s (WANFED_HTTP_ADDR), --ca-file, --cert-file and --key-file; "+
		"create a certificate with: wanfed tls cert create --operator --datacenter DC",
		strings.TrimPrefix(addr, "http://"))
}

// resourceClient is the client of a resource command.
type resourceClient struct {
	client
	cmd   *cobra.Command
	types []api.ResourceType // cache of typeOf
}

// addTenancyFlags adds --partition and --namespace. suffix is added to their
// help.
func addTenancyFlags(c *cobra.Command, suffix string) {
	c.Flags().String("partition", "", "`partition` of the resources"+suffix+" (default \"default\")")
	c.Flags().String("namespace", "", "`namespace` of the resources"+suffix+" (default \"default\")")
}

func addConsistentFlag(c *cobra.Command) {
	c.Flags().Bool("consistent", false, "linearizable read, at the cost of a round trip to the leader")
}

func (cl *resourceClient) tenancy() api.Tenancy {
	return api.Tenancy{Partition: cl.flag("partition"), Namespace: cl.flag("namespace")}
}

// flag returns the value of a flag, or "" if the command does not have it.
func (cl *resourceClient) flag(name string) string {
	if f := cl.cmd.Flag(name); f != nil {
		return f.Value.String()
	}
	return ""
}

func (cl *resourceClient) options() api.ResourceOptions {
	return api.ResourceOptions{
		Datacenter: cl.opts.Datacenter, Consistent: cl.flag("consistent") == "true",
		Version: cl.flag("version"), UID: cl.flag("uid"), Prefix: cl.flag("prefix"),
	}
}

// id returns the id of the arguments TYPE NAME.
func (cl *resourceClient) id(ctx context.Context, args []string) (api.ResourceID, error) {
	typ, err := cl.typeOf(ctx, args[0])
	return api.ResourceID{Type: typ, Name: args[1], Tenancy: cl.tenancy()}, err
}

// typeOf returns the type that text names, as group/version/Kind or as Kind.
func (cl *resourceClient) typeOf(ctx context.Context, text string) (api.ResourceTypeName, error) {
	if strings.Contains(text, "/") {
		typ, err := api.ParseResourceType(text)
		if err != nil {
			return typ, usageError{err}
		}
		return typ, nil
	}
	if cl.types == nil {
		var err error
		if cl.types, err = cl.ResourceTypes(ctx); err != nil {
			return api.ResourceTypeName{}, err
		}
	}
	typ, err := api.FindResourceType(cl.types, text)
	if err != nil {
		err = usageError{err}
		if errors.Is(err, api.ErrNoType) {
			err = noType(cl.types, text)
		}
	}
	return typ, err
}

// noType is the error for a type or a kind that does not exist.
func noType(types []api.ResourceType, text string) error {
	var names []string
	for _, t := range types {
		name := t.Type.Kind
		if strings.Contains(text, "/") {
			name = t.Type.String()
		}
		names = append(names, name)
	}
	return usagef("type %q does not exist; see: wanfed resource types%s", text, didYouMean(names, text))
}

// checkType returns the error of a request about a type, or err if the type
// exists.
func (cl *resourceClient) checkType(ctx context.Context, text string, err error) error {
	_, unreachable := errors.AsType[*api.UnreachableError](err)
	if unreachable || !strings.Contains(text, "/") || cl.opts.Datacenter != "" {
		return err
	}
	types, listErr := cl.ResourceTypes(ctx)
	known := func(t api.ResourceType) bool { return strings.EqualFold(t.Type.String(), text) }
	if listErr != nil || slices.ContainsFunc(types, known) {
		return err
	}
	return noType(types, text)
}

// refusalText removes the server and the HTTP status from the error of a
// request that the server refused. It returns other errors unchanged.
func refusalText(err error) error {
	e, ok := errors.AsType[*api.StatusError](err)
	if ok && e.Message != "" && e.Code < http.StatusInternalServerError {
		return errors.New(output.Printable(e.Message))
	}
	return err
}

// resourceText returns the type and the name of a resource, and its tenancy
// unless that is the default tenancy.
func resourceText(id api.ResourceID) string {
	s := id.Type.String() + " " + output.Printable(id.Name)
	if !isDefault(id.Tenancy) {
		s += fmt.Sprintf(" in %s/%s", orDefault(id.Tenancy.Partition), orDefault(id.Tenancy.Namespace))
	}
	return s
}

func isDefault(t api.Tenancy) bool {
	return orDefault(t.Partition) == "default" && orDefault(t.Namespace) == "default"
}

// orDefault returns a partition or namespace for printing.
func orDefault(s string) string { return output.Printable(cmp.Or(s, "default")) }

func newResourceTypes() *cobra.Command {
	return addResourceFlags(&cobra.Command{
		Use:   "types",
		Short: "List the types of resources",
		Long: `List the types of resources of a server: the scope of the resources, whether they
are federated (owned by the primary datacenter and replicated to all), and the
protobuf message of their data. The server describes all messages at
/api/openapi.json.`,
		Example: `  wanfed resource types
  curl http://127.0.0.1:8500/api/openapi.json | jq '.components.schemas["wanfed.v1.Node"]'`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, func(ctx context.Context, _ []string, cl *resourceClient, out output.Printer) error {
		if cl.opts.Datacenter != "" {
			return usagef("types does not support --datacenter; set --http-addr to a server of %s", cl.opts.Datacenter)
		}
		types, err := cl.ResourceTypes(ctx)
		if err != nil {
			return err
		}
		return out.Print(types, func() error {
			rows := [][]string{{"Type", "Scope", "Federated", "Message"}}
			for _, t := range types {
				rows = append(rows, []string{t.Type.String(), t.Scope, strconv.FormatBool(t.Federated), t.Message})
			}
			return out.Table(rows)
		})
	})
}

func newResourceRead() *cobra.Command {
	c := addResourceFlags(&cobra.Command{
		Use:   "read TYPE NAME",
		Short: "Show one resource",
		Example: `  wanfed resource read node web1
  wanfed resource read catalog/v1/Node web1 --datacenter dc2 --output json | jq .data`,
		Args:              exactArgs("TYPE", "NAME"),
		ValidArgsFunction: completeArgs(completeTypes, completeNames),
	}, func(ctx context.Context, args []string, cl *resourceClient, out output.Printer) error {
		id, err := cl.id(ctx, args)
		if err != nil {
			return err
		}
		r, err := cl.ReadResource(ctx, id, cl.options())
		if err != nil {
			return refusalText(err)
		}
		return out.Print(r, func() error { return printResource(out, r) })
	})
	addTenancyFlags(c, "")
	addConsistentFlag(c)
	c.Flags().String("uid", "", "only the resource with this `uid`")
	return c
}

func printResource(out output.Printer, r api.Resource) error {
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
	if err := output.WriteFields(out.W, rows); err != nil {
		return err
	}
	if len(r.Status) > 0 {
		fmt.Fprintln(out.W)
		if err := out.Table(statusRows(r)); err != nil {
			return err
		}
	}
	var data bytes.Buffer
	if err := json.Indent(&data, r.Data, "", "  "); err != nil {
		return err
	}
	fmt.Fprintln(out.W, "\nData:")
	for line := range strings.SplitSeq(data.String(), "\n") {
		fmt.Fprintln(out.W, output.Printable(line))
	}
	return nil
}

func statusRows(r api.Resource) [][]string {
	rows := [][]string{{"Status", "Condition", "State", "Current", "Updated", "Message"}}
	for _, key := range slices.Sorted(maps.Keys(r.Status)) {
		s := r.Status[key]
		current := strconv.FormatBool(s.ObservedGeneration == r.Generation)
		updated := output.Timestamp(s.UpdatedAt)
		if len(s.Conditions) == 0 {
			rows = append(rows, []string{key, "-", "-", current, updated, ""})
		}
		for _, c := range s.Conditions {
			state := strings.ToLower(strings.TrimPrefix(c.State, "STATE_"))
			rows = append(rows, []string{key, c.Type, state, current, updated, cmp.Or(c.Message, c.Reason)})
		}
	}
	return rows
}

func newResourceList() *cobra.Command {
	c := addResourceFlags(&cobra.Command{
		Use:   "list TYPE",
		Short: "List the resources of a type",
		Example: `  wanfed resource list node
  wanfed resource list node --prefix web --datacenter dc2
  wanfed resource list catalog/v1/Node --namespace '*' --output json`,
		Args: exactArgs("TYPE"),
	}, func(ctx context.Context, args []string, cl *resourceClient, out output.Printer) error {
		typ, err := cl.typeOf(ctx, args[0])
		if err != nil {
			return err
		}
		return printResources(out, false, cl.Resources(ctx, typ, cl.tenancy(), cl.options()))
	})
	addTenancyFlags(c, ", * for all")
	addConsistentFlag(c)
	c.Flags().String("prefix", "", "only names with this `prefix`")
	return c
}

func newResourceOwned() *cobra.Command {
	c := addResourceFlags(&cobra.Command{
		Use:   "list-by-owner TYPE NAME",
		Short: "List the resources that a resource owns",
		Long: `List the resources, of any type, that a resource owns. Owned resources are deleted
with their owner. With --uid the command also lists the remaining resources of a
deleted owner.`,
		Example:           `  wanfed resource list-by-owner node web1`,
		Args:              exactArgs("TYPE", "NAME"),
		ValidArgsFunction: completeArgs(completeTypes, completeNames),
	}, func(ctx context.Context, args []string, cl *resourceClient, out output.Printer) error {
		id, err := cl.id(ctx, args)
		if err != nil {
			return err
		}
		return printResources(out, true, cl.OwnedResources(ctx, id, cl.options()))
	})
	addTenancyFlags(c, "")
	addConsistentFlag(c)
	c.Flags().String("uid", "", "`uid` of the owner")
	return c
}

// printResources prints a list: JSON while the list arrives, a table when the
// list is complete. showType adds a column with the type.
func printResources(out output.Printer, showType bool, all iter.Seq2[api.Resource, error]) error {
	if out.Format == output.JSON {
		return refusalText(output.JSONList(out.W, all))
	}
	rows := [][]string{{"Type", "Partition", "Namespace", "Name", "Version", "Data"}}
	tenancy := false // print the columns of the tenancy
	for r, err := range all {
		if err != nil {
			return refusalText(err)
		}
		tenancy = tenancy || !isDefault(r.ID.Tenancy)
		rows = append(rows, []string{
			r.ID.Type.String(), orDefault(r.ID.Tenancy.Partition), orDefault(r.ID.Tenancy.Namespace),
			r.ID.Name, r.Version, compact(r.Data),
		})
	}
	for i, row := range rows {
		if !tenancy {
			row = slices.Delete(row, 1, 3)
		}
		if !showType {
			row = row[1:]
		}
		rows[i] = row
	}
	return out.Table(rows)
}

// compact returns data in one line.
func compact(data json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, data) != nil {
		return ""
	}
	return b.String()
}

func newResourceDelete() *cobra.Command {
	c := addResourceWriteFlags(&cobra.Command{
		Use:   "delete TYPE NAME",
		Short: "Delete a resource and the resources that it owns",
		Long: `Delete a resource and the resources that it owns. A resource with finalizers is
marked for deletion, and deleted when the last finalizer is removed. The command
succeeds if the resource does not exist.`,
		Example: `  wanfed resource delete node web1
  wanfed resource delete node web1 --version 12   # only this version`,
		Args:              exactArgs("TYPE", "NAME"),
		ValidArgsFunction: completeArgs(completeTypes, completeNames),
	}, func(ctx context.Context, args []string, cl *resourceClient, out output.Printer) error {
		id, err := cl.id(ctx, args)
		if err != nil {
			return err
		}
		return deleteResource(ctx, cl, out, id)
	})
	addTenancyFlags(c, "")
	c.Flags().String("version", "", "delete only this `version`")
	c.Flags().String("uid", "", "only the resource with this `uid`")
	return c
}

func deleteResource(ctx context.Context, cl *resourceClient, out output.Printer, id api.ResourceID) error {
	read := api.ResourceOptions{Datacenter: cl.opts.Datacenter, Consistent: true, UID: cl.flag("uid")}
	r, err := cl.ReadResource(ctx, id, read)
	absent := api.IsStatus(err, http.StatusNotFound)
	if err == nil {
		id.Type = r.ID.Type // the type in the spelling of the server
	} else if !absent {
		return refusalText(err)
	}
	if err := cl.DeleteResource(ctx, id, cl.options()); err != nil {
		return refusalText(err)
	}
	outcome := "deleted"
	if absent {
		outcome = "did not exist"
	} else if r, err := cl.ReadResource(ctx, id, read); err == nil && r.Metadata["deletionTimestamp"] != "" {
		outcome = "marked for deletion; remaining finalizers: " + output.Printable(r.Metadata["finalizers"])
	}
	return out.Print(map[string]any{"id": id, "outcome": outcome}, func() error {
		_, err := fmt.Fprintf(out.W, "%s: %s\n", resourceText(id), outcome)
		return err
	})
}

func newResourceWatch() *cobra.Command {
	c := addResourceFlags(&cobra.Command{
		Use:   "watch TYPE",
		Short: "Watch the resources of a type",
		Long: `Print the resources of a type, and then every change, until SIGINT or SIGTERM.
The command fails when the server closes the watch or the connection is lost. With
--output json each event is one line of JSON.`,
		Example: `  wanfed resource watch node
  wanfed resource watch node --prefix web --output json | jq -c 'select(.event == "delete").resource.id.name'`,
		Args: exactArgs("TYPE"),
	}, func(ctx context.Context, args []string, cl *resourceClient, out output.Printer) error {
		typ, err := cl.typeOf(ctx, args[0])
		if err != nil {
			return err
		}
		n := 0 // number of events
		for ev, err := range cl.WatchResources(ctx, typ, cl.tenancy(), cl.options()) {
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return refusalText(err)
			}
			if err := printEvent(out, ev, n); err != nil {
				return err
			}
			n++
		}
		return nil
	})
	addTenancyFlags(c, ", * for all")
	c.Flags().String("prefix", "", "only names with this `prefix`")
	return c
}

// printEvent prints one event. n is the number of earlier events.
func printEvent(out output.Printer, ev api.ResourceEvent, n int) error {
	if out.Format == output.JSON {
		return output.JSONLine(out.W, ev)
	}
	if ev.Type == api.EventEndOfSnapshot {
		_, err := fmt.Fprintf(out.W, "%d resources; changes follow\n", n)
		return err
	}
	_, err := fmt.Fprintf(out.W, "%s  %s  version %s  %s\n",
		ev.Type, resourceText(ev.Resource.ID), ev.Resource.Version, output.Printable(compact(ev.Resource.Data)))
	return err
}
