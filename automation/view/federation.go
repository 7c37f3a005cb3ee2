// SPDX-License-Identifier: MPL-2.0

package view

import (
	"maps"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
)

// federationMirror has the federation states, and the datacenters and members of
// the last poll.
type federationMirror struct {
	states  map[string][]gatewayJSON
	status  map[string]datacenterState
	members map[string]memberJSON
	views   map[*federationView]struct{}
	byView  map[*view]*federationView
	changed bool
	// due requests a poll: a state has lasted long enough if it is still the same.
	due chan<- struct{}
}

// federationView is a view with its state.
type federationView struct {
	*view
	// settled has the states of datacenters that have lasted long enough, by
	// datacenter: true if it is reachable. Of kind "datacenter" only.
	settled map[string]bool
	pending *time.Timer // until a state has lasted long enough; nil: none
}

// federationJSON is an element of the variable "federation". The order of the
// fields of this and the following types is the order of their names.
type federationJSON struct {
	Gateways     []gatewayJSON `json:"gateways"`
	Primary      bool          `json:"primary"`
	Reachable    bool          `json:"reachable"`
	ServersAlive int           `json:"servers_alive"`
}

// gatewayJSON is an element of an element of the variable "gateways".
type gatewayJSON struct {
	Healthy bool   `json:"healthy"`
	LAN     string `json:"lan"`
	Name    string `json:"name"`
	WAN     string `json:"wan"`
}

// memberJSON is an element of the variable "members".
type memberJSON struct {
	Address string `json:"address"`
	DC      string `json:"dc"`
	Pool    string `json:"pool"`
	Status  string `json:"status"`
}

// datacenterJSON is an element of the variable "datacenters".
type datacenterJSON struct {
	Reachable bool `json:"reachable"`
}

func newFederationMirror(due chan<- struct{}) *federationMirror {
	return &federationMirror{due: due, states: map[string][]gatewayJSON{}, status: map[string]datacenterState{},
		members: map[string]memberJSON{}, views: map[*federationView]struct{}{}, byView: map[*view]*federationView{}}
}

func (m *federationMirror) apply(_ int, old, r *record) {
	m.changed = true
	if r == nil {
		switch old.data.(type) {
		case *pb.FederationState:
			delete(m.states, old.name)
		case datacenterState:
			delete(m.status, old.name)
		case memberJSON:
			delete(m.members, old.name)
		}
		return
	}
	switch data := r.data.(type) {
	case *pb.FederationState:
		gateways := []gatewayJSON{}
		for _, g := range api.FromMeshGateways(data.MeshGateways) {
			gateways = append(gateways, gatewayJSON{Healthy: g.Healthy(), Name: g.Node.Node,
				LAN: g.Service.Addr("lan"), WAN: g.Service.Addr("wan")})
		}
		m.states[r.name] = gateways
	case datacenterState:
		m.status[r.name] = data
	case memberJSON:
		m.members[r.name] = data
	}
}

func (m *federationMirror) flush() {
	for v := range m.views {
		if m.changed || v.pending != nil {
			m.render(v)
		}
	}
	m.changed = false
}

func (m *federationMirror) add(v *view) {
	f := &federationView{view: v, settled: map[string]bool{}}
	m.views[f], m.byView[v] = struct{}{}, f
	m.render(f)
}

func (m *federationMirror) remove(v *view) {
	f := m.byView[v]
	f.stop()
	delete(m.views, f)
	delete(m.byView, v)
}

// render renders all objects of a view.
func (m *federationMirror) render(v *federationView) {
	now := map[string]*part{}
	switch v.query.Kind {
	case task.KindFederation, task.KindGateway:
		for dc, s := range m.status {
			m.renderDatacenter(v, now, dc, s)
		}
		for dc := range m.states {
			m.renderDatacenter(v, now, dc, m.status[dc])
		}
	case task.KindMember:
		for name, member := range m.members {
			if v.match(member.DC) {
				now[name] = newPart(name, member)
			}
		}
	case task.KindDatacenter:
		m.settle(v)
		for dc, reachable := range v.settled {
			now[dc] = newPart(dc, datacenterJSON{reachable})
			if v.query.State != "" && v.query.State != stateOf(reachable) {
				now[dc].digest = ""
			}
		}
	}
	for key := range v.parts {
		if now[key] == nil {
			v.remove(key)
		}
	}
	for key, p := range now {
		v.setPart(key, p)
	}
}

// renderDatacenter adds the part of a datacenter to now.
func (m *federationMirror) renderDatacenter(v *federationView, now map[string]*part, dc string, s datacenterState) {
	gateways := m.states[dc]
	if gateways == nil { // a datacenter without gateways may have no federation state
		gateways = []gatewayJSON{}
	}
	switch {
	case !v.match(dc):
	case v.query.Kind == task.KindGateway:
		now[dc] = newPart(dc, gateways)
	default:
		now[dc] = newPart(dc, federationJSON{Gateways: gateways, Primary: s.primary, Reachable: s.reachable,
			ServersAlive: s.alive})
	}
}

// stop stops the timer.
func (v *federationView) stop() {
	if v.pending != nil {
		v.pending.Stop()
		v.pending = nil
	}
}

// settle updates the states of datacenters that have lasted long enough. The
// view has no value while a datacenter never had such a state. A poll at the end
// of the duration shows that the state has lasted.
func (m *federationMirror) settle(v *federationView) {
	v.stop()
	v.waiting = false
	at := time.Now()
	if !v.feed.connected {
		at = v.feed.since
	}
	var next time.Duration // until another state has lasted long enough
	maps.DeleteFunc(v.settled, func(dc string, _ bool) bool { _, ok := m.status[dc]; return !ok })
	for dc, s := range m.status {
		if !v.match(dc) {
			continue
		}
		settled, known := v.settled[dc]
		delayed := v.query.State == "" || v.query.State == stateOf(s.reachable)
		switch {
		case known && settled == s.reachable:
		case !delayed || at.Sub(s.since) >= v.query.For.AsDuration():
			v.settled[dc] = s.reachable
		default:
			if wait := v.query.For.AsDuration() - at.Sub(s.since); next == 0 || wait < next {
				next = wait
			}
			v.waiting = v.waiting || !known
		}
	}
	if next > 0 {
		v.pending = time.AfterFunc(next, func() {
			select {
			case m.due <- struct{}{}:
			default:
			}
		})
	}
}

// stateOf returns the value of TaskQuery.state.
func stateOf(reachable bool) string {
	if reachable {
		return "reachable"
	}
	return "unreachable"
}
