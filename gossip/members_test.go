// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/serf/serf"

	"github.com/wanfed/wanfed/internal/testutil"
)

// The first of many events is published at once, and the others are published
// together. Events of a former serf instance are ignored.
func TestFollow(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		p := &Pool{cfg: Config{Logger: slog.New(slog.DiscardHandler)}}
		current, former := newEvents(), newEvents()
		p.events = current
		stopped := make(chan struct{})
		for _, events := range []chan serf.Event{current, former} {
			go p.follow(events, stopped)
		}
		defer func() { close(stopped); synctest.Wait() }()
		lists := 0
		go func() {
			for {
				select {
				case <-p.Changed():
					lists++
				case <-stopped:
					return
				}
			}
		}()
		send := func(events chan serf.Event, typ serf.EventType, name string, st serf.MemberStatus) {
			events <- serf.MemberEvent{Type: typ, Members: []serf.Member{{Name: name, Status: st}}}
		}
		settle := func() {
			time.Sleep(time.Second)
			synctest.Wait()
		}

		send(former, serf.EventMemberJoin, "stale", serf.StatusAlive)
		for i := range 1000 {
			send(current, serf.EventMemberJoin, fmt.Sprintf("m%03d", i), serf.StatusAlive)
		}
		send(current, serf.EventMemberFailed, "m500", serf.StatusFailed)
		send(current, serf.EventMemberReap, "m501", serf.StatusFailed)
		settle()
		ms := p.Members()
		if len(ms) != 999 || ms[500].Status != StatusFailed || ms[501].Name != "m502" || lists > 4 {
			t.Errorf("%d lists and Members() = %d members with %v and %v, want at most 4 lists and 999 members "+
				"with m500 failed and m502", lists, len(ms), ms[500], ms[501])
		}
		// A leave message of the last process of m000 arrives after its
		// restart.
		send(current, serf.EventMemberJoin, "m000", serf.StatusLeaving)
		settle()
		if m := p.Members()[0]; !m.Alive() {
			t.Errorf("status of a restarted member = %v, want alive", m.Status)
		}
		send(current, serf.EventMemberReap, "unknown", serf.StatusFailed)
		synctest.Wait()
		if n := len(p.Members()); n != 999 {
			t.Errorf("Members() after the reap of an unknown member = %d members, want 999", n)
		}
	})
}
