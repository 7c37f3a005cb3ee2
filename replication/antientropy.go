// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/resource"
)

// AntiEntropyConfig configures an AntiEntropy.
type AntiEntropyConfig struct {
	DC      string
	Backend resource.Backend
	// Apply has a state written in the primary. It obeys ctx; AntiEntropy gives it applyTimeout.
	Apply func(ctx context.Context, s *pb.FederationState) error
	// Ways returns a channel that is closed when the way to the primary may have changed.
	PathsChanged func() <-chan struct{}
	Logger       *slog.Logger
}

const (
	applyTimeout = 10 * time.Second
	resyncEvery  = time.Minute
)

// AntiEntropy keeps the primary's record of this datacenter's gateways true.
type AntiEntropy struct {
	cfg AntiEntropyConfig

	mu     sync.Mutex
	status AntiEntropyStatus
}

// AntiEntropyStatus tells how anti-entropy goes.
type AntiEntropyStatus struct {
	// InSync says that the local copy agrees with the gateways there are.
	InSync      bool
	LastApplied time.Time
	LastError   error
	LastErrorAt time.Time
}

// NewAntiEntropy checks cfg.
func NewAntiEntropy(cfg AntiEntropyConfig) (*AntiEntropy, error) {
	if cfg.DC == "" || cfg.Backend == nil || cfg.Apply == nil || cfg.PathsChanged == nil || cfg.Logger == nil {
		return nil, errors.New("replication: every field of AntiEntropyConfig is required")
	}
	return &AntiEntropy{cfg: cfg}, nil
}

// Status returns how it goes. LastError is nil after a success.
func (a *AntiEntropy) Status() AntiEntropyStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status
}

// sent is what was applied last, and the local copies' index at that time. An index, not the own copy's version: a copy that
// came and was deleted again between two rounds leaves no version.
type sent struct {
	state *pb.FederationState
	index uint64
}

// Run compares and applies until ctx ends. Call it while this server leads, once at a time.
func (a *AntiEntropy) Run(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, q := range []resource.Query{a.own(), {Type: catalog.NodeType}, {Type: catalog.ServiceType}, {Type: catalog.CheckType}} {
		wg.Go(func() { resource.Notify(ctx, a.cfg.Backend, q, wake) })
	}

	var last sent
	var retry backoff
	failing := false
	for {
		ways, began := a.cfg.PathsChanged(), time.Now()
		var next time.Duration
		err := a.round(ctx, &last)
		a.note(err)
		if err != nil && ctx.Err() == nil {
			next = retry.next(time.Since(began))
			a.cfg.Logger.Log(ctx, level(failing), "writing the own federation state to the primary", "err", err, "retry", next)
			failing = true
		} else {
			failing = false
			retry.reset()
			next = resyncEvery + rand.N(resyncEvery/10)
			ways = nil // nothing to wait for
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
			last = sent{} // compare with nothing remembered
		case <-wake:
		case <-ways:
			retry.reset()
		}
		timer.Stop()
	}
}

// own selects the own federation state.
func (a *AntiEntropy) own() resource.Query {
	return resource.Query{Type: federation.StateType, Name: a.cfg.DC}
}

// round compares once and applies if needed.
func (a *AntiEntropy) round(ctx context.Context, last *sent) error {
	gateways, err := catalog.ListGateways(ctx, a.cfg.Backend)
	if err != nil {
		return err
	}
	rs, index, err := a.cfg.Backend.List(ctx, resource.Eventual, a.own())
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
		return nil // never had a gateway: nothing to say
	}
	want := &pb.FederationState{Datacenter: a.cfg.DC, MeshGateways: gateways, UpdatedAt: timestamppb.New(time.Now())}
	inSync := have != nil && federation.SameContent(have, want)
	a.mu.Lock()
	a.status.InSync = inSync
	a.mu.Unlock()
	if inSync {
		return nil
	}
	if last.state != nil && last.index == index && federation.SameContent(last.state, want) {
		return nil // applied already; the copy is on its way
	}
	actx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	if err := a.cfg.Apply(actx, want); err != nil {
		return err
	}
	*last = sent{state: want, index: index}
	a.cfg.Logger.Debug("own federation state applied in the primary", "gateways", len(gateways))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.LastApplied = time.Now()
	return nil
}

func (a *AntiEntropy) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.LastError = err
	if err != nil {
		a.status.LastErrorAt = time.Now()
	}
}
