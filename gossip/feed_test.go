// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/serf/serf"
)

// TestFollow: the first of many events is shown at once, the others together, and those of a serf that is not the present one never.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Pool{cfg: Config{Logger: slog.New(slog.DiscardHandler)}, changed: make(chan struct{})}
		now, former := newFeed(), newFeed()
		p.feed = now
		stopped := make(chan struct{})
		for _, f := range []*feed{now, former} {
			go p.follow(f, stopped)
		}
		defer func() { close(stopped); synctest.Wait() }()
		shown := 0
		go func() {
			for {
				select {
				case <-p.Changed():
					shown++
				case <-stopped:
					return
				}
			}
		}()
		tell := func(f *feed, typ serf.EventType, name string, st serf.MemberStatus) {
			f.events <- serf.MemberEvent{Type: typ, Members: []serf.Member{{Name: name, Status: st}}}
		}
		tell(former, serf.EventMemberJoin, "stale", serf.StatusAlive)
		for i := range 1000 {
			tell(now, serf.EventMemberJoin, fmt.Sprintf("m%03d", i), serf.StatusAlive)
		}
		tell(now, serf.EventMemberFailed, "m500", serf.StatusFailed)
		tell(now, serf.EventMemberReap, "m501", serf.StatusFailed)
		time.Sleep(time.Second)
		synctest.Wait()
		ms := p.Members()
		if len(ms) != 999 || ms[500].Status != StatusFailed || ms[501].Name != "m502" || shown > 4 {
			t.Errorf("%d members in %d steps, %v, %v", len(ms), shown, ms[500], ms[501])
		}
		// One that has just started hears the farewell of a member's former life, and then of its new one.
		tell(now, serf.EventMemberJoin, "m000", serf.StatusLeaving)
		time.Sleep(time.Second)
		synctest.Wait()
		if m := p.Members()[0]; !m.Alive() {
			t.Errorf("a member that is back is %v", m.Status)
		}
		tell(now, serf.EventMemberReap, "nobody", serf.StatusFailed)
		synctest.Wait()
		if len(p.Members()) != 999 {
			t.Error("who is unknown was reaped")
		}
	})
}
