// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"testing"
	"time"
)

// Attempts at new datacenters are held. A server without an alive remote member
// does not hold the first attempts.
func TestPoolView_Hold(t *testing.T) {
	joined := poolView{
		known: map[string]bool{"dc2": true, "dc3": true}, alive: map[string]bool{"dc2": true}, aliveRemote: 1,
	}
	for _, tt := range []struct {
		name   string
		pool   poolView
		target string
		others int
		held   bool
	}{
		{"new datacenter", joined, "*.dc4", 0, true},
		{"failed datacenter", joined, "*.dc3", 0, false},
		{"local server", joined, "srv2.dc1", 0, false},
		{"first target without members", poolView{}, "*.dc4", 0, false},
		{"fourth target without members", poolView{}, "*.dc4", 3, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const datacenters = 100
			got, longest := tt.pool.hold(tt.target, tt.others, datacenters), newcomerHold+datacenters*newcomerHoldEach
			if tt.held && (got < newcomerHold || got > longest) {
				t.Errorf("hold() = %v, want %v to %v", got, newcomerHold, longest)
			} else if !tt.held && got != 0 {
				t.Errorf("hold() = %v, want 0", got)
			}
		})
	}
}

// A change of the address book does not shorten a hold.
func TestJoiner_ResetBackoffKeepsHold(t *testing.T) {
	j := &Joiner{attempts: map[string]*attempt{}}
	now := time.Now()
	j.attempts["*.dc4"] = &attempt{holdUntil: now.Add(newcomerHold), notBefore: now.Add(time.Hour)}
	j.resetBackoff()
	if wait := j.start("*.dc4", poolView{}, now); wait != newcomerHold {
		t.Errorf("start() = %v, want %v", wait, newcomerHold)
	}
	if wait := j.start("*.dc4", poolView{}, now.Add(newcomerHold)); wait != 0 {
		t.Errorf("start() after the hold = %v, want 0", wait)
	}
}
