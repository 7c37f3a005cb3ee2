// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"sync"
	"time"
)

const (
	// minRumorTick is the minimum time between two looks at rumors and answers that
	// wait: several are processed at once.
	minRumorTick = 50 * time.Millisecond
	// pathTickPerMember is the time, per member, between two looks at a rumor about a
	// member without a path, from minRumorTick to maxPathTick.
	pathTickPerMember = 10 * time.Millisecond
	maxPathTick       = time.Second
)

// run queries, answers and suspects until stopped is closed. In a pool without
// groups it only answers: see Pool.announce.
func (h *hearsay) run(stopped <-chan struct{}) {
	var wg sync.WaitGroup
	defer wg.Wait()
	var tick <-chan time.Time
	for {
		select {
		case <-stopped:
			return
		case <-h.wake:
		case <-tick:
		}
		tick = nil
		if due := h.process(time.Now(), &wg, stopped); !due.IsZero() {
			tick = time.After(max(minRumorTick, time.Until(due)))
		}
	}
}

// process does what is due. It returns the time of the next work, or zero if
// nothing waits.
func (h *hearsay) process(now time.Time, wg *sync.WaitGroup, stopped <-chan struct{}) (next time.Time) {
	wait := func(until time.Time) {
		if next.IsZero() || until.Before(next) {
			next = until
		}
	}
	h.readOwn(now, stopped)
	h.mu.Lock()
	var own []byte
	for to, at := range h.answers {
		if at.After(now) {
			wait(at)
			continue
		}
		delete(h.answers, to)
		if own == nil {
			own = h.own.alive()
		}
		if own != nil {
			h.outbox = append(h.outbox, outgoing{to, own})
		}
	}
	pathTick := min(max(minRumorTick, time.Duration(len(h.contacts))*pathTickPerMember), maxPathTick)
	unanswered := min(max(unansweredTime, time.Duration(len(h.contacts))*unansweredPerMember), maxUnansweredTime)
	for name, r := range h.rumors {
		listed, found := h.pool.member(name)
		c := h.contact(name)
		switch {
		case now.Sub(r.began) >= rumorTimeout:
			h.drop(name)
		case r.queried.IsZero() || r.accuser == "" && !r.acked && now.Sub(c.queried) >= queryAgain:
			if now.Sub(c.queried) >= queryInterval && h.hasPath(name) {
				if c.queried = now; r.queried.IsZero() {
					r.queried = now
				}
				h.query(name, c, found && (c.suspected || !listed.Alive()))
			}
		case r.accuser != "" && now.Sub(r.queried) < accusedTime:
		case r.accuser != "" && c.seen.Before(r.queried):
			h.drop(name)
			c.suspected = true
			h.suspects = append(h.suspects, suspicion{name, c.highest, r.accuser})
		// The address in the news about a member of this group is hearsay too. A
		// member that has failed is contacted by serf.
		case r.accuser == "" && !r.acked && now.Sub(r.queried) < unanswered:
		case !r.member || r.accuser != "" || h.believes(name, h.pool.cfg.Name) || found && !listed.Alive():
			h.drop(name)
		case now.Sub(h.exchanged) >= exchangePause(len(h.contacts)):
			h.exchanged = now
			h.drop(name)
			wg.Go(func() { h.exchange(name + "/" + r.addr) })
		}
		if h.rumors[name] == r {
			wait(r.due(c, unanswered, pathTick, now))
		}
	}
	suspects := h.suspects
	h.suspects = nil
	h.mu.Unlock()
	h.flush()
	for _, s := range suspects {
		if packet, err := h.pool.inspector.encrypt(suspectMessage(s.name, s.incarnation, s.accuser)); err == nil {
			h.pool.inspector.inject(stopped, packet, h.pool.cfg.Advertise)
		}
	}
	return next
}

// due returns the time at which process must look at a rumor again, if nothing
// happens before. A rumor that waits for a path or for an exchange is looked at after
// pathTick.
func (r *rumor) due(c *contact, unanswered, pathTick time.Duration, now time.Time) time.Time {
	first := func(a, b time.Time) time.Time {
		if b.Before(a) {
			return b
		}
		return a
	}
	at := now.Add(pathTick)
	switch {
	case r.queried.IsZero():
		if next := c.queried.Add(queryInterval); next.After(now) {
			at = next
		}
	case r.accuser != "":
		at = r.queried.Add(accusedTime)
	case !r.acked && now.Sub(r.queried) < unanswered:
		if again := c.queried.Add(queryAgain); again.After(now) {
			at = again
		}
		at = first(at, r.queried.Add(unanswered))
	}
	return first(at, r.began.Add(rumorTimeout))
}

// exchangePause returns the time between two state exchanges.
func exchangePause(members int) time.Duration {
	return min(max(minExchangePause, time.Duration(members)*exchangePerMember), maxExchangePause)
}

// exchange exchanges states with a member that does not answer questions. It
// blocks up to the timeout of memberlist.
func (h *hearsay) exchange(addr string) {
	if s := h.pool.serf.Load(); s != nil {
		_, _ = s.Memberlist().Join([]string{addr}) // after an error, the next news are another rumor
	}
}
