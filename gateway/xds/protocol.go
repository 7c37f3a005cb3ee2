// SPDX-License-Identifier: MPL-2.0

package xds

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"slices"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxNames is the maximum number of names that a proxy may subscribe per type.
const maxNames = 65536

// everything is the name that stands for all resources of a type.
const everything = "*"

// subscription is what a proxy wants of one type, and what it has.
type subscription struct {
	all bool // all resources of the type
	// names are wanted in addition to all. They are sorted and unique. The list
	// is immutable, because the subscriptions of many proxies share it.
	names []string
	// nonce is that of the response in flight; "" if there is none. Nothing is
	// sent until the proxy has answered that response.
	nonce string
	last  string // nonce of the last response
	first bool   // the next request is the first of this type

	version string // stateOfTheWorld: of the last response

	// Only incremental uses base, initial, again, sent and rejected.

	// base is the set of the last response. The proxy has those of its resources
	// that are wanted, except those of rejected. Nil: the proxy has the resources
	// of initial.
	base *set
	// initial has the version of each resource that the proxy had before it
	// connected. The first response clears it.
	initial map[string]string
	// again has names that the next response must have, although they have not
	// changed.
	again map[string]bool
	// sent has the names in the response in flight. rejected has those of the
	// last response if the proxy rejected it: the proxy may have applied any part
	// of it. The next response has them. They alone do not cause a response.
	sent, rejected []string
	// force demands a response even without a change.
	force bool
	// compared is the set of the last call of response, unless the subscription
	// has changed since.
	compared *set
}

// answered ends the wait for the answer to the response in flight.
func (s *subscription) answered(rejected bool) {
	s.rejected = nil
	if rejected {
		s.rejected = s.sent
	}
	s.nonce, s.sent = "", nil
}

func (s *subscription) wants(name string) bool {
	if s.all {
		return true
	}
	_, found := slices.BinarySearch(s.names, name)
	return found
}

// setNames replaces the names. It takes names, and removes everything and
// duplicates from them.
func (s *subscription) setNames(names []string) error {
	slices.Sort(names)
	names = slices.Compact(names)
	if i, found := slices.BinarySearch(names, everything); found {
		s.all, names = true, slices.Delete(names, i, i+1)
	}
	s.names = slices.Clip(names)
	if len(names) > maxNames || len(s.again) > maxNames {
		return status.Errorf(codes.ResourceExhausted, "subscription with more than %d names refused", maxNames)
	}
	return nil
}

// stateOfTheWorld is the variant in which each response has all subscribed
// resources of a type.
type stateOfTheWorld struct{}

// subscribe replaces the subscription by the names in req, which lists all of
// them. A response is due if the names have changed.
func (stateOfTheWorld) subscribe(sub *subscription, req *discoveryv3.DiscoveryRequest) error {
	if nonce := req.GetResponseNonce(); !sub.first && nonce != "" && nonce != sub.last {
		return nil // sent before the proxy received the last response
	}
	old := subscription{all: sub.all, names: sub.names}
	sub.all = len(req.GetResourceNames()) == 0 && req.GetTypeUrl() != endpointType
	if err := sub.setNames(slices.Clone(req.GetResourceNames())); err != nil {
		return err
	}
	switch {
	case sub.first: // after a reconnection, the proxy has this version
		sub.version = req.GetVersionInfo()
	case old.all != sub.all || !slices.Equal(old.names, sub.names):
		sub.force, sub.compared = true, nil
	}
	return nil
}

func (stateOfTheWorld) response(sub *subscription, all *set, url string) (*discoveryv3.DiscoveryResponse, int, bool) {
	var wanted []*resource
	sum := sha256.New()
	for _, r := range all.list {
		if sub.wants(r.name) && !r.unresolved { // the proxy keeps endpoints that are missing
			sum.Write([]byte(r.name + " " + r.version + "\n"))
			wanted = append(wanted, r)
		}
	}
	version := hex.EncodeToString(sum.Sum(nil)[:8])
	if version == sub.version && !sub.force {
		return nil, 0, false
	}
	sub.version, sub.force = version, false
	resp := &discoveryv3.DiscoveryResponse{VersionInfo: version, TypeUrl: url, Nonce: sub.nonce}
	for _, r := range wanted {
		resp.Resources = append(resp.Resources, r.body())
	}
	return resp, len(wanted), true
}

// incremental is the variant in which a response has the changed resources.
type incremental struct{}

