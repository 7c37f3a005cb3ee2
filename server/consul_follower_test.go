// SPDX-License-Identifier: MPL-2.0

package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	consul "github.com/hashicorp/consul/api"

	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// TestConsulClient_Followers proves that a read at any server returns the last
// write at another server, and that a check can be updated through the server
// of its registration.
func TestConsulClient_Followers(t *testing.T) {
	ca := tlstest.NewCA(t)
	_, urls, leader := startThreeHTTP(t, ca)
	operator := ca.Files(t, tlsutil.RoleOperator, "joe", "dc1")
	client := func(i int) *consul.Client {
		return consulClient(t, &consul.Config{
			Address: strings.TrimPrefix(urls[i%3], "http://"), Scheme: "https",
			TLSConfig: consul.TLSConfig{CAFile: operator.CA, CertFile: operator.Cert, KeyFile: operator.Key},
		})
	}
	atLeader, first, second := client(leader), client(leader+1), client(leader+2)
	t.Run("read after write", func(t *testing.T) {
		for i := range 5 {
			value := fmt.Sprint(i)
			retryUnknown(t, func() error {
				_, err := first.KV().Put(&consul.KVPair{Key: "k", Value: []byte(value)}, nil)
				return err
			})
			for _, c := range []*consul.Client{first, second, atLeader} {
				if p, _, err := c.KV().Get("k", nil); err != nil || p == nil || string(p.Value) != value {
					t.Fatalf("Get(k) = %+v, %v, want %s", p, err, value)
				}
			}
		}
	})
	t.Run("transaction", func(t *testing.T) {
		retryUnknown(t, func() error {
			ops := consul.KVTxnOps{{Verb: consul.KVGet, Key: "k"},
				{Verb: consul.KVSet, Key: "seen", Value: []byte("4")}}
			ok, resp, _, err := first.KV().Txn(ops, nil)
			if err == nil && !ok {
				err = fmt.Errorf("transaction rejected: %+v", resp)
			}
			return err
		})
		ok, resp, _, err := second.KV().Txn(consul.KVTxnOps{
			{Verb: consul.KVGet, Key: "k"}, {Verb: consul.KVGet, Key: "seen"},
		}, nil)
		if !ok || err != nil || len(resp.Results) != 2 ||
			string(resp.Results[0].Value) != string(resp.Results[1].Value) {
			t.Fatalf("Txn() at another follower = %+v, %v, want two equal values", resp, err)
		}
	})
	t.Run("check", func(t *testing.T) {
		service := &consul.AgentServiceRegistration{Name: "web", Check: &consul.AgentServiceCheck{TTL: "1h"}}
		retryUnknown(t, func() error { return first.Agent().ServiceRegister(service) })
		if err := second.Agent().PassTTL("service:web", ""); httpStatus(err) != http.StatusNotFound {
			t.Errorf("PassTTL() at another follower = %v, want status %d", err, http.StatusNotFound)
		}
		retryUnknown(t, func() error { return first.Agent().PassTTL("service:web", "up") })
		node := fmt.Sprintf("srv%d", (leader+1)%3+1)
		entries, _, err := second.Health().Service("web", "", true, nil)
		if err != nil || len(entries) != 1 || entries[0].Node.Node != node {
			t.Fatalf("Service(web, passing only) = %+v, %v, want one entry on %s", entries, err, node)
		}
	})
}

// retryUnknown repeats an idempotent write while its outcome is unknown. The
// leader may change if the machine pauses.
func retryUnknown(t *testing.T, write func() error) {
	t.Helper()
	for attempt := 1; ; attempt++ {
		err := write()
		if err == nil {
			return
		}
		if attempt == 5 || !strings.Contains(err.Error(), resource.ErrUnknownOutcome.Error()) {
			t.Fatalf("write = %v in attempt %d, want nil", err, attempt)
		}
	}
}
