// SPDX-License-Identifier: MPL-2.0

package state

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// LockedError reports that another command or run has locked the state.
type LockedError struct {
	Task string
	Lock *pb.TaskStateLock
}

func (e *LockedError) Error() string {
	l := e.Lock
	holder := "a command of " + l.Who
	if l.Run != "" {
		holder = "run " + l.Run
	}
	return fmt.Sprintf("the state of task %s is locked by %s since %s (%s, lock %s): wait for its end, or if it has died: "+
		"wanfed task state unlock %s %s", e.Task, holder, l.CreatedAt.AsTime().Format(time.RFC3339), l.Operation, l.Id, e.Task, l.Id)
}

// checkLock returns a *LockedError if st has a lock that excludes a run of c. A
// daemon executes one run of a task at a time, so the lock of another run is
// that of a run which has ended, or which cannot change the state any more.
func (c Claim) checkLock(st *pb.TaskState, run string) error {
	if l := st.Lock; l != nil && (c.Epoch == 0 || l.Run == "" || l.Run == run) {
		return &LockedError{Task: c.Task, Lock: l}
	}
	return nil
}

// Lock locks the state. The error is a *LockedError if another lock excludes l. A
// daemon replaces the lock of another run, which has ended.
func (s *Store) Lock(ctx context.Context, c Claim, l *pb.TaskStateLock) error {
	_, err := s.Update(ctx, c, func(st *pb.TaskState) error {
		if st.Lock.GetId() != l.Id { // otherwise an earlier attempt has set it
			if err := c.checkLock(st, l.Run); err != nil {
				return err
			}
		}
		st.Lock = proto.CloneOf(l)
		return nil
	})
	return err
}

// Unlock releases the lock with the id. It succeeds if the state is not locked.
// The error is a *LockedError if the state has another lock.
func (s *Store) Unlock(ctx context.Context, c Claim, id string) error {
	_, err := s.Update(ctx, c, func(st *pb.TaskState) error {
		if st.Lock != nil && st.Lock.Id != id {
			return &LockedError{Task: c.Task, Lock: st.Lock}
		}
		st.Lock = nil
		return nil
	})
	return err
}

// unlockRun releases the lock of a run, if there is one.
func (s *Store) unlockRun(ctx context.Context, c Claim, run string) error {
	_, err := s.Update(ctx, c, func(st *pb.TaskState) error {
		if st.Lock.GetRun() == run {
			st.Lock = nil
		}
		return nil
	})
	return err
}
