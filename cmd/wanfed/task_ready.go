// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/lease"
)

// liveGroups returns the groups that have a daemon that runs: one that holds its
// lease.
func liveGroups(ctx context.Context, cl client) (map[string]bool, error) {
	live := make(map[string]bool)
	instances := api.ResourceTypeName{Group: "sync", GroupVersion: "v1", Kind: "Instance"}
	leases := api.ResourceTypeName{Group: lease.Type.Group, GroupVersion: lease.Type.GroupVersion, Kind: lease.Type.Kind}
	opts := api.ResourceOptions{Datacenter: cl.opts.Datacenter}
	for r, err := range cl.Resources(ctx, instances, api.Tenancy{}, opts) {
		var instance *pb.SyncInstance
		if err == nil {
			instance, err = decodeData(r, &pb.SyncInstance{})
		}
		if err != nil {
			return nil, err
		}
		if live[instance.Group] {
			continue
		}
		held, err := cl.ReadResource(ctx, api.ResourceID{Type: leases, Name: task.InstanceLeaseName(r.ID.Name)}, opts)
		if api.IsStatus(err, 404) {
			continue
		}
		l, err := decodeData(held, &pb.Lease{})
		if err != nil {
			return nil, err
		}
		live[instance.Group] = l.Holder != ""
	}
	return live, nil
}

// readyText returns the text of the condition Ready. The status of a task is
// that of the last daemon, so it is not valid if no daemon of the group runs.
func readyText(r api.Resource, t *pb.Task, live map[string]bool) string {
	if t.GetEnabled() && !live[t.Group] {
		return "NoDaemon"
	}
	return conditionText(r, "Ready")
}
