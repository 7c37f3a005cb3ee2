// SPDX-License-Identifier: MPL-2.0

package terraform

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/process"
	"github.com/wanfed/wanfed/automation/task"
)

// Steps of a run that change infrastructure. Others have the name of the command
// of Terraform.
const (
	stepApply   = "apply"
	stepDestroy = "destroy"
)

// erroredState is the file in which Terraform leaves a state that it could not
// store.
const erroredState = "errored.tfstate"

// fixed are environment variables of Terraform that nothing overrides.
var fixed = map[string]string{"CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1", "TF_INPUT": "0"}

// ofTerraform reports whether Terraform receives an environment variable of the
// daemon: its own ones, and those of Git and SSH for sources of modules.
// TF_DATA_DIR and TF_WORKSPACE are not for several tasks.
func ofTerraform(name string) bool {
	return name == "SSH_AUTH_SOCK" || strings.HasPrefix(name, "GIT_") ||
		strings.HasPrefix(name, "TF_") && name != "TF_DATA_DIR" && name != "TF_WORKSPACE"
}

// run is one call of Driver.Run.
type run struct {
	*driver.Work
	driver.Request
	bin      *binary
	root     *root
	env      []string
	log      *os.File
	deadline time.Time
	result   driver.Result
}

// Run implements driver.Driver.
func (d *Driver) Run(ctx context.Context, w *driver.Work, r driver.Request) (driver.Result, error) {
	c := &run{Work: w, Request: r, deadline: time.Now().Add(task.Timeout(w.Task))}
	err := c.open(ctx, d)
	if err == nil {
		defer c.log.Close()
		err = c.run(ctx, d)
		c.result.Log = process.Shorten(readOutput(w.Dir, 0).text)
	}
	return c.result, err
}

// open generates the files of the run.
func (c *run) open(ctx context.Context, d *Driver) (err error) {
	if c.bin, err = d.binaries.find(ctx, d.cfg.Path); err != nil {
		return err
	}
	if c.root, err = generate(c.Work, c.bin); err != nil {
		return err
	}
	env := []map[string]string{c.Env}
	for _, p := range c.Providers {
		env = append(env, p.Env)
	}
	c.env = process.Environ(ofTerraform, append(env, c.Backend.Env, c.root.env, fixed)...)
	if c.log, err = process.OpenLog(c.Dir); err != nil {
		return err
	}
	if err = c.write(); err != nil {
		return errors.Join(err, c.log.Close())
	}
	return nil
}

// run initializes the directory and executes the mode.
func (c *run) run(ctx context.Context, d *Driver) error {
	if err := c.init(ctx, d); err != nil {
		return err
	}
	if err := c.restoreState(ctx); err != nil {
		return err
	}
	return c.execute(ctx)
}

func (c *run) execute(ctx context.Context) error {
	args := []string{"-input=false", "-no-color"}
	if c.bin.has(hasJSON) {
		args = append(args, "-json")
	}
	if n := c.Task.GetTerraform().GetParallelism(); n > 0 {
		args = append(args, "-parallelism="+strconv.Itoa(int(n)))
	}
	step := stepApply
	if c.Mode == driver.Destroy {
		step = stepDestroy
	}
	if c.Mode != driver.Plan && c.Guard == nil {
		return c.change(ctx, step, nil, append([]string{step, "-auto-approve"}, args...))
	}
	// The plan contains the arguments of providers, so it is not on disk.
	plan, err := process.MemoryFile("plan")
	if err != nil {
		return err
	}
	defer plan.Close()
	planArgs := append([]string{"plan", "-out=" + inherited}, args...)
	if c.Mode == driver.Destroy {
		planArgs = append(planArgs, "-destroy")
	}
	if err := c.step(ctx, "plan", plan, c.log, planArgs...); err != nil {
		return err
	}
	if err := c.show(ctx, plan); err != nil || c.Mode == driver.Plan {
		return err
	}
	if err := c.Guard(c.result.Changes); err != nil {
		return err
	}
	return c.change(ctx, step, plan, append(append([]string{stepApply}, args...), inherited))
}

// change runs a step that changes infrastructure. It has succeeded if Terraform
// has completed it, also if it was interrupted at its end.
func (c *run) change(ctx context.Context, step string, plan *os.File, args []string) error {
	err := c.step(ctx, step, plan, c.log, args...)
	out := readOutput(c.Dir, 0)
	if out.complete {
		out.changes.Total = c.result.Changes.Total
		c.result.Changes = out.changes
	}
	if out.complete && (errors.Is(err, driver.ErrInterrupted) || errors.Is(err, driver.ErrTimedOut)) {
		return nil
	}
	return err
}

// show sets the plan and the changes of the result.
func (c *run) show(ctx context.Context, plan *os.File) error {
	text, err := c.capture(ctx, plan, "show", "-no-color", inherited)
	if err != nil {
		return err
	}
	c.result.Plan = process.Shorten(bytes.TrimLeft(text, "\n"))
	b, err := c.capture(ctx, plan, "show", "-json", inherited)
	if err != nil {
		return err
	}
	c.result.Changes, err = countChanges(b)
	return err
}

// capture runs a step and returns its standard output, which is not on disk.
func (c *run) capture(ctx context.Context, plan *os.File, args ...string) ([]byte, error) {
	out, err := process.MemoryFile("output")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	if err := c.step(ctx, args[0], plan, out, args...); err != nil {
		return nil, err
	}
	if _, err := out.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(out)
}

// inherited is the path of the plan for Terraform.
const inherited = "/dev/fd/3"

// step runs Terraform. plan is its descriptor 3, unless it is nil.
func (c *run) step(ctx context.Context, step string, plan, stdout *os.File, args ...string) error {
	info, err := c.log.Stat()
	if err != nil {
		return err
	}
	p := process.Program{
		ID: c.ID, Step: step, Args: append([]string{c.bin.path}, args...), Dir: c.Dir, Env: c.env,
		Stdout: stdout, Stderr: c.log, Timeout: time.Until(c.deadline), Grace: task.Grace(c.Task),
	}
	if plan != nil {
		p.Files = []*os.File{plan}
	}
	status, err := p.Run(ctx)
	if err != nil || status == 0 {
		return err
	}
	out := readOutput(c.Dir, info.Size())
	// Perhaps something is missing that init installs.
	return errors.Join(out.err(fmt.Sprintf("terraform %s: exit status %d", step, status)), remove(filepath.Join(c.Dir, digestFile)))
}

// restoreState removes the state that Terraform could not store in an earlier
// run. The daemon has stored it in its own backend. For another backend,
// restoreState stores it.
func (c *run) restoreState(ctx context.Context) error {
	path := filepath.Join(c.Dir, erroredState)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if c.Backend.Type != backendHTTP {
		if err := c.step(ctx, "state push", nil, c.log, "state", "push", erroredState); err != nil {
			return err
		}
	}
	return os.Remove(path)
}
