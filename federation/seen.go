// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/wanfed/wanfed/gossip"
)

// seen is what the WAN pool knows, by name of datacenters, and by WAN name of servers of the own one.
type seen struct {
	known, alive map[string]bool
	far          int // datacenters other than the own with an alive member
}

func (j *Joiner) look() seen {
	members := j.cfg.WAN.Members()
	p := seen{known: make(map[string]bool, len(members)), alive: make(map[string]bool, len(members))}
	for _, m := range members {
		_, dc, ok := strings.Cut(m.Name, ".")
		if !ok {
			continue
		}
		if dc == j.cfg.DC {
			p.known[m.Name] = true
			if m.Alive() {
				p.alive[m.Name] = true
			}
			continue
		}
		p.known[dc] = true
		if m.Alive() && !p.alive[dc] {
			p.alive[dc] = true
			p.far++
		}
	}
	return p
}

// isAlive says whether a member is alive, or any server of a datacenter for "*.<dc>".
func (j *Joiner) isAlive(name string) bool {
	suffix, whole := strings.CutPrefix(name, "*")
	return slices.ContainsFunc(j.cfg.WAN.Members(), func(m gossip.Member) bool {
		return (m.Name == name || whole && strings.HasSuffix(m.Name, suffix)) && m.Alive()
	})
}

// hold is how long to wait before a first attempt to join name, when there are attempts to join so many others.
func (p seen) hold(name string, others, datacenters int) time.Duration {
	dc, whole := strings.CutPrefix(name, "*.")
	if p.known[dc] || !whole || p.far == 0 && others < eager {
		return 0
	}
	return newcomerHold + rand.N(time.Duration(datacenters)*newcomerHoldEach)
}
