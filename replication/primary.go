// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/internal/ratelog"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// PrimaryType is the type of the resource that names the primary of this
// datacenter: the datacenter that owns the federated resources here. Each store
// contains one resource of this type, the primary resource. See pb.Primary.
var PrimaryType = &pb.Type{Group: "internal", GroupVersion: "v1", Kind: "Primary"}

// primaryName is the name of the primary resource.
const primaryName = "primary"

var primaryQuery = resource.Query{Type: PrimaryType, Name: primaryName}

// Register adds PrimaryType to a registry. Every peer with read access may read
// the primary resource. No peer may write it.
func Register(g *resource.Registry) error {
	return g.Register(resource.Registration{
		Type: PrimaryType, Message: &pb.Primary{}, Scope: resource.ScopeCluster,
		Authorize: func(_ tlsutil.Peer, verb resource.Verb, _ *pb.Resource) error {
			if verb == resource.VerbRead || verb == resource.VerbList {
				return nil
			}
			return errors.New("only the leader writes it, according to primary_datacenter of the servers")
		},
	})
}

// Servers reports the configuration of the servers of this datacenter.
type Servers interface {
	// ConfiguredPrimaries returns the configured primary of each alive server
	// by node, including the local server. unknown lists the servers whose
	// configuration is not known yet.
	ConfiguredPrimaries() (byNode map[string]string, unknown []string)
	// Changed returns a channel that is closed when the result of
	// ConfiguredPrimaries may have changed.
	Changed() <-chan struct{}
}

// Remote reaches the servers of other datacenters.
type Remote interface {
	// ReplicationClient returns a client of any server of dc.
	ReplicationClient(dc string) (pb.ReplicationServiceClient, error)
	// Known reports whether a path to dc is known.
	Known(dc string) bool
	// PathsChanged returns a channel that is closed when the paths to other
	// datacenters may have changed.
	PathsChanged() <-chan struct{}
	// Disconnect makes the next call to dc use a new connection, which may use
	// another path.
	Disconnect(dc string)
}

// PrimaryManagerConfig configures a PrimaryManager. All fields except Lease are
// required.
type PrimaryManagerConfig struct {
	DC                string // the local datacenter
	ConfiguredPrimary string // the primary in the configuration of this server
	Backend           resource.Backend
	Registry          *resource.Registry
	Servers           Servers
	Remote            Remote
	DataDir           string // for the files with discarded writes
	// Identity is the certificate of this server. It signs consents, and verifies
	// the proofs of others.
	Identity *tlsutil.Identity
	// Lease is the time without a call of another datacenter after which the
	// primary accepts no writes. 0: no limit.
	Lease  time.Duration
	Logger *slog.Logger
}

// PrimaryManager determines the primary of the local datacenter. The
// configuration of the servers names the desired primary. The primary resource
// names the actual one. The leader writes that resource in RunLeader, after all
// servers were reconfigured. Therefore all servers change at the same time, and
// the primary resource always matches the stored federated resources.
type PrimaryManager struct {
	cfg      PrimaryManagerConfig
	follower *Follower
	started  time.Time // start of this process

	decoded atomic.Pointer[decodedPrimary] // see stored

	wake    chan struct{}           // has an element after Report and learn, for Run
	refused *ratelog.Logger[string] // logs refused epochs, by datacenter

	mu       sync.Mutex
	followed string            // datacenter that the follower follows
	pending  string            // see PendingReason
	learned  Epoch             // highest epoch that learn has recorded
	proofs   []*pb.EpochProof  // of learned epochs
	takeOver *takeOver         // the running TakeOver, or nil
	contact  time.Time         // of the last RecordContact
	reported map[string]report // by reporting datacenter
	// lastSuccessor is HandedTo in the last read of the primary resource.
	// successorSince is the time of the first read with that value.
	lastSuccessor  string
	successorSince time.Time
}

// NewPrimaryManager checks cfg.
func NewPrimaryManager(cfg PrimaryManagerConfig) (*PrimaryManager, error) {
	if cfg.DC == "" || cfg.ConfiguredPrimary == "" || cfg.Backend == nil || cfg.Registry == nil ||
		cfg.Servers == nil || cfg.Remote == nil || cfg.DataDir == "" || cfg.Identity == nil || cfg.Logger == nil {
		return nil, errors.New("replication: every field of PrimaryManagerConfig is required")
	}
	p := &PrimaryManager{cfg: cfg, started: time.Now(), wake: make(chan struct{}, 1),
		refused: ratelog.New[string](cfg.Logger), reported: map[string]report{}}
	p.follower = newFollower(p)
	return p, nil
}

