// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/resource"
)

const (
	// TypeTTL is the type of checks with a TTL.
	TypeTTL = "ttl"
	// TTLExpiredOutput is the output of a check after its TTL has passed.
	TTLExpiredOutput = "TTL expired"
	// OutputInterval is the minimum time between two writes of a check's
	// output, while its status stays the same.
	OutputInterval = 10 * time.Second
	// MinDeregisterAfter is the minimum DeregisterAfter of a check.
	MinDeregisterAfter = time.Minute
	// writeRetry is the time between a failed write and its retry.
	writeRetry = time.Second
)

// CheckUpdate is a new status and output of a check.
type CheckUpdate struct {
	Node, CheckID  string
	Status, Output string
	// Probed is set for the result of a probe. Only a check with a probe accepts
	// it, and only a check with a TTL accepts other updates.
	Probed bool
}

// TTLMonitor keeps the deadlines of heartbeats, of checks with a TTL, and of
// services that are deleted after a critical time, in the leader's memory. A heartbeat, or an update that changes nothing, moves a
// deadline and writes nothing. A new leader gives each check its full TTL.
type TTLMonitor struct {
	backend resource.Backend
	logger  *slog.Logger
	changed broadcast.Broadcast // notifies performDue of changed deadlines

	mu     sync.Mutex
	checks map[string]*ttlCheck // by name of the resource; nil while Run does not run
}

// ttlCheck is the state of one check. TTLMonitor.mu guards the state.
type ttlCheck struct {
	node, service string
	gateway       bool // the check is the heartbeat of a gateway
	status        string
	ttl           time.Duration // 0: the check does not expire
	deregister    time.Duration // maximum time as critical before the service is deleted; 0: no limit
	updated       time.Time     // time of the last update, or of this leader's first read of the check
	criticalSince time.Time     // zero while the check is not critical
	outputWritten time.Time     // time of the last write of an output
	pending       string        // output that is not written yet; empty: none
	notBefore     time.Time     // earliest time of the next action, after a write that failed
}

// NewTTLMonitor returns a TTLMonitor of the checks in b.
func NewTTLMonitor(b resource.Backend, logger *slog.Logger) (*TTLMonitor, error) {
	if b == nil || logger == nil {
		return nil, errors.New("catalog: Backend and Logger are required")
	}
	return &TTLMonitor{backend: b, logger: logger}, nil
}

// Update applies an update of a check with a TTL or a probe. A changed status is
// written at once. A changed output is written at most once per OutputInterval.
//
// Update fails with resource.ErrNotLeader while Run is not running. It fails
// with ErrNoCheck for a check that does not exist or has neither, and with
// resource.ErrInvalid for an unknown status. Update does not authorize the
// caller.
func (m *TTLMonitor) Update(ctx context.Context, u CheckUpdate) error {
	if !isStatus(u.Status) {
		return fmt.Errorf("%w status %.30q: must be passing, warning or critical", resource.ErrInvalid, u.Status)
	}
	u.Output = truncate(u.Output, MaxOutput)
	name := resourceName(u.Node, u.CheckID)
	if !m.leading() {
		return resource.ErrNotLeader
	}
	for {
		r, c, err := m.read(ctx, name)
		if err != nil {
			return err
		}
		switch {
		case u.Probed && c.GetProbe() == nil:
			return fmt.Errorf("%w with a probe: %q on node %q", ErrNoCheck, u.CheckID, u.Node)
		case !u.Probed && c.GetType() != TypeTTL:
			return fmt.Errorf("%w with a TTL: %q on node %q", ErrNoCheck, u.CheckID, u.Node)
		}
		if !m.record(name, c, u) {
			return nil
		}
		c = proto.CloneOf(c)
		c.Status, c.Output = u.Status, u.Output
		if err := m.replace(ctx, r, c); !errors.Is(err, resource.ErrConflict) {
			return err
		}
	}
}

// truncate returns the first n bytes of s, without an incomplete character.
func truncate(s string, n int) string { return strings.ToValidUTF8(s[:min(n, len(s))], "") }

// record moves the deadline and reports whether the update must be written now.
func (m *TTLMonitor) record(name string, c *pb.Check, u CheckUpdate) (write bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.checks == nil {
		return true // leadership was lost: the write returns the error
	}
	k := m.loadLocked(name, c)
	if k == nil {
		return true // no TTL, hence no deadline
	}
	switch {
	case u.Status != c.Status, u.Output != c.Output && k.updated.Sub(k.outputWritten) >= OutputInterval:
		k.outputWritten, k.pending = k.updated, ""
		return true
	case u.Output == c.Output:
		k.pending = ""
		return false
	}
	k.pending = u.Output
	m.changed.Notify()
	return false
}

