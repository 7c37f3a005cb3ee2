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

// TestServersCutApart cuts servers of one datacenter off from the others, without an answer to anybody, until both sides have
// called each other failed. When the cut ends nothing is restarted: they must find each other again by themselves.
func TestServersCutApart(t *testing.T) {
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
			testutil.Await(t, failure, "both sides call each other failed", func(ctx context.Context) error {
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
			awaitWhole(t, l, promptly, "cut ended")
			testutil.Await(t, promptly, "LAN pool whole", func(ctx context.Context) error {
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

// lanFailed returns nil when a server sees those of the other side failed, and all others alive.
func lanFailed(ctx context.Context, s *lab.Node, isCut bool, cut, rest []*lab.Node) error {
	other := cut
	if isCut {
		other = rest
	}
	var members []api.Member
	if err := ask(ctx, s, "/v1/agent/members", &members); err != nil {
		return err
	}
	for _, m := range members {
		want := api.MemberAlive
		if slices.ContainsFunc(other, func(n *lab.Node) bool { return n.Name == m.Name }) {
			want = api.MemberFailed
		}
		if m.Status != want {
			return fmt.Errorf("%s sees %s %s", s.Name, m.Name, m.Status)
		}
	}
	return nil
}
