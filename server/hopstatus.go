// SPDX-License-Identifier: MPL-2.0

package server

import (
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/wanfed"
)

// used gives, by datacenter, the hop over which gossip goes there now.
func (s source) used() map[string]string {
	out := map[string]string{}
	for _, l := range s.p.tunnel.Stats().Links {
		if !l.ConnectedSince.IsZero() {
			out[l.DC] = l.Path.Addr
		}
	}
	return out
}

// hopsStatus joins what is known of hops to one datacenter, in the order of paths.
func hopsStatus(paths []wanfed.PathStatus, origins map[string]federation.Origin, used string, now time.Time) []api.HopStatus {
	var out []api.HopStatus
	for _, p := range paths {
		h := api.HopStatus{
			Address: p.Addr, Via: p.Via, Used: p.Addr == used, Health: string(p.Health),
			LastSuccess: p.LastSuccess, LastFailure: p.LastErrorAt, LastError: p.LastError,
			Sources: origins[p.Addr].Sources,
		}
		if p.SmoothedRTT > 0 {
			h.RTT = api.SecondsPtr(p.SmoothedRTT)
		}
		if at := origins[p.Addr].At; !at.IsZero() {
			h.KnowledgeAge = api.SecondsPtr(now.Sub(at))
		}
		out = append(out, h)
	}
	return out
}
