// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/input"
	"github.com/wanfed/wanfed/automation/terraform"
)

// servicesType is the type of the variable "services" of modules of CTS.
const servicesType = `variable "services" {
  type = map(object({
    id = string, name = string, kind = string, address = string, port = number, meta = map(string), tags = list(string),
    namespace = string, status = string, node = string, node_id = string, node_address = string, node_datacenter = string,
    node_tagged_addresses = map(string), node_meta = map(string), cts_user_defined_meta = map(string)
  }))
}
`

// moduleText follows the variable "services" of a module that depends on each
// instance, and has one resource.
const moduleText = `
resource "terraform_data" "one" {
  input = join("\n", [for key, s in var.services : "${key} ${s.address}:${s.port}"])
}
`

// cost is the duration of some programs, and their processor time.
type cost struct{ wall, cpu time.Duration }

func (c cost) plus(d cost) cost { return cost{c.wall + d.wall, c.cpu + d.cpu} }

// measured returns the cost of f. The programs of f have ended when f returns.
func measured(f func() error) (cost, error) {
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &before); err != nil {
		return cost{}, err
	}
	start := time.Now()
	err := f()
	wall := time.Since(start)
	cpu := func(r syscall.Rusage) time.Duration { return time.Duration(r.Utime.Nano() + r.Stime.Nano()) }
	err = errors.Join(err, syscall.Getrusage(syscall.RUSAGE_CHILDREN, &after))
	return cost{wall, cpu(after) - cpu(before)}, err
}

