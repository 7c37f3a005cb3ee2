// SPDX-License-Identifier: MPL-2.0

package task

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/lease"
	"github.com/wanfed/wanfed/resource"
)

// The resource types of the sync daemon.
var (
	Type         = &pb.Type{Group: "sync", GroupVersion: "v1", Kind: "Task"}
	RunType      = &pb.Type{Group: "sync", GroupVersion: "v1", Kind: "Run"}
	StateType    = &pb.Type{Group: "sync", GroupVersion: "v1", Kind: "State"}
	ChunkType    = &pb.Type{Group: "sync", GroupVersion: "v1", Kind: "Chunk"}
	InstanceType = &pb.Type{Group: "sync", GroupVersion: "v1", Kind: "Instance"}
)

const (
	// MaxNameLen is the maximum length of the name of a task, in bytes.
	MaxNameLen = 128
	// MaxRuns is the number of runs of a task that are kept.
	MaxRuns = 50
	// MaxVersions is the number of versions of a state that are kept.
	MaxVersions = 20
	// MaxChunk bounds the content of a chunk, in bytes.
	MaxChunk = 1 << 20
	// MaxLog bounds the log and the plan of a run, in bytes each.
	MaxLog = 64 << 10
	// MaxQueries bounds the conditions and the inputs of a task together.
	MaxQueries = 64

	// MaxLease is the longest duration of the leases of a daemon.
	MaxLease = time.Hour

	// DefaultGroup is the group of tasks and daemons without one.
	DefaultGroup = "default"
	// DefaultTimeout and DefaultGrace are those of a task without its own.
	DefaultTimeout = time.Hour
	DefaultGrace   = 30 * time.Second

	// Finalizer delays the deletion of a task until a daemon has kept or
	// destroyed its infrastructure.
	Finalizer = "sync/infrastructure"
	// StatusKey is the key of the status that daemons write to a task.
	StatusKey = "sync"
	// RequestKey is the metadata key by which an operator requests a run. The
	// value is "ULID MODE": the id of the run, and plan, apply or destroy.
	RequestKey = "sync-request"
)

// Values of Task.driver.
const (
	DriverTerraform = "terraform"
	DriverExec      = "exec"
)

// Values of Task.origin.
const (
	OriginFile = "file"
	OriginAPI  = "api"
)

// Values of Task.on_delete.
const (
	Keep    = "keep"
	Destroy = "destroy"
)

// Values of TaskRun.result.
const (
	Running     = "running"
	Succeeded   = "succeeded"
	Failed      = "failed"
	Refused     = "refused"
	TimedOut    = "timed-out"
	Interrupted = "interrupted"
	Lost        = "lost"
)

// Register adds the types to a registry.
func Register(g *resource.Registry) error {
	for _, reg := range []resource.Registration{
		{Type: Type, Message: &pb.Task{}, Mutate: mutate, Validate: validate, CheckName: CheckName},
		{Type: RunType, Message: &pb.TaskRun{}, CheckName: CheckPartName,
			Validate: resource.ValidateData(checkRun)},
		{Type: StateType, Message: &pb.TaskState{}, CheckName: CheckName,
			Validate: resource.ValidateData(checkState)},
		{Type: ChunkType, Message: &pb.TaskStateChunk{}, CheckName: CheckPartName,
			Validate: resource.ValidateData(checkChunk)},
		{Type: InstanceType, Message: &pb.SyncInstance{}},
	} {
		if err := g.Register(reg); err != nil {
			return err
		}
	}
	return nil
}

var isName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`).MatchString

// CheckName returns an ErrInvalid unless name is a valid name of a task.
func CheckName(name string) error {
	if len(name) > MaxNameLen || !isName(name) {
		return fmt.Errorf("%w name %.140q: a task name must start with a letter or underscore, may contain letters, digits, "+
			"underscores and dashes, and has at most %d bytes", resource.ErrInvalid, name, MaxNameLen)
	}
	return nil
}

var isSuffix = regexp.MustCompile(`^[A-Za-z0-9]{1,64}$`).MatchString

// CheckPartName returns an ErrInvalid unless name is a valid name of a run or a
// chunk: TASK.SUFFIX.
func CheckPartName(name string) error {
	task, suffix, ok := strings.Cut(name, ".")
	if !ok || !isSuffix(suffix) {
		return fmt.Errorf("%w name %.200q: must be TASK.SUFFIX", resource.ErrInvalid, name)
	}
	return CheckName(task)
}

// Timeout returns the time after which a run of t is interrupted.
func Timeout(t *pb.Task) time.Duration { return cmp.Or(t.GetTimeout().AsDuration(), DefaultTimeout) }

// Grace returns the time from the interruption of a run of t to its SIGKILL.
func Grace(t *pb.Task) time.Duration { return cmp.Or(t.GetGrace().AsDuration(), DefaultGrace) }

// ID returns the id of a task.
func ID(name string) *pb.ID { return resource.ID(Type, name) }

// StateID returns the id of the state of a task.
func StateID(name string) *pb.ID { return resource.ID(StateType, name) }

// LeaseName returns the name of the lease of a task. Names of leases have no
// upper-case letters, so a task with any has the hash of its name.
func LeaseName(task string) string { return leaseName("task.", task) }

// InstanceLeaseName returns the name of the lease that the daemon with the id
// holds while it runs.
func InstanceLeaseName(id string) string { return leaseName("instance.", id) }

func leaseName(kind, name string) string {
	if strings.ToLower(name) != name {
		name = fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(name)))
	}
	return lease.SyncPrefix + kind + name
}

// mutate sets the defaults of a task, and the Finalizer unless the task is being
// deleted.
func mutate(r *pb.Resource) error {
	t, err := resource.Decode[*pb.Task](r)
	if err != nil {
		return err
	}
	SetDefaults(t)
	if _, deleting := resource.Terminating(r); !deleting && !slices.Contains(resource.Finalizers(r), Finalizer) {
		m := maps.Clone(r.GetMetadata())
		if m == nil {
			m = make(map[string]string)
		}
		m[resource.FinalizersKey] = strings.Join(append(resource.Finalizers(r), Finalizer), " ")
		r.Metadata = m
	}
	r.Data, err = anypb.New(t)
	return err
}

func validate(r *pb.Resource) error {
	t, err := resource.Decode[*pb.Task](r)
	if err != nil {
		return err
	}
	return Check(t)
}
