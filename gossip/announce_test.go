// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/wanfed"
)

// Two members set tags at about the same time, the first one twice. memberlist
// confuses messages of the same size that it queues then, and drops one of
// them: the queue gives the same id to two messages. The tags arrive
// nevertheless.
func TestSetTags_TwoMembers(t *testing.T) {
	for name, options := range map[string]func(*Config){
		"with groups": withGroups,
		"LAN":         func(c *Config) { c.Kind = wanfed.PoolLAN },
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T) { testSetTags(t, options) })
		})
	}
}

func testSetTags(t *testing.T, options func(*Config)) {
	f := &federation{t: t, nodes: map[string]*node{}}
	names := []string{"srv1.dc1", "srv1.dc2", "srv1.dc3"}
	for _, name := range names {
		f.nodes[name] = newNode(t, &f.net, name, options)
	}
	defer f.stop()
	for _, name := range names[1:] {
		if err := f.nodes[name].Join(t.Context(), f.nodes[names[0]].addr()); err != nil {
			t.Fatal(err)
		}
	}
	f.awaitCorrect(3*time.Second, "start")
	set := func(name string, n int) {
		go f.nodes[name].SetTags(t.Context(), map[string]string{"of": name, "n": fmt.Sprintf("%04d", n)})
	}
	for n := range 60 {
		set(names[0], 3*n)
		time.Sleep(time.Duration(n+1) * 17 * time.Millisecond)
		set(names[0], 3*n+1)
		set(names[1], 3*n+2)
		synctest.Wait()
		f.awaitCorrect(2*time.Second, fmt.Sprintf("round %d", n))
		time.Sleep(5 * time.Second) // the queues of memberlist are empty
	}
}

// The link to a datacenter fails while a member sets tags, and works again. The
// members there then receive the tags at once, and not with the next state
// exchange.
func TestAnnounce_AfterOutage(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFederation(t, "srv1.dc1", "srv1.dc2", "srv2.dc2")
		defer f.stop()
		f.awaitCorrect(3*time.Second, "start")
		f.net.Cut("srv1.dc1", true)
		tags := map[string]string{"of": "srv1.dc1", "gw": "127.0.0.1:1"}
		_ = f.nodes["srv1.dc1"].SetTags(t.Context(), tags) // its broadcast times out
		time.Sleep(5 * time.Second)                        // the members of dc2 do not suspect it yet
		f.net.Cut("srv1.dc1", false)
		f.nodes["srv1.dc1"].Announce("dc2")
		f.awaitCorrect(100*time.Millisecond, "the link works again")
	})
}

// A member waits with its answer until memberlist has refuted an accusation. An
// announcement at that moment does not send the state before the refutation.
func TestAnnounce_WaitsForRefutation(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFederation(t, "srv1.dc1", "srv1.dc2", "srv2.dc2")
		defer f.stop()
		f.awaitCorrect(3*time.Second, "start")
		p := f.nodes["srv1.dc1"].Pool
		h, due := p.hearsay, time.Now().Add(refuteDelay)
		h.mu.Lock()
		h.answer("srv1.dc2", due)
		h.mu.Unlock()
		p.Announce("dc2")
		h.mu.Lock()
		defer h.mu.Unlock()
		if got := h.answers["srv1.dc2"]; !got.Equal(due) {
			t.Errorf("answer to srv1.dc2 is due in %v, want %v", time.Until(got), refuteDelay)
		}
	})
}
