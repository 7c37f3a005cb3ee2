// SPDX-License-Identifier: MPL-2.0

package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/wanfed"
)

// Types of the conditions of a federation/v1/Datacenter.
const (
	// ConditionReachable is true if a path to the datacenter works.
	ConditionReachable = "Reachable"
	// ConditionReplicated is true if the local replica of the federation state
	// is current, because the stream from the primary is open.
	ConditionReplicated = "Replicated"
	// ConditionGatewaysHealthy is true if the federation state has gateways and
	// all of them are healthy.
	ConditionGatewaysHealthy = "GatewaysHealthy"
	// ConditionCertificatesValid is true if a TLS handshake with the datacenter
	// succeeded. For the local datacenter, it is true if the certificate of the
	// leader is valid.
	ConditionCertificatesValid = "CertificatesValid"
)

const (
	// observeInterval is the minimum interval of observations, and observePerDC is
	// their interval per datacenter. An observation costs processor time for each
	// datacenter. A condition changes when two successive observations agree.
	observeInterval = 5 * time.Second
	observePerDC    = 200 * time.Millisecond
	// holdDown is the minimum time between two changes of the observed conditions
	// of a datacenter. It bounds the writes while a path flaps.
	holdDown = time.Minute
	// maxChanges bounds the datacenters whose conditions change in one
	// observation, because each change costs up to two commits. Many datacenters
	// that start together need the processor for their exchanges of state.
	maxChanges = 4
)

// Observe returns the observed conditions of each datacenter. It does not block
// on the network.
type Observe func(ctx context.Context) (map[string][]*pb.Condition, error)

// observations has the conditions that the leader has observed.
type observations struct {
	observe Observe

	mu           sync.Mutex
	last, agreed map[string][]*pb.Condition // by datacenter
	agreedAt     map[string]time.Time       // time of the last change of agreed
	observedAt   time.Time                  // time of last
}

// Conditions returns the controller that maintains a resource of type
// federation/v1/Datacenter for each federation state, with the conditions of its
// datacenter. The federation state owns the resource, so the deletion of the
// state deletes it.
func Conditions(observe Observe) controller.Controller {
	o := &observations{observe: observe}
	return controller.Controller{
		Name: "datacenter-conditions", Managed: federation.StateType,
		Watches: []controller.Watch{{Type: federation.DatacenterType, Map: controller.MapSameName}},
		Events:  []controller.Source{controller.Every("observations", observeInterval, o.next)},
		Initialize: func(context.Context, *controller.Env) error {
			o.mu.Lock()
			defer o.mu.Unlock()
			// Those of an earlier leadership are outdated.
			o.last, o.agreed, o.agreedAt = nil, map[string][]*pb.Condition{}, map[string]time.Time{}
			o.observedAt = time.Time{}
			return nil
		},
		Reconcile: o.reconcile,
	}
}