// heartbeat moves the deadline of a gateway. c is its check, as the store has
// it.
func (m *TTLMonitor) heartbeat(node string, c *pb.Check) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.checks == nil {
		return resource.ErrNotLeader
	}
	// A deadline that only moves later needs no notification.
	if k := m.checks[node]; k == nil || k.status == StatusCritical {
		m.changed.Notify()
	}
	m.loadLocked(node, c)
	return nil
}

// lastHeartbeat returns the time of the last heartbeat of a gateway, or the time
// at which this leader first read its check. It returns the current time if this
// leader has not read the check yet.
func (m *TTLMonitor) lastHeartbeat(node string) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.checks[node]; k != nil {
		return k.updated
	}
	return time.Now()
}

// loadLocked copies the stored check c into the state of the check and gives
// the check its full TTL. It returns nil, and removes the state, if c has
// neither a TTL nor a probe.
func (m *TTLMonitor) loadLocked(name string, c *pb.Check) *ttlCheck {
	gateway := name == c.Node && c.ServiceName == ServiceName
	ttl, deregister := c.GetTtl().AsDuration(), c.GetDeregisterAfter().AsDuration()
	switch {
	case gateway:
		// The check becomes critical HeartbeatTTL after the last heartbeat.
		ttl, deregister = HeartbeatTTL, ReapAfter-HeartbeatTTL
	case c.ServiceId == "":
		deregister = 0
	case deregister > 0:
		deregister = max(deregister, MinDeregisterAfter)
	}
	if (c.Type != TypeTTL || ttl <= 0) && c.Probe == nil {
		delete(m.checks, name)
		return nil
	}
	k := m.checks[name]
	if k == nil {
		k = new(ttlCheck)
		m.checks[name] = k
	}
	k.node, k.service, k.status, k.gateway = c.Node, c.ServiceId, c.Status, gateway
	k.ttl, k.deregister, k.updated = ttl, deregister, time.Now()
	switch {
	case c.Status != StatusCritical:
		k.criticalSince = time.Time{}
	case k.criticalSince.IsZero():
		k.criticalSince = k.updated
	}
	return k
}

// replace writes new data to a stored resource, if the resource has not
// changed.
func (m *TTLMonitor) replace(ctx context.Context, r *pb.Resource, data proto.Message) error {
	next, err := resource.WithData(r, data)
	if err != nil {
		return err
	}
	_, err = m.backend.Commit(ctx, resource.PutOp(next, r.Version))
	return err
}

func (m *TTLMonitor) read(ctx context.Context, name string) (*pb.Resource, *pb.Check, error) {
	r, err := m.backend.Read(ctx, resource.Eventual, resource.ID(CheckType, name))
	if errors.Is(err, resource.ErrNotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	c, err := resource.Decode[*pb.Check](r)
	return r, c, err
}

func (m *TTLMonitor) leading() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.checks != nil
}

// Run watches the deadlines until ctx ends. Call Run while this server leads.
func (m *TTLMonitor) Run(ctx context.Context) error {
	m.mu.Lock()
	m.checks = map[string]*ttlCheck{}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.checks = nil
	}()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.follow(gctx) })
	g.Go(func() error { return m.performDue(gctx) })
	if err := g.Wait(); ctx.Err() == nil {
		return fmt.Errorf("watch checks: %w", err)
	}
	return nil
}

