// SPDX-License-Identifier: MPL-2.0

package exec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/input"
	"github.com/wanfed/wanfed/automation/process"
	"github.com/wanfed/wanfed/automation/task"
)

// Driver runs commands. The zero value is ready for use.
type Driver struct{}

var _ driver.Driver = Driver{}

// shell runs the commands, and stores their exit status.
const shell = "/bin/sh"

// script runs the program "$@", and writes the label and the exit status to the
// file $0. The traps keep the shell alive when its group is interrupted. A trap
// with a command is reset in the program.
const script = `label=$1; shift; trap : INT TERM HUP; "$@"; s=$?; echo "$label $s" >"$0"; exit $s`

const (
	inputsName = "inputs.json"
	exitName   = "run.exit"
)

// Version returns "exec".
func (Driver) Version(context.Context) (string, error) {
	if _, err := exec.LookPath(shell); err != nil {
		return "", fmt.Errorf("driver exec: %w", err)
	}
	return "exec", nil
}

var isVariable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`).MatchString

// Check checks that the programs exist, and the names of the environment.
func (d Driver) Check(ctx context.Context, w *driver.Work) error {
	if _, err := d.Version(ctx); err != nil {
		return err
	}
	e := w.Task.GetExec()
	for _, args := range [][]string{e.GetCommand(), e.GetPlan(), e.GetDestroy()} {
		if len(args) > 0 {
			if _, err := find(args[0]); err != nil {
				return err
			}
		}
	}
	for name := range e.GetEnv() {
		if !isVariable(name) { // the shell does not pass it on
			return fmt.Errorf("exec.env: %q is not a name of an environment variable", name)
		}
	}
	return nil
}

// find returns the absolute path of a program.
func find(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return "", err
	}
	return filepath.Abs(path)
}

// run is one call of Driver.Run.
type run struct {
	*driver.Work
	driver.Request
	log      *os.File
	deadline time.Time
}

// Run implements driver.Driver.
func (Driver) Run(ctx context.Context, w *driver.Work, r driver.Request) (res driver.Result, err error) {
	log, err := process.OpenLog(w.Dir)
	if err != nil {
		return res, err
	}
	defer log.Close()
	c := &run{w, r, log, time.Now().Add(task.Timeout(w.Task))}
	if err = writeInputs(w.Dir, r.Inputs); err == nil {
		res, err = c.run(ctx)
	}
	b, _ := process.Log(w.Dir, 2*task.MaxLog)
	res.Log = process.Shorten(b)
	if r.Mode == driver.Plan {
		res.Plan = res.Log
	}
	return res, err
}

// writeInputs writes the inputs for the standard input of the programs. The file
// need not survive a power loss.
func writeInputs(dir string, in input.Set) error {
	if in == nil {
		in = input.Set{}
	}
	b, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("inputs: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, inputsName), b, 0o600)
}

// run runs the programs of the mode.
func (c *run) run(ctx context.Context) (res driver.Result, err error) {
	e := c.Task.GetExec()
	switch {
	case c.Mode == driver.Destroy:
		return res, c.program(ctx, "destroy", e.GetDestroy())
	case c.Mode == driver.Plan || c.Guard != nil && len(e.GetPlan()) > 0:
		if res.Changes, err = c.plan(ctx, e.GetPlan()); err != nil || c.Mode == driver.Plan {
			return res, err
		}
	}
	if c.Guard != nil {
		if err := c.Guard(res.Changes); err != nil {
			return res, err
		}
	}
	return res, c.program(ctx, "command", e.GetCommand())
}

// plan runs the plan command. The number of changes is 1 if there are any.
func (c *run) plan(ctx context.Context, args []string) (driver.Changes, error) {
	err := c.program(ctx, "plan", args)
	if s, ok := errors.AsType[*statusError](err); ok && s.status == 2 {
		return driver.Changes{Change: 1}, nil
	}
	return driver.Changes{}, err
}

// statusError is the error of a program with an exit status other than 0.
type statusError struct {
	step   string
	status int
	line   string // the last line of the output
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("exec.%s: exit status %d", e.step, e.status)
	if e.line != "" {
		text += ": " + e.line
	}
	return text
}

// program runs one program.
func (c *run) program(ctx context.Context, step string, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("exec.%s is not set", step)
	}
	path, err := find(args[0])
	if err != nil {
		return err
	}
	inputs := filepath.Join(c.Dir, inputsName)
	status, err := process.Program{
		ID: c.ID, Step: step, Dir: c.Dir, Stdin: inputs, Stdout: c.log, Stderr: c.log,
		Args: append([]string{shell, "-c", script, filepath.Join(c.Dir, exitName), step + " " + c.ID, path}, args[1:]...),
		Env: process.Environ(nil, c.Env, c.Task.GetExec().GetEnv(),
			map[string]string{"WANFED_INPUTS": inputs}),
		Timeout: time.Until(c.deadline), Grace: task.Grace(c.Task),
	}.Run(ctx)
	if err == nil && status != 0 {
		err = failure(c.Dir, step, status)
	}
	return err
}

// failure returns the error of a program that ended with a status.
func failure(dir, step string, status int) error {
	b, _ := process.Log(dir, task.MaxLog)
	return &statusError{step, status, process.LastLine(b)}
}

// Recover implements driver.Driver.
func (Driver) Recover(ctx context.Context, w *driver.Work) (*driver.Recovered, error) {
	rec, err := process.Find(w.Dir)
	if rec == nil || err != nil {
		return nil, err
	}
	out := &driver.Recovered{ID: rec.ID}
	out.Err = rec.Wait(ctx)
	log, ended := process.Log(w.Dir, 2*task.MaxLog)
	out.Result.Log, out.Ended = process.Shorten(log), ended
	if out.Err != nil {
		return out, nil
	}
	out.Err = driver.ErrLost
	b, err := os.ReadFile(filepath.Join(w.Dir, exitName))
	text, ok := strings.CutPrefix(strings.TrimSpace(string(b)), rec.Step+" "+rec.ID+" ")
	status, numErr := strconv.Atoi(text)
	switch {
	case err != nil || !ok || numErr != nil || rec.Step == "plan":
	case status == 0:
		out.Err = nil
	default:
		out.Err = failure(w.Dir, rec.Step, status)
	}
	if info, err := os.Stat(filepath.Join(w.Dir, exitName)); err == nil && ok {
		out.Ended = info.ModTime()
	}
	return out, nil
}

// Digest returns "". A changed program alone starts no run.
func (Driver) Digest(context.Context, *driver.Work) (string, error) { return "", nil }
