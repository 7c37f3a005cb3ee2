// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// unconfirmedTime is the time after which tags that a member has not confirmed
	// are dropped.
	unconfirmedTime = 10 * time.Minute
	// maxReportedMembers limits the members of one group in the reports of another.
	// A group has up to five members.
	maxReportedMembers = 8
	// maxGroupReports limits the reports of one group, and maxAllReports those of all.
	// A group therefore cannot use the space of others up.
	maxGroupReports = 1024
	maxAllReports   = 16 * maxGroupReports
)

// reportKey identifies the report of a group about a member of another one.
type reportKey struct{ reporter, member string }

// unconfirmedTags are the tags of a member in the news with the highest
// incarnation that one group has sent.
type unconfirmedTags struct {
	incarnation uint32
	meta        []byte // encoded tags
	at          time.Time
}

// pair has the groups of a member and of the reporter.
type pair struct{ group, reporter string }

// reports are the unconfirmed tags of members. The lock of hearsay guards them.
type reports struct {
	tags    map[string]map[reportKey]unconfirmedTags // by the group of the member
	perFrom map[string]int                           // number by the group of the reporter
	perPair map[pair]int                             // number of members
	all     int
	swept   time.Time // time of the last sweep
}

func newReports() reports {
	return reports{tags: map[string]map[reportKey]unconfirmedTags{}, perFrom: map[string]int{}, perPair: map[pair]int{}}
}

// full reports whether there is no space for a report of a group about another
// member of a group.
func (r *reports) full(group, reporter string) bool {
	return r.perPair[pair{group, reporter}] >= maxReportedMembers || r.perFrom[reporter] >= maxGroupReports ||
		r.all >= maxAllReports
}

// keep records the tags in news of a group about a member of another one.
func (r *reports) keep(group, reporter string, n news, now time.Time) {
	key := reportKey{reporter, n.Node}
	kept, found := r.tags[group][key]
	expired := now.Sub(kept.at) >= unconfirmedTime
	if len(n.Meta) > memberlist.MetaMaxSize || found && !expired && n.Incarnation < kept.incarnation {
		return
	}
	if !found {
		if r.full(group, reporter) {
			r.sweep(now)
		}
		if r.full(group, reporter) {
			return
		}
		if r.tags[group] == nil {
			r.tags[group] = map[reportKey]unconfirmedTags{}
		}
		r.perPair[pair{group, reporter}]++
		r.perFrom[reporter]++
		r.all++
	}
	r.tags[group][key] = unconfirmedTags{n.Incarnation, bytes.Clone(n.Meta), now}
}

// dropMember drops the tags of a member that has sent its own.
func (r *reports) dropMember(group, member string) {
	for key := range r.tags[group] {
		if key.member == member {
			r.drop(group, key)
		}
	}
}

func (r *reports) drop(group string, key reportKey) {
	delete(r.tags[group], key)
	if len(r.tags[group]) == 0 {
		delete(r.tags, group)
	}
	r.all--
	if r.perPair[pair{group, key.reporter}]--; r.perPair[pair{group, key.reporter}] == 0 {
		delete(r.perPair, pair{group, key.reporter})
	}
	if r.perFrom[key.reporter]--; r.perFrom[key.reporter] == 0 {
		delete(r.perFrom, key.reporter)
	}
}

// sweep drops the tags that are older than unconfirmedTime, at most once per
// second.
func (r *reports) sweep(now time.Time) {
	if now.Sub(r.swept) < time.Second {
		return
	}
	r.swept = now
	for group, tags := range r.tags {
		for key, t := range tags {
			if now.Sub(t.at) >= unconfirmedTime {
				r.drop(group, key)
			}
		}
	}
}

// Report has the tags of a member in the latest news of another group, which the
// member has not confirmed. The reporter may have invented the tags and the member.
type Report struct {
	Reporter string // group
	Member   string
	Tags     map[string]string // immutable
}

// Reports returns the reports of other groups about members of a group, sorted by
// reporter and member.
func (p *Pool) Reports(group string) (all []Report) {
	if !p.hearsay.enabled() {
		return nil
	}
	now := time.Now()
	parsed := map[string]map[string]string{} // by the encoded tags: most groups report the same
	p.hearsay.mu.Lock()
	defer p.hearsay.mu.Unlock()
	for key, t := range p.hearsay.reports.tags[group] {
		if now.Sub(t.at) >= unconfirmedTime {
			continue
		}
		tags, found := parsed[string(t.meta)]
		if !found {
			tags, _ = parseTags(t.meta) // nil after an error
			parsed[string(t.meta)] = tags
		}
		if tags != nil {
			all = append(all, Report{key.reporter, key.member, tags})
		}
	}
	slices.SortFunc(all, func(a, b Report) int {
		return cmp.Or(cmp.Compare(a.Reporter, b.Reporter), cmp.Compare(a.Member, b.Member))
	})
	return all
}