// Follower returns the component that replicates from the primary. RunLeader
// runs it while another datacenter is the primary.
func (p *PrimaryManager) Follower() *Follower { return p.follower }

// PrimaryDC returns the primary of this datacenter. It is the configured
// primary until a leader has written the primary resource for the first time.
func (p *PrimaryManager) PrimaryDC() string {
	return cmp.Or(p.stored().GetDatacenter(), p.cfg.ConfiguredPrimary)
}

// IsPrimary reports whether this datacenter owns its federated resources. Other
// datacenters can follow it only if IsPrimary returns true.
func (p *PrimaryManager) IsPrimary() bool { return p.PrimaryDC() == p.cfg.DC }

// waitPrimary blocks until IsPrimary returns primary. It fails when ctx ends or
// the store is closed.
func (p *PrimaryManager) waitPrimary(ctx context.Context, primary bool) error {
	return p.waitStored(ctx, func() bool { return p.IsPrimary() == primary })
}

// checkFollow returns nil if other datacenters can follow this one. Otherwise
// it returns a gRPC status with the reason, the known epoch and its proofs.
func (p *PrimaryManager) checkFollow() error {
	owner := p.PrimaryDC()
	if owner == p.cfg.DC {
		return nil
	}
	text := fmt.Sprintf("%s cannot be followed: it is not the primary; its primary is %s", p.cfg.DC, owner)
	if p.cfg.ConfiguredPrimary == p.cfg.DC {
		text = fmt.Sprintf("%s is not the primary yet: it takes over from %s; see its status", p.cfg.DC, owner)
	}
	st := status.New(codes.FailedPrecondition, text)
	if e := p.KnownEpoch().proto(); e != nil {
		if detailed, err := st.WithDetails(e, &pb.EpochProofs{Proofs: p.stored().GetProofs()}); err == nil {
			st = detailed
		}
	}
	return st.Err()
}

// firstWriteTimeout limits the time that Writable waits for the leader's first
// write of the primary resource.
const firstWriteTimeout = 5 * time.Second

// Writable returns nil if federated resources may be written here, otherwise
// the reason. Only the leader calls it.
func (p *PrimaryManager) Writable() error {
	st := p.stored()
	if st.GetDatacenter() == "" && p.cfg.ConfiguredPrimary == p.cfg.DC {
		ctx, cancel := context.WithTimeout(context.Background(), firstWriteTimeout)
		defer cancel()
		_ = p.waitStored(ctx, func() bool { st = p.stored(); return st.GetDatacenter() != "" })
	}
	newer := p.SupersededBy()
	switch {
	case st.GetDatacenter() == p.cfg.DC && newer != Epoch{}:
		return p.errSuperseded(newer)
	case st.GetDatacenter() == p.cfg.DC && st.GetHandedTo() == "" && p.LeaseExpired():
		return fmt.Errorf("%w: no other datacenter has called the leader of %s, the primary, for %v (primary_lease): "+
			"check its gateways, and see: wanfed status", resource.ErrNoPrimary, p.cfg.DC, p.cfg.Lease)
	case st.GetDatacenter() == p.cfg.DC && st.GetHandedTo() == "":
		return nil
	case st.GetDatacenter() == p.cfg.DC:
		return fmt.Errorf("%w: %s is demoted in favor of %[3]s, according to primary_datacenter of its servers, and "+
			"%[3]s is not the primary yet: write again in a moment, or see: wanfed status",
			resource.ErrNoPrimary, p.cfg.DC, st.GetHandedTo())
	case p.cfg.ConfiguredPrimary == p.cfg.DC:
		return fmt.Errorf("%s is not the primary yet, though it is configured to be: see wanfed status", p.cfg.DC)
	}
	return fmt.Errorf("%s is not the primary: %s is", p.cfg.DC, p.PrimaryDC())
}

// RecordContact records that a server of another datacenter has called this
// server.
func (p *PrimaryManager) RecordContact() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.contact = time.Now()
}

