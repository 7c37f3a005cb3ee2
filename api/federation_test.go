// SPDX-License-Identifier: MPL-2.0

package api

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
)

func sampleState() *pb.FederationState {
	return &pb.FederationState{
		Datacenter: "dc2",
		MeshGateways: []*pb.MeshGateway{{
			Node: &pb.Node{
				Id: "5f0c", Node: "gw1", Address: "10.2.0.9", Datacenter: "dc2",
				TaggedAddresses: map[string]string{"lan": "10.2.0.9"}, Meta: map[string]string{"rack": "a"},
			},
			Service: &pb.Service{
				Node: "gw1", Kind: "mesh-gateway", Id: "gw1", Service: "mesh-gateway", Address: "10.2.0.9", Port: 8443,
				TaggedAddresses: map[string]*pb.Address{
					"lan": {Address: "10.2.0.9", Port: 8443},
					"wan": {Address: "2001:db8::9", Port: 443},
				},
				Meta: map[string]string{"consul-wan-federation": "1"},
			},
			Checks: []*pb.Check{{
				Node: "gw1", CheckId: "service:gw1", Name: "heartbeat", Status: CheckPassing, Output: "seen",
				ServiceId: "gw1", ServiceName: "mesh-gateway", Type: "ttl", Interval: "3s",
			}},
		}},
		UpdatedAt:          timestamppb.New(time.Date(2026, 11, 21, 1, 5, 0, 38604653, time.UTC)),
		PrimaryModifyIndex: 20, CreateIndex: 7, ModifyIndex: 9,
	}
}

// sampleJSON is the JSON of sampleState. A Consul server sends the same fields
// in the same order.
const sampleJSON = `{
 "Datacenter": "dc2",
 "MeshGateways": [
  {
   "Node": {
    "ID": "5f0c",
    "Node": "gw1",
    "Address": "10.2.0.9",
    "Datacenter": "dc2",
    "TaggedAddresses": {
     "lan": "10.2.0.9"
    },
    "Meta": {
     "rack": "a"
    },
    "CreateIndex": 0,
    "ModifyIndex": 0
   },
   "Service": {
    "Kind": "mesh-gateway",
    "ID": "gw1",
    "Service": "mesh-gateway",
    "Tags": null,
    "Address": "10.2.0.9",
    "TaggedAddresses": {
     "lan": {
      "Address": "10.2.0.9",
      "Port": 8443
     },
     "wan": {
      "Address": "2001:db8::9",
      "Port": 443
     }
    },
    "Meta": {
     "consul-wan-federation": "1"
    },
    "Port": 8443,
    "Weights": {
     "Passing": 1,
     "Warning": 1
    },
    "EnableTagOverride": false,
    "Proxy": {
     "Mode": "",
     "MeshGateway": {},
     "Expose": {}
    },
    "Connect": {},
    "PeerName": "",
    "CreateIndex": 0,
    "ModifyIndex": 0
   },
   "Checks": [
    {
     "Node": "gw1",
     "CheckID": "service:gw1",
     "Name": "heartbeat",
     "Status": "passing",
     "Notes": "",
     "Output": "seen",
     "ServiceID": "gw1",
     "ServiceName": "mesh-gateway",
     "ServiceTags": null,
     "Type": "ttl",
     "Interval": "3s",
     "Timeout": "",
     "ExposedPort": 0,
     "Definition": {},
     "CreateIndex": 0,
     "ModifyIndex": 0
    }
   ]
  }
 ],
 "UpdatedAt": "2026-11-21T01:05:00.038604653Z",
 "PrimaryModifyIndex": 20,
 "CreateIndex": 7,
 "ModifyIndex": 9
}`

