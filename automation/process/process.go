// SPDX-License-Identifier: MPL-2.0

package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/wanfed/wanfed/internal/atomicfile"
)

// Program is one program of a run.
type Program struct {
	// ID is the id of the run. The program and its descendants have it in the
	// environment variable RunVariable. It is unique.
	ID string
	// Step is the name of the program within the run, for the record.
	Step string
	// Args has the absolute path of the program and its arguments.
	Args []string
	// Dir is the directory of the task. It is the working directory of the
	// program, and has the record.
	Dir string
	// Env is the environment, as in Environ. Nothing else is inherited.
	Env []string
	// Stdin is the path of the file with the input. Empty: no input.
	Stdin string
	// Stdout and Stderr are open files. They are not pipes, so that the program
	// can write when its parent has ended.
	Stdout, Stderr *os.File
	// Files are further open files, from descriptor 3 on.
	Files []*os.File
	// Timeout is the time from the start to the interruption.
	Timeout time.Duration
	// Grace is the time from the interruption to SIGKILL.
	Grace time.Duration
}

// RunVariable is the environment variable with the id of the run.
const RunVariable = "WANFED_RUN_ID"

const (
	// killTime limits the time from SIGKILL to the end of Run and Wait.
	killTime = 2 * time.Second
	// guardDelay is the time for which a Guard lets the daemon interrupt a
	// program whose time is over.
	guardDelay = time.Second
)

// StopTime returns the time from the end of the time of a run until none of its
// processes is left, also if a Guard has to end them.
func StopTime(grace time.Duration) time.Duration { return guardDelay + 3*killTime + grace }

// Files in the directory of a task.
const (
	recordName = "run.json"
	// endedName has Record.start of the last program that ended with its daemon.
	endedName = "run.ended"
	// interruptedName exists if the program was interrupted. A second SIGINT
	// would make Terraform end without its state.
	interruptedName = "run.interrupted"
)

// Record describes a program that was started.
type Record struct {
	ID      string    `json:"run"`
	Step    string    `json:"step"`
	Started time.Time `json:"started"`
	// Timeout and Grace are those of the Program.
	Timeout time.Duration `json:"timeout_ns"`
	Grace   time.Duration `json:"grace_ns"`
	// PID is the process id. 0: the daemon ended before it knew the id.
	PID int `json:"pid,omitempty"`
	// Ticks is the start of the process since the boot of the system.
	Ticks uint64 `json:"start_ticks,omitempty"`
	// Boot identifies the boot.
	Boot string `json:"boot"`

	dir   string
	ended bool // no process of the program is left
}

// start identifies one start of a program.
func (r *Record) start() string { return fmt.Sprintf("%s %s %d", r.ID, r.Step, r.Started.UnixNano()) }

// Find returns the record of the last program in dir, or nil if there is none.
func Find(dir string) (*Record, error) {
	b, err := os.ReadFile(filepath.Join(dir, recordName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, recordName), err)
	}
	ended, err := os.ReadFile(filepath.Join(dir, endedName))
	r.dir, r.ended = dir, err == nil && string(ended) == r.start()
	return &r, nil
}

// write stores the record.
func (r *Record) write() error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.WriteFile(filepath.Join(r.dir, recordName), b, 0o600)
}

// firstInterrupt reports whether no process has interrupted the program yet.
func (r *Record) firstInterrupt() bool {
	f, err := os.OpenFile(filepath.Join(r.dir, interruptedName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		err = f.Close()
	}
	return !errors.Is(err, os.ErrExist)
}
