// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
)

// TestLANPartition_Heals silently separates servers of one datacenter until
// both parts have marked each other failed. When the partition ends, nothing is
// restarted: the servers must find each other again.
func TestLANPartition_Heals(t *testing.T) {
	t.Parallel()
	lab.NeedNFT(t)
	for _, tc := range []struct {
		servers, cut int
	}{{3, 1}, {5, 2}} {
		t.Run(fmt.Sprintf("%d of %d", tc.cut, tc.servers), func(t *testing.T) {
			t.Parallel()
			if tc.servers > 3 {
				onlyChaos(t)
			}
			l := lab.New(t)
			dc1, dc2 := l.Add(1, 1), l.Add(tc.servers, 1)
			dc1.Start()
			dc2.Start()
			awaitWhole(t, l, 3*promptly, "start")
			cut, rest := dc2.Servers[:tc.cut], dc2.Servers[tc.cut:]
			for _, n := range cut {
				n.CutFrom(append(slices.Clone(rest), dc2.Gateways...)...)
			}
			testutil.Await(t, failure, "both parts to mark each other failed", func(ctx context.Context) error {
				for _, s := range dc2.Servers {
					if err := lanFailed(ctx, s, slices.Contains(cut, s), cut, rest); err != nil {
						return err
					}
				}
				return nil
			})
			writeNumbers(t, l, lab.One(dc1), 1)
			awaitNumber(t, promptly, 1, rest...)
			outage(t, longer(100*time.Second, 10*time.Second))
			for _, n := range cut {
				n.Heal()
			}
			awaitNumber(t, promptly, 1, cut...)
			awaitWhole(t, l, promptly, "end of the partition")
			testutil.Await(t, promptly, "all servers alive in the LAN pool", func(ctx context.Context) error {
				for _, s := range dc2.Servers {
					if err := lanFailed(ctx, s, false, nil, nil); err != nil {
						return err
					}
				}
				return nil
			})
			staysAlive(t, l, longer(60*time.Second, 2*time.Second))
		})
	}
}

// lanFailed returns nil if a server sees the servers of the other part failed
// and all others alive.
func lanFailed(ctx context.Context, s *lab.Node, isCut bool, cut, rest []*lab.Node) error {
	other := cut
	if isCut {
		other = rest
	}
	var members []api.Member
	if err := poll(ctx, s, "/v1/agent/members", &members); err != nil {
		return err
	}
	for _, m := range members {
		want := api.MemberAlive
		if slices.ContainsFunc(other, func(n *lab.Node) bool { return n.Name == m.Name }) {
			want = api.MemberFailed
		}
		if m.Status != want {
			return fmt.Errorf("%s sees %s %s, want %s", s.Name, m.Name, m.Status, want)
		}
	}
	return nil
}
