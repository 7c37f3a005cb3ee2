// SPDX-License-Identifier: MPL-2.0

package status

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/controller/controllertest"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/wanfed"
)

// conditionTest runs the controller in fake time with observations that the
// test sets.
type conditionTest struct {
	*testing.T
	service *controllertest.Service

	mu    sync.Mutex
	paths map[string][]api.PathStatus // by datacenter
}

func runConditionTest(t *testing.T, f func(t *conditionTest)) {
	t.Helper()
	testutil.Bubble(t, func(t *testing.T) {
		ct := &conditionTest{T: t, paths: map[string][]api.PathStatus{}}
		// The types without federation: the store of a secondary has no primary here.
		ct.service = controllertest.New(t,
			resource.Registration{Type: federation.StateType, Message: &pb.FederationState{}, Scope: resource.ScopeCluster},
			resource.Registration{Type: federation.DatacenterType, Message: &pb.Datacenter{}, Scope: resource.ScopeCluster})
		ct.service.Start(controller.Config{}, Conditions(ct.observe))
		f(ct)
	})
}

func (t *conditionTest) observe(context.Context) (map[string][]*pb.Condition, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[string][]*pb.Condition{}
	for dc, paths := range t.paths {
		d := evaluate(facts{DatacenterStatus: api.DatacenterStatus{Name: dc, Paths: paths, ServersAlive: 1}, hasState: true})
		out[dc] = []*pb.Condition{reachable(d), certificatesValid(d)}
	}
	return out, nil
}

// path sets the only path to dc2.
func (t *conditionTest) path(health wanfed.PathHealth, class wanfed.FailureClass) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.paths["dc2"] = []api.PathStatus{{Address: "198.51.100.1:8443", Via: federation.ViaRemoteGateway,
		Health: string(health), Failure: string(class)}}
}

// gateways writes the federation state of dc2.
func (t *conditionTest) gateways(statuses ...string) {
	t.Helper()
	s := &pb.FederationState{Datacenter: "dc2"}
	for i, status := range statuses {
		s.MeshGateways = append(s.MeshGateways, &pb.MeshGateway{Node: &pb.Node{Node: fmt.Sprintf("gw%d", i+1)},
			Checks: []*pb.Check{{Status: status}}})
	}
	t.service.Write(federation.StateType, "dc2", s)
	synctest.Wait()
}

// conditions returns the conditions of dc2 as text, and the number of writes of
// its resource.
func (t *conditionTest) conditions() (text string, version string) {
	t.Helper()
	r := t.service.Get(resource.ID(federation.DatacenterType, "dc2"))
	state := t.service.Get(resource.ID(federation.StateType, "dc2"))
	status := r.GetStatus()["datacenter-conditions"]
	if r != nil && status.GetObservedGeneration() != state.GetGeneration() {
		t.Errorf("observed generation = %s, want %s of the federation state", status.GetObservedGeneration(), state.Generation)
	}
	var all []string
	for _, c := range status.GetConditions() {
		all = append(all, fmt.Sprintf("%s=%s(%s)", c.Type, strings.ToLower(strings.TrimPrefix(c.State.String(), "STATE_")), c.Reason))
	}
	return strings.Join(all, " "), r.GetVersion()
}

func (t *conditionTest) want(want string) (version string) {
	t.Helper()
	got, version := t.conditions()
	if got != want {
		t.Errorf("conditions = %s, want %s", got, want)
	}
	return version
}

func TestConditions_FollowObservations(t *testing.T) {
	runConditionTest(t, func(t *conditionTest) {
		t.gateways(catalog.StatusPassing, catalog.StatusCritical)
		t.want("") // no observation yet
		t.path(wanfed.PathOK, "")
		time.Sleep(holdDown + 3*observeInterval)
		t.want("CertificatesValid=true(HandshakeSucceeded) GatewaysHealthy=false(GatewaysCritical) Reachable=true(PathWorks)")
		t.gateways(catalog.StatusPassing, catalog.StatusPassing)
		t.want("CertificatesValid=true(HandshakeSucceeded) GatewaysHealthy=true(GatewaysPass) Reachable=true(PathWorks)")
		t.path(wanfed.PathFailing, wanfed.FailureOtherCA)
		time.Sleep(holdDown + 3*observeInterval)
		t.want("CertificatesValid=false(OtherCA) GatewaysHealthy=true(GatewaysPass) Reachable=false(NoPathWorks)")
		t.path(wanfed.PathFailing, wanfed.FailureTimeout)
		t.gateways()
		time.Sleep(holdDown + 3*observeInterval)
		t.want("CertificatesValid=unknown(NoHandshake) GatewaysHealthy=false(NoGateways) Reachable=false(NoPathWorks)")
	})
}

