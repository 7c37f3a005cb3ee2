// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// The tags of the newest news about a member are kept until the member responds.
// Their number is limited.
func TestUnconfirmedTags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation(t, "srv1.dc1", "srv1.dc2", "srv1.dc3")
		defer f.stop()
		f.awaitCorrect(3*time.Second, "start")
		p, at := f.nodes["srv1.dc1"], f.net.Transport("srv1.dc1")
		want := func(when string, n int, of string) {
			t.Helper()
			got := p.UnconfirmedTags("dc2")
			if len(got) != n || got["srv1.dc2"]["of"] != of {
				t.Errorf("%s: UnconfirmedTags() = %v, want %d members and %q of srv1.dc2", when, got, n, of)
			}
		}
		deliver := func(name string, incarnation uint32, tags []byte) {
			at.Deliver(encodeMessage(aliveMsg, aliveMessage{incarnation, name, []byte{127, 0, 0, 9}, 1, tags,
				[]byte{1, 5, 2, 2, 5, 5}}), "srv1.dc3")
			synctest.Wait()
		}
		want("start", 0, "")
		f.net.Cut("srv1.dc2", true)
		deliver("srv1.dc2", 1000, encodeTags("of", "new"))
		deliver("srv1.dc2", 999, encodeTags("of", "old"))
		want("news of dc3", 1, "new")
		deliver("srv1.dc2", 1001, make([]byte, 513))
		want("tags that are too long", 1, "new")
		for i := range 2 * maxRumors {
			deliver(fmt.Sprintf("f%d.dc2", i), 1, encodeTags("of", "evil"))
		}
		want("many invented members", maxRumors, "new")
		deliver("srv2.dc1", 1000, encodeTags("of", "evil"))
		if got := p.UnconfirmedTags("dc1"); len(got) > 0 {
			t.Errorf("UnconfirmedTags() of this group = %v, want none", got)
		}
		f.net.Cut("srv1.dc2", false)
		deliver("srv1.dc2", 1002, encodeTags("of", "newer"))
		time.Sleep(5 * time.Second)
		want("the member has responded", maxRumors-1, "")
		time.Sleep(unconfirmedTime)
		want("after unconfirmedTime", 0, "")
		deliver("f0.dc4", 1, encodeTags("of", "evil"))
		deliver("g0.dc2", 1, encodeTags("of", "evil"))
		want("space for others again", 1, "")
	})
}
