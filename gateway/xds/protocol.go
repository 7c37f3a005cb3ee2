// SPDX-License-Identifier: MPL-2.0

package xds

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"

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
	all   bool            // all resources of the type
	names map[string]bool // in addition to all
	// nonce is that of the response in flight; "" if there is none. Nothing is
	// sent until the proxy has answered that response.
	nonce string
	last  string // nonce of the last response
	first bool   // the next request is the first of this type

	version string // stateOfTheWorld: of the last response
	// sent has the version of each resource that the proxy has, or "" if the
	// proxy was informed that the resource does not exist. Only incremental
	// uses it.
	sent map[string]string
	// force demands a response even without a change.
	force bool
	// compared is the set of the last call of response, unless the subscription
	// has changed since.
	compared *set
}

func (s *subscription) wants(name string) bool { return s.all || s.names[name] }

func (s *subscription) add(name string) error {
	if name == everything {
		s.all = true
		return nil
	}
	s.names[name] = true
	if len(s.names) > maxNames {
		return status.Errorf(codes.ResourceExhausted, "subscription with more than %d names refused", maxNames)
	}
	return nil
}

// stateOfTheWorld is the variant in which each response has all subscribed
// resources of a type.
type stateOfTheWorld struct{}

func (stateOfTheWorld) subscribe(sub *subscription, req *discoveryv3.DiscoveryRequest) error {
	if nonce := req.GetResponseNonce(); !sub.first && nonce != "" && nonce != sub.last {
		return nil // sent before the proxy received the last response
	}
	old := subscription{all: sub.all, names: sub.names}
	sub.all, sub.names = len(req.GetResourceNames()) == 0 && req.GetTypeUrl() != endpointType, map[string]bool{}
	for _, name := range req.GetResourceNames() {
		if err := sub.add(name); err != nil {
			return err
		}
	}
	switch {
	case sub.first: // after a reconnection, the proxy has this version
		sub.version = req.GetVersionInfo()
	case old.all != sub.all || !maps.Equal(old.names, sub.names):
		sub.force, sub.compared = true, nil
	}
	return nil
}

func (stateOfTheWorld) response(sub *subscription, all *set, url string) (*discoveryv3.DiscoveryResponse, bool) {
	var wanted []*resource
	sum := sha256.New()
	for _, r := range all.list {
		if sub.wants(r.name) {
			sum.Write([]byte(r.name + " " + r.version + "\n"))
			wanted = append(wanted, r)
		}
	}
	version := hex.EncodeToString(sum.Sum(nil)[:8])
	if version == sub.version && !sub.force {
		return nil, false
	}
	sub.version, sub.force = version, false
	resp := &discoveryv3.DiscoveryResponse{VersionInfo: version, TypeUrl: url, Nonce: sub.nonce}
	for _, r := range wanted {
		resp.Resources = append(resp.Resources, r.body())
	}
	return resp, true
}

// incremental is the variant in which a response has the changed resources.
type incremental struct{}

func (incremental) subscribe(sub *subscription, req *discoveryv3.DeltaDiscoveryRequest) error {
	if sub.first {
		sub.all = len(req.GetResourceNamesSubscribe()) == 0 && req.GetTypeUrl() != endpointType
		sub.sent = maps.Clone(req.GetInitialResourceVersions()) // after a reconnection
		sub.force = len(sub.sent) == 0
		if sub.sent == nil {
			sub.sent = map[string]string{}
		}
	}
	if len(req.GetResourceNamesSubscribe())+len(req.GetResourceNamesUnsubscribe()) > 0 {
		sub.compared = nil
	}
	for _, name := range req.GetResourceNamesUnsubscribe() {
		if name == everything {
			sub.all = false
		}
		delete(sub.names, name)
		if !sub.wants(name) {
			delete(sub.sent, name) // the proxy has removed it
		}
	}
	for _, name := range req.GetResourceNamesSubscribe() {
		if err := sub.add(name); err != nil {
			return err
		}
		if !sub.first {
			delete(sub.sent, name) // a subscription is always answered
		}
	}
	return nil
}

func (incremental) response(sub *subscription, all *set, url string) (*discoveryv3.DeltaDiscoveryResponse, bool) {
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: url, Nonce: sub.nonce}
	for _, r := range all.list {
		if sub.wants(r.name) && sub.sent[r.name] != r.version {
			sub.sent[r.name] = r.version
			resp.Resources = append(resp.Resources, &discoveryv3.Resource{
				Name: r.name, Version: r.version, Resource: r.body(),
			})
		}
	}
	for name, version := range sub.sent {
		switch {
		case sub.wants(name) && all.byName[name] != nil:
		case version != "":
			resp.RemovedResources = append(resp.RemovedResources, name)
			delete(sub.sent, name)
			if sub.names[name] {
				sub.sent[name] = ""
			}
		case !sub.names[name]:
			delete(sub.sent, name)
		}
	}
	for name := range sub.names {
		if _, known := sub.sent[name]; !known && all.byName[name] == nil {
			resp.RemovedResources = append(resp.RemovedResources, name)
			sub.sent[name] = ""
		}
	}
	slices.Sort(resp.RemovedResources)
	if len(resp.Resources)+len(resp.RemovedResources) == 0 && !sub.force {
		return nil, false
	}
	sub.force = false
	return resp, true
}
