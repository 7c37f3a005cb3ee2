// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// The tags of the newest news of a group about a member are kept until the member
// responds. Their number is limited, also for one group.
func TestReports(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFederation(t, "srv1.dc1", "srv1.dc2", "srv1.dc3", "srv1.dc4")
		defer f.stop()
		f.awaitCorrect(3*time.Second, "start")
		p, at := f.nodes["srv1.dc1"], f.net.Transport("srv1.dc1")
		want := func(when, reporter string, n int, of string) {
			t.Helper()
			got, tag := 0, ""
			for _, r := range p.Reports("dc2") {
				if r.Reporter == reporter {
					got++
					if r.Member == "srv1.dc2" {
						tag = r.Tags["of"]
					}
				}
			}
			if got != n || tag != of {
				t.Errorf("%s: Reports() = %v, want %d members and %q of srv1.dc2 by %s", when, p.Reports("dc2"), n, of, reporter)
			}
		}
		deliver := func(from, name string, incarnation uint32, tags []byte) {
			at.Deliver(encodeMessage(aliveMsg, aliveMessage{incarnation, name, []byte{127, 0, 0, 9}, 1, tags,
				[]byte{1, 5, 2, 2, 5, 5}}), from)
			synctest.Wait()
		}
		want("start", "dc3", 0, "")
		f.net.Cut("srv1.dc2", true)
		deliver("srv1.dc3", "srv1.dc2", 1000, encodeTags("of", "new"))
		deliver("srv1.dc3", "srv1.dc2", 999, encodeTags("of", "old"))
		want("news of dc3", "dc3", 1, "new")
		deliver("srv1.dc3", "srv1.dc2", 1001, make([]byte, 513))
		want("tags that are too long", "dc3", 1, "new")
		for i := range 2 * maxRumors { // a thief with a certificate of dc3 invents members
			deliver("srv1.dc3", fmt.Sprintf("f%d.dc2", i), 1, encodeTags("of", "evil"))
			time.Sleep(2 * time.Second / maxSenderPackets)
		}
		want("many invented members", "dc3", maxReportedMembers, "new")
		deliver("srv1.dc3", "srv1.dc2", 2000, encodeTags("of", "evil"))
		deliver("srv1.dc4", "srv1.dc2", 1000, encodeTags("of", "new"))
		want("news of a thief", "dc3", maxReportedMembers, "evil")
		want("news of another group", "dc4", 1, "new")
		deliver("srv1.dc3", "srv2.dc1", 1000, encodeTags("of", "evil"))
		if got := p.Reports("dc1"); len(got) > 0 {
			t.Errorf("Reports() of this group = %v, want none", got)
		}
		f.net.Cut("srv1.dc2", false)
		deliver("srv1.dc3", "srv1.dc2", 2001, encodeTags("of", "newer"))
		time.Sleep(5 * time.Second)
		want("the member has responded", "dc3", maxReportedMembers-1, "")
		want("the member has responded", "dc4", 0, "")
		time.Sleep(unconfirmedTime)
		want("after unconfirmedTime", "dc3", 0, "")
		deliver("srv1.dc3", "f0.dc4", 1, encodeTags("of", "evil"))
		deliver("srv1.dc3", "g0.dc2", 1, encodeTags("of", "evil"))
		want("space for others again", "dc3", 1, "")
	})
}

// The reports of one group, and those of all, have a limit.
func TestReports_Limits(t *testing.T) {
	r, now := newReports(), time.Unix(1e9, 0)
	for i := range 2 * maxGroupReports {
		r.keep(fmt.Sprint("x", i), "dc3", news{Node: fmt.Sprint("srv1.x", i)}, now)
	}
	if n := r.perFrom["dc3"]; n != maxGroupReports {
		t.Errorf("%d reports of dc3, want %d", n, maxGroupReports)
	}
	for i := range 2 * maxAllReports {
		r.keep("dc2", fmt.Sprint("y", i), news{Node: "srv1.dc2"}, now)
	}
	if r.all != maxAllReports {
		t.Errorf("%d reports, want %d", r.all, maxAllReports)
	}
	r.dropMember("dc2", "srv1.dc2")
	if r.all != maxGroupReports || len(r.perFrom) != 1 || len(r.perPair) != maxGroupReports {
		t.Errorf("%d reports of %d groups after dropMember, want those of dc3", r.all, len(r.perFrom))
	}
	r.keep("dc2", "dc3", news{Node: "srv1.dc2"}, now.Add(unconfirmedTime))
	if r.all != 1 || len(r.tags) != 1 {
		t.Errorf("%d reports after unconfirmedTime, want the new one", r.all)
	}
}
