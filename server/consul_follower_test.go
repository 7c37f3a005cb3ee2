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

// TestConsulClient_Followers: a write at one server is read at another at once, and
// the leader keeps the check of a program that uses a follower.
func TestConsulClient_Followers(t *testing.T) {
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
		retryUnknown(t, func() error {
			_, err := one.KV().Put(&consul.KVPair{Key: "k", Value: []byte(value)}, nil)
			return err
		})
		for _, c := range []*consul.Client{one, other, clients[leader]} {
			if p, _, err := c.KV().Get("k", nil); err != nil || p == nil || string(p.Value) != value {
				t.Fatalf("Get() = %+v, %v, want %s", p, err, value)
			}
		}
	}
	retryUnknown(t, func() error {
		ok, resp, _, err := one.KV().Txn(consul.KVTxnOps{{Verb: consul.KVGet, Key: "k"}, {Verb: consul.KVSet, Key: "seen", Value: []byte("4")}}, nil)
		if err == nil && !ok {
			err = fmt.Errorf("transaction rejected: %+v", resp)
		}
		return err
	})
	ok, resp, _, err := other.KV().Txn(consul.KVTxnOps{{Verb: consul.KVGet, Key: "k"}, {Verb: consul.KVGet, Key: "seen"}}, nil)
	if !ok || err != nil || len(resp.Results) != 2 || string(resp.Results[0].Value) != string(resp.Results[1].Value) {
		t.Fatalf("Txn() at another server = %+v, %v, want two equal values", resp, err)
	}
	service := &consul.AgentServiceRegistration{Name: "web", Check: &consul.AgentServiceCheck{TTL: "1h"}}
	retryUnknown(t, func() error { return one.Agent().ServiceRegister(service) })
	if err := other.Agent().PassTTL("service:web", ""); refusedWith(err) != 404 {
		t.Errorf("PassTTL() at another server than the registration = %v, want status 404", err)
	}
	retryUnknown(t, func() error { return one.Agent().PassTTL("service:web", "up") })
	if got, _, err := other.Health().Service("web", "", true, nil); err != nil || len(got) != 1 || got[0].Node.Node != fmt.Sprintf("srv%d", (leader+1)%3+1) {
		t.Fatalf("passing entries = %+v, %v, want web at the first follower", got, err)
	}
}

// retryUnknown repeats an idempotent write while its outcome is unknown. The leader
// may change when the machine pauses.
func retryUnknown(t *testing.T, write func() error) {
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
