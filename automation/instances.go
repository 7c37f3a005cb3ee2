// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/lease"
	"github.com/wanfed/wanfed/resource"
)

// check is the result of Driver.Check for one task.
type check struct {
	generation string
	at         time.Time
	err        error
}

// errOtherDaemon reports that another daemon has the lease of this daemon.
var errOtherDaemon = errors.New("another daemon has the same id")

// register makes this daemon a member of its group. It retries until ctx ends.
func (d *Daemon) register(ctx context.Context) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := d.publish(ctx)
		if err == nil || ctx.Err() != nil || errors.Is(err, errOtherDaemon) {
			return err
		}
		d.cfg.Logger.Warn("cannot register the daemon", "err", err)
		backoff.Sleep(ctx, pause, nil)
	}
}

// deregister deletes the resource of the daemon.
func (d *Daemon) deregister(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := d.cfg.Resources.Delete(ctx, &pb.DeleteRequest{Id: resource.ID(task.InstanceType, d.cfg.ID)}); err != nil {
		d.cfg.Logger.Warn("cannot deregister the daemon", "err", err)
	}
}

// publish acquires the lease of the daemon, which shows that it is alive, and
// writes its resource, which has what the daemon can run. Other daemons delete the
// resource when the lease is free.
func (d *Daemon) publish(ctx context.Context) error {
	token, err := d.claims.acquire(ctx, task.InstanceLeaseName(d.cfg.ID))
	if err == nil && token == 0 {
		err = fmt.Errorf("%w %q: set another id, or wait %v if it has died", errOtherDaemon, d.cfg.ID, d.cfg.Lease)
	}
	if err != nil {
		return err
	}
	d.mu.Lock()
	data := &pb.SyncInstance{
		Group: d.cfg.Group, Version: d.cfg.Version, Address: d.cfg.Address, StartedAt: timestamppb.New(d.started),
		Drivers: maps.Clone(d.versions), Incompatible: map[string]string{},
	}
	for name, c := range d.checks {
		if c.err != nil {
			data.Incompatible[name] = c.err.Error()
		}
	}
	d.mu.Unlock()
	r, err := resource.New(task.InstanceType, d.cfg.ID, data)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r.Id.Uid, r.Generation = "", ""
	_, err = d.cfg.Resources.Write(ctx, &pb.WriteRequest{Resource: r})
	if err != nil {
		return fmt.Errorf("publish daemon %s: %w", d.cfg.ID, resource.FromStatus(err))
	}
	return nil
}

// publishLater makes maintain write the resource of the daemon. It does not block.
func (d *Daemon) publishLater() {
	select {
	case d.unpublished <- struct{}{}:
	default:
	}
}

// maintain publishes changes of this daemon, deletes the resources of dead
// daemons, and looks for old data. It returns when ctx ends.
func (d *Daemon) maintain(ctx context.Context) {
	tick := time.NewTicker(d.cfg.Lease)
	defer tick.Stop()
	age := time.NewTicker(ageInterval)
	defer age.Stop()
	for {
		var err error
		select {
		case <-d.unpublished:
			if err = d.publish(ctx); err != nil {
				time.AfterFunc(d.cfg.Lease/renewPart, d.publishLater)
			}
		case <-tick.C:
			err = d.removeDead(ctx)
		case <-age.C:
			d.notifyAge(time.Now())
		case <-ctx.Done():
			return
		}
		if err != nil && ctx.Err() == nil {
			d.cfg.Logger.Warn("cannot maintain the list of daemons", "err", err)
		}
	}
}

// removeDead deletes the resources of daemons whose leases are free.
func (d *Daemon) removeDead(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := d.cfg.Resources.List(ctx, &pb.ListRequest{Type: task.InstanceType})
	if err != nil {
		return resource.FromStatus(err)
	}
	var errs []error
	for _, r := range resp.GetResources() {
		read, err := d.cfg.Resources.Read(resource.WithConsistency(ctx, resource.Strong),
			&pb.ReadRequest{Id: resource.ID(lease.Type, task.InstanceLeaseName(r.GetId().GetName()))})
		if err = resource.FromStatus(err); err != nil && !errors.Is(err, resource.ErrNotFound) {
			errs = append(errs, err)
			continue
		}
		if lease.Token(read.GetResource()) != 0 || time.Since(resource.TimeOf(r.GetGeneration())) < d.cfg.Lease {
			continue
		}
		_, err = d.cfg.Resources.Delete(ctx, &pb.DeleteRequest{Id: r.GetId(), Version: r.GetVersion()})
		errs = append(errs, resource.FromStatus(err))
	}
	return errors.Join(errs...)
}

// isMine reports whether this daemon should run a task: it is the preferred one
// of the live daemons of the group that can run the task, or, if none can, of
// all.
func (d *Daemon) isMine(env *controller.Env, name string) (bool, error) {
	instances, err := env.Cache.List(task.InstanceType, nil, "")
	if err != nil {
		return false, err
	}
	var able, live []string
	for _, r := range instances {
		data, err := resource.Decode[*pb.SyncInstance](r)
		if err != nil {
			return false, err
		}
		id := r.GetId().GetName()
		if data.Group != d.cfg.Group {
			continue
		}
		unable := data.Incompatible[name] != ""
		if id == d.cfg.ID {
			unable = d.checkOf(name).err != nil
		} else if l, err := env.Cache.Get(resource.ID(lease.Type, task.InstanceLeaseName(id))); err != nil || lease.Token(l) == 0 {
			continue
		}
		live = append(live, id)
		if !unable {
			able = append(able, id)
		}
	}
	if len(able) == 0 {
		able = live
	}
	return preferred(name, able) == d.cfg.ID, nil
}

func (d *Daemon) checkOf(name string) check {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.checks[name]
}

// check returns why this daemon cannot run a task, or nil. It checks a task at
// most once per generation and checkInterval.
func (d *Daemon) check(ctx context.Context, name string, r *pb.Resource, t *pb.Task) error {
	old := d.checkOf(name)
	if old.generation == r.GetGeneration() && time.Since(old.at) < checkInterval {
		return old.err
	}
	w, drv, err := d.driverWork(ctx, name, t)
	if err == nil {
		err = d.CheckData(t)
	}
	if err == nil {
		err = drv.Check(ctx, w)
	}
	if ctx.Err() != nil {
		return old.err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.checks[name] = check{r.GetGeneration(), time.Now(), err}
	if (err == nil) != (old.err == nil) || err != nil && err.Error() != old.err.Error() {
		d.publishLater()
		d.cfg.Logger.Info("compatibility of a task changed", "task", name, "err", err)
	}
	return err
}

// CheckData returns why the source of this daemon does not have the data of a
// task, or nil. Package task has checked the task.
func (d *Daemon) CheckData(t *pb.Task) error {
	for _, q := range slices.Concat(t.Conditions, t.Inputs) {
		if q.Kind == task.KindSchedule {
			continue
		}
		if err := d.cfg.Views.Check(q); err != nil {
			return fmt.Errorf("%s: %w", describe(q), err)
		}
	}
	return nil
}