func TestFederationStateJSON(t *testing.T) {
	got, err := json.MarshalIndent(FromFederationState(sampleState()), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(sampleJSON, string(got)); d != "" {
		t.Errorf("JSON of FromFederationState() differs (-want +got):\n%s", d)
	}
	var back FederationState
	if err := json.Unmarshal(got, &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(FromFederationState(sampleState()), back); d != "" {
		t.Errorf("Unmarshal() differs (-want +got):\n%s", d)
	}
}

// An incomplete state has all fields in JSON: empty lists and maps instead of
// null, and a valid date.
func TestFederationStateJSON_Incomplete(t *testing.T) {
	const tail = `"UpdatedAt":"0001-01-01T00:00:00Z","PrimaryModifyIndex":0,"CreateIndex":0,"ModifyIndex":0}`
	for _, tt := range []struct {
		name string
		in   *pb.FederationState
		want string
	}{
		{"nil", nil, `{"Datacenter":"","MeshGateways":[],` + tail},
		{"date outside RFC 3339", &pb.FederationState{
			Datacenter: "dc1", UpdatedAt: &timestamppb.Timestamp{Seconds: 1 << 50},
		},
			`{"Datacenter":"dc1","MeshGateways":[],` + tail},
		{"empty gateway", &pb.FederationState{MeshGateways: []*pb.MeshGateway{{}}},
			`{"Datacenter":"","MeshGateways":[{` +
				`"Node":{"ID":"","Node":"","Address":"","Datacenter":"","TaggedAddresses":{},"Meta":{},"CreateIndex":0,` +
				`"ModifyIndex":0},` +
				`"Service":{"Kind":"","ID":"","Service":"","Tags":null,"Address":"","TaggedAddresses":{},"Meta":{},` +
				`"Port":0,` +
				`"Weights":{"Passing":1,"Warning":1},"EnableTagOverride":false,"Proxy":{"Mode":"","MeshGateway":{},` +
				`"Expose":{}},` +
				`"Connect":{},"PeerName":"","CreateIndex":0,"ModifyIndex":0},"Checks":[]}],` + tail},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := json.Marshal(FromFederationState(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, string(got)); d != "" {
				t.Errorf("JSON of FromFederationState() differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestGatewaysByDatacenter(t *testing.T) {
	got := GatewaysByDatacenter([]*pb.FederationState{{Datacenter: "dc1"}, sampleState()})
	want := map[string][]MeshGateway{"dc2": FromFederationState(sampleState()).MeshGateways}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("GatewaysByDatacenter() differs (-want +got):\n%s", d)
	}
}

func TestGatewayHealthy(t *testing.T) {
	for _, tt := range []struct {
		checks []Check
		want   bool
	}{
		{nil, true},
		{[]Check{{Status: CheckPassing}, {Status: CheckWarning}}, true},
		{[]Check{{Status: CheckPassing}, {Status: CheckCritical}}, false},
	} {
		if got := (MeshGateway{Checks: tt.checks}).Healthy(); got != tt.want {
			t.Errorf("Healthy() with checks %+v = %v, want %v", tt.checks, got, tt.want)
		}
	}
}

func TestMemberJSON(t *testing.T) {
	m := Member{
		Name: "srv1.dc1", Addr: "10.1.0.11", Port: 8300, Status: MemberFailed,
		Tags:        map[string]string{"dc": "dc1", "role": "consul", "build": "1.2.3:abc"},
		ProtocolMin: 1, ProtocolMax: 5, ProtocolCur: 2, DelegateMin: 2, DelegateMax: 5, DelegateCur: 4,
	}
	got, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"Name":"srv1.dc1","Addr":"10.1.0.11","Port":8300,"Tags":{"build":"1.2.3:abc","dc":"dc1",` +
		`"role":"consul"},"Status":4,` +
		`"ProtocolMin":1,"ProtocolMax":5,"ProtocolCur":2,"DelegateMin":2,"DelegateMax":5,"DelegateCur":4}`
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("JSON of Member differs (-want +got):\n%s", d)
	}
	if m.Datacenter() != "dc1" || m.Type() != "server" || m.Build() != "1.2.3" {
		t.Errorf("Datacenter(), Type(), Build() = %q, %q, %q, want dc1, server, 1.2.3", m.Datacenter(),
			m.Type(), m.Build())
	}
	if got := (Member{Tags: map[string]string{"role": "relay"}}).Type(); got != "relay" {
		t.Errorf("Type() with role relay = %q, want relay", got)
	}
	for s, want := range map[MemberStatus]string{
		0: "none", 1: "alive", 2: "leaving", 3: "left", 4: "failed", 9: "unknown(9)", -1: "unknown(-1)",
	} {
		if got := s.String(); got != want {
			t.Errorf("MemberStatus(%d).String() = %q, want %q", int(s), got, want)
		}
	}
}

func TestDatacenterHealth(t *testing.T) {
	for _, tt := range []struct {
		in   DatacenterStatus
		want Health
	}{
		{DatacenterStatus{ServersAlive: 3, ServersKnown: 3, GatewaysHealthy: 2, GatewaysKnown: 2,
			LastError: "old"}, HealthOK},
		{DatacenterStatus{ServersAlive: 2, ServersKnown: 3, GatewaysHealthy: 2, GatewaysKnown: 2}, HealthDegraded},
		{DatacenterStatus{ServersAlive: 3, ServersKnown: 3, GatewaysHealthy: 1, GatewaysKnown: 2}, HealthDegraded},
		{DatacenterStatus{ServersAlive: 3, ServersKnown: 3, GatewaysHealthy: 1, GatewaysKnown: 1,
			Advice: "start a gateway"}, HealthDegraded},
		{DatacenterStatus{ServersAlive: 3, ServersKnown: 3}, HealthDegraded},
		{DatacenterStatus{ServersAlive: 3, ServersKnown: 3, GatewaysHealthy: 1, GatewaysKnown: 1,
			State: HealthOneWay}, HealthOneWay},
		{DatacenterStatus{ServersKnown: 3}, HealthUnreachable},
		{DatacenterStatus{}, HealthUnreachable},
	} {
		if got := tt.in.Health(); got != tt.want {
			t.Errorf("Health() of %+v = %s, want %s", tt.in, got, tt.want)
		}
	}
}

// Unknown values are absent in JSON. A zero would be taken for a measurement.
func TestDatacenterStatusJSON_UnknownValues(t *testing.T) {
	got, err := json.Marshal(DatacenterStatus{Name: "dc9"})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"name":"dc9","primary":false,"own":false,"servers_alive":0,"servers_known":0,"gateways_healthy":0,` +
		`"gateways_known":0}`
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("JSON of DatacenterStatus differs (-want +got):\n%s", d)
	}
	got, err = json.Marshal(DatacenterStatus{RecordAge: SecondsPtr(0),
		ReplicationLag: SecondsPtr(1500 * time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	want = `{"name":"","primary":false,"own":false,"servers_alive":0,"servers_known":0,"gateways_healthy":0,` +
		`"gateways_known":0,"record_age":0,"replication_lag":1.5}`
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("JSON of DatacenterStatus differs (-want +got):\n%s", d)
	}
}
