// SPDX-License-Identifier: MPL-2.0

package state

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
)

// ErrReplaced: another daemon has claimed the task. The error names it.
var ErrReplaced = errors.New("the claim was taken over")

const (
	// RetryTime is the longest time for which a Store retries a request that
	// no server can process at the moment.
	RetryTime = time.Minute
	// callTimeout bounds one call of a server.
	callTimeout = 10 * time.Second
	// minPause and maxPause bound the pause between two attempts.
	minPause = 20 * time.Millisecond
	maxPause = time.Second
)

// Claim is the right to change the state of a task.
type Claim struct {
	// Task is the name of the task.
	Task string
	// Instance is the id of the daemon.
	Instance string
	// Epoch is the fencing token of the daemon's lease of the task. 0 is an
	// operator's command: it changes the state whichever daemon has claimed the
	// task, and does not change the claim.
	Epoch uint64
}

// check returns an ErrReplaced if st has a later claim.
func (c Claim) check(st *pb.TaskState) error {
	if c.Epoch == 0 || st.Epoch < c.Epoch || st.Epoch == c.Epoch && st.Instance == c.Instance {
		return nil
	}
	return fmt.Errorf("%w: daemon %s has the task now, with epoch %d, and this is daemon %s with epoch %d",
		ErrReplaced, st.Instance, st.Epoch, c.Instance, c.Epoch)
}

// StoreConfig configures a Store.
type StoreConfig struct {
	// Client calls a server. Required.
	Client pb.ResourceServiceClient
	// KeyFile is the path of the key file: see ReadKeys. The Store reads it for
	// each version of a state that it stores or returns. Default: none, and the
	// Store does not process versions.
	KeyFile string
}

// Store reads and changes the states of tasks. Its methods may be called from
// any goroutine. Their errors are those of package resource, and those that they
// document.
type Store struct{ cfg StoreConfig }

// NewStore returns a Store.
func NewStore(cfg StoreConfig) (*Store, error) {
	if cfg.Client == nil {
		return nil, errors.New("state: Client of StoreConfig is required")
	}
	return &Store{cfg}, nil
}

// Read returns the state of a task. The error is resource.ErrNotFound if no
// daemon has ever claimed the task. The caller may change the result.
func (s *Store) Read(ctx context.Context, name string) (st *pb.TaskState, err error) {
	err = retry(ctx, func() error {
		_, st, err = s.load(ctx, name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read state of task %s: %w", name, err)
	}
	return st, nil
}

// Claim writes the claim into the state, and returns the state. The first claim
// of a task creates the state. The error is ErrReplaced if the state has a later
// claim.
func (s *Store) Claim(ctx context.Context, c Claim) (*pb.TaskState, error) {
	return s.Update(ctx, c, func(*pb.TaskState) error { return nil })
}

// Update changes the state of the task, and returns the new state. The error is
// ErrReplaced if the state has a later claim. It is an error of change itself
// if change returns one, and nothing is written then.
//
// Update calls change once for each attempt, with the state at that time. The
// state may be one that an earlier attempt has written without receiving the
// response, so change must have the same result for it. Update writes nothing
// if change changes nothing.
func (s *Store) Update(ctx context.Context, c Claim, change func(*pb.TaskState) error) (next *pb.TaskState, err error) {
	err = retry(ctx, func() error {
		next, err = s.update(ctx, c, change)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("change state of task %s: %w", c.Task, err)
	}
	return next, nil
}

// update makes one attempt of Update.
func (s *Store) update(ctx context.Context, c Claim, change func(*pb.TaskState) error) (*pb.TaskState, error) {
	r, st, err := s.load(ctx, c.Task)
	if errors.Is(err, resource.ErrNotFound) {
		r, st, err = &pb.Resource{Id: task.StateID(c.Task), Version: resource.NewVersion}, &pb.TaskState{}, nil
	}
	if err == nil {
		err = c.check(st)
	}
	if err != nil {
		return nil, err
	}
	next := proto.CloneOf(st)
	if c.Epoch != 0 {
		next.Instance, next.Epoch = c.Instance, c.Epoch
	}
	if err := change(next); err != nil {
		return nil, err
	}
	if r.Version != resource.NewVersion && proto.Equal(st, next) {
		return next, nil
	}
	r = proto.CloneOf(r)
	if r.Data, err = anypb.New(next); err != nil {
		return nil, err
	}
	return next, s.write(ctx, r)
}

func (s *Store) write(ctx context.Context, r *pb.Resource) error {
	_, err := call(ctx, s.cfg.Client.Write, &pb.WriteRequest{Resource: r})
	return err
}

// Delete deletes the state of a task, with all versions. It is idempotent. The
// error is ErrReplaced if the state has a later claim.
func (s *Store) Delete(ctx context.Context, c Claim) error {
	err := retry(ctx, func() error {
		r, st, err := s.load(ctx, c.Task)
		if errors.Is(err, resource.ErrNotFound) {
			return nil
		}
		if err == nil {
			err = c.check(st)
		}
		if err != nil {
			return err
		}
		_, err = call(ctx, s.cfg.Client.Delete, &pb.DeleteRequest{Id: r.Id, Version: r.Version})
		return err
	})
	if err != nil {
		return fmt.Errorf("delete state of task %s: %w", c.Task, err)
	}
	return nil
}

// load returns the stored resource of a state, which the caller must not
// change, and its data.
func (s *Store) load(ctx context.Context, name string) (*pb.Resource, *pb.TaskState, error) {
	ctx = resource.WithConsistency(ctx, resource.Strong)
	resp, err := call(ctx, s.cfg.Client.Read, &pb.ReadRequest{Id: task.StateID(name)})
	if err != nil {
		return nil, nil, err
	}
	st, err := resource.Decode[*pb.TaskState](resp.GetResource())
	return resp.GetResource(), st, err
}

// call calls a method of the client with a timeout.
func call[In, Out any](
	ctx context.Context, method func(context.Context, In, ...grpc.CallOption) (Out, error), in In,
) (Out, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := method(ctx, in)
	return out, resource.FromStatus(err)
}

// retry calls f until it succeeds, fails permanently, ctx ends, or RetryTime has
// passed. It returns the last error of f.
func retry(ctx context.Context, f func() error) error {
	end := time.Now().Add(RetryTime)
	for pause := (backoff.Backoff{Min: minPause, Max: maxPause}); ; {
		err := f()
		if err == nil || !isTemporary(err) {
			return err
		}
		backoff.Sleep(ctx, pause.Next(), nil)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%w; %w", context.Cause(ctx), err)
		case time.Now().After(end):
			return fmt.Errorf("no success within %v: %w", RetryTime, err)
		}
	}
}

// isTemporary reports whether the same request may succeed later: the resource
// has changed, the outcome is unknown, or no server can process it at the
// moment.
func isTemporary(err error) bool {
	switch {
	case errors.Is(err, resource.ErrConflict), errors.Is(err, resource.ErrUnknownOutcome), errors.Is(err, resource.ErrWatchReset):
		return true
	case errors.Is(err, resource.ErrTooLarge):
		return false
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted:
		return true
	}
	return false
}