// subscribe adds and removes the names in req. The first request of a stream
// also lists what the proxy has.
func (incremental) subscribe(sub *subscription, req *discoveryv3.DeltaDiscoveryRequest) error {
	add, remove := req.GetResourceNamesSubscribe(), slices.Sorted(slices.Values(req.GetResourceNamesUnsubscribe()))
	if sub.first {
		sub.all = len(add) == 0 && req.GetTypeUrl() != endpointType
		sub.initial = req.GetInitialResourceVersions() // after a reconnection
		sub.force = len(sub.initial) == 0
		sub.again = map[string]bool{}
	}
	if len(add)+len(remove) == 0 {
		return nil
	}
	sub.compared = nil
	if slices.Contains(remove, everything) {
		sub.all = false
	}
	before := sub.all
	all := before || slices.Contains(add, everything)
	names := make([]string, 0, len(sub.names)+len(add))
	for _, name := range sub.names {
		if _, removed := slices.BinarySearch(remove, name); removed {
			// With all, the proxy does not know whether the resource still exists.
			// Otherwise it has removed the resource.
			sub.again[name] = all
		} else {
			names = append(names, name)
		}
	}
	if !sub.first {
		for _, name := range add { // a subscription is always answered
			sub.again[name] = true
		}
	}
	if err := sub.setNames(append(names, add...)); err != nil {
		return err
	}
	delete(sub.again, everything)
	if all && !before && !sub.first {
		sub.base, sub.initial = nil, nil // the proxy has an unknown part
	}
	return nil
}

// response returns the subscribed resources of all that the proxy lacks or has
// in another version, and the names of those that it must remove. It returns
// false if there is nothing to send.
func (incremental) response(sub *subscription, all *set, url string) (*discoveryv3.DeltaDiscoveryResponse, int, bool) {
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: url, Nonce: sub.nonce}
	add := func(r *resource) {
		resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: r.name, Version: r.version, Resource: r.body()})
	}
	remove := func(name string) { resp.RemovedResources = append(resp.RemovedResources, name) }
	if sub.base == nil {
		for _, r := range all.list {
			has := sub.initial[r.name]
			if sub.wants(r.name) && (has != r.version && (has == "" || !r.unresolved) || sub.again[r.name]) {
				add(r)
			}
		}
		for name := range sub.initial {
			if all.byName[name] == nil || !sub.wants(name) {
				remove(name)
			}
		}
		for _, name := range sub.names {
			if all.byName[name] == nil {
				remove(name)
			}
		}
	} else {
		for old, r := range changes(sub.base, all) {
			switch name := cmp.Or(r, old).name; {
			case !sub.wants(name) || sub.again[name]:
			case r == nil:
				remove(name)
			case old == nil || !r.unresolved:
				add(r)
			}
		}
	}
	for name, again := range sub.again {
		switch r := all.byName[name]; {
		case !again || !sub.wants(name):
		case r == nil:
			remove(name)
		case sub.base != nil:
			add(r)
		}
	}
	sub.base, sub.initial = all, nil
	clear(sub.again)
	if len(resp.Resources)+len(resp.RemovedResources) == 0 && !sub.force {
		return nil, 0, false
	}
	sub.force = false
	if len(sub.rejected) > 0 {
		sub.sent = namesOf(resp)
	}
	for _, name := range sub.rejected {
		r := all.byName[name]
		switch _, found := slices.BinarySearch(sub.sent, name); {
		case found || !sub.wants(name):
		case r == nil:
			remove(name)
		default:
			add(r)
		}
	}
	slices.SortFunc(resp.Resources, func(a, b *discoveryv3.Resource) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(resp.RemovedResources)
	resp.RemovedResources = slices.Compact(resp.RemovedResources)
	sub.sent = namesOf(resp)
	return resp, len(sub.sent), true
}

// namesOf returns the sorted names of the resources in a response.
func namesOf(resp *discoveryv3.DeltaDiscoveryResponse) []string {
	names := slices.Clone(resp.RemovedResources)
	for _, r := range resp.Resources {
		names = append(names, r.Name)
	}
	slices.Sort(names)
	return names
}

// changes returns the pairs of resources of one name that differ, ordered by
// name. The first one is nil if only next has the name, and the second one is
// nil if only old has it.
func changes(old, next *set) iter.Seq2[*resource, *resource] {
	return func(yield func(old, next *resource) bool) {
		a, b := old.list, next.list
		for len(a) > 0 || len(b) > 0 {
			var order int
			switch {
			case len(a) == 0:
				order = 1
			case len(b) == 0:
				order = -1
			case a[0] != b[0]:
				order = strings.Compare(a[0].name, b[0].name)
			}
			var x, y *resource
			if order <= 0 {
				x, a = a[0], a[1:]
			}
			if order >= 0 {
				y, b = b[0], b[1:]
			}
			if (x == nil || y == nil || x.version != y.version) && !yield(x, y) {
				return
			}
		}
	}
}
