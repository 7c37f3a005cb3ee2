// SPDX-License-Identifier: MPL-2.0

package view

import (
	"context"
	"iter"
	"net"
	"reflect"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/backoff"
)

// pollInterval is the time between two polls of the state of the federation. A run
// starts at most 1 s after a change.
const pollInterval = 800 * time.Millisecond

// datacenterState is the state of a datacenter, as the local one observes it.
type datacenterState struct {
	primary, reachable bool
	alive              int // servers
	// since is the first poll since which all polls had this reachable. It is not
	// before the last time that the source was not available.
	since time.Time
}

// poll returns a stream of the datacenters and members that the source reports,
// each pollInterval and when due has an element.
func (v *Views) poll(due <-chan struct{}) func(context.Context) iter.Seq2[event, error] {
	reachable := map[string]bool{} // the last known state, also of earlier streams
	return func(ctx context.Context) iter.Seq2[event, error] {
		return func(yield func(event, error) bool) {
			var last map[string]*record
			for ctx.Err() == nil {
				now, err := v.pollOnce(ctx, last, reachable)
				if err != nil {
					yield(event{}, err)
					return
				}
				for ev := range difference(last, now) {
					if !yield(ev, nil) {
						return
					}
				}
				last = now
				backoff.Sleep(ctx, pollInterval, due)
			}
		}
	}
}

// difference returns the events that turn the records last, by name, into now. A
// nil last is that of a new stream, whose snapshot ends. The last event is
// eventTick.
func difference(last, now map[string]*record) iter.Seq[event] {
	return func(yield func(event) bool) {
		for name, r := range now {
			if old := last[name]; old != nil && old.index == r.index && sameData(old.data, r.data) {
				continue
			}
			if !yield(event{typ: api.EventUpsert, name: name, record: r}) {
				return
			}
		}
		for name := range last {
			if now[name] == nil && !yield(event{typ: api.EventDelete, name: name}) {
				return
			}
		}
		if last == nil && !yield(event{typ: api.EventEndOfSnapshot}) {
			return
		}
		yield(event{typ: eventTick})
	}
}

func sameData(a, b any) bool {
	x, ok := a.(proto.Message)
	y, both := b.(proto.Message)
	if ok && both {
		return proto.Equal(x, y)
	}
	return reflect.DeepEqual(a, b)
}

// pollOnce returns the datacenters and members. last is the result of the last
// poll, or nil.
func (v *Views) pollOnce(
	ctx context.Context, last map[string]*record, reachable map[string]bool,
) (map[string]*record, error) {
	status, err := v.src.Status(ctx)
	if err != nil {
		return nil, err
	}
	now := map[string]*record{}
	for _, d := range status.Datacenters {
		s := datacenterState{primary: d.Primary, alive: d.ServersAlive, since: time.Now()}
		switch known, ok := reachable[d.Name]; {
		case d.Own || d.Outbound == api.DirectionOK:
			s.reachable = true
		case d.Health() == api.HealthUnreachable:
		case ok: // the server has no recent result
			s.reachable = known
		default:
			s.reachable = d.ServersAlive > 0
		}
		reachable[d.Name] = s.reachable
		name := "datacenter/" + d.Name
		if old := last[name]; old != nil && old.data.(datacenterState).reachable == s.reachable {
			s.since = old.data.(datacenterState).since
		}
		now[name] = &record{name: d.Name, data: s}
	}
	for _, pool := range []string{"lan", "wan"} {
		all, err := v.src.Members(ctx, pool == "wan")
		if err != nil {
			return nil, err
		}
		for _, m := range all {
			status := m.Status
			if status == api.MemberLeaving { // lasts a second: a leave starts one run, at its end
				status = api.MemberAlive
			}
			now["member/"+m.Name] = &record{name: m.Name, data: memberJSON{
				Address: net.JoinHostPort(m.Addr, strconv.Itoa(int(m.Port))), DC: m.Datacenter(), Pool: pool,
				Status: status.String(),
			}}
		}
	}
	return now, nil
}
