// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"maps"
	"time"

	"github.com/hashicorp/memberlist"
)

// unconfirmedTime is the time after which tags that a member has not confirmed
// are dropped.
const unconfirmedTime = 10 * time.Minute

// unconfirmedTags are the tags in the news about a member with the highest
// incarnation.
type unconfirmedTags struct {
	incarnation uint32
	meta        []byte // encoded tags
	at          time.Time
}

// keepTags records the tags in news about a member that is alive. It keeps tags of
// up to maxRumors members of a group and of maxMembers members in total. The
// caller holds h.mu.
func (h *hearsay) keepTags(n news, now time.Time) {
	group := h.groupOf(n.Node)
	kept, found := h.unconfirmed[group][n.Node]
	expired := now.Sub(kept.at) >= unconfirmedTime
	if len(n.Meta) > memberlist.MetaMaxSize || found && !expired && n.Incarnation < kept.incarnation {
		return
	}
	if !found {
		if len(h.unconfirmed[group]) >= maxRumors || h.unconfirmedCount >= maxMembers {
			h.dropExpiredTags(now)
		}
		if len(h.unconfirmed[group]) >= maxRumors || h.unconfirmedCount >= maxMembers {
			return
		}
		if h.unconfirmed[group] == nil {
			h.unconfirmed[group] = map[string]unconfirmedTags{}
		}
		h.unconfirmedCount++
	}
	h.unconfirmed[group][n.Node] = unconfirmedTags{n.Incarnation, bytes.Clone(n.Meta), now}
}

// dropTags drops the unconfirmed tags of a member that has sent its own. The
// caller holds h.mu.
func (h *hearsay) dropTags(name string) {
	group := h.groupOf(name)
	if _, found := h.unconfirmed[group][name]; !found {
		return
	}
	delete(h.unconfirmed[group], name)
	if h.unconfirmedCount--; len(h.unconfirmed[group]) == 0 {
		delete(h.unconfirmed, group)
	}
}

// dropExpiredTags drops the tags that are older than unconfirmedTime, at most
// once per second. The caller holds h.mu.
func (h *hearsay) dropExpiredTags(now time.Time) {
	if now.Sub(h.tagsSwept) < time.Second {
		return
	}
	h.tagsSwept = now
	for group, tags := range h.unconfirmed {
		before := len(tags)
		maps.DeleteFunc(tags, func(_ string, t unconfirmedTags) bool { return now.Sub(t.at) >= unconfirmedTime })
		if h.unconfirmedCount -= before - len(tags); len(tags) == 0 {
			delete(h.unconfirmed, group)
		}
	}
}

// UnconfirmedTags returns the tags in the latest news about members of another
// group that these members have not confirmed, by member. Another group may have
// invented the tags and the members.
func (p *Pool) UnconfirmedTags(group string) map[string]map[string]string {
	if !p.hearsay.enabled() {
		return nil
	}
	now, out := time.Now(), map[string]map[string]string{}
	p.hearsay.mu.Lock()
	defer p.hearsay.mu.Unlock()
	for name, t := range p.hearsay.unconfirmed[group] {
		if tags, err := parseTags(t.meta); err == nil && now.Sub(t.at) < unconfirmedTime {
			out[name] = tags
		}
	}
	return out
}
