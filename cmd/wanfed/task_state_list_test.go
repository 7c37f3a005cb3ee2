// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/resource"
)

func TestTaskStateList_Output(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var resources []*pb.Resource
	for name, st := range map[string]*pb.TaskState{
		"hosts": {}, // of the driver exec
		"firewall": {Versions: []*pb.TaskStateVersion{
			{Number: 9, Serial: 12, Lineage: "0c8d7a1b-4ad3-5b39-9f1f-6f1e2c9a0000", Size: 5000, StoredAt: timestamppb.New(now.Add(-time.Hour))},
			{Number: 8, Serial: 11}}},
		"new": {Lock: &pb.TaskStateLock{Id: "6f1e2c9a-4ad3-5b39-9f1f-0c8d7a1b2c3d", Who: "ops@host", Operation: "OperationTypeApply",
			CreatedAt: timestamppb.New(now)}},
		"busy": {Lock: &pb.TaskStateLock{Id: "a", Run: "01HZZZZZZZZZZZZZZZZZZZZZZZ", CreatedAt: timestamppb.New(now)},
			Versions: []*pb.TaskStateVersion{{Number: 1, Serial: 1, Lineage: "short", Size: 100, StoredAt: timestamppb.New(now)}}},
	} {
		r, err := resource.NewNamed(task.StateType, name, task.CheckName, st)
		if err != nil {
			t.Fatal(err)
		}
		resources = append(resources, r)
	}
	entries, err := stateEntries(resources)
	if err != nil {
		t.Fatal(err)
	}
	print := func(format string) string {
		var b bytes.Buffer
		c := &cobra.Command{Use: "x", SilenceUsage: true}
		c.SetOut(&b)
		printer := output.AddFlag(c)
		c.RunE = func(*cobra.Command, []string) error {
			out := printer()
			return out.Print(entries, func() error { return out.Table(stateRows(entries, out.IsWide(), now)) })
		}
		c.SetArgs([]string{"--output", format})
		if err := c.Execute(); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	const want = `Task      Serial  Lineage   Size    Versions  Age     Lock
busy      1       short     100 B   1         0s      run
                                                      01HZZZZZZZZZZZZZZZZZZZZZZZ
firewall  12      0c8d7a1b  5.0 kB  2         1h0m0s  -
new       0       -         0 B     0         -       ops@host
`
	got := print("table")
	if got != want {
		t.Errorf("table =\n%s\nwant\n%s", got, want)
	}
	for line := range strings.Lines(got) {
		if len(strings.TrimSpace(line)) > 80 {
			t.Errorf("line has %d columns, want at most 80: %s", len(line), line)
		}
	}
	var list []map[string]any
	if err := json.Unmarshal([]byte(print("json")), &list); err != nil || len(list) != 3 {
		t.Fatalf("json = %s, %v, want 3 states", print("json"), err)
	}
	if list[0]["lock"].(map[string]any)["run"] != "01HZZZZZZZZZZZZZZZZZZZZZZZ" || list[1]["lock"] != nil || list[1]["versions"] != 2.0 ||
		list[1]["lineage"] != "0c8d7a1b-4ad3-5b39-9f1f-6f1e2c9a0000" {
		t.Errorf("json = %v, want the lock of busy, and 2 versions of firewall with the whole lineage", list)
	}
}
