// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/output"
)

func newPolicy() *cobra.Command {
	c := newGroup("policy", "Check who may do what", newPolicyCheck())
	c.Long = `Check who may do what.

The policy of a user is a resource of type policy/v1/Policy with the name of the
user. Manage policies with "wanfed resource list policy", "apply" and "delete".`
	c.Example = `  wanfed policy check --as joe write kv/v1/Entry app/name`
	return c
}

// errRefused makes "policy check" exit with 1.
var errRefused = errors.New("refused")

func newPolicyCheck() *cobra.Command {
	as := ""
	c := addReadFlags(&cobra.Command{
		Use:   "check --as NAME VERB TYPE [RESOURCE]",
		Short: "Check whether a caller may do something",
		Long: `Check whether a caller may do something, as the server decides it.

NAME is a user of the datacenter, "anonymous" for a caller without a certificate,
or the name in a certificate without the domain: node.role.datacenter. VERB is
read, list, write or delete. RESOURCE is the name of a resource, or for list the
beginning of all names. The exit code is 0 if it is permitted and 1 if not.`,
		Example: `  wanfed policy check --as joe write kv/v1/Entry app/name
  wanfed policy check --as web1.client.dc2 list catalog/v1/Node`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 3 {
				return nil
			}
			return exactArgs("VERB", "TYPE")(cmd, args)
		},
	}, func(cmd *cobra.Command, args []string, cl client, out output.Printer) error {
		if as == "" {
			return usagef("--as is required: the name of a user, anonymous, or node.role.datacenter")
		}
		q := api.PolicyRequest{As: as, Verb: args[0], Type: args[1]}
		if len(args) == 3 {
			q.Name = args[2]
		}
		d, err := cl.CheckPolicy(cmd.Context(), q, cl.opts)
		if err != nil {
			return err
		}
		err = out.Print(d, func() error {
			text := "permitted"
			if !d.Permitted {
				text = "refused: " + d.Reason
			}
			_, err := fmt.Fprintln(out.W, text)
			return err
		})
		if err == nil && !d.Permitted {
			err = errRefused
		}
		return err
	})
	c.Flags().StringVar(&as, "as", "", "`name` of the caller (required)")
	return c
}
