// SPDX-License-Identifier: MPL-2.0

package main

import (
	"slices"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
)

func TestSnapshotRows(t *testing.T) {
	now := time.Now()
	rows := snapshotRows([]api.GatewaySnapshot{
		{
			Gateway: "gw1", Complete: true, LAN: "10.0.0.5:8444", WAN: "198.51.100.1:8443",
			Servers: make([]api.SnapshotServer, 3), Datacenters: make([]api.SnapshotDatacenter, 2),
			Parts:  []api.SnapshotPart{{Origin: "disk", Updated: now.Add(-time.Second)}, {Updated: now.Add(-time.Minute)}},
			Envoys: []api.EnvoyConnection{{Types: []api.EnvoyType{{Accepted: 1}, {Rejected: "cannot bind"}}}},
		},
		{Gateway: "gw2"},
		{Gateway: "gw3", Complete: true, Envoys: []api.EnvoyConnection{{}}},
		{Gateway: "gw4", Complete: true, EnvoyDisconnected: now.Add(-31 * time.Second)},
	}, now, true)
	want := [][]string{
		{"Gateway", "LAN", "WAN", "Servers", "Datacenters", "Age", "Envoy", "Source"},
		{"gw1", "10.0.0.5:8444", "198.51.100.1:8443", "3", "2", "1m0s", "rejected: cannot bind", "disk"},
		{"gw2", "", "", "0", "0", "incomplete", "-", "-"},
		{"gw3", "", "", "0", "0", "0s", "ok", "-"},
		{"gw4", "", "", "0", "0", "0s", "disconnected for 31s", "-"},
	}
	if !slices.EqualFunc(rows, want, slices.Equal) {
		t.Errorf("snapshotRows() = %v, want %v", rows, want)
	}
}
