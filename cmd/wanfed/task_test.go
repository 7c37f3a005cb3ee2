// SPDX-License-Identifier: MPL-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
)

func TestPrintRun(t *testing.T) {
	start := time.Unix(1, 0)
	r := pb.TaskRun{
		Mode: "apply", Result: "succeeded", Changes: &pb.TaskChanges{Add: 1, Change: 2, Destroy: 3},
		StartedAt: timestamppb.New(start), EndedAt: timestamppb.New(start.Add(1500 * time.Millisecond)),
	}
	for _, test := range []struct{ mode, result, plan, want string }{
		{"apply", "succeeded", "", "run R: succeeded in 1.5s: 1 added, 2 changed, 3 destroyed\n"},
		{"plan", "succeeded", "a\n\n  + b\x1b[31m\n",
			"a\n\n  + b?[31m\nrun R: succeeded in 1.5s: 1 to add, 2 to change, 3 to destroy\n"},
		{"apply", "refused", "", "run R: refused in 1.5s: 1 to add, 2 to change, 3 to destroy\n"},
	} {
		r.Mode, r.Result, r.Plan = test.mode, test.result, test.plan
		var out strings.Builder
		if printRun(&out, "R", &r); out.String() != test.want {
			t.Errorf("printRun(%s, %s) = %q, want %q", test.mode, test.result, out.String(), test.want)
		}
	}
}
