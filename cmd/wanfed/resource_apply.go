// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
)

func newResourceApply() *cobra.Command {
	var files []string
	var version string
	var dryRun bool
	c := newResourceWrite(&cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create or update the resources of a file",
		Long: `Create the resources of files, or update those that differ from what is stored. All are checked before the first is
written; then they are written in their order, so that an owner may stand before what it owns. Of each it says whether it
was created, updated or unchanged.

A file is HCL, JSON or YAML, by its name (.hcl, .json, .yaml, .yml) or else by its looks. A resource has type, name and
data, and perhaps partition, namespace, metadata, owner (type and name), version and uid; data are those of the type's
message. What "read --format json" prints can be applied too. With a version only that version is replaced. Without
metadata those that are stored stay. Several resources are: in HCL a block each, in JSON a list, in YAML documents.`,
		Example: `  wanfed resource apply -f web1.hcl
  wanfed resource apply -f racks.yaml --at dc2
  wanfed resource apply -f web1.hcl --version 12       # only if that is stored
  wanfed resource read node web1 --format json | sed s/10.0.0.1/10.0.0.2/ | wanfed resource apply -f -

A resource in HCL:
  type = "catalog/v1/Node"
  name = "web1"
  data {
    node    = "web1"
    address = "10.0.0.1"
  }

Several:
  resource "catalog/v1/Node" "web1" {
    data = { node = "web1", address = "10.0.0.1" }
  }

In YAML:
  type: catalog/v1/Node
  name: web1
  data: {node: web1, address: 10.0.0.1}`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, func(ctx context.Context, _ []string, ask *resourceAsker, out printer) error {
		if len(files) == 0 {
			return usagef("say which file: wanfed resource apply -f FILE")
		}
		a := &applying{resourceAsker: ask, out: out, dryRun: dryRun}
		if err := a.read(ctx, files, version); err != nil {
			return err
		}
		return a.run(ctx)
	})
	c.Flags().StringSliceVarP(&files, "file", "f", nil, "`file` of resources, - for stdin; may be given several times")
	c.Flags().StringVar(&version, "version", "", "write only if this `version` is stored; for one resource")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and do nothing")
	_ = c.MarkFlagFilename("file", "hcl", "json", "yaml", "yml")
	return c
}

// applying is one run of apply.
type applying struct {
	*resourceAsker
	out    printer
	dryRun bool
	plan   []*planned
}

// planned is what is to be done about one resource.
type planned struct {
	where  string
	given  api.Resource // as the file has it
	tried  api.Resource // as it would be stored
	stored *api.Resource
	Action string       `json:"action"`
	Result api.Resource `json:"resource"`
}

// What becomes of a resource.
const (
	actionCreated   = "created"
	actionUpdated   = "updated"
	actionUnchanged = "unchanged"
)

// read reads the files. Faults are of usage: nothing was asked of the server but its types.
func (a *applying) read(ctx context.Context, files []string, version string) error {
	var errs []error
	seen := make(map[string]string)
	for _, file := range files {
		all, err := readDocuments(file, a.cmd.InOrStdin())
		errs = append(errs, err)
		for _, d := range all {
			r, err := d.resource(func(text string) (api.ResourceTypeName, error) { return a.typeOf(ctx, text) })
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", d.where, err))
				continue
			}
			key := show(r.ID)
			if before, ok := seen[key]; ok {
				errs = append(errs, fmt.Errorf("%s: %s is in %s too", d.where, key, before))
			}
			seen[key] = d.where
			a.plan = append(a.plan, &planned{where: d.where, given: r})
		}
	}
	if version != "" && len(a.plan) == 1 {
		a.plan[0].given.Version = version
	} else if version != "" {
		errs = append(errs, fmt.Errorf("--version is for one resource, and there are %d: write versions into the file", len(a.plan)))
	}
	if err := faults(errs...); err != nil {
		return usageError{err}
	}
	return nil
}

// run checks all resources, then writes them in order.
func (a *applying) run(ctx context.Context) error {
	var errs []error
	for _, p := range a.plan {
		if err := a.check(ctx, p); err != nil {
			if _, refused := err.(*rejection); !refused {
				return err // nobody answers: more of the same would not help
			}
			errs = append(errs, err)
		}
	}
	if err := faults(errs...); err != nil {
		return err
	}
	for i, p := range a.plan {
		if err := a.write(ctx, p); err != nil {
			if i > 0 {
				err = fmt.Errorf("%w (%d of %d are done; apply may be run again)", err, i, len(a.plan))
			}
			return err
		}
		if a.out.format == formatTable {
			a.tell(p)
		}
	}
	if a.out.format == formatTable {
		return nil
	}
	return a.out.print(a.plan, nil)
}

