// SPDX-License-Identifier: MPL-2.0

package server

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/wanfed"
)

func TestHopsStatus(t *testing.T) {
	now := time.Unix(1000, 0)
	got := hopsStatus([]wanfed.PathStatus{
		{Addr: "a:1", Via: federation.ViaLocalGateway, Health: wanfed.PathOK, SmoothedRTT: 40 * time.Millisecond, LastSuccess: now},
		{Addr: "b:1", Via: federation.ViaRemoteGateway, Health: wanfed.PathFailing, LastError: "refused", LastErrorAt: now},
		{Addr: "c:1", Via: federation.ViaCached, Health: wanfed.PathUntested},
	}, map[string]federation.Origin{
		"a:1": {Sources: []string{federation.SourceHeartbeat}},
		"b:1": {Sources: []string{federation.SourceState}, At: now.Add(-time.Minute)},
	}, "a:1", now)
	want := []api.HopStatus{
		{Address: "a:1", Via: "own gateway", Used: true, Health: "ok", RTT: new(0.04), LastSuccess: now, Sources: []string{"heartbeat"}},
		{Address: "b:1", Via: "remote gateway", Health: "failing", LastError: "refused", LastFailure: now,
			Sources: []string{"federation state"}, KnowledgeAge: new(60.0)},
		{Address: "c:1", Via: "cached address", Health: "untested"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
