// SPDX-License-Identifier: MPL-2.0

package status

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/lease"
	"github.com/wanfed/wanfed/resource"
)

// maxTaskRows bounds the number of tasks with a problem that the status shows.
const maxTaskRows = 5

// syncFacts is what a server knows about sync daemons and their tasks.
type syncFacts struct {
	daemons []syncDaemon // by id
	tasks   []syncTask   // by name
}

type syncDaemon struct {
	id, group string
	alive     bool // it holds its lease
}

type syncTask struct {
	name, group string
	enabled     bool
	conditions  []*pb.Condition // that the last daemon has written
}

// syncFacts reads the daemons and the tasks of the local datacenter.
func (r *Reporter) syncFacts(ctx context.Context) (f syncFacts, err error) {
	list := func(t *pb.Type) []*pb.Resource {
		var rs []*pb.Resource
		if err == nil {
			rs, _, err = r.cfg.Store.List(ctx, resource.Eventual, resource.Query{Type: t})
		}
		slices.SortFunc(rs, func(a, b *pb.Resource) int { return strings.Compare(a.GetId().GetName(), b.GetId().GetName()) })
		return rs
	}
	for _, res := range list(task.InstanceType) {
		data, err := resource.Decode[*pb.SyncInstance](res)
		if err != nil {
			return f, err
		}
		id := res.GetId().GetName()
		l, err := r.cfg.Store.Read(ctx, resource.Eventual, resource.ID(lease.Type, task.InstanceLeaseName(id)))
		f.daemons = append(f.daemons, syncDaemon{id, data.Group, err == nil && lease.Token(l) != 0})
	}
	for _, res := range list(task.Type) {
		data, err := resource.Decode[*pb.Task](res)
		if err != nil {
			return f, err
		}
		f.tasks = append(f.tasks, syncTask{res.GetId().GetName(), data.Group, data.GetEnabled(),
			res.GetStatus()[task.StatusKey].GetConditions()})
	}
	return f, err
}

// components returns a component for the daemons, one for each group of tasks
// without a daemon, and one for each of the first tasks with a problem. It
// returns none if there is neither a daemon nor a task.
func (f syncFacts) components() []api.ComponentStatus {
	if len(f.daemons) == 0 && len(f.tasks) == 0 {
		return nil
	}
	var alive, dead []string
	live := make(map[string]bool) // groups
	for _, d := range f.daemons {
		if d.alive {
			alive, live[d.group] = append(alive, d.id), true
		} else {
			dead = append(dead, d.id)
		}
	}
	daemons := api.ComponentStatus{Name: "sync daemons", State: "ok",
		Detail: fmt.Sprintf("%s; tasks: %d", cmp.Or(strings.Join(alive, ", "), "none runs"), len(f.tasks))}
	if len(dead) > 0 {
		daemons.State = "failed"
		daemons.Detail += fmt.Sprintf("; without a lease: %s: start it again, or wait for another daemon of its group",
			strings.Join(dead, ", "))
	}
	out := []api.ComponentStatus{daemons}
	orphans := make(map[string][]string) // tasks, by group
	var groups []string
	for _, t := range f.tasks {
		if t.enabled && !live[t.group] {
			if orphans[t.group] == nil {
				groups = append(groups, t.group)
			}
			orphans[t.group] = append(orphans[t.group], t.name)
		}
	}
	slices.Sort(groups)
	for _, g := range groups {
		out = append(out, api.ComponentStatus{Name: "sync group " + g, State: "no daemon", Detail: fmt.Sprintf(
			"no daemon runs for its tasks, %d in number, first %s: start one with: wanfed sync --config-file FILE",
			len(orphans[g]), orphans[g][0])})
	}
	problems := 0
	for _, t := range f.tasks {
		c, ok := t.problem()
		if !ok || !t.enabled || !live[t.group] {
			continue
		}
		if problems++; problems <= maxTaskRows {
			out = append(out, c)
		}
	}
	if problems > maxTaskRows {
		out = append(out, api.ComponentStatus{Name: "sync tasks", State: "problems",
			Detail: fmt.Sprintf("%d more tasks with a problem: see wanfed task list", problems-maxTaskRows)})
	}
	return out
}

// taskProblems has the state and the remedy for the reasons of the condition Ready
// that need the attention of an operator. A remedy that the message of the condition
// has is "".
var taskProblems = map[string]struct{ state, remedy string }{
	"OldData":       {"old data", "restore the source; runs use the old data until then"},
	"NoData":        {"no data", "restore the source, or correct the condition of the task"},
	"Incompatible":  {"incompatible", "correct the task, or the machine of its daemons"},
	"Configuration": {"failing", "correct the files of the daemon"},
	"Recovery":      {"waiting", ""},
	"Refused":       {"held back", ""},
}

// problem returns the component of a task that needs the attention of an operator.
func (t syncTask) problem() (c api.ComponentStatus, ok bool) {
	c.Name = "sync task " + t.name
	for _, cond := range t.conditions {
		if p, known := taskProblems[cond.Reason]; cond.Type == "Ready" && known {
			c.State, c.Detail = p.state, cond.Message
			if p.remedy != "" {
				c.Detail += ": " + p.remedy
			}
			return c, true
		}
		if cond.Type == "Applied" && cond.Reason == "Failed" {
			c.State, c.Detail, ok = "failing", cond.Message+", or: wanfed task log "+t.name, true
		}
	}
	return c, ok
}
