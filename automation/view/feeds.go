// SPDX-License-Identifier: MPL-2.0

package view

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
)

// Kinds of feeds.
const (
	feedCatalog    = "catalog"
	feedKeys       = "keys"
	feedResources  = "resources"
	feedDocuments  = "documents"
	feedFederation = "federation"
)

// Types of the resources of feeds.
var (
	nodeType     = api.ResourceTypeName{Group: "catalog", GroupVersion: "v1", Kind: "Node"}
	serviceType  = api.ResourceTypeName{Group: "catalog", GroupVersion: "v1", Kind: "Service"}
	checkType    = api.ResourceTypeName{Group: "catalog", GroupVersion: "v1", Kind: "Check"}
	entryType    = api.ResourceTypeName{Group: "kv", GroupVersion: "v1", Kind: "Entry"}
	documentType = api.ResourceTypeName{Group: "config", GroupVersion: "v1", Kind: "Document"}
	stateType    = api.ResourceTypeName{Group: "federation", GroupVersion: "v1", Kind: "FederationState"}
)

// isFederation reports whether a kind has data of the whole federation. The
// datacenter of such a query selects a part of it.
func isFederation(kind string) bool {
	switch kind {
	case task.KindFederation, task.KindGateway, task.KindMember, task.KindDatacenter:
		return true
	}
	return false
}

// feedOf returns the feed of a normalized query.
func (v *Views) feedOf(q *pb.TaskQuery) (feedKey, error) {
	switch {
	case v.agent != nil:
		return consulFeedOf(q)
	case isFederation(q.Kind):
		return feedKey{dc: v.cfg.Datacenter, kind: feedFederation}, nil
	case q.Kind == task.KindServices, q.Kind == task.KindCatalogServices, q.Kind == task.KindNodes:
		return feedKey{dc: q.Datacenter, kind: feedCatalog}, nil
	case q.Kind == task.KindKV:
		path := q.Path
		if !q.Recurse {
			path = q.Names[0]
		}
		// Keys with the same first element share a stream.
		if i := strings.IndexByte(path, '/'); i >= 0 {
			path = path[:i+1]
		}
		return feedKey{dc: q.Datacenter, kind: feedKeys, prefix: path}, nil
	case q.Kind == task.KindDocument:
		return feedKey{dc: q.Datacenter, kind: feedDocuments, prefix: q.Prefix}, nil
	case q.Kind == task.KindResource:
		typ, err := api.ParseResourceType(q.Type)
		return feedKey{dc: q.Datacenter, kind: feedResources, typ: typ, prefix: q.Prefix}, err
	}
	return feedKey{}, fmt.Errorf("kind %q has no data", q.Kind)
}

// newFeed returns a feed without views.
func (v *Views) newFeed(key feedKey) *feed {
	f := &feed{key: key, views: map[*view]struct{}{}, since: time.Now()}
	if v.agent != nil {
		v.agent.open(f)
		return f
	}
	stream := func(t api.ResourceTypeName, decode func(api.Resource) (any, error)) {
		f.addStream(t.String(), v.decoded(Stream{Datacenter: key.dc, Type: t, Prefix: key.prefix}, decode))
	}
	switch key.kind {
	case feedCatalog:
		f.mirror = newCatalogMirror(key.dc)
		stream(nodeType, decodeInto[pb.Node])
		stream(serviceType, decodeInto[pb.Service])
		stream(checkType, decodeInto[pb.Check])
	case feedKeys:
		f.mirror = newRecordMirror(renderKey)
		stream(entryType, decodeInto[pb.KVEntry])
	case feedDocuments:
		f.mirror = newRecordMirror(renderJSON)
		stream(documentType, decodeDocument)
	case feedResources:
		f.mirror = newRecordMirror(renderJSON)
		stream(key.typ, decodeResource)
	case feedFederation:
		due := make(chan struct{}, 1)
		f.mirror = newFederationMirror(due)
		stream(stateType, decodeInto[pb.FederationState])
		f.addStream("status", v.poll(due))
	}
	return f
}

func (f *feed) addStream(name string, watch func(context.Context) iter.Seq2[event, error]) {
	f.streams = append(f.streams, &stream{name: name, watch: watch, now: map[string]*record{}})
}
