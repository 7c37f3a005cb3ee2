// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/resource"
)

// taskStateEntry is the JSON of a state in a list.
type taskStateEntry struct {
	Task     string    `json:"task"`
	Serial   uint64    `json:"serial"`
	Lineage  string    `json:"lineage"`
	Size     uint64    `json:"size"`      // of the newest version, in bytes
	Versions int       `json:"versions"`  // that are stored
	StoredAt time.Time `json:"stored_at"` // newest version
	Lock     *lockJSON `json:"lock"`      // null: not locked
}

// lockJSON is the JSON of the lock of a state.
type lockJSON struct {
	ID        string    `json:"id"`
	Who       string    `json:"who"`
	Run       string    `json:"run,omitempty"` // of a daemon
	Operation string    `json:"operation"`
	CreatedAt time.Time `json:"created_at"`
}

func newTaskStateList() *cobra.Command {
	return addOperatorRead(&cobra.Command{
		Use:   "list",
		Short: "List the states of all tasks",
		Long: `List the states of the tasks of a datacenter. Serial, Lineage, Size (before
compression) and Age are those of the newest version. Lineage has the first 8
characters, and with --output wide all. Lock is the holder of the lock.`,
		Example: `  wanfed task state list
  wanfed task state list --output json | jq -r '.[] | select(.lock) | .task'`,
	}, new(operator), "task state list", func(ctx context.Context, cc *grpc.ClientConn) ([]taskStateEntry, error) {
		resp, err := pb.NewResourceServiceClient(cc).List(ctx, &pb.ListRequest{Type: task.StateType})
		if err != nil {
			return nil, err
		}
		return stateEntries(resp.GetResources())
	}, func(out output.Printer, entries []taskStateEntry) error {
		return out.Print(entries, func() error { return out.Table(stateRows(entries, out.IsWide(), time.Now())) })
	})
}

// stateEntries returns the states of tasks that have a version or a lock.
func stateEntries(resources []*pb.Resource) ([]taskStateEntry, error) {
	out := []taskStateEntry{}
	for _, r := range resources {
		st, err := resource.Decode[*pb.TaskState](r)
		if err != nil {
			return nil, err
		}
		e := taskStateEntry{Task: r.GetId().GetName(), Versions: len(st.Versions)}
		if len(st.Versions) > 0 {
			v := st.Versions[0]
			e.Serial, e.Lineage, e.Size, e.StoredAt = v.Serial, v.Lineage, v.Size, timeOf(v.StoredAt)
		}
		if l := st.Lock; l != nil {
			e.Lock = &lockJSON{ID: l.Id, Who: l.Who, Run: l.Run, Operation: l.Operation, CreatedAt: timeOf(l.CreatedAt)}
		}
		if e.Versions > 0 || e.Lock != nil { // a task of the driver exec has none
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b taskStateEntry) int { return cmp.Compare(a.Task, b.Task) })
	return out, nil
}

func stateRows(entries []taskStateEntry, wide bool, now time.Time) [][]string {
	rows := [][]string{{"Task", "Serial", "Lineage", "Size", "Versions", "Age", "Lock"}}
	for _, e := range entries {
		lineage, lock, age := e.Lineage, "-", "-"
		if !wide && len(lineage) > 8 {
			lineage = lineage[:8]
		}
		if e.Versions > 0 {
			age = output.Age(new(now.Sub(e.StoredAt).Seconds()))
		}
		if l := e.Lock; l != nil {
			if lock = l.Who; l.Run != "" {
				lock = "run " + l.Run
			}
		}
		rows = append(rows, []string{e.Task, strconv.FormatUint(e.Serial, 10), cmp.Or(lineage, "-"), output.Size(int64(e.Size)),
			strconv.Itoa(e.Versions), age, lock})
	}
	return rows
}
