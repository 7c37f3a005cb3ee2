// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// newConflicts returns a PrimaryConflicts for a server of dc2, and a function
// that counts the log lines since its last call.
func newConflicts() (*PrimaryConflicts, func() int) {
	var log strings.Builder
	lines := func() int {
		defer log.Reset()
		return strings.Count(log.String(), "names another primary")
	}
	return NewPrimaryConflicts("dc2", "dc1", slog.New(slog.NewTextHandler(&log, nil))), lines
}

// A conflict is logged once and ends after a timeout. The number of conflicts
// is limited.
func TestPrimaryConflicts(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		p, lines := newConflicts()
		p.Record("srv1", "dc2", "dc9", "2") // the local datacenter
		p.Record("srv1", "dc3", "no label!", "2")
		if got := p.List(); len(got) != 0 {
			t.Errorf("List() = %v, want none", got)
		}
		for range 10 {
			p.Record("srv1", "dc3", "dc3", "2")
			p.Record("srv2", "dc4", "dc3", "2")
			time.Sleep(conflictTimeout / 3)
		}
		got := p.List()
		if len(got) != 2 || got[0].DC != "dc3" || !got[0].ClaimsItself() || got[1].Node != "srv2" ||
			got[1].ClaimsItself() {
			t.Errorf("List() = %v, want dc3, which claims itself, and srv2 of dc4", got)
		}
		if got[0].Epoch != "2" {
			t.Errorf("List() = %v, want the epoch 2", got)
		}
		if n := lines(); n != 2 {
			t.Errorf("Record() logged %d lines about 2 conflicts, want 2", n)
		}
		p.Record("srv1", "dc3", "dc4", "2")
		if n := lines(); n != 1 {
			t.Errorf("Record() with a new primary logged %d lines, want 1", n)
		}
		time.Sleep(conflictTimeout)
		if got := p.List(); len(got) != 0 {
			t.Errorf("List() after the timeout = %v, want none", got)
		}
		for i := range 2 * maxConflicts {
			p.Record("srv1", fmt.Sprint("x", i), "dc3", "2")
		}
		if n := len(p.List()); n != maxConflicts {
			t.Errorf("List() has %d conflicts, want %d", n, maxConflicts)
		}
	})
}

// A peer that invents datacenters or primaries does not fill the log.
func TestPrimaryConflicts_LogIsLimited(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		p, lines := newConflicts()
		for range 3 {
			for i := range 2 * maxConflicts {
				p.Record("srv1", fmt.Sprint("x", i), "dc3", "2")
			}
		}
		if n := lines(); n != maxConflicts {
			t.Errorf("Record() logged %d lines about %d datacenters, want %d", n, 2*maxConflicts, maxConflicts)
		}
		for i := range 100 {
			p.Record("srv1", "x1", fmt.Sprint("dc", i), "2")
		}
		if n := lines(); n > 1 {
			t.Errorf("Record() logged %d lines about one datacenter, want at most 1", n)
		}
		time.Sleep(conflictTimeout)
		p.Record("srv1", "dc9", "dc9", "2") // removes the expired conflicts
		if n, all := lines(), p.List(); n != 1 || len(all) != 1 || all[0].DC != "dc9" {
			t.Errorf("Record() logged %d lines and List() = %v, want 1 line and dc9", n, all)
		}
	})
}
