// SPDX-License-Identifier: MPL-2.0

package view

import (
	"slices"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
)

// Changes returns the keys of the objects whose change starts a run of a task
// with the condition q, sorted. before and after are Value.Keys at the last run
// and now. The changes are those that q.On lists. Without q.On, a condition of
// kind "catalog-services" is met when a name is added or removed, and a condition
// of kind "datacenter" with a state is met when a datacenter enters the state.
func Changes(q *pb.TaskQuery, before, after map[string]string) []string {
	on := func(change string) bool {
		switch {
		case len(q.On) > 0:
			return slices.Contains(q.On, change)
		case q.Kind == task.KindCatalogServices:
			return change != "changed"
		case q.Kind == task.KindDatacenter && q.State != "":
			return change == "added"
		}
		return true
	}
	var out []string
	for key, digest := range after {
		old, existed := before[key]
		if !existed && on("added") || existed && old != digest && on("changed") {
			out = append(out, key)
		}
	}
	for key := range before {
		if _, exists := after[key]; !exists && on("removed") {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}
