// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
)

// AntiEntropyConfig configures an AntiEntropy. All fields except Enabled are
// required.
type AntiEntropyConfig struct {
	DC      string           // the local datacenter
	Backend resource.Backend // the local store
	// Apply writes a federation state in the primary, within applyTimeout.
	Apply func(ctx context.Context, s *pb.FederationState) error
	// Enabled reports whether this server may write the state, and returns a
	// channel that is closed at the next change. No server may write it while
	// the name DC belongs to another datacenter. Default: always enabled.
	Enabled func() (enabled bool, changed <-chan struct{})
	// PathsChanged returns a channel that is closed when the paths to the
	// primary may have changed.
	PathsChanged func() <-chan struct{}
	Logger       *slog.Logger
}

const (
	applyTimeout = 10 * time.Second
	// resyncInterval is the interval between two comparisons without a change.
	resyncInterval = time.Minute
	// maxQuickWrites is the number of writes within resyncInterval after which
	// further writes are delayed.
	maxQuickWrites = 8
)

// AntiEntropy keeps the federation state of this datacenter equal to the
// gateways in its catalog. It compares the gateways with the local replica of
// the state after every change of either. If they differ, it writes the current
// state to the primary. A state that was deleted in the primary is written
// again: the replication deletes the replica, which then differs from the
// gateways.
type AntiEntropy struct {
	cfg AntiEntropyConfig

	mu     sync.Mutex
	status AntiEntropyStatus
}

// AntiEntropyStatus is the state of an AntiEntropy.
type AntiEntropyStatus struct {
	LastApplied time.Time // time of the last write; zero: never
	LastError   error     // nil after a success
	LastErrorAt time.Time // time of the last error; zero: never
}

// NewAntiEntropy checks cfg.
func NewAntiEntropy(cfg AntiEntropyConfig) (*AntiEntropy, error) {
	if cfg.DC == "" || cfg.Backend == nil || cfg.Apply == nil || cfg.PathsChanged == nil || cfg.Logger == nil {
		return nil, errors.New("replication: every field of AntiEntropyConfig except Enabled is required")
	}
	if cfg.Enabled == nil {
		cfg.Enabled = func() (bool, <-chan struct{}) { return true, nil }
	}
	return &AntiEntropy{cfg: cfg}, nil
}

// Status returns the current state.
func (a *AntiEntropy) Status() AntiEntropyStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status
}

// appliedState is the last applied state and the local store's index of
// federation states at that time. The version of the replica cannot replace the
// index: a replica that was created and deleted between two rounds has no
// version.
type appliedState struct {
	state *pb.FederationState
	index uint64
	at    time.Time // of the write
}

// Run compares and writes until ctx ends. Only the leader calls it. Two calls
// must not run at the same time.
func (a *AntiEntropy) Run(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, q := range []resource.Query{
		a.stateQuery(), {Type: federation.GroupType},
		{Type: catalog.NodeType}, {Type: catalog.ServiceType}, {Type: catalog.CheckType},
	} {
		wg.Go(func() { resource.Notify(ctx, a.cfg.Backend, q, wake) })
	}

	var last appliedState
	var writes []time.Time // times of the writes within resyncInterval
	floor := backoff.Backoff{Min: time.Second, Max: resyncInterval / 2}
	retry := backoff.Backoff{Min: minRetryPause, Max: maxRetryPause}
	failing := false
	for {
		enabled, enabledChanged := a.cfg.Enabled()
		if !enabled {
			if backoff.Sleep(ctx, resyncInterval, enabledChanged); ctx.Err() != nil {
				return nil
			}
			continue
		}
		pathsChanged, start := a.cfg.PathsChanged(), time.Now()
		pause := backoff.Jitter(resyncInterval)
		err := a.sync(ctx, &last)
		a.recordResult(err)
		if err != nil && ctx.Err() == nil {
			pause = max(0, retry.Next()-time.Since(start))
			a.cfg.Logger.Log(ctx, retryLevel(failing), "cannot write the federation state to the primary",
				"err", err, "retry", pause)
			failing = true
		} else {
			failing = false
			retry.Reset()
			pathsChanged = nil
		}
		if !last.at.IsZero() && (len(writes) == 0 || last.at.After(writes[len(writes)-1])) {
			writes = append(writes, last.at)
		}
		writes = slices.DeleteFunc(writes, func(t time.Time) bool { return time.Since(t) > resyncInterval })
		if len(writes) > maxQuickWrites {
			a.cfg.Logger.Warn("federation state changes often: another server may write it too", "count", len(writes))
			backoff.Sleep(ctx, floor.Next(), nil)
		} else {
			floor.Reset()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
			last = appliedState{at: last.at} // write again, in case the last write was lost
		case <-wake:
		case <-pathsChanged:
			retry.Reset()
		}
	}
}

// stateQuery selects the federation state of this datacenter.
func (a *AntiEntropy) stateQuery() resource.Query {
	return resource.Query{Type: federation.StateType, Name: a.cfg.DC}
}

// sync compares once and writes the state if needed.
func (a *AntiEntropy) sync(ctx context.Context, last *appliedState) error {
	gateways, err := catalog.ListGateways(ctx, a.cfg.Backend)
	if err != nil {
		return err
	}
	rs, index, err := a.cfg.Backend.List(ctx, resource.Eventual, a.stateQuery())
	if err != nil {
		return err
	}
	var have *pb.FederationState
	for _, r := range rs {
		if have, err = federation.FromResource(r); err != nil {
			return err
		}
	}
	if have == nil && len(gateways) == 0 {
		return nil // this datacenter has never had a gateway
	}
	id, err := federation.GroupID(ctx, a.cfg.Backend)
	if err != nil {
		return err
	}
	want := &pb.FederationState{Datacenter: a.cfg.DC, MeshGateways: gateways, GroupId: id,
		UpdatedAt: timestamppb.New(time.Now())}
	if have != nil && federation.SameContent(have, want) {
		return nil
	}
	if last.state != nil && last.index == index && federation.SameContent(last.state, want) {
		return nil // the state was applied, and its replica has not arrived yet
	}
	applyCtx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	if err := a.cfg.Apply(applyCtx, want); err != nil {
		return err
	}
	*last = appliedState{state: want, index: index, at: time.Now()}
	a.cfg.Logger.Debug("federation state written to the primary", "count", len(gateways))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.LastApplied = time.Now()
	return nil
}

func (a *AntiEntropy) recordResult(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.LastError = err
	if err != nil {
		a.status.LastErrorAt = time.Now()
	}
}
