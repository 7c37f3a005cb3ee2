// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/dcrpc"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/gossip/gossiptest"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/wanfed"
)

// The tags of a server change while its datacenter is unreachable. When the
// datacenter is reachable again, RunResync queries the server.
func TestJoiner_QueriesAfterRecovery(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		var network gossiptest.Network
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		pools := map[string]*gossip.Pool{}
		for _, name := range []string{"srv1.dc1", "srv1.dc2", "srv2.dc2"} {
			transport := network.Add(name)
			p, err := gossip.New(gossip.Config{
				Kind: wanfed.PoolWAN, Name: name, Transport: transport, Logger: slog.New(slog.DiscardHandler),
				Advertise: netip.MustParseAddrPort(transport.Addr.Addr),
				GroupOf:   func(name string) string { _, dc, _ := strings.Cut(name, "."); return dc },
			})
			if err != nil {
				t.Fatal(err)
			}
			pools[name] = p
			wg.Go(func() { _ = p.Run(ctx) })
			if name != "srv1.dc1" {
				if err := p.Join(ctx, "srv1.dc1/"+network.Transport("srv1.dc1").Addr.Addr); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(3 * time.Second)
		var changed broadcast.Broadcast
		var mu sync.Mutex
		recoveries := 0
		j := &Joiner{cfg: JoinerConfig{WAN: pools["srv1.dc1"], Book: &wanfed.SharedAddressBook{}}}
		wg.Go(func() {
			_ = j.RunResync(ctx, "dc1", func() (map[string]dcrpc.Reachability, <-chan struct{}) {
				mu.Lock()
				defer mu.Unlock()
				return map[string]dcrpc.Reachability{"dc2": {Recoveries: recoveries}}, changed.Wait()
			})
		})
		synctest.Wait()

		network.Cut("srv1.dc1", true)
		_ = pools["srv2.dc2"].SetTags(ctx, map[string]string{"id": "new"}) // its broadcast times out
		time.Sleep(5 * time.Second)                                        // the broadcasts of the tags end
		network.Cut("srv1.dc1", false)
		mu.Lock()
		recoveries++
		mu.Unlock()
		changed.Notify()
		time.Sleep(100 * time.Millisecond)
		if !slices.ContainsFunc(pools["srv1.dc1"].Members(), func(m gossip.Member) bool {
			return m.Name == "srv2.dc2" && m.Tags["id"] == "new"
		}) {
			t.Errorf("srv1.dc1 lists %+v 100 ms after the recovery, want srv2.dc2 with the new tags", pools["srv1.dc1"].Members())
		}
	})
}
