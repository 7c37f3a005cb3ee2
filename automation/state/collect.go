// SPDX-License-Identifier: MPL-2.0

package state

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/resource"
)

// Collect deletes the chunks of a task that no version has, and returns their
// number. Such chunks remain when a daemon dies while it stores a state. The
// daemon calls it after it has claimed a task. Collect reads all chunks of the
// task. The error is ErrReplaced if the state has a later claim.
//
// Collect does not harm a Put at the same time, without a clock: it writes the
// state after it has listed the chunks, and deletes a chunk only in the version
// that it has listed. A Put that had stored chunks before this write fails its
// compare-and-swap, and then stores all its chunks again, in a later version.
func (s *Store) Collect(ctx context.Context, c Claim) (count int, err error) {
	err = retry(ctx, func() error {
		count, err = s.collect(ctx, c)
		return err
	})
	if err != nil {
		return count, fmt.Errorf("collect chunks of task %s: %w", c.Task, err)
	}
	return count, nil
}

func (s *Store) collect(ctx context.Context, c Claim) (count int, err error) {
	unused, err := s.listChunks(ctx, c.Task)
	if err != nil {
		return 0, err
	}
	r, st, err := s.load(ctx, c.Task)
	if errors.Is(err, resource.ErrNotFound) {
		return 0, nil // the chunks are deleted with it
	}
	if err == nil {
		err = c.check(st)
	}
	if err != nil {
		return 0, err
	}
	for _, v := range st.Versions {
		for _, name := range v.Chunks {
			delete(unused, name)
		}
	}
	if len(unused) == 0 {
		return 0, nil
	}
	if err := s.write(ctx, r); err != nil {
		return 0, err
	}
	for name, version := range unused {
		id := resource.ID(task.ChunkType, name)
		_, err := call(ctx, s.cfg.Client.Delete, &pb.DeleteRequest{Id: id, Version: version})
		switch {
		case err == nil:
			count++
		case !errors.Is(err, resource.ErrConflict): // a Put has stored it again
			return count, err
		}
	}
	return count, nil
}

// listChunks returns the versions of the chunks of a task, by name.
func (s *Store) listChunks(ctx context.Context, name string) (map[string]string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.cfg.Client.WatchList(ctx, &pb.WatchListRequest{Type: task.ChunkType, NamePrefix: name + "."})
	if err != nil {
		return nil, resource.FromStatus(err)
	}
	listed := make(map[string]string)
	for {
		ev, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil, errors.New("the list of chunks ended early")
		case err != nil:
			return nil, resource.FromStatus(err)
		case ev.GetEndOfSnapshot() != nil:
			return listed, nil
		case ev.GetUpsert() != nil:
			r := ev.GetUpsert().GetResource()
			listed[r.GetId().GetName()] = r.GetVersion()
		}
	}
}
