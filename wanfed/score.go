// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"slices"
	"time"
)

// penalty is how long a hop that failed, or was overtaken by a later one, stays behind the others.
const penalty = time.Minute

// evidence is what real dials told about one hop.
type evidence struct {
	good time.Time // last success; zero: never
	bad  time.Time // last failure, or last time a hop that started later won; zero: never
}

// suspect says whether e speaks against trying the hop first: it failed recently and has not worked since.
func (e evidence) suspect(now time.Time) bool {
	return e.bad.After(e.good) && now.Sub(e.bad) < penalty
}

// orderHops returns hops in the order to try them: that of the address book, but suspects behind all others, the one that
// failed longest ago first.
func orderHops(hops []Hop, of func(Hop) evidence, now time.Time) []Hop {
	type scored struct {
		Hop
		suspect bool
		bad     time.Time
	}
	list := make([]scored, len(hops))
	for i, h := range hops {
		e := of(h)
		list[i] = scored{h, e.suspect(now), e.bad}
	}
	slices.SortStableFunc(list, func(a, b scored) int {
		switch {
		case a.suspect && b.suspect:
			return a.bad.Compare(b.bad)
		case a.suspect:
			return 1
		case b.suspect:
			return -1
		}
		return 0
	})
	ordered := make([]Hop, len(list))
	for i, s := range list {
		ordered[i] = s.Hop
	}
	return ordered
}
