// SPDX-License-Identifier: MPL-2.0

package view

import (
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
)

func gateway(node, status string) *pb.MeshGateway {
	return &pb.MeshGateway{
		Node: &pb.Node{Node: node, Address: "10.0.0.9"},
		Service: &pb.Service{Node: node, Id: "mesh-gateway", Service: "mesh-gateway", Address: "10.0.0.9", Port: 8443,
			TaggedAddresses: map[string]*pb.Address{"wan": {Address: "192.0.2.9", Port: 443}}},
		Checks: []*pb.Check{{Node: node, CheckId: "c", Status: status}},
	}
}

// federated returns a source with the datacenters dc1 and dc2.
func federated() *memory {
	m := newMemory()
	m.put("dc1", "FederationState", "dc2", "", &pb.FederationState{Datacenter: "dc2",
		MeshGateways: []*pb.MeshGateway{gateway("g1", "passing"), gateway("g2", "critical")}})
	m.status.Datacenters = []api.DatacenterStatus{
		{Name: "dc1", Own: true, Primary: true, ServersAlive: 3},
		{Name: "dc2", Outbound: api.DirectionOK, State: api.HealthOK, ServersAlive: 1},
	}
	m.members[false] = []api.Member{{Name: "dc2", Addr: "10.0.0.1", Port: 8300, Status: api.MemberAlive,
		Tags: map[string]string{"dc": "dc1"}}}
	m.members[true] = []api.Member{{Name: "m1.dc2", Addr: "10.2.0.1", Port: 8300, Status: api.MemberFailed,
		Tags: map[string]string{"dc": "dc2"}}}
	return m
}

// reach changes what the local server observes of dc2.
func (m *memory) reach(outbound api.Direction, state api.Health) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status.Datacenters[1].Outbound, m.status.Datacenters[1].State = outbound, state
}

func (m *memory) pollCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.polls
}

// fail makes polls fail with err.
func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failing = err
}

func TestValue_Federation(t *testing.T) {
	const gateways = `[{"healthy":true,"lan":"10.0.0.9:8443","name":"g1","wan":"192.0.2.9:443"},` +
		`{"healthy":false,"lan":"10.0.0.9:8443","name":"g2","wan":"192.0.2.9:443"}]`
	testutil.Bubble(t, func(t *testing.T) {
		m := federated()
		v := start(t, m)
		for query, want := range map[string]string{
			`{"kind":"federation"}`: `{"dc1":{"gateways":[],"primary":true,"reachable":true,"servers_alive":3},` +
				`"dc2":{"gateways":` + gateways + `,"primary":false,"reachable":true,"servers_alive":1}}`,
			`{"kind":"federation","datacenter":"dc1"}`: `{"dc1":{"gateways":[],"primary":true,"reachable":true,"servers_alive":3}}`,
			`{"kind":"gateway","regexp":"2$"}`:         `{"dc2":` + gateways + `}`,
			`{"kind":"gateway"}`:                       `{"dc1":[],"dc2":` + gateways + `}`,
			`{"kind":"member"}`: `{"dc2":{"address":"10.0.0.1:8300","dc":"dc1","pool":"lan","status":"alive"},` +
				`"m1.dc2":{"address":"10.2.0.1:8300","dc":"dc2","pool":"wan","status":"failed"}}`,
			`{"kind":"member","datacenter":"dc2"}`:                           `{"m1.dc2":{"address":"10.2.0.1:8300","dc":"dc2","pool":"wan","status":"failed"}}`,
			`{"kind":"datacenter"}`:                                          `{"dc1":{"reachable":true},"dc2":{"reachable":true}}`,
			`{"kind":"datacenter","datacenter":"dc2","state":"unreachable"}`: `{"dc2":{"reachable":true}}`,
		} {
			w := open(t, v, query)
			time.Sleep(3 * time.Second)
			if got := string(value(t, w).JSON); got != want {
				t.Errorf("value of %s = %s, want %s", query, got, want)
			}
		}
		if n := m.streams(); n != 1 {
			t.Errorf("%d streams, want 1", n)
		}
		before := m.pollCount()
		time.Sleep(10 * time.Second)
		if n := m.pollCount() - before; n < 12 || n > 13 {
			t.Errorf("%d polls in 10 s, want one per 0.8 s for all views together", n)
		}
	})
}

func TestValue_FederationChanges(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		m := federated()
		v := start(t, m)
		w := open(t, v, `{"kind":"federation","datacenter":"dc2"}`)
		members := open(t, v, `{"kind":"member"}`)
		time.Sleep(3 * time.Second)
		value(t, w)
		m.reach(api.DirectionFailing, api.HealthUnreachable)
		m.mu.Lock()
		m.members[true] = nil
		m.mu.Unlock()
		m.put("dc1", "FederationState", "dc2", "", &pb.FederationState{Datacenter: "dc2",
			MeshGateways: []*pb.MeshGateway{gateway("g3", "passing")}})
		time.Sleep(3 * time.Second)
		const want = `{"dc2":{"gateways":[{"healthy":true,"lan":"10.0.0.9:8443","name":"g3","wan":"192.0.2.9:443"}],` +
			`"primary":false,"reachable":false,"servers_alive":1}}`
		if got := string(value(t, w).JSON); got != want {
			t.Errorf("value = %s, want %s", got, want)
		}
		before := value(t, members)
		for _, status := range []api.MemberStatus{api.MemberLeaving, api.MemberLeft} {
			m.mu.Lock()
			m.members[false][0].Status = status
			m.mu.Unlock()
			time.Sleep(3 * time.Second)
			if changed := value(t, members).Trigger != before.Trigger; changed != (status == api.MemberLeft) {
				t.Errorf("the trigger has changed with a member that is %v = %v, want a change when it has left", status, changed)
			}
		}
		if got := value(t, members); len(got.Keys) != 1 {
			t.Errorf("value = %s, want one member", got.JSON)
		}
		m.reach(api.DirectionUnknown, api.HealthUnknown) // keeps the last known state
		time.Sleep(3 * time.Second)
		if got := string(value(t, w).JSON); got != want {
			t.Errorf("value while the state is unknown = %s, want %s", got, want)
		}
		m.fail(errDown)
		time.Sleep(3 * time.Second)
		if got := value(t, w); got.Connected || got.Err == nil || string(got.JSON) != want {
			t.Errorf("value without polls = %s, connected = %v, error %v, want %s, false, an error", got.JSON, got.Connected,
				got.Err, want)
		}
	})
}

