// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/document"
	"github.com/wanfed/wanfed/resource"
)

// checksByNode finds the checks of a node.
var checksByNode = controller.By(catalog.CheckType, "node", nodeOf)

func nodeOf(_ *pb.Resource, check *pb.Check) []string { return []string{strings.ToLower(check.Node)} }

// health writes the document health.NODE for each node.
var health = controller.Controller{
	Name:    "node-health",
	Managed: catalog.NodeType,
	Watches: []controller.Watch{
		{Type: catalog.CheckType, Map: controller.MapNames(nodeOf)},
		{Type: document.Type, Map: nodeOfDocument},
	},
	Indexes:   []*controller.Index{checksByNode},
	Reconcile: reconcile,
}

const prefix = "health."

// nodeOfDocument maps a document to its node. The document of a deleted node is
// then deleted, even if the node was deleted while the program did not run.
func nodeOfDocument(env *controller.Env, r *pb.Resource) ([]*pb.ID, error) {
	node, ok := strings.CutPrefix(r.Id.Name, prefix)
	if !ok {
		return nil, nil
	}
	return []*pb.ID{resource.ID(env.Managed(), node)}, nil
}

func reconcile(ctx context.Context, env *controller.Env, id *pb.ID) (controller.Result, error) {
	doc := &pb.Resource{Id: resource.ID(document.Type, prefix+id.Name)}
	node, err := env.Cache.Get(id)
	if errors.Is(err, resource.ErrNotFound) {
		_, err := env.Client.Delete(ctx, &pb.DeleteRequest{Id: doc.Id})
		return controller.Result{}, err
	}
	if err != nil {
		return controller.Result{}, err
	}

	checks, err := env.Cache.Lookup(checksByNode, id.Name)
	if err != nil {
		return controller.Result{}, err
	}
	failing := map[string]any{}
	var used controller.References
	for _, r := range checks {
		used.Add(r)
		check, err := resource.Decode[*pb.Check](r)
		if err == nil && check.Status != catalog.StatusPassing {
			failing[check.CheckId] = check.Status
		}
	}
	used.Store(doc)

	err = write(ctx, env, doc, failing)
	return controller.Result{}, errors.Join(err,
		env.WriteStatus(ctx, node, controller.Outcome("HealthWritten", "ChecksRead", err)))
}

// write writes doc, unless the cached document is equal.
func write(ctx context.Context, env *controller.Env, doc *pb.Resource, content map[string]any) error {
	value, err := structpb.NewValue(content)
	if err != nil {
		return err
	}
	old, err := env.Cache.Get(doc.Id)
	if err == nil && old.Metadata[controller.ReferencesKey] == doc.Metadata[controller.ReferencesKey] {
		if data, err := resource.Decode[*pb.Document](old); err == nil && proto.Equal(data.Content, value) {
			return nil
		}
	}
	if err := resource.SetData(doc, &pb.Document{Content: value}); err != nil {
		return err
	}
	doc.Generation = "" // the server sets it
	_, err = env.Client.Write(ctx, &pb.WriteRequest{Resource: doc})
	return err
}
