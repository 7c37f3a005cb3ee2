// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/policy"
)

// maxCompletions bounds the names that are offered for one word.
const maxCompletions = 200

// completion is a function that completes an argument or the value of a flag.
type completion = func(cmd *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective)

// completeFrom returns the completions of list. It returns none if no server
// responds within a second.
func completeFrom(
	cmd *cobra.Command, list func(context.Context, client) []cobra.Completion,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	if err := useTarget(cmd); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	cl, err := newClient(cmd, time.Second)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
	defer cancel()
	return list(ctx, cl), cobra.ShellCompDirectiveNoFileComp
}

// completeArgs completes each argument with the function at its position.
// Further arguments have no completions.
func completeArgs(complete ...completion) completion {
	return func(cmd *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= len(complete) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete[len(args)](cmd, args, text)
	}
}

// completeWords completes with fixed words.
func completeWords(words ...string) completion {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// completeDatacenters completes names of datacenters.
func completeDatacenters(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return completeFrom(cmd, func(ctx context.Context, cl client) []cobra.Completion {
		dcs, _ := cl.Datacenters(ctx, api.QueryOptions{})
		return dcs
	})
}

// completeServers completes names of the servers of the datacenter.
func completeServers(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return completeFrom(cmd, func(ctx context.Context, cl client) (names []cobra.Completion) {
		members, _ := cl.Members(ctx, false, cl.opts)
		for _, m := range members {
			names = append(names, m.Name)
		}
		return names
	})
}

// completeGateways completes names of the gateways of the datacenter.
func completeGateways(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return completeFrom(cmd, func(ctx context.Context, cl client) (names []cobra.Completion) {
		all, _ := cl.GatewaySnapshots(ctx, cl.opts)
		for _, g := range all {
			names = append(names, g.Gateway)
		}
		return names
	})
}

// completeServices completes names of services.
func completeServices(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return completeFrom(cmd, func(ctx context.Context, cl client) []cobra.Completion {
		services, _, _ := cl.ServiceNames(ctx, nil, cl.opts)
		return slices.Sorted(maps.Keys(services))
	})
}

// completeTypes completes types of resources.
func completeTypes(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return completeFrom(cmd, func(ctx context.Context, cl client) (names []cobra.Completion) {
		types, _ := cl.ResourceTypes(ctx)
		for _, t := range types {
			names = append(names, t.Type.String())
		}
		return names
	})
}

// completeNames completes names of resources of the type in the argument before.
func completeNames(cmd *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return completeFrom(cmd, func(ctx context.Context, cl client) []cobra.Completion {
		r := &resourceClient{client: cl, cmd: cmd}
		typ, err := r.typeOf(ctx, args[len(args)-1])
		if err != nil {
			return nil
		}
		return resourceNames(ctx, r, typ, text)
	})
}

// completeResources completes names of resources of a type.
func completeResources(typ api.ResourceTypeName) completion {
	return func(cmd *cobra.Command, _ []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return completeFrom(cmd, func(ctx context.Context, cl client) []cobra.Completion {
			return resourceNames(ctx, &resourceClient{client: cl, cmd: cmd}, typ, text)
		})
	}
}

// resourceNames returns names of resources that begin with text.
func resourceNames(ctx context.Context, cl *resourceClient, typ api.ResourceTypeName, text string) (names []string) {
	opts := api.ResourceOptions{Datacenter: cl.opts.Datacenter, Prefix: text}
	for r, err := range cl.Resources(ctx, typ, cl.tenancy(), opts) {
		if err != nil || len(names) == maxCompletions {
			break
		}
		names = append(names, r.ID.Name)
	}
	return names
}

// completeCallers completes names of callers: users, and the caller without a
// certificate.
func completeCallers(cmd *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
	names, directive := completeResources(typeName(policy.Type))(cmd, args, text)
	if !slices.Contains(names, "anonymous") {
		names = append(names, "anonymous")
	}
	return names, directive
}

// completeKeys completes keys, up to the next "/".
func completeKeys(cmd *cobra.Command, _ []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
	list, directive := completeFrom(cmd, func(ctx context.Context, cl client) []cobra.Completion {
		keys, _ := cl.KeyNames(ctx, text, "/", cl.opts)
		return keys
	})
	return list, directive | cobra.ShellCompDirectiveNoSpace
}

// completeContexts completes names of contexts.
func completeContexts(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	f, _ := readContexts()
	return slices.Sorted(maps.Keys(f.Contexts)), cobra.ShellCompDirectiveNoFileComp
}

// completeDirs completes names of directories.
func completeDirs(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// completeFile completes names of files.
func completeFile(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// settingWords are the values of settings with few values, by flag.
var settingWords = map[string][]string{
	"log-level": {"debug", "info", "warn", "error"}, "log-format": {"text", "json"},
	"mesh-gateway-mode": {"local", "remote", "auto"}, "audit-log-when-full": {"refuse", "drop"},
}

// completeSettings registers the completions of flags of settings.
func completeSettings(cmd *cobra.Command) {
	for flag, words := range settingWords {
		if cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, completeWords(words...))
		}
	}
}
