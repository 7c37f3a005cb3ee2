// SPDX-License-Identifier: MPL-2.0

package status

import (
	"fmt"
	"slices"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
)

func TestSyncComponents(t *testing.T) {
	conditions := func(ready, message, applied string) []*pb.Condition {
		return []*pb.Condition{{Type: "Ready", Reason: ready, Message: message},
			{Type: "Applied", Reason: applied, Message: "2 failed runs since the last success; see wanfed task history"}}
	}
	one := []syncDaemon{{"s1", "default", true}}
	many := syncFacts{daemons: one}
	for i := range maxTaskRows + 2 {
		many.tasks = append(many.tasks, syncTask{fmt.Sprintf("t%d", i), "default", true, conditions("NoData", "no data", "Succeeded")})
	}
	for _, test := range []struct {
		name  string
		facts syncFacts
		want  []string // NAME: STATE: DETAIL
	}{
		{"nothing", syncFacts{}, nil},
		{"ok", syncFacts{one, []syncTask{{"a", "default", true, conditions("Waiting", "", "Succeeded")}}},
			[]string{"sync daemons: ok: s1; tasks: 1"}},
		{"disabled", syncFacts{one, []syncTask{{"a", "default", false, conditions("Disabled", "the task is disabled", "Failed")}}},
			[]string{"sync daemons: ok: s1; tasks: 1"}},
		{"failing", syncFacts{one, []syncTask{{"a", "default", true, conditions("Waiting", "", "Failed")}}},
			[]string{"sync daemons: ok: s1; tasks: 1",
				"sync task a: failing: 2 failed runs since the last success; see wanfed task history, or: wanfed task log a"}},
		{"old data", syncFacts{one, []syncTask{{"a", "default", true, conditions("OldData", "the data is that of 12:00", "Failed")}}},
			[]string{"sync daemons: ok: s1; tasks: 1",
				"sync task a: old data: the data is that of 12:00: restore the source; runs use the old data until then"}},
		{"held back", syncFacts{one, []syncTask{{"a", "default", true, conditions("Refused", "wanfed task approve a", "Succeeded")}}},
			[]string{"sync daemons: ok: s1; tasks: 1", "sync task a: held back: wanfed task approve a"}},
		{"dead", syncFacts{[]syncDaemon{{"s1", "default", false}}, []syncTask{{"a", "default", true, conditions("Waiting", "", "Failed")}, {"b", "default", true, nil}}},
			[]string{"sync daemons: failed: none runs; tasks: 2; without a lease: s1: start it again, or wait for another daemon of its group",
				"sync group default: no daemon: no daemon runs for its tasks, 2 in number, first a: start one with: wanfed sync --config-file FILE"}},
		{"other group", syncFacts{one, []syncTask{{"a", "edge", true, nil}}},
			[]string{"sync daemons: ok: s1; tasks: 1",
				"sync group edge: no daemon: no daemon runs for its tasks, 1 in number, first a: start one with: wanfed sync --config-file FILE"}},
		{"many", many, []string{"sync daemons: ok: s1; tasks: 7", "sync task t0: no data: no data: restore the source, or correct the condition of the task", "", "", "", "",
			"sync tasks: problems: 2 more tasks with a problem: see wanfed task list"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, c := range test.facts.components() {
				got = append(got, c.Name+": "+c.State+": "+c.Detail)
			}
			for i, want := range test.want {
				if want == "" && i < len(got) {
					got[i] = "" // as the one before
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("components() = %q, want %q", got, test.want)
			}
		})
	}
}
