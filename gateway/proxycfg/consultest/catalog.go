// SPDX-License-Identifier: MPL-2.0

package consultest

import (
	"encoding/base64"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// Instance is an instance of a service of the agent's datacenter.
type Instance struct {
	ID, Service string
	Node        string // its address is 10.1.0.9
	Address     string
	Port        int
	Tags        []string
	// Status is that of the check of the service. NodeStatus is that of the node.
	// Default: passing.
	Status, NodeStatus string
}

// catalog has what tasks read. Agent.mu guards it.
type catalog struct {
	nodes     []Object // the recorded response of catalog/nodes
	instances []Instance
	keys      map[string]string
	// namesIndex is the index of the names of services. A change of a check does
	// not change it, as in Consul.
	namesIndex uint64
	filtered   bool // a token may not read a part of the results
}

// SetInstances replaces the instances of services.
func (a *Agent) SetInstances(instances ...Instance) {
	a.change(func() {
		if !slices.EqualFunc(a.instances, instances, sameService) {
			a.namesIndex = a.index + 1
		}
		a.instances = slices.Clone(instances)
	})
}

// sameService reports whether two instances differ at most in their checks.
func sameService(x, y Instance) bool {
	return x.ID == y.ID && x.Service == y.Service && x.Node == y.Node && x.Address == y.Address && x.Port == y.Port &&
		slices.Equal(x.Tags, y.Tags)
}

// SetKeys replaces the keys.
func (a *Agent) SetKeys(keys map[string]string) { a.change(func() { a.keys = maps.Clone(keys) }) }

// SetFiltered makes all results incomplete and empty, as those of a token
// without rights are.
func (a *Agent) SetFiltered(filtered bool) {
	a.change(func() { a.filtered, a.namesIndex = filtered, a.index+1 })
}

// serveCatalog serves the queries for the data of tasks. It returns false for
// other requests.
func (a *Agent) serveCatalog(w http.ResponseWriter, r *http.Request) bool {
	path := r.URL.Path
	if dc := r.URL.Query().Get("dc"); dc != "" && dc != a.DC {
		a.Error500(w, "")
		return true
	}
	switch {
	case path == "/v1/catalog/services":
		a.blockOn(w, r, &a.namesIndex, func() any { return a.names(r) })
	case path == "/v1/catalog/nodes":
		a.block(w, r, func() any { return a.nodesOf() })
	case path == "/v1/health/state/any":
		a.block(w, r, func() any { return a.nodeChecks() })
	case strings.HasPrefix(path, "/v1/health/service/"):
		name := strings.TrimPrefix(path, "/v1/health/service/")
		a.block(w, r, func() any { return a.health(name) })
	case strings.HasPrefix(path, "/v1/kv/"):
		key := strings.TrimPrefix(path, "/v1/kv/")
		recurse := r.URL.Query().Has("recurse")
		a.block(w, r, func() any { return a.keysOf(key, recurse) })
	default:
		return false
	}
	return true
}

// visible returns the instances that the token may read. The caller holds mu.
func (a *Agent) visible() []Instance {
	if a.filtered {
		return nil
	}
	return a.instances
}

func (a *Agent) names(r *http.Request) Object {
	out := Object{}
	if r.URL.Query().Has("node-meta") {
		return out // the nodes have no metadata of a user
	}
	for _, i := range a.visible() {
		tags, _ := out[i.Service].([]string)
		out[i.Service] = slices.Compact(slices.Sorted(slices.Values(append(tags, i.Tags...))))
	}
	return out
}

func (a *Agent) health(service string) []Object {
	out := []Object{}
	for _, i := range a.visible() {
		if i.Service != service {
			continue
		}
		e, s := a.entry(a.DC, i.Node, i.ID, status(i.Status))
		e["Node"].(Object)["Address"] = "10.1.0.9"
		s["Kind"], s["Service"], s["Address"], s["Port"], s["Tags"] = "", service, i.Address, i.Port, i.Tags
		s["TaggedAddresses"], s["Meta"] = nil, Object{}
		for _, c := range e["Checks"].([]any) {
			if check := c.(Object); check["ServiceID"] == "" {
				check["Status"] = status(i.NodeStatus)
			} else {
				check["ServiceName"] = service
			}
		}
		out = append(out, e)
	}
	return out
}

func status(s string) string {
	if s == "" {
		return "passing"
	}
	return s
}

func (a *Agent) nodesOf() []Object {
	out := []Object{}
	for _, i := range a.visible() {
		n := maps.Clone(a.nodes[0])
		n["Node"], n["Datacenter"], n["Address"] = i.Node, a.DC, "10.1.0.9"
		out = append(out, n)
	}
	return out
}

func (a *Agent) nodeChecks() []Object {
	out := []Object{}
	for _, i := range a.visible() {
		out = append(out, Object{"Node": i.Node, "CheckID": "serfHealth", "Name": "Serf Health Status",
			"Status": status(i.NodeStatus), "ServiceID": "", "ModifyIndex": 5})
	}
	return out
}

func (a *Agent) keysOf(key string, recurse bool) any {
	out := []Object{}
	for _, k := range slices.Sorted(maps.Keys(a.keys)) {
		if !a.filtered && (k == key || recurse && strings.HasPrefix(k, key)) {
			o := Object{"Key": k, "Value": base64.StdEncoding.EncodeToString([]byte(a.keys[k])), "Flags": 0,
				"LockIndex": 0, "ModifyIndex": 9, "CreateIndex": 9}
			if strings.HasSuffix(k, "/.lock") {
				o["Session"] = a.keys[k] // the tests write the session as the value
			}
			out = append(out, o)
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
