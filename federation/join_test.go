// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"testing"
	"time"
)

// TestHold: a datacenter that is new is left to gossip for a moment, by who has somebody to hear it from.
func TestHold(t *testing.T) {
	in := seen{known: map[string]bool{"dc2": true, "dc3": true}, alive: map[string]bool{"dc2": true}, far: 1}
	for _, tt := range []struct {
		what   string
		pool   seen
		name   string
		others int
		held   bool
	}{
		{"new", in, "*.dc4", 0, true},
		{"failed", in, "*.dc3", 0, false},
		{"of the own datacenter", in, "srv2.dc1", 0, false},
		{"first of one that is alone", seen{}, "*.dc4", 0, false},
		{"fourth of one that is alone", seen{}, "*.dc4", 3, true},
	} {
		const datacenters = 100
		got := tt.pool.hold(tt.name, tt.others, datacenters)
		if most := newcomerHold + datacenters*newcomerHoldEach; tt.held && (got < newcomerHold || got > most) || !tt.held && got != 0 {
			t.Errorf("%s: held for %v", tt.what, got)
		}
	}
}

// TestForgiveKeepsHold: another change of the book does not end a newcomer's hold.
func TestForgiveKeepsHold(t *testing.T) {
	j := &Joiner{attempts: map[string]*attempt{}}
	now := time.Now()
	j.attempts["*.dc4"] = &attempt{hold: now.Add(newcomerHold), next: now.Add(time.Hour)}
	j.forgive()
	if wait := j.begin("*.dc4", seen{}, now); wait != newcomerHold {
		t.Errorf("to wait %v", wait)
	}
	if wait := j.begin("*.dc4", seen{}, now.Add(newcomerHold)); wait != 0 {
		t.Errorf("after the hold to wait %v", wait)
	}
}
