// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/policy"
)

func newPolicy() *cobra.Command {
	c := newGroup("policy", "List policies, and check who may do what", newPolicyList(), newPolicyCheck())
	c.Long = `List policies, and check who may do what.

The policy of a user is a resource of type policy/v1/Policy with the name of the
user. Write policies with "wanfed resource apply" and "delete".`
	c.Example = `  wanfed policy list
  wanfed policy check --as joe write kv/v1/Entry app/name`
	return c
}

// policyEntry is the JSON of a policy in a list.
type policyEntry struct {
	Name  string            `json:"name"`
	Rules []policyRuleEntry `json:"rules"` // never null
}

type policyRuleEntry struct {
	Type   string `json:"type"`
	Prefix string `json:"prefix"`
	Access string `json:"access"`
}

func newPolicyList() *cobra.Command {
	c := addResourceFlags(&cobra.Command{
		Use:   "list",
		Short: "List the policies and their rules",
		Long: `List the policies that the responding server has, with their rules. What no rule
of a policy permits is refused. The policy "anonymous" is for callers without a
certificate.`,
		Example: `  wanfed policy list
  wanfed policy list --output json | jq -r '.[] | select(.rules == []).name'`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, func(ctx context.Context, _ []string, cl *resourceClient, out output.Printer) error {
		all := []policyEntry{}
		for r, err := range cl.Resources(ctx, typeName(policy.Type), api.Tenancy{}, cl.options()) {
			if err != nil {
				return err
			}
			entry := policyEntry{Name: r.ID.Name}
			if err := json.Unmarshal(r.Data, &entry); err != nil {
				return fmt.Errorf("policy %s: %w", output.Printable(r.ID.Name), err)
			}
			if entry.Rules == nil {
				entry.Rules = []policyRuleEntry{}
			}
			all = append(all, entry)
		}
		return out.Print(all, func() error { return out.Table(policyRows(all)) })
	})
	addConsistentFlag(c)
	return c
}

// typeName returns a type as package api has it.
func typeName(t *pb.Type) api.ResourceTypeName {
	return api.ResourceTypeName{Group: t.GetGroup(), GroupVersion: t.GetGroupVersion(), Kind: t.GetKind()}
}

// policyRows returns a row for each rule. A policy without rules has one row.
func policyRows(all []policyEntry) [][]string {
	rows := [][]string{{"Policy", "Type", "Access", "Prefix"}}
	for _, p := range all {
		for _, r := range p.Rules {
			rows = append(rows, []string{p.Name, r.Type, r.Access, cmp.Or(r.Prefix, "-")})
		}
		if len(p.Rules) == 0 {
			rows = append(rows, []string{p.Name, "-", "-", "-"})
		}
	}
	return rows
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
	_ = c.RegisterFlagCompletionFunc("as", completeCallers)
	c.ValidArgsFunction = completeArgs(completeWords("read", "list", "write", "delete"), completeTypes, completeNames)
	return c
}
