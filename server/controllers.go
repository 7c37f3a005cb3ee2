// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/status"
	"github.com/wanfed/wanfed/tlsutil"
)

// Controllers returns the declarations of the controllers of a server with the
// store b, which observes the other datacenters by observe, and whose pool and
// address book use deletions.
func Controllers(b resource.Backend, observe status.Observe, deletions *federation.Deletions) []controller.Controller {
	return []controller.Controller{{
		// Deletes what deleted resources own: see resource.MaxCascade.
		Name: "owned-resources", Managed: resource.TombstoneType,
		Reconcile: func(ctx context.Context, env *controller.Env, _ *pb.ID) (controller.Result, error) {
			_, err := resource.ReapOnce(ctx, b, env.Logger)
			return controller.Result{}, err
		},
	}, status.Conditions(observe), deletions.Controller()}
}

// buildControllers builds the runtime of the controllers. Their writes go to
// the local store, which refuses them after the loss of leadership.
func (c *components) buildControllers() error {
	self := tlsutil.Peer{Role: tlsutil.RoleServer, DC: c.cfg.DC, Node: c.cfg.Node}
	service, err := resource.NewService(resource.ServiceConfig{
		Backend: c.manager.Fenced(c.store), Registry: c.registry, DC: c.cfg.DC, PrimaryDC: c.cfg.PrimaryDC,
		Primary: func() bool { return c.manager.Writable() == nil }, Logger: c.logger,
		Peer: func(context.Context) (tlsutil.Peer, error) { return self, nil },
	})
	if err != nil {
		return err
	}
	c.controllers, err = controller.New(controller.Config{
		Client: service.Client(), Elector: c.store, Logger: c.logger,
	}, Controllers(c.store, func(ctx context.Context) (map[string][]*pb.Condition, error) {
		return c.reporter.Observe(ctx)
	}, c.deletions)...)
	return err
}

// controllerStatus returns the state of the controllers for the HTTP API.
func (c *components) controllerStatus() []api.Controller {
	all := []api.Controller{}
	for _, s := range c.controllers.Status() {
		all = append(all, api.Controller(s))
	}
	return all
}
