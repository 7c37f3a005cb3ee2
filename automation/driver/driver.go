// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/input"
)

// Driver executes runs of tasks. Its methods may be called from any goroutine,
// for different tasks at the same time. For one task, Run and Recover are not
// called concurrently. Their errors do not name the task: the caller does.
type Driver interface {
	// Version returns the name and version of the program that executes the
	// runs, or an error if this machine does not have it.
	Version(ctx context.Context) (string, error)
	// Check returns the reason why this machine cannot run the task: program,
	// module or provider missing, or invalid. It changes nothing outside of the
	// cache of the driver.
	Check(ctx context.Context, w *Work) error
	// Digest returns the digest of what a run depends on besides the task, its
	// inputs and its providers, for example the content of a local module. A
	// changed digest starts a run. Digest is called often.
	Digest(ctx context.Context, w *Work) (string, error)
	// Run executes one run and blocks until all its processes have ended. When
	// ctx ends, or after the timeout, Run interrupts them, and kills them after
	// the grace period of the task. The errors are ErrTimedOut, ErrInterrupted, an
	// error of Request.Guard, or the failure of the program. The Result is valid
	// with an error too.
	Run(ctx context.Context, w *Work, r Request) (Result, error)
	// Recover returns the result of a run that an earlier process of the daemon
	// started and did not finish. If the program still runs, Recover waits for
	// it, with the timeouts of Run. It returns nil if there was no such run. It
	// also returns the last run that finished: the caller compares the ids. If
	// ctx ends first, the program is interrupted.
	Recover(ctx context.Context, w *Work) (*Recovered, error)
}

// Errors of Run and Recover.
var (
	ErrTimedOut    = errors.New("the run exceeded its timeout")
	ErrInterrupted = errors.New("the run was interrupted")
	// ErrLost is the error of a recovered run whose result is not known.
	ErrLost = errors.New("the result of the run is not known: the daemon ended before the run")
)

// Mode is what a run does.
type Mode string

// The modes.
const (
	Plan    Mode = "plan" // changes nothing
	Apply   Mode = "apply"
	Destroy Mode = "destroy"
)

// Work is a task with what the daemon adds to it.
type Work struct {
	// Name is the name of the task.
	Name string
	Task *pb.Task
	// Dir is the absolute path of the directory of the task. The driver creates it
	// with mode 0700.
	Dir string
	// Providers has the provider blocks that the task lists, in its order.
	Providers []Provider
	// Required has the source and version of each provider, by name.
	Required map[string]RequiredProvider
	// Env has additional environment variables of all programs.
	Env map[string]string
	// Backend is where Terraform stores its state.
	Backend Backend
}

// Provider is a configured provider. Its values may be secrets.
type Provider struct {
	Name, Alias string
	// Body has the arguments and nested blocks.
	Body []Item
	// Env has environment variables of the provider.
	Env map[string]string
}

// Item is an argument or a nested block of a provider block.
type Item struct {
	Name string
	// Labels are the labels of a nested block.
	Labels []string
	// Value is the JSON value of an argument. Nil for a nested block.
	Value json.RawMessage
	// Body is the body of a nested block.
	Body []Item
}

// RequiredProvider is an element of required_providers.
type RequiredProvider struct{ Source, Version string }

// Backend is the backend of Terraform's state.
type Backend struct {
	// Type is the type of a backend block. "http": the backend of the daemon,
	// which is configured by Env alone.
	Type string
	// Body has the arguments of the block.
	Body []Item
	// Env has environment variables of Terraform. They may be secrets.
	Env map[string]string
}

// Request describes a run.
type Request struct {
	// ID is the id of the run: a ULID.
	ID   string
	Mode Mode
	// Inputs are the values of the variables of the task.
	Inputs input.Set
	// Guard decides about the changes of a plan before they are applied. A run
	// with an error of Guard changes nothing. Nil: apply without a plan.
	Guard func(Changes) error
}

// Changes counts the resources that a run adds, changes and destroys, and those
// in the state before the run.
type Changes struct{ Add, Change, Destroy, Total int }

// Result is the outcome of a run.
type Result struct {
	Changes Changes
	// Plan is the plan in the text form of the program, for a run with a plan.
	// The driver shortens it to task.MaxLog bytes.
	Plan string
	// Log has the last task.MaxLog bytes of the output.
	Log string
}

// Recovered is the outcome of a run that another process started.
type Recovered struct {
	// ID is the id of the run.
	ID     string
	Result Result
	// Err is the failure of the run. Nil: it succeeded.
	Err error
	// State is the state that the program could not store, also in a run of this
	// process that failed. Nil: none. The daemon stores it before the next run, and
	// removes its file.
	State []byte
	// StatePath is the file of State.
	StatePath string
	// Ended is the time at which the program ended, if it is known.
	Ended time.Time
}
