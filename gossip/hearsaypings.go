// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"maps"
	"slices"
	"time"
)

// indirectPing is memberlist's request to ping another member.
type indirectPing struct {
	Target     []byte
	Port       uint16
	Node       string
	SourceNode string
}

// acceptPing reports whether memberlist may answer a ping. It answers a question
// itself.
func (h *hearsay) acceptPing(sender string, q question, now time.Time) (bool, error) {
	if !h.enabled() {
		return true, nil
	}
	if err := h.checkSource(sender, q.SourceNode); err != nil {
		return false, err
	}
	if q.Query && q.Node == h.pool.cfg.Name {
		h.questioned(sender, now)
		return false, nil
	}
	return true, nil
}

// acceptIndirectPing reports whether memberlist may ping another member for
// sender. The transport dials the address of a member of this group.
func (h *hearsay) acceptIndirectPing(sender string, p indirectPing) (bool, error) {
	if !h.enabled() {
		return true, nil
	}
	if err := h.checkSource(sender, p.SourceNode); err != nil {
		return false, err
	}
	m, found := h.pool.member(p.Node)
	if !found {
		return false, nil
	}
	addr, _ := news{Addr: p.Target, Port: p.Port}.addr()
	if h.believes(p.Node, h.pool.cfg.Name) && addr.String() != m.Addr {
		return false, refuse(refusedForged, "%s requests a ping of %s at %s, which is listed at %s", sender, p.Node, addr, m.Addr)
	}
	return true, nil
}

// checkSource returns an error unless a ping of sender may request a response to
// source. A member of this group may relay a ping of another group without its
// sender, if it is a server of an earlier version.
func (h *hearsay) checkSource(sender, source string) error {
	local := h.groupOf(h.pool.cfg.Name)
	if source == "" || source == sender || h.groupOf(sender) == local && h.groupOf(source) != local {
		return nil
	}
	return refuse(refusedForged, "ping of %s requests a response to %s", sender, source)
}

// acceptIntent reports whether serf may process a message of sender: one that is
// about a member of its group. The filter of the pool checks the message.
func (h *hearsay) acceptIntent(sender string, b []byte) bool {
	var m struct{ Node string }
	if !h.enabled() || len(b) == 0 || b[0] != leaveType && b[0] != joinType || decodeBytes(b[1:], &m) != nil {
		return true // the filter refuses it
	}
	return h.believes(sender, m.Node)
}

// withoutOthers returns serf's state of sender without the members of other
// groups.
func (h *hearsay) withoutOthers(sender string, b []byte) []byte {
	var s exchangedState
	if len(b) == 0 || b[0] != stateType || decodeBytes(b[1:], &s) != nil {
		return b // the filter refuses it
	}
	other := func(name string) bool { return !h.believes(sender, name) }
	maps.DeleteFunc(s.StatusLTimes, func(name string, _ uint64) bool { return other(name) })
	s.LeftMembers = slices.DeleteFunc(s.LeftMembers, other)
	return encodeMessage(stateType, s)
}
