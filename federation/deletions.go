// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/resource"
)

// deletionHold is the time from the deletion of a federation state to the
// removal of what the datacenter left behind. A datacenter that is alive writes
// its state again within this time: a deletion with --force may meet one.
const deletionHold = time.Minute

// Deletions tracks the datacenters whose federation state was deleted. Each
// server removes their failed members from its list of the WAN pool, and their
// cached addresses, because both are its own. Any goroutine may call the methods.
type Deletions struct {
	alive func(dc string) bool

	mu sync.Mutex
	at map[string]time.Time // time of the deletion, by datacenter
}

// NewDeletions returns Deletions without a datacenter. alive reports whether any
// server of a datacenter is alive in the WAN pool. It must not block.
func NewDeletions(alive func(dc string) bool) *Deletions {
	return &Deletions{alive: alive, at: map[string]time.Time{}}
}

// Controller returns the controller that finds deleted federation states.
func (d *Deletions) Controller() controller.Controller {
	return controller.Controller{
		Name: "deleted-datacenters", Managed: StateType, Placement: controller.EveryServer, Reconcile: d.reconcile,
	}
}

func (d *Deletions) reconcile(_ context.Context, env *controller.Env, id *pb.ID) (controller.Result, error) {
	_, err := env.Cache.Get(id)
	deleted := errors.Is(err, resource.ErrNotFound)
	if err != nil && !deleted {
		return controller.Result{}, err
	}
	dc := id.GetName()
	d.mu.Lock()
	defer d.mu.Unlock()
	switch _, known := d.at[dc]; {
	case !deleted:
		delete(d.at, dc)
	case !known:
		d.at[dc] = time.Now()
	}
	return controller.Result{}, nil
}

// Final reports whether the federation state of a datacenter was deleted at
// least a minute ago, was not written again, and no server of the datacenter is
// alive. It does not block.
func (d *Deletions) Final(dc string) bool {
	d.mu.Lock()
	at, known := d.at[dc]
	d.mu.Unlock()
	return known && time.Since(at) >= deletionHold && !d.alive(dc)
}