// LeaseExpired reports whether this server, as the leader of the primary, may
// not acknowledge writes, because no other datacenter has called it within
// Lease. A new leader waits for the first call. A federation of one datacenter
// has no lease.
func (p *PrimaryManager) LeaseExpired() bool {
	p.mu.Lock()
	contact := p.contact
	p.mu.Unlock()
	if p.cfg.Lease == 0 || time.Since(contact) < p.cfg.Lease {
		return false
	}
	states, _, err := federation.ListStates(context.Background(), p.cfg.Backend) // reads memory
	return err != nil || slices.ContainsFunc(states, func(s *pb.FederationState) bool {
		return s.Datacenter != p.cfg.DC
	})
}

// demotionGrace is the time between a demotion and the announcement of the
// successor. Pending writes end within that time. Writes on a server of an
// older version are not fenced and need it too.
const demotionGrace = 2 * time.Second

// announcedSuccessor returns the consent to the datacenter in favor of which
// this one is demoted. It returns none until all pending writes have ended. It
// also returns none if another datacenter has replaced this one, because a
// promotion then needs the consent of that datacenter.
func (p *PrimaryManager) announcedSuccessor() consent {
	if p.SupersededBy() != (Epoch{}) {
		return consent{}
	}
	st := p.stored()
	successor := st.GetHandedTo()
	p.mu.Lock()
	defer p.mu.Unlock()
	if successor != p.lastSuccessor {
		p.lastSuccessor, p.successorSince = successor, time.Now()
	}
	if time.Since(p.successorSince) < demotionGrace {
		return consent{}
	}
	return consent{dc: successor, epoch: st.GetEpoch()}
}

// DemotedAt returns the last time at which this datacenter, as the primary,
// became a secondary. Zero means never.
func (p *PrimaryManager) DemotedAt() time.Time {
	if at := p.stored().GetDemotedAt(); at != nil {
		return at.AsTime()
	}
	return time.Time{}
}

// PendingReason returns the reason why a change of the primary is not complete.
// It returns "" if no change is pending, and on servers that are not the
// leader.
func (p *PrimaryManager) PendingReason() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pending
}

func (p *PrimaryManager) setPending(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending = fmt.Sprintf(format, args...)
}

// followedDC returns the datacenter that the follower follows.
func (p *PrimaryManager) followedDC() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.followed
}

// stored reads the primary resource from memory. It returns nil if the resource
// does not exist or cannot be decoded. In both cases the leader writes it
// again.
func (p *PrimaryManager) stored() *pb.Primary {
	r, err := p.cfg.Backend.Read(context.Background(), resource.Eventual, resource.ID(PrimaryType, primaryName))
	if err != nil {
		return nil
	}
	if d := p.decoded.Load(); d != nil && d.from == r {
		return d.state
	}
	st, err := resource.Decode[*pb.Primary](r)
	if err != nil {
		return nil
	}
	p.decoded.Store(&decodedPrimary{r, st})
	return st
}

// decodedPrimary is the primary resource and its data. Both are immutable.
type decodedPrimary struct {
	from  *pb.Resource
	state *pb.Primary
}

// waitStored blocks until done returns true. It calls done after every change
// of the primary resource.
func (p *PrimaryManager) waitStored(ctx context.Context, done func() bool) error {
	for {
		_, index, err := p.cfg.Backend.List(ctx, resource.Eventual, primaryQuery)
		if err != nil || done() {
			return err
		}
		if err := p.cfg.Backend.Wait(ctx, primaryQuery, index); err != nil {
			return err
		}
	}
}

// replicasUntrusted reports whether some replicas here may come from another
// datacenter than the followed one.
func (p *PrimaryManager) replicasUntrusted() bool {
	st := p.stored()
	return st.GetDatacenter() != p.followedDC() || !st.GetComplete()
}

// maxFormers limits the former primaries that a primary can report.
const maxFormers = 256