// terraformRows measures the driver terraform without a daemon: one task with
// many instances, and new tasks with one instance.
func (b *bench) terraformRows(ctx context.Context) error {
	var err error
	if b.dir, err = os.MkdirTemp("", "syncbench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	services, hcl := instances(b.services)
	d := terraform.New(terraform.Config{})
	row := func(name, rule string, ours, theirs cost) {
		fmt.Printf("| %s | %.1f s, %.1f s | %.1f s, %.1f s | %.2f, %.2f | %s |\n", name, ours.wall.Seconds(), ours.cpu.Seconds(),
			theirs.wall.Seconds(), theirs.cpu.Seconds(), ours.wall.Seconds()/theirs.wall.Seconds(),
			ours.cpu.Seconds()/theirs.cpu.Seconds(), rule)
	}
	fmt.Println("| duration and processor time | driver | other | ratio | rule |\n| --- | --- | --- | --- | --- |")
	const apply = "terraform apply -input=false -auto-approve -no-color"
	var module string
	for name, variable := range map[string]string{"typed": servicesType, "any": "variable \"services\" {\n  type = any\n}\n"} {
		module = filepath.Join(b.dir, "module-"+name)
		if err := writeFiles(module, map[string]string{"main.tf": variable + moduleText}); err != nil {
			return err
		}
		large := b.work("large-"+name, module)
		if err := b.drive(ctx, d, large, services); err != nil { // the first run has installed the module
			return err
		}
		ours, err := measured(func() error { return b.drive(ctx, d, large, services) })
		if err != nil {
			return err
		}
		// A root module as that of CTS: a typed variable, whose value is in terraform.tfvars.
		cts := filepath.Join(b.dir, "cts-"+name)
		if err := writeFiles(cts, map[string]string{
			"main.tf":      fmt.Sprintf("module \"large\" {\n  source   = %q\n  services = var.services\n}\n", module),
			"variables.tf": servicesType, "terraform.tfvars": hcl,
		}); err != nil {
			return err
		}
		if err := shell(ctx, cts, "terraform init -input=false -no-color && "+apply); err != nil {
			return err
		}
		theirs, err := measured(func() error { return shell(ctx, cts, apply) })
		if err != nil {
			return err
		}
		row(fmt.Sprintf("a run with %d instances, variable of the module: %s; other: the root module of CTS", b.services, name),
			"<= 0.4", ours, theirs)
	}
	few, _ := instances(1)
	var ours, theirs cost
	for first := 0; first < b.tasks; first += batch { // by turns, since other programs may use the machine
		more, err := measured(func() error {
			return b.each(first, func(name string) error { return b.drive(ctx, d, b.work(name, module), few) })
		})
		if err != nil {
			return err
		}
		ours = ours.plus(more)
		// The script begins with the generated files only.
		if err := b.each(first, b.removeRun); err != nil {
			return err
		}
		more, err = measured(func() error {
			return b.each(first, func(name string) error {
				return shell(ctx, filepath.Join(b.dir, name),
					"terraform init -input=false -no-color && (terraform workspace select "+name+
						" || terraform workspace new "+name+") && "+apply)
			})
		})
		if err != nil {
			return err
		}
		theirs = theirs.plus(more)
	}
	row(fmt.Sprintf("%d new tasks, two at a time; other: the same commands in a script", b.tasks), "<= 1.2", ours, theirs)
	return nil
}

// batch is the number of new tasks of one measurement.
const batch = 10

// each calls f for the tasks of a batch, two at a time.
func (b *bench) each(first int, f func(name string) error) error {
	var g errgroup.Group
	g.SetLimit(2)
	for i := first; i < min(first+batch, b.tasks); i++ {
		g.Go(func() error { return f(fmt.Sprintf("task%d", i)) })
	}
	return g.Wait()
}

// removeRun removes what the run of a task has left.
func (b *bench) removeRun(name string) error {
	for _, file := range []string{".terraform", ".terraform.lock.hcl", "terraform.tfstate.d", "terraform.tfstate", "init.digest"} {
		if err := os.RemoveAll(filepath.Join(b.dir, name, file)); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) work(name, module string) *driver.Work {
	return &driver.Work{Name: name, Dir: filepath.Join(b.dir, name), Backend: driver.Backend{Type: "local"},
		Task: &pb.Task{Terraform: &pb.TerraformDriver{Module: module}}}
}

func (b *bench) drive(ctx context.Context, d *terraform.Driver, w *driver.Work, services []byte) error {
	_, err := d.Run(ctx, w, driver.Request{ID: w.Name + time.Now().Format("150405.000000"), Mode: driver.Apply,
		Inputs: input.Set{"services": services}})
	return err
}

// shell runs commands in a directory.
func shell(ctx context.Context, dir, script string) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CHECKPOINT_DISABLE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return nil
}

// writeFiles writes files into a new directory.
func writeFiles(dir string, files map[string]string) error {
	err := os.MkdirAll(dir, 0o700)
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return err
}

// instances returns n instances of a service as JSON, and as terraform.tfvars.
func instances(n int) ([]byte, string) {
	all := make(map[string]any, n)
	var hcl strings.Builder
	hcl.WriteString("services = {\n")
	for i := range n {
		node, address := fmt.Sprintf("node%d", i), fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
		fields := map[string]any{
			"id": "web", "name": "web", "kind": "", "address": address, "port": 80, "meta": map[string]string{"version": "1"},
			"tags": []string{"a", "b"}, "namespace": "", "status": "passing", "node": node, "node_id": "", "node_address": address,
			"node_datacenter": "dc1", "node_tagged_addresses": map[string]string{"lan": address, "wan": address},
			"node_meta": map[string]string{}, "cts_user_defined_meta": map[string]string{},
		}
		key := "web." + node + ".dc1"
		all[key] = fields
		fmt.Fprintf(&hcl, "  %q = {\n", key)
		for name, v := range fields {
			text, _ := json.Marshal(v) // it is also HCL
			fmt.Fprintf(&hcl, "    %s = %s\n", name, text)
		}
		hcl.WriteString("  }\n")
	}
	hcl.WriteString("}\n")
	b, _ := json.Marshal(all) // strings, numbers, maps and lists can be encoded
	return b, hcl.String()
}