// next observes all datacenters, and returns the federation states of those
// whose conditions have changed. It does nothing until observePerDC has passed for
// each datacenter of the last observation.
func (o *observations) next(ctx context.Context, env *controller.Env, _ time.Time) ([]*pb.ID, error) {
	o.mu.Lock()
	// The interval is a multiple of observeInterval, whose end may be a bit early.
	early := time.Since(o.observedAt) < time.Duration(len(o.last))*observePerDC-observeInterval/2
	o.mu.Unlock()
	if early {
		return nil, nil
	}
	now, err := o.observe(ctx)
	if err != nil {
		env.Logger.Warn("cannot observe the datacenters", "err", err)
		return nil, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	var changed []*pb.ID
	for dc, conditions := range now {
		if len(changed) < maxChanges && time.Since(o.agreedAt[dc]) >= holdDown &&
			sameOutcome(conditions, o.last[dc]) && !sameOutcome(conditions, o.agreed[dc]) {
			o.agreed[dc], o.agreedAt[dc] = conditions, time.Now()
			changed = append(changed, resource.ID(federation.StateType, dc))
		}
	}
	o.last, o.observedAt = now, time.Now()
	return changed, nil
}

// sameOutcome compares conditions without their messages, which may have
// details that change often.
func sameOutcome(a, b []*pb.Condition) bool {
	return slices.EqualFunc(a, b, func(x, y *pb.Condition) bool {
		return x.Type == y.Type && x.State == y.State && x.Reason == y.Reason
	})
}

func (o *observations) reconcile(ctx context.Context, env *controller.Env, id *pb.ID) (controller.Result, error) {
	state, err := env.Cache.Get(id)
	if errors.Is(err, resource.ErrNotFound) {
		return controller.Result{}, nil // the resource is deleted with its owner
	}
	if err != nil {
		return controller.Result{}, err
	}
	s, err := resource.Decode[*pb.FederationState](state)
	if err != nil {
		return controller.Result{}, err
	}
	o.mu.Lock()
	observed := o.agreed[id.GetName()]
	o.mu.Unlock()
	dc, err := env.Cache.Get(resource.ID(federation.DatacenterType, id.GetName()))
	if errors.Is(err, resource.ErrNotFound) {
		if observed == nil {
			return controller.Result{}, nil // created later: many datacenters may be starting now
		}
		dc, err = o.create(ctx, env, state)
	}
	if err != nil {
		return controller.Result{}, err
	}
	conditions := append([]*pb.Condition{gatewaysHealthy(s)}, observed...)
	seen := proto.CloneOf(dc)
	seen.Generation = state.GetGeneration() // that of the observed data
	err = env.WriteStatus(ctx, seen, conditions...)
	if errors.Is(err, resource.ErrNotFound) || errors.Is(err, resource.ErrUIDMismatch) {
		err = nil // deleted with an earlier federation state; the event reconciles again
	}
	return controller.Result{}, err
}

// create creates the resource of a datacenter.
func (o *observations) create(ctx context.Context, env *controller.Env, state *pb.Resource) (*pb.Resource, error) {
	r, err := resource.New(federation.DatacenterType, state.GetId().GetName(), &pb.Datacenter{})
	if err != nil {
		return nil, err
	}
	r.Id.Uid, r.Owner = "", state.GetId()
	resp, err := env.Client.Write(ctx, &pb.WriteRequest{Resource: r})
	return resp.GetResource(), resource.FromStatus(err)
}

// condition returns a condition, which is true, false or unknown.
func condition(typ string, state pb.Condition_State, reason, message string) *pb.Condition {
	return &pb.Condition{Type: typ, State: state, Reason: reason, Message: message}
}

func gatewaysHealthy(s *pb.FederationState) *pb.Condition {
	var critical []string
	for _, g := range s.GetMeshGateways() {
		if !catalog.Healthy(g) {
			critical = append(critical, g.GetNode().GetNode())
		}
	}
	switch {
	case len(s.GetMeshGateways()) == 0:
		return condition(ConditionGatewaysHealthy, pb.Condition_STATE_FALSE, "NoGateways", "no gateway is registered")
	case len(critical) > 0:
		return condition(ConditionGatewaysHealthy, pb.Condition_STATE_FALSE, "GatewaysCritical",
			"critical: "+list(critical))
	}
	return condition(ConditionGatewaysHealthy, pb.Condition_STATE_TRUE, "GatewaysPass", "")
}

// Observe returns what this server observes of each datacenter, in the same
// order of types for all.
func (r *Reporter) Observe(ctx context.Context) (map[string][]*pb.Condition, error) {
	dcs, err := r.datacenters(ctx)
	if err != nil {
		return nil, err
	}
	replicated := r.replicatedCondition()
	out := make(map[string][]*pb.Condition, len(dcs))
	for _, d := range dcs {
		valid := certificatesValid(d)
		if d.Own {
			valid = ownCertificate(r.cfg.Certificate().NotBefore, r.cfg.Certificate().NotAfter, time.Now())
		}
		out[d.Name] = []*pb.Condition{reachable(d), replicated, valid}
	}
	return out, nil
}

func reachable(d api.DatacenterStatus) *pb.Condition {
	switch {
	case d.Own:
		return condition(ConditionReachable, pb.Condition_STATE_TRUE, "Local", "")
	case d.Outbound == api.DirectionOK:
		return condition(ConditionReachable, pb.Condition_STATE_TRUE, "PathWorks", "")
	case d.State == api.HealthUnreachable:
		return condition(ConditionReachable, pb.Condition_STATE_FALSE, "NoPathWorks", d.Cause)
	}
	return condition(ConditionReachable, pb.Condition_STATE_UNKNOWN, "NoResult", d.Cause)
}

func (r *Reporter) replicatedCondition() *pb.Condition {
	manager := r.cfg.Primary.manager
	if manager.IsPrimary() {
		return condition(ConditionReplicated, pb.Condition_STATE_TRUE, "Primary", "")
	}
	primary, st := manager.PrimaryDC(), manager.Follower().Status()
	if !st.Connected {
		message := fmt.Sprintf("the stream from the primary %s is closed", primary)
		if st.LastError != nil {
			message += ": " + st.LastError.Error()
		}
		return condition(ConditionReplicated, pb.Condition_STATE_FALSE, "StreamClosed", message)
	}
	return condition(ConditionReplicated, pb.Condition_STATE_TRUE, "StreamOpen", "")
}

// certificatesValid evaluates the handshakes with another datacenter. Its
// certificates are unknown until a handshake has a result.
func certificatesValid(d api.DatacenterStatus) *pb.Condition {
	if d.Outbound == api.DirectionOK {
		return condition(ConditionCertificatesValid, pb.Condition_STATE_TRUE, "HandshakeSucceeded", "")
	}
	for _, f := range []struct {
		class  wanfed.FailureClass
		reason string
	}{{wanfed.FailureOtherCA, "OtherCA"}, {wanfed.FailureCertificate, "CertificateInvalid"}} {
		i := slices.IndexFunc(d.Paths, func(p api.PathStatus) bool { return p.Failure == string(f.class) })
		if i >= 0 {
			return condition(ConditionCertificatesValid, pb.Condition_STATE_FALSE, f.reason, d.Paths[i].LastError)
		}
	}
	return condition(ConditionCertificatesValid, pb.Condition_STATE_UNKNOWN, "NoHandshake", "")
}

func ownCertificate(notBefore, notAfter, now time.Time) *pb.Condition {
	switch {
	case now.After(notAfter):
		return condition(ConditionCertificatesValid, pb.Condition_STATE_FALSE, "Expired",
			"the certificate of this server expired at "+notAfter.UTC().Format(time.RFC3339))
	case now.Before(notBefore):
		return condition(ConditionCertificatesValid, pb.Condition_STATE_FALSE, "NotYetValid",
			"the certificate of this server is valid from "+notBefore.UTC().Format(time.RFC3339))
	}
	return condition(ConditionCertificatesValid, pb.Condition_STATE_TRUE, "InValidity", "")
}
