// SPDX-License-Identifier: MPL-2.0

package server

import (
	"strings"
	"time"

	"github.com/wanfed/wanfed/api/pb"
)

// What must be fresh costs a server that does not lead a round trip to the one that does. So who asks much of the kind asks the leader:
// its connection is moved there. Who asks little does not, or all the others of a large federation would be at the leader.
const (
	// manyFresh is how many questions within a second, for what must be fresh, are worth a move.
	manyFresh = 100
	// moveRest is how long a connection is not moved again.
	moveRest = 10 * time.Second
)

// detours counts the questions of an exchange that a leader answers sooner than others. Guarded by exchange.mu.
type detours struct {
	follow func(node string) // is called with the node of the leader when there are many. Set before run, and never changed
	moves  bool              // its connection was told to move. Guarded by exchanges.mu
	fresh  int               // questions for what must be fresh, since
	since  time.Time
}

func (d *detours) count(req *pb.QueryRequest) {
	if !strings.Contains(req.GetRawQuery(), "stale") {
		d.fresh++
	}
}

// many says whether the questions of a second are worth a move, at its end.
func (d *detours) many(now time.Time) bool {
	if now.Sub(d.since) < time.Second {
		return false
	}
	many := d.fresh >= manyFresh && now.Sub(d.since) < 2*time.Second
	d.fresh, d.since = 0, now
	return many
}

// leads is told which other server than the answering one leads: empty if there is none.
func (x *exchange) leads(node string) {
	if node == "" {
		return
	}
	x.mu.Lock()
	many := x.many(time.Now())
	x.mu.Unlock()
	if many {
		x.follow(node)
	}
}

// follow moves the connection of x, to a datacenter, to the server that leads it, unless it was moved a short time ago. x ends then.
func (e *exchanges) follow(dc string, x *exchange, node string) {
	now := time.Now()
	e.mu.Lock()
	settled := now.After(e.settle[dc])
	if settled {
		e.settle[dc], x.moves = now.Add(moveRest), true
	}
	e.mu.Unlock()
	if settled {
		e.moveTo(dc, node)
	}
}
