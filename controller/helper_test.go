// SPDX-License-Identifier: MPL-2.0

package controller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/controller/controllertest"
	"github.com/wanfed/wanfed/resource"
)

// text is the data of all types of the tests: words, separated by spaces.
type text = wrapperspb.StringValue

func words(_ *pb.Resource, data *text) []string { return strings.Fields(data.Value) }

// A route names its targets. The computed resource of a target has the names of
// all routes to it.
var (
	targetType   = testType("Target")
	routeType    = testType("Route")
	computedType = testType("Computed")

	routesByTarget = controller.By(routeType, "target", words)
)

func testType(kind string) *pb.Type { return &pb.Type{Group: "test", GroupVersion: "v1", Kind: kind} }

func registrations() []resource.Registration {
	var all []resource.Registration
	for _, t := range []*pb.Type{targetType, routeType, computedType} {
		all = append(all, resource.Registration{Type: t, Message: &text{}})
	}
	return all
}

func newService(t testing.TB) *controllertest.Service {
	return controllertest.New(t, registrations()...)
}

var quiet = controller.Config{Logger: slog.New(slog.DiscardHandler)}

// noop is a valid controller of targets.
func noop(name string) controller.Controller {
	return controller.Controller{
		Name: name, Managed: targetType, Resync: -1,
		Reconcile: func(context.Context, *controller.Env, *pb.ID) (controller.Result, error) {
			return controller.Result{}, nil
		},
	}
}

// aggregate computes a resource for each target: the names and the words of its
// routes.
func aggregate() controller.Controller {
	c := noop("aggregate")
	c.Indexes = []*controller.Index{routesByTarget}
	c.Watches = []controller.Watch{
		{Type: routeType, Map: controller.MapNames(words)},
		{Type: computedType, Map: controller.MapSameName},
	}
	c.Reconcile = reconcileAggregate
	return c
}

func reconcileAggregate(ctx context.Context, env *controller.Env, id *pb.ID) (controller.Result, error) {
	computed := resource.ID(computedType, id.Name)
	target, err := env.Cache.Get(id)
	if errors.Is(err, resource.ErrNotFound) {
		_, err := env.Client.Delete(ctx, &pb.DeleteRequest{Id: computed})
		return controller.Result{}, err
	}
	if err != nil {
		return controller.Result{}, err
	}
	routes, err := env.Cache.Lookup(routesByTarget, id.Name)
	if err != nil {
		return controller.Result{}, err
	}
	var parts []string
	for _, r := range routes {
		parts = append(parts, fmt.Sprintf("%s=%s", r.Id.Name, value(r)))
	}
	err = write(ctx, env, computed, strings.Join(parts, ";"), nil)
	return controller.Result{}, errors.Join(err,
		env.WriteStatus(ctx, target, controller.Outcome("Computed", "RoutesRead", err)))
}

// write writes a resource unless its text is stored already.
func write(ctx context.Context, env *controller.Env, id *pb.ID, v string, used *controller.References) error {
	r, err := resource.New(id.Type, id.Name, wrapperspb.String(v))
	if err != nil {
		return err
	}
	r.Id, r.Generation = id, ""
	if used != nil {
		used.Store(r)
	}
	old, err := env.Cache.Get(id)
	if err == nil && value(old) == v && old.Metadata[controller.ReferencesKey] == r.Metadata[controller.ReferencesKey] {
		return nil
	}
	_, err = env.Client.Write(ctx, &pb.WriteRequest{Resource: r})
	return err
}

func value(r *pb.Resource) string {
	data, err := resource.Decode[*text](r)
	if err != nil {
		return "error: " + err.Error()
	}
	return data.Value
}

// state returns name and text of all resources of a type.
func state(s *controllertest.Service, t *pb.Type) string {
	var out []string
	for _, r := range s.List(t) {
		out = append(out, r.Id.Name+":"+value(r))
	}
	return strings.Join(out, " ")
}