// replicasBegin stores that replicas of the followed datacenter begin to
// replace the resources here, unless they have begun before. begin has the
// former primaries that the followed datacenter knows, and its group id.
func (p *PrimaryManager) replicasBegin(ctx context.Context, begin *pb.FollowBegin) error {
	formers := begin.GetFormers()[:min(len(begin.GetFormers()), maxFormers)]
	stored := p.stored()
	group := cmp.Or(begin.GetGroupId(), stored.GetGroupId())
	followed, former := p.followedDC(), stored.GetDatacenter()
	if former == followed {
		equal := func(a, b *pb.FormerPrimary) bool { return proto.Equal(a, b) }
		proofs := p.verifiedProofs(stored.GetProofs(), begin.GetProofs())
		if slices.EqualFunc(stored.GetFormers(), formers, equal) && stored.GetGroupId() == group &&
			slices.Equal(proofs, stored.GetProofs()) {
			return nil
		}
		return p.update(ctx, func(st *pb.Primary) { st.Formers, st.GroupId, st.Proofs = formers, group, proofs })
	}
	if former != "" {
		p.cfg.Logger.Info("primary changed: resources of the new primary replace those here",
			"primary", followed, "former", former)
	}
	return p.update(ctx, func(st *pb.Primary) {
		st.Datacenter, st.Complete, st.HandedTo, st.Epoch = followed, false, "", 0
		st.Formers, st.Reached, st.GroupId = formers, 0, begin.GetGroupId()
		st.Proofs = p.verifiedProofs(st.GetProofs(), begin.GetProofs())
		if former == p.cfg.DC {
			st.DemotedAt = timestamppb.Now()
		}
	})
}

// replicasComplete stores that all replicas come from the followed datacenter.
func (p *PrimaryManager) replicasComplete(ctx context.Context) error {
	return p.update(ctx, func(st *pb.Primary) { st.Complete = true })
}

// Fenced returns a Backend for writers of federated resources. It wraps b, a
// Backend of the same store. A commit asserts, in the same Raft entry, that the
// primary resource has not changed since Writable has checked it. A commit that
// is applied after a demotion therefore writes nothing and fails with
// resource.ErrFederated. Without fencing, the next primary could miss an
// acknowledged write.
func (p *PrimaryManager) Fenced(b resource.Backend) resource.Backend {
	return fencedBackend{Backend: b, primary: p}
}

type fencedBackend struct {
	resource.Backend
	primary *PrimaryManager
}

// Commit implements resource.Backend.
func (b fencedBackend) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	if !b.primary.writesFederated(ops) {
		return b.Backend.Commit(ctx, ops...)
	}
	for {
		checked, _, err := b.List(ctx, resource.Eventual, primaryQuery)
		if err != nil {
			return nil, err
		}
		if err := b.primary.Writable(); err != nil {
			return nil, fmt.Errorf("%w: %w", resource.ErrFederated, err)
		}
		b.primary.stamp(ops)
		expect := resource.ExpectOp(primaryQuery, checked)
		stored, err := b.Backend.Commit(ctx, append(ops[:len(ops):len(ops)], expect)...)
		switch {
		case err == nil && b.primary.SupersededBy() != Epoch{}: // learned during the commit
			return nil, fmt.Errorf("%w: %w", resource.ErrUnknownOutcome, b.primary.Writable())
		case err == nil:
			return stored[:len(ops)], nil
		case errors.Is(err, resource.ErrUnsupported): // a server of an older version cannot check
			return b.Backend.Commit(ctx, ops...)
		case !errors.Is(err, resource.ErrConflict):
			return nil, err
		}
		current, _, listErr := b.List(ctx, resource.Strong, primaryQuery)
		if listErr != nil || proto.Equal(expect, resource.ExpectOp(primaryQuery, current)) {
			return nil, err // one of ops has the conflict, not expect
		}
	}
}

// stamp sets the epoch in the federated resources that ops write. The caller
// has checked Writable.
func (p *PrimaryManager) stamp(ops []*pb.Op) {
	epoch := p.Epoch()
	for _, op := range ops {
		if r := writtenBy(op); r != nil && p.federates(r.GetId()) {
			r.PrimaryEpoch = epoch
		}
	}
}

// writtenBy returns the resource that op puts in the primary, or nil. The
// status of a replica does not count.
func writtenBy(op *pb.Op) *pb.Resource {
	r := op.GetOverwrite().GetResource()
	if put := op.GetPut().GetResource(); put != nil && put.GetPrimaryModifyIndex() == 0 {
		r = put
	}
	return r
}

// federates reports whether the type of id is federated.
func (p *PrimaryManager) federates(id *pb.ID) bool {
	return p.follower.types[kindOf(id.GetType())] != nil
}

// writesFederated reports whether ops write federated resources. Status updates
// of replicas do not count.
func (p *PrimaryManager) writesFederated(ops []*pb.Op) bool {
	return slices.ContainsFunc(ops, func(op *pb.Op) bool {
		id := op.GetRemove().GetId()
		if r := writtenBy(op); r != nil {
			id = r.GetId()
		}
		return p.federates(id)
	})
}
