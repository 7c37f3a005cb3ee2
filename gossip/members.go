// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/serf/serf"
)

// Status is the state of a member. Its numbers appear in the HTTP API.
type Status = serf.MemberStatus

// Values of Member.Status.
const (
	StatusNone   = serf.StatusNone
	StatusAlive  = serf.StatusAlive
	StatusLeft   = serf.StatusLeft
	StatusFailed = serf.StatusFailed
)

// Member is one server of a pool.
type Member struct {
	// Name is <node> in a LAN pool and <node>.<dc> in the WAN pool.
	Name string
	// Addr is the advertised ip:port. An address in the WAN pool is valid only
	// inside the member's own datacenter.
	Addr   string
	Host   string            // IP address in Addr
	Port   uint16            // port in Addr
	Tags   map[string]string // immutable
	Status Status

	ProtocolMin, ProtocolMax, ProtocolCur uint8 // versions of memberlist
	DelegateMin, DelegateMax, DelegateCur uint8 // versions of serf
}

// Alive reports whether the member is alive according to the pool.
func (m Member) Alive() bool { return m.Status == StatusAlive }

func byName(a, b Member) int { return strings.Compare(a.Name, b.Name) }

// fromSerf converts m. The result shares the tags, which serf replaces and
// never changes.
//
// A leaving member counts as alive until an event reports that it has left.
// Serf sets the status "leaving" without an event. A late leave message of an
// earlier process may also set the status of a restarted member, and serf then
// resets the status without an event.
func fromSerf(m serf.Member) Member {
	status := m.Status
	if status == serf.StatusLeaving {
		status = StatusAlive
	}
	return Member{
		Name: m.Name, Addr: addrOf(m), Host: m.Addr.String(), Port: m.Port,
		Tags: m.Tags, Status: status,
		ProtocolMin: m.ProtocolMin, ProtocolMax: m.ProtocolMax, ProtocolCur: m.ProtocolCur,
		DelegateMin: m.DelegateMin, DelegateMax: m.DelegateMax, DelegateCur: m.DelegateCur,
	}
}

func addrOf(m serf.Member) string {
	return net.JoinHostPort(m.Addr.String(), fmt.Sprint(m.Port))
}

// newEvents returns a channel for the events of one serf instance. Serf blocks
// while the channel is full. Pool.follow reads it without blocking.
func newEvents() chan serf.Event { return make(chan serf.Event, 256) }

// setEvents publishes the members of the current serf instance. From then on,
// update accepts only events of that instance.
func (p *Pool) setEvents(events <-chan serf.Event) {
	p.updating.Lock()
	defer p.updating.Unlock()
	p.events = events
	ms := p.serf.Load().Members()
	out := make([]Member, 0, len(ms))
	for _, m := range ms {
		out = append(out, fromSerf(m))
	}
	slices.SortFunc(out, byName)
	p.publish(out)
}

// removeMembers publishes an empty member list and ignores the events of the
// former serf instance.
func (p *Pool) removeMembers() {
	p.updating.Lock()
	defer p.updating.Unlock()
	p.events = nil
	p.publish(nil)
}

// publish replaces the member list. The caller holds p.updating and must not
// change members afterwards.
func (p *Pool) publish(members []Member) {
	p.members.Store(&members)
	p.changed.Notify()
}

// updateInterval returns the minimum time between two member lists. When many
// members start, both the number of events and the cost of a list are
// proportional to the number of members.
func updateInterval(members int) time.Duration {
	return min(time.Duration(members)*250*time.Microsecond, 250*time.Millisecond)
}

var eventMessages = map[serf.EventType]string{
	serf.EventMemberJoin:   "member alive",
	serf.EventMemberLeave:  "member left",
	serf.EventMemberFailed: "member failed",
	serf.EventMemberReap:   "member reaped",
	serf.EventMemberUpdate: "member updated",
}

// follow copies events into the member list. It reads events until stopped is
// closed, so that serf does not block.
func (p *Pool) follow(events <-chan serf.Event, stopped <-chan struct{}) {
	var pending []serf.MemberEvent
	var pause <-chan time.Time // nil: no pause
	for {
		select {
		case <-stopped:
			return
		case e := <-events:
			me, ok := e.(serf.MemberEvent)
			if !ok {
				continue
			}
			for _, m := range me.Members {
				p.cfg.Logger.Info(eventMessages[me.Type], "peer", m.Name, "addr", addrOf(m))
			}
			pending = append(pending, me)
			if pause != nil {
				continue
			}
		case <-pause:
			pause = nil
		}
		if len(pending) > 0 {
			pause = time.After(updateInterval(p.update(events, pending)))
			pending = nil
		}
	}
}

// update applies changes to the member list and returns the length of the list.
// It ignores the events of a former serf instance.
func (p *Pool) update(events <-chan serf.Event, changes []serf.MemberEvent) int {
	p.updating.Lock()
	defer p.updating.Unlock()
	if p.events != events {
		return len(p.Members())
	}
	out := slices.Clone(p.Members())
	for _, change := range changes {
		for _, m := range change.Members {
			i, found := slices.BinarySearchFunc(out, Member{Name: m.Name}, byName)
			switch {
			case change.Type == serf.EventMemberReap && found:
				out = slices.Delete(out, i, i+1)
			case change.Type == serf.EventMemberReap:
			case found:
				out[i] = fromSerf(m)
			default:
				out = slices.Insert(out, i, fromSerf(m))
			}
		}
	}
	p.publish(out)
	return len(out)
}
