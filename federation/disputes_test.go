// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestDisputes: who names another primary is told once and believed for a while, and peers cannot make a server remember more and more.
func TestDisputes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		d := NewPrimaryConflicts("dc2", "dc1", slog.New(slog.NewTextHandler(&log, nil)))
		d.Record("srv1", "dc2", "dc9") // an own server
		d.Record("srv1", "dc3", "no label!")
		if got := d.List(); len(got) != 0 {
			t.Errorf("disputes %v", got)
		}
		for range 10 {
			d.Record("srv1", "dc3", "dc3")
			d.Record("srv2", "dc4", "dc3")
			time.Sleep(disputeFor / 3)
		}
		got := d.List()
		if len(got) != 2 || got[0].DC != "dc3" || !got[0].ClaimsItself() || got[1].Node != "srv2" || got[1].ClaimsItself() {
			t.Errorf("disputes %v", got)
		}
		if n := strings.Count(log.String(), "names another primary"); n != 2 {
			t.Errorf("%d lines: %s", n, log.String())
		}
		d.Record("srv1", "dc3", "dc4") // news
		if n := strings.Count(log.String(), "names another primary"); n != 3 {
			t.Errorf("%d lines: %s", n, log.String())
		}
		time.Sleep(disputeFor)
		if got := d.List(); len(got) != 0 {
			t.Errorf("after a while %v", got)
		}
		for i := range 2 * maxDisputes {
			d.Record("srv1", fmt.Sprint("x", i), "dc3")
		}
		if n := len(d.List()); n != maxDisputes {
			t.Errorf("%d disputes", n)
		}
	})
}

// TestDisputesAreToldRarely: whoever names ever more datacenters, or ever other primaries, does not fill the log.
func TestDisputesAreToldRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		d := NewPrimaryConflicts("dc2", "dc1", slog.New(slog.NewTextHandler(&log, nil)))
		lines := func() int {
			defer log.Reset()
			return strings.Count(log.String(), "names another primary")
		}
		for range 3 {
			for i := range 2 * maxDisputes {
				d.Record("srv1", fmt.Sprint("x", i), "dc3")
			}
		}
		if n := lines(); n != maxDisputes {
			t.Errorf("%d lines of %d datacenters", n, 2*maxDisputes)
		}
		for i := range 100 {
			d.Record("srv1", "x1", fmt.Sprint("dc", i))
		}
		if n := lines(); n > 1 {
			t.Errorf("%d lines of one datacenter", n)
		}
		time.Sleep(disputeFor)
		d.Record("srv1", "dc9", "dc9") // nobody has looked meanwhile
		if n, all := lines(), d.List(); n != 1 || len(all) != 1 || all[0].DC != "dc9" {
			t.Errorf("%d lines, disputes %v", n, all)
		}
	})
}
