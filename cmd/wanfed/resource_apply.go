// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/apply"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/resourcefile"
	"github.com/wanfed/wanfed/internal/settings"
)

func newResourceApply() *cobra.Command {
	var files []string
	var version string
	var dryRun bool
	c := addResourceWriteFlags(&cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create or update the resources of a file",
		Long: `Create the resources of files, or update stored resources that differ. The server
checks all resources before the first is written. Then the resources are written
in their order, so an owner may precede the resources that it owns. The command
prints whether each resource was created, updated or unchanged.

A file is HCL, JSON or YAML, by its name (.hcl, .json, .yaml, .yml) or by its
content. A resource has type, name and data, and optionally partition, namespace,
metadata, owner (type and name), version and uid. The output of "read --output
json" is accepted as well. With a version only that version is replaced. Without
metadata the stored metadata is kept. Several resources are blocks in HCL, a list
in JSON and documents in YAML.`,
		Example: `  wanfed resource apply -f web1.hcl
  wanfed resource apply -f racks.yaml --datacenter dc2
  wanfed resource apply -f web1.hcl --version 12       # only if this is stored
  wanfed resource read node web1 -o json | sed s/10.0.0.1/10.0.0.2/ | wanfed resource apply -f -

A resource in HCL:
  type = "catalog/v1/Node"
  name = "web1"
  data {
    node    = "web1"
    address = "10.0.0.1"
  }

Several resources in HCL:
  resource "catalog/v1/Node" "web1" {
    data = { node = "web1", address = "10.0.0.1" }
  }

In YAML:
  type: catalog/v1/Node
  name: web1
  data: {node: web1, address: 10.0.0.1}`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, func(ctx context.Context, _ []string, cl *resourceClient, out output.Printer) error {
		if len(files) == 0 {
			return usagef("FILE is required: wanfed resource apply -f FILE")
		}
		positions, resources, err := readResources(ctx, cl, files, version)
		if err != nil {
			return err
		}
		plan, err := apply.Check(ctx, cl.Client, cl.opts.Datacenter, resources)
		if err != nil {
			return refusals(positions, err)
		}
		return runPlan(ctx, out, positions, plan, dryRun)
	})
	c.Flags().StringSliceVarP(&files, "file", "f", nil, "`file` of resources, - for stdin; repeatable")
	c.Flags().StringVar(&version, "version", "", "write only if this `version` is stored; for one resource")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "print the changes without making them")
	_ = c.MarkFlagFilename("file", "hcl", "json", "yaml", "yml")
	return c
}

// readResources reads all resources of files, with their positions in the
// files. Its errors are usage errors.
func readResources(
	ctx context.Context, cl *resourceClient, files []string, version string,
) (positions []string, resources []api.Resource, err error) {
	var errs []error
	seen := make(map[string]string) // positions by resource
	for _, file := range files {
		documents, err := resourcefile.Read(file, cl.cmd.InOrStdin())
		errs = append(errs, err)
		for _, doc := range documents {
			r, err := doc.Resource(func(name string) (api.ResourceTypeName, error) { return cl.typeOf(ctx, name) })
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", doc.Pos, err))
				continue
			}
			key := resourceText(r.ID)
			if first, ok := seen[key]; ok {
				errs = append(errs, fmt.Errorf("%s: duplicate of %s in %s", doc.Pos, key, first))
			}
			seen[key] = doc.Pos
			positions, resources = append(positions, doc.Pos), append(resources, r)
		}
	}
	if version != "" && len(resources) == 1 {
		resources[0].Version = version
	} else if version != "" {
		errs = append(errs,
			fmt.Errorf("--version needs one resource, not %d; write the versions into the file", len(resources)))
	}
	if err := settings.Join(errs...); err != nil {
		return nil, nil, usageError{err}
	}
	return positions, resources, nil
}

// refusals adds the positions of the resources to the errors of apply.Check.
func refusals(positions []string, err error) error {
	var errs []error
	for _, err := range settings.Split(settings.Join(err)) {
		if refused, ok := errors.AsType[*apply.RefusedError](err); ok {
			err = fmt.Errorf("%s: %w", positions[refused.Index], refusalText(refused.Err))
		}
		errs = append(errs, err)
	}
	return settings.Join(errs...)
}

// runPlan writes all items in their order, unless dryRun is true, and prints
// them.
func runPlan(ctx context.Context, out output.Printer, positions []string, plan []*apply.Item, dryRun bool) error {
	for i, item := range plan {
		if !dryRun {
			if err := item.Write(ctx); err != nil {
				if refusal := refusalText(err); refusal != err {
					err = fmt.Errorf("%s: %w", positions[i], refusal)
				}
				if i > 0 {
					err = fmt.Errorf("%w (%d of %d are written; apply can be repeated)", err, i, len(plan))
				}
				return err
			}
		}
		if out.Format == output.JSON {
			continue
		}
		note := ""
		if dryRun && item.Action != apply.Unchanged {
			note = " (dry run)"
		}
		fmt.Fprintf(out.W, "%-9s  %s%s\n", item.Action, resourceText(item.Result.ID), note)
	}
	if out.Format == output.JSON {
		return out.Print(plan, nil)
	}
	return nil
}