func (a *applying) tell(p *planned) {
	note := ""
	if a.dryRun && p.Action != actionUnchanged {
		note = " (not done: --dry-run)"
	}
	fmt.Fprintf(a.out.w, "%-9s  %s%s\n", p.Action, show(p.Result.ID), note)
}

// rejection is the server's no to one resource.
type rejection struct {
	where string
	err   error
}

func (r *rejection) Error() string { return r.where + ": " + r.err.Error() }
func (r *rejection) Unwrap() error { return r.err }

func (p *planned) refused(err error) error {
	if plain := plainRefusal(err); plain != err {
		return &rejection{p.where, plain}
	}
	return err
}

func (a *applying) options() api.ResourceOptions {
	return api.ResourceOptions{Datacenter: a.opts.Datacenter}
}

// check has the server check p, and finds out what there is to do.
func (a *applying) check(ctx context.Context, p *planned) (err error) {
	if p.tried, err = a.DryRunResource(ctx, p.given, a.options()); err != nil {
		return p.refused(err)
	}
	p.given.ID.Type = p.tried.ID.Type // in its own spelling
	if err := a.compare(ctx, p); err != nil {
		return p.refused(err)
	}
	if v := p.given.Version; v != "" && (p.stored == nil || p.stored.Version != v) {
		is := "there is none"
		if p.stored != nil {
			is = "its version is " + p.stored.Version
		}
		return &rejection{p.where, fmt.Errorf("%s was changed meanwhile: %s, not %s; read it and try again", show(p.given.ID), is, v)}
	}
	return nil
}

// compare reads what is stored and decides on the action.
func (a *applying) compare(ctx context.Context, p *planned) error {
	o := a.options()
	o.Consistent = true
	id := p.given.ID
	id.UID = ""
	stored, err := a.ReadResource(ctx, id, o)
	switch {
	case answered(err, http.StatusNotFound):
		p.stored, p.Action, p.Result = nil, actionCreated, p.tried
		return nil
	case answered(err, http.StatusConflict): // it is stored as another version of the type: a write converts it
		p.stored, p.Action, p.Result = nil, actionUpdated, p.tried
		return nil
	case err != nil:
		return err
	}
	p.stored, p.Action, p.Result = &stored, actionUpdated, stored
	if same(p.given, p.tried, stored) {
		p.Action = actionUnchanged
	}
	return nil
}

// same says whether a write would leave data, metadata and owner as they are stored.
func same(given, tried, stored api.Resource) bool {
	if given.ID.UID != "" && given.ID.UID != stored.ID.UID {
		return false // the server has to say no
	}
	if given.Owner != nil && (stored.Owner == nil || given.Owner.Type != stored.Owner.Type || given.Owner.Name != stored.Owner.Name ||
		given.Owner.UID != "" && given.Owner.UID != stored.Owner.UID) {
		return false
	}
	return (given.Metadata == nil || maps.Equal(given.Metadata, stored.Metadata)) && sameJSON(tried.Data, stored.Data)
}

// sameJSON compares what the same server wrote.
func sameJSON(a, b json.RawMessage) bool {
	var ca, cb bytes.Buffer
	return json.Compact(&ca, a) == nil && json.Compact(&cb, b) == nil && bytes.Equal(ca.Bytes(), cb.Bytes())
}

// applyTries bounds how often one resource is written while others change it.
const applyTries = 5

// write does what is planned for p.
func (a *applying) write(ctx context.Context, p *planned) error {
	for try := 1; !a.dryRun && p.Action != actionUnchanged; try++ {
		r := p.given
		kept := r.Metadata == nil && r.Version == "" && p.stored != nil && len(p.stored.Metadata) > 0
		if kept { // a write replaces all metadata: these are those of that version
			r.Metadata, r.Version = p.stored.Metadata, p.stored.Version
		}
		var err error
		p.Result, err = a.WriteResource(ctx, r, a.options())
		if err == nil {
			return nil
		}
		if !kept || !answered(err, http.StatusConflict) || try >= applyTries {
			return p.refused(err)
		}
		if err := a.compare(ctx, p); err != nil {
			return p.refused(err)
		}
	}
	return nil
}