func TestValue_DatacenterFor(t *testing.T) {
	const outage = `{"kind":"datacenter","datacenter":"dc2","state":"unreachable","for":"30s"}`
	up := func(m *memory) { m.reach(api.DirectionOK, api.HealthOK) }
	down := func(m *memory) { m.reach(api.DirectionFailing, api.HealthUnreachable) }
	for _, test := range []struct {
		name  string
		query string
		steps func(t *testing.T, m *memory)
		want  int // changes of the trigger to a state that is met
	}{
		{"short outage", outage, func(_ *testing.T, m *memory) {
			down(m)
			time.Sleep(28 * time.Second)
			up(m)
			time.Sleep(time.Hour)
		}, 0},
		{"flapping", outage, func(_ *testing.T, m *memory) {
			for range 20 {
				down(m)
				time.Sleep(20 * time.Second)
				up(m)
				time.Sleep(2 * time.Second)
			}
		}, 0},
		{"long outage", outage, func(_ *testing.T, m *memory) {
			down(m)
			time.Sleep(time.Hour)
			up(m)
			time.Sleep(time.Hour)
		}, 1},
		{"two outages", outage, func(_ *testing.T, m *memory) {
			for range 2 {
				down(m)
				time.Sleep(time.Minute)
				up(m)
				time.Sleep(3 * time.Second)
			}
		}, 2},
		{"short outages around a time without polls", outage, func(_ *testing.T, m *memory) {
			down(m)
			time.Sleep(10 * time.Second)
			m.fail(errDown)
			time.Sleep(time.Minute)
			m.fail(nil)
			time.Sleep(20 * time.Second)
			up(m)
			time.Sleep(time.Minute)
		}, 0},
		{"short outage around a time without federation states", outage, func(_ *testing.T, m *memory) {
			down(m)
			time.Sleep(10 * time.Second)
			m.setDown("dc1", "FederationState", true)
			time.Sleep(5 * time.Second)
			up(m)
			time.Sleep(time.Minute)
			m.setDown("dc1", "FederationState", false)
			time.Sleep(time.Minute)
		}, 0},
		{"reachable again", `{"kind":"datacenter","datacenter":"dc2","state":"reachable","for":"30s"}`,
			func(_ *testing.T, m *memory) {
				down(m)
				time.Sleep(time.Second * 3)
				up(m)
				time.Sleep(time.Minute)
			}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T) {
				m := federated()
				v := start(t, m)
				w := open(t, v, test.query)
				time.Sleep(time.Minute)
				trigger := value(t, w)
				met := 0
				stop := make(chan struct{})
				done := make(chan struct{})
				go func() {
					defer close(done)
					for {
						changed := w.Changed()
						now, _ := w.Value()
						met += len(Changes(w.view.query, trigger.Keys, now.Keys))
						trigger = now
						select {
						case <-changed:
						case <-stop:
							return
						}
					}
				}()
				test.steps(t, m)
				close(stop)
				<-done
				if met != test.want {
					t.Errorf("the condition was met %d times, want %d", met, test.want)
				}
			})
		})
	}
}

// TestValue_DatacenterForAt measures the time to the trigger, and compares it
// with that of a daemon that starts during the outage. The end of the duration is
// between two of the polls that are made each 0.8 s.
func TestValue_DatacenterForAt(t *testing.T) {
	const outage = `{"kind":"datacenter","state":"unreachable","for":"30.500s"}`
	testutil.Bubble(t, func(t *testing.T) {
		m := federated()
		v := start(t, m)
		w := open(t, v, outage)
		time.Sleep(3500 * time.Millisecond) // the next poll is 500 ms later
		before := value(t, w)
		changed := w.Changed()
		m.reach(api.DirectionFailing, api.HealthUnreachable)
		at := time.Now()
		select {
		case <-changed:
		case <-time.After(time.Hour):
			t.Fatal("the trigger did not change")
		}
		if d, want := time.Since(at), 31*time.Second; d < want || d > want+2*coalesce {
			t.Errorf("the trigger changed after %v, want %v", d, want)
		}
		after := value(t, w)
		if got, want := string(after.JSON), `{"dc1":{"reachable":true},"dc2":{"reachable":false}}`; got != want {
			t.Errorf("value = %s, want %s", got, want)
		}
		if after.Trigger == before.Trigger || len(before.Keys) != 0 || len(after.Keys) != 1 {
			t.Errorf("keys = %v and then %v, want none and then dc2, and other triggers", before.Keys, after.Keys)
		}
		last := newMemory()
		last.data, last.status, last.members = m.data, m.status, m.members
		again := open(t, start(t, last), outage)
		time.Sleep(25 * time.Second)
		if got, ok := again.Value(); ok {
			t.Errorf("value 25 s after a start = %s, want none", got.JSON)
		}
		time.Sleep(10 * time.Second)
		if got := value(t, again); got.Trigger != after.Trigger || string(got.JSON) != string(after.JSON) {
			t.Errorf("value after a start = %s, want %s and the same trigger", got.JSON, after.JSON)
		}
	})
}
