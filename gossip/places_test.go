// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
)

// Whoever makes up members fills the place of one group, and of all, and no more; who is no member leaves room again.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var members []Member
		r := &places{members: func() []Member { return members }, group: func(name string) string {
			_, g, _ := strings.Cut(name, ".")
			return g
		}}
		for i := range 3 * maxPerGroup {
			name := fmt.Sprintf("m%d.dc2", i)
			if err := r.take(name, time.Now()); (err == nil) != (i < maxPerGroup) {
				t.Fatalf("%d: %v", i, err)
			} else if err == nil && i < 5 {
				members = append(members, Member{Name: name})
			}
		}
		if err := errors.Join(r.take("m7.dc2", time.Now()), r.take("srv1.dc3", time.Now())); err != nil {
			t.Errorf("one that was let in, and one of another group: %v", err)
		}
		time.Sleep(2 * roomGrace)
		for i := range 2 * maxPerGroup {
			if err := r.take(fmt.Sprintf("n%d.dc2", i), time.Now()); (err == nil) != (i < maxPerGroup-len(members)) {
				t.Fatalf("later, %d: %v", i, err)
			}
		}
		for i := range 2 * maxMembers {
			_ = r.take(fmt.Sprintf("m.g%d", i), time.Now())
		}
		if r.names != maxMembers || len(r.groups) > maxMembers {
			t.Errorf("%d names of %d groups", r.names, len(r.groups))
		}
		time.Sleep(2 * roomGrace)
		if err := r.take("srv1.dc4", time.Now()); err != nil || r.names != len(members)+1 {
			t.Errorf("after that: %v, %d names", err, r.names)
		}
	})
}

// Made-up members are refused one by one: an exchange with a server that has taken others in goes on.
func TestPlacesAreForTheAlive(t *testing.T) {
	p := &Pool{cfg: Config{Name: "me", GroupOf: func(string) string { return "all" }}, former: make(chan netip.AddrPort, 1)}
	a := newAdmit(p, netip.MustParseAddrPort("127.0.0.1:1"))
	var many []*memberlist.Node
	refused := 0
	for i := range 2 * maxPerGroup {
		n := &memberlist.Node{Name: fmt.Sprint("m", i), Addr: net.IPv4(127, 0, 0, 1).To4(), Port: 1, Meta: metaOf("dc", "dc1")}
		if many = append(many, n); a.NotifyAlive(n) != nil {
			refused++
		}
	}
	if refused != maxPerGroup {
		t.Errorf("%d of %d refused", refused, len(many))
	}
	if err := a.NotifyMerge(many); err != nil {
		t.Errorf("an exchange: %v", err)
	}
	if err := a.NotifyAlive(&memberlist.Node{Name: "me", Addr: net.IPv4(127, 0, 0, 1).To4(), Port: 1, Meta: metaOf("dc", "dc1")}); err != nil {
		t.Errorf("this member itself: %v", err)
	}
}
