// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
)

func newResource() *cobra.Command {
	c := newGroup("resource", "Read, write and watch records of any type",
		newResourceApply(), newResourceRead(), newResourceList(), newResourceOwned(), newResourceDelete(), newResourceWatch(), newResourceTypes())
	c.Long = c.Short + `.

Everything durable in wanfed is a resource of a registered type: see wanfed resource types. A type is written as
group/version/Kind, or, where that is clear, as its kind alone, in upper or lower case: catalog/v1/Node, node.

Reading asks any server. Writing needs HTTPS and an operator's certificate; set once for a shell:
  export WANFED_HTTP_ADDR=https://127.0.0.1:8500
  export WANFED_CA_FILE=wanfed-agent-ca.pem WANFED_CERT_FILE=dc1-cli-wanfed-0.pem WANFED_KEY_FILE=dc1-cli-wanfed-0-key.pem`
	c.Example = `  wanfed resource types
  wanfed resource apply -f web1.hcl
  wanfed resource read node web1
  wanfed resource list node --at dc2`
	return c
}

// newResourceCommand is newRead for resources.
func newResourceCommand(c *cobra.Command, run func(ctx context.Context, args []string, ask *resourceAsker, out printer) error) *cobra.Command {
	if len(c.ValidArgs) == 0 && c.ValidArgsFunction == nil {
		c.ValidArgsFunction = completeTypes
	}
	return newRead(c, func(cmd *cobra.Command, args []string, ask asker, out printer) error {
		return run(cmd.Context(), args, &resourceAsker{asker: ask, cmd: cmd}, out)
	})
}

// newResourceWrite is newResourceCommand for what writes.
func newResourceWrite(c *cobra.Command, run func(ctx context.Context, args []string, ask *resourceAsker, out printer) error) *cobra.Command {
	return newResourceCommand(c, func(ctx context.Context, args []string, ask *resourceAsker, out printer) error {
		addr := setting(ask.cmd, "http-addr")
		if !strings.HasPrefix(addr, "https://") {
			return usagef("a write needs HTTPS and an operator's certificate: set --http-addr https://%s (WANFED_HTTP_ADDR), --ca-file, --cert-file and --key-file; "+
				"make a certificate with: wanfed tls cert create --cli --dc DC", strings.TrimPrefix(addr, "http://"))
		}
		return run(ctx, args, ask, out)
	})
}

// resourceAsker asks for resources.
type resourceAsker struct {
	asker
	cmd   *cobra.Command
	known []api.ResourceType // once it was asked for
}

// addTenancy gives a command the flags that say where a resource lives.
func addTenancy(c *cobra.Command, all string) {
	c.Flags().String("partition", "", "`partition` of the resources"+all+" (default \"default\")")
	c.Flags().String("namespace", "", "`namespace` of the resources"+all+" (default \"default\")")
}

func addConsistent(c *cobra.Command) {
	c.Flags().Bool("consistent", false, "see everything that was acknowledged before, for a round trip to the leader")
}

func (a *resourceAsker) tenancy() api.Tenancy {
	return api.Tenancy{Partition: a.flag("partition"), Namespace: a.flag("namespace")}
}

// flag is the value of one that the command may not have.
func (a *resourceAsker) flag(name string) string {
	if f := a.cmd.Flag(name); f != nil {
		return f.Value.String()
	}
	return ""
}

// options are those of the command's flags.
func (a *resourceAsker) options() api.ResourceOptions {
	return api.ResourceOptions{
		Datacenter: a.opts.Datacenter, Consistent: a.flag("consistent") == "true",
		Version: a.flag("version"), UID: a.flag("uid"), Prefix: a.flag("prefix"),
	}
}

// id is what arguments TYPE NAME mean.
func (a *resourceAsker) id(ctx context.Context, args []string) (api.ResourceID, error) {
	typ, err := a.typeOf(ctx, args[0])
	return api.ResourceID{Type: typ, Name: args[1], Tenancy: a.tenancy()}, err
}

// typeOf returns the type that a user means by group/version/kind, or by the kind alone. The server finds the kind in any case.
func (a *resourceAsker) typeOf(ctx context.Context, text string) (api.ResourceTypeName, error) {
	if strings.Contains(text, "/") {
		typ, err := api.ParseResourceType(text)
		if err != nil {
			return typ, usageError{err}
		}
		return typ, nil
	}
	if a.known == nil {
		var err error
		if a.known, err = a.ResourceTypes(ctx); err != nil {
			return api.ResourceTypeName{}, err
		}
	}
	var found []api.ResourceTypeName
	var names, all []string
	for _, t := range a.known {
		all = append(all, t.Type.String())
		if strings.EqualFold(t.Type.Kind, text) {
			found, names = append(found, t.Type), append(names, t.Type.String())
		}
	}
	switch len(found) {
	case 0:
		return api.ResourceTypeName{}, usagef("no type has the kind %q; there are %s", text, strings.Join(all, ", "))
	case 1:
		return found[0], nil
	}
	return api.ResourceTypeName{}, usagef("%q may be %s: write which", text, strings.Join(names, " or "))
}

// typeArg demands the argument TYPE, typeAndName TYPE NAME.
func typeArg(cmd *cobra.Command, args []string) error { return demandArgs(cmd, args, "TYPE") }

func typeAndName(cmd *cobra.Command, args []string) error {
	return demandArgs(cmd, args, "TYPE", "NAME")
}

func demandArgs(cmd *cobra.Command, args []string, names ...string) error {
	if len(args) < len(names) {
		return usagef("say which %s: %s; see: %s --help", names[len(args)], cmd.UseLine(), cmd.CommandPath())
	}
	if len(args) > len(names) {
		return usagef("unexpected argument %q; see: %s --help", args[len(names)], cmd.CommandPath())
	}
	if i := slices.Index(args, ""); i >= 0 {
		return usagef("%s is empty; see: %s --help", names[i], cmd.CommandPath())
	}
	return nil
}

// completeTypes offers the types that the server knows, for the first argument; none when it does not answer at once.
func completeTypes(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	client, err := newHTTPClient(cmd, time.Second)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer client.Close()
	types, _ := client.ResourceTypes(cmd.Context())
	var names []cobra.Completion
	for _, t := range types {
		names = append(names, t.Type.String())
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// answered says whether err is a server's answer with that HTTP status.
func answered(err error, status int) bool {
	e, ok := errors.AsType[*api.StatusError](err)
	return ok && e.Code == status
}

// plainRefusal leaves out of a refusal what the user of a command does not need: which server answered, with which status.
func plainRefusal(err error) error {
	e, ok := errors.AsType[*api.StatusError](err)
	if ok && e.Message != "" && e.Code < http.StatusInternalServerError {
		return errors.New(printable(e.Message))
	}
	return err
}

// show is type and name of a resource, and its tenancy if that is not the default one.
func show(id api.ResourceID) string {
	s := id.Type.String() + " " + printable(id.Name)
	if !inDefault(id.Tenancy) {
		s += fmt.Sprintf(" in %s/%s", orDefault(id.Tenancy.Partition), orDefault(id.Tenancy.Namespace))
	}
	return s
}

func inDefault(t api.Tenancy) bool {
	return orDefault(t.Partition) == "default" && orDefault(t.Namespace) == "default"
}

func orDefault(s string) string { return printable(cmp.Or(s, "default")) }
