// SPDX-License-Identifier: MPL-2.0

package test

import (
	"testing"
	"time"

	"github.com/wanfed/wanfed/test/lab"
)

// TestStartOrders starts a primary and a secondary in different orders, with a
// long pause before the last part. The failed attempts of the other parts
// during the pause must not delay the federation.
func TestStartOrders(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		before []string
		after  []string
		always bool // not only with chaos
	}{
		{"secondary first, primary later", []string{"S", "s"}, []string{"P", "p"}, true},
		{"primary's gateway before its server", []string{"S", "s", "p"}, []string{"P"}, true},
		{"secondary's gateway last", []string{"P", "p", "S"}, []string{"s"}, true},
		{"gateways first", []string{"p", "s"}, []string{"P", "S"}, false},
		{"primary's gateway last", []string{"P", "S", "s"}, []string{"p"}, true},
		{"secondary's server last", []string{"P", "p", "s"}, []string{"S"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if !tc.always {
				onlyChaos(t)
			}
			l := lab.New(t)
			dc1, dc2 := l.Add(1, 1), l.Add(1, 1)
			start := map[string]func(){
				"P": func() { dc1.Servers[0].StartServer() }, "p": func() { dc1.Gateways[0].StartGateway() },
				"S": func() { dc2.Servers[0].StartServer() }, "s": func() { dc2.Gateways[0].StartGateway() },
			}
			for _, part := range tc.before {
				start[part]()
			}
			outage(t, longer(40*time.Second, 12*time.Second))
			for _, part := range tc.after {
				start[part]()
			}
			awaitWhole(t, l, promptly, tc.name)
		})
	}
}
