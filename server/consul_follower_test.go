// SPDX-License-Identifier: MPL-2.0

package server

import (
	"fmt"
	"strings"
	"testing"

	consul "github.com/hashicorp/consul/api"

	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// TestConsulClientAtFollowers: who writes at one server reads it at another at once, and a program at a follower has its check
// kept by the leader.
func TestConsulClientAtFollowers(t *testing.T) {
	ca := tlstest.NewCA(t)
	_, urls, leader := startThreeHTTP(t, ca)
	joe := ca.Files(t, tlsutil.RoleOperator, "joe", "dc1")
	var clients []*consul.Client
	for _, url := range urls {
		clients = append(clients, consulClient(t, &consul.Config{Address: strings.TrimPrefix(url, "http://"), Scheme: "https", TLSConfig: consul.TLSConfig{
			CAFile: joe.CA, CertFile: joe.Cert, KeyFile: joe.Key,
		}}))
	}
	one, other := clients[(leader+1)%3], clients[(leader+2)%3]
	for i := range 5 {
		value := fmt.Sprint(i)
		known(t, func() error {
			_, err := one.KV().Put(&consul.KVPair{Key: "k", Value: []byte(value)}, nil)
			return err
		})
		for _, c := range []*consul.Client{one, other, clients[leader]} {
			if p, _, err := c.KV().Get("k", nil); err != nil || p == nil || string(p.Value) != value {
				t.Fatalf("after %s was written: %+v, %v", value, p, err)
			}
		}
	}
	known(t, func() error {
		ok, resp, _, err := one.KV().Txn(consul.KVTxnOps{{Verb: consul.KVGet, Key: "k"}, {Verb: consul.KVSet, Key: "seen", Value: []byte("4")}}, nil)
		if err == nil && !ok {
			err = fmt.Errorf("a transaction: %+v", resp)
		}
		return err
	})
	ok, resp, _, err := other.KV().Txn(consul.KVTxnOps{{Verb: consul.KVGet, Key: "k"}, {Verb: consul.KVGet, Key: "seen"}}, nil)
	if !ok || err != nil || len(resp.Results) != 2 || string(resp.Results[0].Value) != string(resp.Results[1].Value) {
		t.Fatalf("what another server reads after it: %+v, %v", resp, err)
	}
	service := &consul.AgentServiceRegistration{Name: "web", Check: &consul.AgentServiceCheck{TTL: "1h"}}
	known(t, func() error { return one.Agent().ServiceRegister(service) })
	if err := other.Agent().PassTTL("service:web", ""); refusedWith(err) != 404 {
		t.Errorf("a report at another server than that of the registration: %v", err)
	}
	known(t, func() error { return one.Agent().PassTTL("service:web", "up") })
	if got, _, err := other.Health().Service("web", "", true, nil); err != nil || len(got) != 1 || got[0].Node.Node != fmt.Sprintf("srv%d", (leader+1)%3+1) {
		t.Fatalf("what passes: %+v, %v", got, err)
	}
}

// known makes a write that may be made twice, until it is known that it was made: on a machine that stands still leaders come and go.
func known(t *testing.T, write func() error) {
	t.Helper()
	for try := 1; ; try++ {
		err := write()
		if err == nil {
			return
		}
		if try == 5 || !strings.Contains(err.Error(), resource.ErrUnknownOutcome.Error()) {
			t.Fatal(err)
		}
	}
}
