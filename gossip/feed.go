// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"slices"
	"time"

	"github.com/hashicorp/serf/serf"
)

// feed carries the events of one serf.
type feed struct {
	events chan serf.Event
}

func newFeed() *feed {
	return &feed{make(chan serf.Event, 256)} // serf blocks when it is full: the reader only copies
}

// begin takes the members of the present serf, and from then on those of f, which has its events.
func (p *Pool) begin(f *feed) {
	p.list.Lock()
	defer p.list.Unlock()
	p.feed = f
	ms := p.serf.Load().Members()
	out := make([]Member, 0, len(ms))
	for _, m := range ms {
		out = append(out, fromSerf(m))
	}
	slices.SortFunc(out, byName)
	p.publish(out)
}

// pauseOf is how long after a change of the member list the next one comes at the earliest, in a pool of so many members. A change
// costs in proportion to them, and so do the changes when many start at once.
func pauseOf(members int) time.Duration {
	return min(time.Duration(members)*250*time.Microsecond, 250*time.Millisecond)
}

// follow copies events into the member list, while its serf is the present one. It keeps reading until Run ends,
// so that serf never blocks on it.
func (p *Pool) follow(f *feed, stopped <-chan struct{}) {
	var news []serf.MemberEvent // that came during the pause
	var pause <-chan time.Time  // nil: over
	for {
		select {
		case <-stopped:
			return
		case e := <-f.events:
			me, ok := e.(serf.MemberEvent)
			if !ok {
				continue
			}
			for _, m := range me.Members {
				p.cfg.Logger.Info("member "+verb(me.Type), "peer", m.Name, "addr", addrOf(m))
			}
			news = append(news, me)
			if pause != nil {
				continue
			}
		case <-pause:
			pause = nil
		}
		if len(news) > 0 {
			pause = time.After(pauseOf(p.update(f, news)))
			news = nil
		}
	}
}

// update brings the news of f into the member list, and returns how many members it has.
func (p *Pool) update(f *feed, news []serf.MemberEvent) int {
	p.list.Lock()
	defer p.list.Unlock()
	if p.feed != f {
		return len(p.Members()) // begin sees what they tell
	}
	out := slices.Clone(p.Members())
	for _, me := range news {
		for _, m := range me.Members {
			i, known := slices.BinarySearchFunc(out, Member{Name: m.Name}, byName)
			switch {
			case me.Type == serf.EventMemberReap && known:
				out = slices.Delete(out, i, i+1)
			case me.Type == serf.EventMemberReap:
			case known:
				out[i] = fromSerf(m)
			default:
				out = slices.Insert(out, i, fromSerf(m))
			}
		}
	}
	p.publish(out)
	return len(out)
}
