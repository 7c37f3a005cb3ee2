// SPDX-License-Identifier: MPL-2.0

package syncd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/config"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/resource"
)

// writeTasks writes the tasks of the files as resources, and retries until ctx
// ends. Several daemons with equal files write equal resources.
func (p *process) writeTasks(ctx context.Context, c pb.ResourceServiceClient, files *config.Config) error {
	var errs []error
	for _, t := range files.Tasks {
		for pause := (backoff.Backoff{Min: 50 * time.Millisecond, Max: 2 * time.Second}); ctx.Err() == nil; {
			err := writeTask(ctx, c, t, files.Group)
			if err == nil {
				break
			}
			if errors.Is(err, resource.ErrInvalid) || errors.Is(err, resource.ErrDenied) ||
				errors.Is(err, errOtherOrigin) || errors.Is(err, errOtherGroup) {
				errs = append(errs, fmt.Errorf("%s: task %s: %w", t.Pos, t.Name, err))
				break
			}
			p.log.Warn("cannot write a task", "task", t.Name, "err", err)
			backoff.Sleep(ctx, pause.Next(), nil)
		}
	}
	return settings.Join(errs...)
}

var errOtherOrigin = errors.New("a task of this name was created by a request: delete it, or rename the task in the file")

var errOtherGroup = errors.New("a task of another group has this name")

// writeTask writes a task unless the stored one is equal. The file decides
// whether a new task is enabled. Later, operators enable and disable the task.
// Only a daemon of the group that has a task may move it to another group.
func writeTask(ctx context.Context, c pb.ResourceServiceClient, t config.Task, group string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	want := proto.CloneOf(t.Task)
	if want.Group == task.DefaultGroup && group != "" {
		want.Group = group
	}
	id := task.ID(t.Name)
	resp, err := c.Read(resource.WithConsistency(ctx, resource.Strong), &pb.ReadRequest{Id: id})
	stored := resp.GetResource()
	switch err = resource.FromStatus(err); {
	case errors.Is(err, resource.ErrNotFound):
		stored = &pb.Resource{Id: id, Version: resource.NewVersion}
	case err != nil:
		return err
	default:
		now, err := resource.Decode[*pb.Task](stored)
		if err != nil {
			return err
		}
		if now.Origin != task.OriginFile {
			return errOtherOrigin
		}
		if own := cmp.Or(group, task.DefaultGroup); now.Group != own && now.Group != want.Group {
			return fmt.Errorf("%w: it belongs to the daemons of the group %q: rename the task in the file, or move it to the "+
				"group %q: set group = %[3]q for the task in the files of the daemons of the group %[2]q",
				errOtherGroup, now.Group, want.Group)
		}
		want.Enabled, want.OnDelete = now.Enabled, now.OnDelete
		if _, deleting := resource.Terminating(stored); deleting || proto.Equal(now, want) {
			return nil
		}
	}
	next := &pb.Resource{Id: stored.Id, Version: stored.Version, Metadata: stored.Metadata}
	if next.Data, err = anypb.New(want); err != nil {
		return err
	}
	_, err = c.Write(ctx, &pb.WriteRequest{Resource: next})
	return resource.FromStatus(err)
}