// TestConditions_WriteLoad counts the writes of one change, of a path that
// flaps, and of an hour without changes.
func TestConditions_WriteLoad(t *testing.T) {
	runConditionTest(t, func(t *conditionTest) {
		t.path(wanfed.PathOK, "")
		t.gateways(catalog.StatusPassing)
		time.Sleep(holdDown + 3*observeInterval)
		time.Sleep(observeInterval / 2) // observations are between the changes
		writes := func(what string, least, most int, change func()) {
			t.Helper()
			_, before := t.conditions()
			versions := map[string]bool{}
			for range 720 { // an hour
				change()
				time.Sleep(observeInterval)
				_, v := t.conditions()
				versions[v] = true
			}
			delete(versions, before)
			if len(versions) < least || len(versions) > most {
				t.Errorf("%s: %d writes, want %d to %d", what, len(versions), least, most)
			}
			time.Sleep(holdDown)
		}
		writes("no change", 0, 0, func() {})
		once := sync.OnceFunc(func() { t.path(wanfed.PathFailing, wanfed.FailureTimeout) })
		writes("path fails", 1, 1, once)
		n := 0
		flap := func(observations int) func() {
			return func() {
				if n++; n/observations%2 == 0 {
					t.path(wanfed.PathOK, "")
				} else {
					t.path(wanfed.PathFailing, wanfed.FailureTimeout)
				}
			}
		}
		writes("path flaps with each observation", 0, 0, flap(1))
		writes("path flaps every 20 seconds", 1, 60, flap(4))
		t.path(wanfed.PathFailing, wanfed.FailureTimeout)
		time.Sleep(2 * holdDown)
		class := 0
		writes("another class of the same failure", 0, 0, func() {
			class++
			t.path(wanfed.PathFailing, []wanfed.FailureClass{wanfed.FailureTimeout, wanfed.FailureRefused}[class%2])
		})
		gateway := sync.OnceFunc(func() { t.gateways(catalog.StatusCritical) })
		writes("gateway becomes critical", 1, 1, gateway)
	})
}

// TestConditions_ManyChange checks that the conditions of many datacenters
// change in several observations.
func TestConditions_ManyChange(t *testing.T) {
	now := map[string][]*pb.Condition{}
	for n := range 2*maxChanges + 1 {
		now[fmt.Sprintf("dc%d", n+2)] = []*pb.Condition{{Type: ConditionReachable, State: pb.Condition_STATE_TRUE}}
	}
	o := &observations{
		observe: func(context.Context) (map[string][]*pb.Condition, error) { return now, nil },
		agreed:  map[string][]*pb.Condition{}, agreedAt: map[string]time.Time{},
	}
	changed := map[string]bool{}
	for i, want := range []int{0, maxChanges, maxChanges, 1, 0} { // the first observation has no previous one
		o.observedAt = time.Time{} // long ago
		ids, err := o.next(t.Context(), nil, time.Time{})
		if err != nil || len(ids) != want {
			t.Errorf("observation %d: %d changes, error %v; want %d changes", i+1, len(ids), err, want)
		}
		for _, id := range ids {
			changed[id.GetName()] = true
		}
	}
	if len(changed) != len(now) {
		t.Errorf("%d datacenters changed, want %d", len(changed), len(now))
	}
}

// TestConditions_Interval checks that the interval of observations grows with the
// number of datacenters.
func TestConditions_Interval(t *testing.T) {
	for _, test := range []struct{ datacenters, want int }{{2, 13}, {25, 13}, {100, 4}} { // in a minute and at its start
		testutil.Bubble(t, func(t *testing.T) {
			now, observed := map[string][]*pb.Condition{}, 0
			for n := range test.datacenters {
				now[fmt.Sprintf("dc%d", n+1)] = nil
			}
			o := &observations{
				observe: func(context.Context) (map[string][]*pb.Condition, error) { observed++; return now, nil },
				agreed:  map[string][]*pb.Condition{}, agreedAt: map[string]time.Time{},
			}
			for range time.Minute/observeInterval + 1 {
				if _, err := o.next(t.Context(), nil, time.Now()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(observeInterval)
			}
			if observed != test.want {
				t.Errorf("%d observations of %d datacenters in a minute, want %d", observed, test.datacenters, test.want)
			}
		})
	}
}

func TestConditions_DeletedDatacenter(t *testing.T) {
	runConditionTest(t, func(t *conditionTest) {
		t.path(wanfed.PathOK, "")
		t.gateways(catalog.StatusPassing)
		time.Sleep(holdDown + 3*observeInterval)
		t.service.Delete(resource.ID(federation.StateType, "dc2"))
		time.Sleep(holdDown + 3*observeInterval) // the path still works
		if all := t.service.List(federation.DatacenterType); len(all) != 0 {
			t.Errorf("resources after the deletion of the federation state = %v, want none", all)
		}
		t.gateways(catalog.StatusPassing)
		time.Sleep(time.Second)
		t.want("CertificatesValid=true(HandshakeSucceeded) GatewaysHealthy=true(GatewaysPass) Reachable=true(PathWorks)")
	})
}

func TestOwnCertificate(t *testing.T) {
	from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		now  time.Time
		want string
	}{{from.Add(-time.Hour), "NotYetValid"}, {from.Add(time.Hour), "InValidity"}, {from.Add(3 * time.Hour), "Expired"}} {
		c := ownCertificate(from, from.Add(2*time.Hour), tt.now)
		if c.Reason != tt.want || (c.State == pb.Condition_STATE_TRUE) != (tt.want == "InValidity") {
			t.Errorf("ownCertificate(%v) = %v, want %s", tt.now, c, tt.want)
		}
	}
}
