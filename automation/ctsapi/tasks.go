// SPDX-License-Identifier: MPL-2.0

package ctsapi

import (
	"context"

	"github.com/wanfed/wanfed/api/pb"
)

// Tasks has the tasks of a sync daemon. Its methods may be called from any
// goroutine. They return resource.ErrNotFound if the task does not exist, and
// resource.ErrInvalid or a *task.FieldError for an invalid request. Other errors
// have the status 500.
type Tasks interface {
	// List returns all tasks, sorted by name.
	List(ctx context.Context) ([]Task, error)
	// Get returns a task.
	Get(ctx context.Context, name string) (Task, error)
	// Create stores a task that package task has checked. It returns
	// resource.ErrConflict if the task exists. With Inspect it stores nothing,
	// and returns the plan. With Now it waits for the first run, and stores
	// nothing if the run fails. A run goes on when ctx ends.
	Create(ctx context.Context, t Task, run Run) (*Plan, error)
	// SetEnabled enables or disables a task, or with Inspect returns the plan of
	// the enabled task. With Now it waits for a run.
	SetEnabled(ctx context.Context, name string, enabled bool, run Run) (*Plan, error)
	// Delete deletes a task, and keeps its infrastructure and its state. It does
	// not wait for a run of the task.
	Delete(ctx context.Context, name string) error
	// Runs returns the newest runs of a task, newest first. It returns at least
	// MaxEvents ended runs that changed the infrastructure, or all.
	Runs(ctx context.Context, name string) ([]TaskRun, error)
	// Cluster returns the daemons of the group. Nil: the daemon has no cluster.
	Cluster(ctx context.Context) (*Cluster, error)
}

// MaxEvents is the number of runs that determine the status of a task.
const MaxEvents = 5

// Task is a task with its name.
type Task struct {
	Name string
	Task *pb.Task
}

// TaskRun is a run with its id.
type TaskRun struct {
	ID  string
	Run *pb.TaskRun
}

// Run is the parameter run of a request.
type Run string

// The values of Run.
const (
	None    Run = ""
	Inspect Run = "inspect"
	Now     Run = "now"
)

// Plan is the result of Inspect.
type Plan struct {
	ChangesPresent bool `json:"changes_present"`
	// Text is the plan in the text form of the driver.
	Text string `json:"plan"`
}

// Cluster has the daemons of a group.
type Cluster struct {
	Name    string   `json:"cluster_name"`
	Members []Member `json:"members"`
}

// Member is a daemon.
type Member struct {
	ID          string `json:"id"`
	ServiceName string `json:"service_name"`
	Healthy     bool   `json:"healthy"`
	// Leader is the daemon that clients of CTS send changes to. In wanfed, each
	// daemon accepts them.
	Leader bool `json:"leader"`
	// Address is HOST:PORT of the HTTP API. Empty: unknown.
	Address string `json:"address,omitempty"`
}