// performDue performs the action of each deadline that passes, until ctx ends.
func (m *TTLMonitor) performDue(ctx context.Context) error {
	for {
		changed := m.changed.Wait()
		due, next := m.due(time.Now())
		for _, a := range due {
			if err := m.perform(ctx, a); err != nil && ctx.Err() == nil {
				m.logger.Warn("cannot update a check after its deadline", "check", a.name, "err", err)
				m.postpone(a.name)
				next = min(next, writeRetry)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(next):
		case <-changed:
		}
	}
}

// follow updates the state of the checks from watches, until ctx ends.
func (m *TTLMonitor) follow(ctx context.Context) error {
	for {
		w, err := m.backend.Watch(resource.Query{Type: CheckType})
		if err != nil {
			return err
		}
		for err == nil {
			var ev *pb.WatchEvent
			if ev, err = w.Next(ctx); err == nil {
				m.apply(ev)
			}
		}
		w.Close()
		if !errors.Is(err, resource.ErrWatchReset) {
			return err
		}
	}
}

// apply updates the state of a check from an event of the watch.
func (m *TTLMonitor) apply(ev *pb.WatchEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := ev.GetUpsert().GetResource(); r != nil {
		c, err := resource.Decode[*pb.Check](r)
		if err != nil {
			m.logger.Error("cannot read a check", "check", r.GetId().GetName(), "err", err)
		} else if m.loadLocked(r.GetId().GetName(), c) != nil {
			m.changed.Notify()
		}
	}
	if r := ev.GetDelete().GetResource(); r != nil {
		delete(m.checks, r.GetId().GetName())
	}
}

// action is the write after a deadline.
type action struct {
	name          string // name of the check's resource
	node, service string
	gateway       bool   // the check is the heartbeat of a gateway
	deregister    bool   // delete the service; for a gateway, delete the node
	expire        bool   // write the check as critical
	output        string // output to write, unless deregister or expire is set
}

// due returns the actions that are due, and the time until the next deadline.
func (m *TTLMonitor) due(now time.Time) (due []action, next time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next = time.Hour
	for name, k := range m.checks {
		a := action{name: name, node: k.node, service: k.service, gateway: k.gateway}
		deadline := k.updated.Add(k.ttl)
		switch {
		case k.status == StatusCritical && k.deregister > 0:
			deadline = k.criticalSince.Add(k.deregister)
			a.deregister = true
		case k.status == StatusCritical, k.ttl == 0:
			deadline = time.Time{}
		default:
			a.expire = true
		}
		if at := k.outputWritten.Add(OutputInterval); k.pending != "" && (deadline.IsZero() || at.Before(deadline)) {
			deadline, a.deregister, a.expire, a.output = at, false, false, k.pending
		}
		switch {
		case deadline.IsZero():
			continue
		case deadline.Before(k.notBefore):
			deadline = k.notBefore
		}
		if wait := deadline.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		due = append(due, a)
	}
	return due, next
}

// postpone delays the next action of a check after a write that failed.
func (m *TTLMonitor) postpone(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.checks[name]; k != nil {
		k.notBefore = time.Now().Add(writeRetry)
	}
}

// perform writes the effect of a due action: the new status or output of a
// check, or the deletion of its service. It does nothing if the check was
// deleted or updated after the action became due.
func (m *TTLMonitor) perform(ctx context.Context, a action) error {
	for {
		r, c, err := m.read(ctx, a.name)
		if err != nil {
			return err
		}
		if c == nil || !m.isDue(a) {
			return nil // the check was deleted or updated after due
		}
		if a.deregister {
			return m.deregister(ctx, a, r)
		}
		c = proto.CloneOf(c)
		switch {
		case !a.expire:
			c.Output = a.output
		case a.gateway: // the text is constant, because each change is replicated
			c.Status, c.Output = StatusCritical, fmt.Sprintf("no heartbeat for %v", HeartbeatTTL)
		default:
			c.Status, c.Output = StatusCritical, TTLExpiredOutput
		}
		err = m.replace(ctx, r, c)
		switch {
		case errors.Is(err, resource.ErrConflict):
			continue
		case err == nil && !a.expire:
			m.written(a)
		case err == nil && a.expire && a.gateway:
			m.logger.Warn("gateway heartbeat missing", "gateway", a.node, "duration", HeartbeatTTL)
		case err == nil && a.expire:
			m.logger.Info("check expired", "node", a.node, "check", c.CheckId, "service", a.service)
		}
		return err
	}
}

// isDue reports whether an action is still due: a heartbeat may have moved the
// deadline since the action was planned.
func (m *TTLMonitor) isDue(a action) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, now := m.checks[a.name], time.Now()
	switch {
	case k == nil:
		return false
	case a.deregister:
		return k.status == StatusCritical && now.Sub(k.criticalSince) >= k.deregister
	case a.expire:
		return k.status != StatusCritical && now.Sub(k.updated) >= k.ttl
	}
	return k.pending == a.output
}

// written records that an output was written. A later output stays pending.
func (m *TTLMonitor) written(a action) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.checks[a.name]
	if k == nil {
		return
	}
	k.outputWritten = time.Now()
	if k.pending == a.output {
		k.pending = ""
	}
}

// deregister deletes the owner of a check, which is its service. For the
// heartbeat of a gateway, deregister deletes the gateway's node.
func (m *TTLMonitor) deregister(ctx context.Context, a action, check *pb.Resource) error {
	owner := check.GetOwner()
	if a.gateway {
		owner = resource.ID(NodeType, a.node)
	}
	if owner == nil { // a check without an owner determines no service to delete
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.checks, a.name)
		return nil
	}
	_, err := m.backend.Commit(ctx, resource.RemoveOp(owner, resource.AnyVersion))
	switch {
	case err != nil:
		return err
	case a.gateway:
		m.logger.Info("gateway without heartbeats deleted", "gateway", a.node, "duration", ReapAfter)
	default:
		m.logger.Info("service deleted after its critical limit", "node", a.node, "service", a.service)
	}
	return nil
}
