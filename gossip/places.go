// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"fmt"
	"sync"
	"time"
)

// Bounds of a pool whose members have groups: any member may say that there are others, and each costs memory here and is asked whether
// it is alive.
const (
	// maxPerGroup is for names: those that are gone for good stay known for three days.
	maxPerGroup = 128
	maxMembers  = 1 << 14
	// roomGrace is how long a name that is no member yet keeps its place.
	roomGrace = time.Minute
)

// places has the names of members that were let in, by group.
type places struct {
	group   func(name string) string // nil: there is no bound
	members func() []Member

	mu     sync.Mutex
	groups map[string]map[string]time.Time // when they were let in
	names  int
	swept  time.Time
}

// take says whether there is room for a member. It is cheap for those that were let in.
func (r *places) take(name string, now time.Time) error {
	if r.group == nil {
		return nil
	}
	g := r.group(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, in := r.groups[g][name]; in {
		return nil
	}
	if r.fullLocked(g) && now.Sub(r.swept) >= time.Second {
		r.swept = now
		r.sweepLocked(now)
	}
	if r.fullLocked(g) {
		return fmt.Errorf("no room for member %s: %d of %s are known, and %d in all; is somebody making them up?", name, len(r.groups[g]), g, r.names)
	}
	if r.groups == nil {
		r.groups = map[string]map[string]time.Time{}
	}
	if r.groups[g] == nil {
		r.groups[g] = map[string]time.Time{}
	}
	r.groups[g][name] = now
	r.names++
	return nil
}

func (r *places) fullLocked(group string) bool {
	return len(r.groups[group]) >= maxPerGroup || r.names >= maxMembers
}

// sweepLocked forgets who is no member any more.
func (r *places) sweepLocked(now time.Time) {
	members := map[string]bool{}
	for _, m := range r.members() {
		members[m.Name] = true
	}
	for g, names := range r.groups {
		for name, at := range names {
			if !members[name] && now.Sub(at) >= roomGrace {
				delete(names, name)
				r.names--
			}
		}
		if len(names) == 0 {
			delete(r.groups, g)
		}
	}
}
