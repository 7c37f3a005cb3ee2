// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/internal/testutil"
)

// encodeTags encodes alternating keys and values in the format of serf.
func encodeTags(tags ...string) []byte {
	b := []byte{tagMagic, 0x80 | byte(len(tags)/2)}
	if len(tags)/2 > 15 {
		b = []byte{tagMagic, 0xde, 0, byte(len(tags) / 2)}
	}
	for _, s := range tags {
		if len(s) < 32 {
			b = append(b, 0xa0|byte(len(s)))
		} else {
			b = append(b, 0xda, 0, byte(len(s)))
		}
		b = append(b, s...)
	}
	return b
}

func TestParseTags(t *testing.T) {
	long := strings.Repeat("x", 40)
	var twentyTags []string
	twenty := map[string]string{}
	for _, r := range "abcdefghijklmnopqrst" {
		twentyTags = append(twentyTags, string(r), "1")
		twenty[string(r)] = "1"
	}
	for name, tt := range map[string]struct {
		meta []byte
		want map[string]string // nil: an error
	}{
		"no tags":            {nil, map[string]string{"role": ""}},
		"role":               {[]byte("web"), map[string]string{"role": "web"}},
		"empty map":          {encodeTags(), map[string]string{}},
		"long and short":     {encodeTags("dc", "dc1", "gw", long), map[string]string{"dc": "dc1", "gw": long}},
		"new string formats": {[]byte{tagMagic, 0x81, 0xd9, 1, 'a', 0xc4, 1, 'b'}, map[string]string{"a": "b"}},
		"twenty tags":        {encodeTags(twentyTags...), twenty},
		"not a map":          {[]byte{tagMagic, 1}, nil},
		"magic byte only":    {[]byte{tagMagic}, nil},
		"number as value":    {[]byte{tagMagic, 0x81, 0xa1, 'a', 7}, nil},
		"truncated":          {encodeTags("dc", long)[:20], nil},
		"size too large":     {[]byte{tagMagic, 0xde, 0xff, 0xff, 0xa0, 0xa0}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseTags(tt.meta)
			if (err == nil) != (tt.want != nil) || !maps.Equal(got, tt.want) {
				t.Errorf("parseTags(%q) = %v, %v, want %v", tt.meta, got, err, tt.want)
			}
		})
	}
}

// FuzzParseTags checks that decoded tags are equal after another encoding and
// decoding.
func FuzzParseTags(f *testing.F) {
	f.Add(encodeTags("dc", "dc1", "role", "consul"))
	f.Add([]byte("web"))
	f.Add([]byte{tagMagic, 0xde, 0, 1, 0xd9, 0, 0xc5, 0, 0})
	f.Fuzz(func(t *testing.T, meta []byte) {
		tags, err := parseTags(meta)
		if err != nil || len(meta) == 0 || meta[0] != tagMagic || len(tags) > 200 {
			return
		}
		var list []string
		for _, k := range slices.Sorted(maps.Keys(tags)) {
			if len(k) > 255 || len(tags[k]) > 255 {
				return
			}
			list = append(list, k, tags[k])
		}
		if again, err := parseTags(encodeTags(list...)); err != nil || !maps.Equal(again, tags) {
			t.Errorf("parseTags() of the encoded tags = %v, %v, want %v", again, err, tags)
		}
	})
}

// Config.Admit is called once for a member, and again after the member has
// changed. A rejection is not cached.
func TestAdmission_ChecksOnce(t *testing.T) {
	t.Parallel()
	checks := 0
	p := &Pool{cfg: Config{Name: "local", Admit: func(m Member) error {
		checks++
		if m.Tags["dc"] != "dc1" {
			return errors.New("another datacenter")
		}
		return nil
	}}}
	a := &admission{pool: p, admitted: map[string]uint64{}}
	node := func(dc string) *memberlist.Node {
		return &memberlist.Node{Name: "b", Addr: []byte{10, 0, 0, 1}, Port: 8300, Meta: encodeTags("dc", dc)}
	}
	left := node("dc1")
	left.State = memberlist.StateLeft
	short := node("dc1")
	short.Addr = short.Addr[:3]
	for i, step := range []struct {
		node   *memberlist.Node
		admit  bool
		checks int // calls of Admit so far; short is rejected before the call
	}{
		{node("dc1"), true, 1}, {node("dc1"), true, 1}, {node("dc2"), false, 2}, {node("dc2"), false, 3},
		{node("dc1"), true, 3}, {left, true, 4}, {short, false, 4}, {node("dc1"), true, 5},
	} {
		err := a.NotifyMerge([]*memberlist.Node{step.node})
		if (err == nil) != step.admit || checks != step.checks {
			t.Errorf("step %d: NotifyMerge() = %v after %d checks, want admitted %v after %d checks",
				i, err, checks, step.admit, step.checks)
		}
	}
}

// The quota limits the names of a group and of all groups. It releases names
// that do not become members.
func TestMemberQuota(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		var members []Member
		q := &memberQuota{members: func() []Member { return members }, groupOf: func(name string) string {
			_, group, _ := strings.Cut(name, ".")
			return group
		}}
		for i := range 3 * maxPerGroup {
			name := fmt.Sprintf("m%d.dc2", i)
			if err := q.reserve(name, time.Now()); (err == nil) != (i < maxPerGroup) {
				t.Fatalf("reserve(%s) = %v, want %d names admitted", name, err, maxPerGroup)
			} else if err == nil && i < 5 {
				members = append(members, Member{Name: name})
			}
		}
		for _, name := range []string{"m7.dc2", "srv1.dc3"} { // a reserved name, and a name of another group
			if err := q.reserve(name, time.Now()); err != nil {
				t.Errorf("reserve(%s) = %v, want nil", name, err)
			}
		}
		time.Sleep(2 * reservationTime)
		for i := range 2 * maxPerGroup {
			name := fmt.Sprintf("n%d.dc2", i)
			if err := q.reserve(name, time.Now()); (err == nil) != (i < maxPerGroup-len(members)) {
				t.Fatalf("reserve(%s) after the sweep = %v, want %d names admitted", name, err,
					maxPerGroup-len(members))
			}
		}
		for i := range 2 * maxMembers {
			_ = q.reserve(fmt.Sprintf("m.g%d", i), time.Now())
		}
		if q.names != maxMembers || len(q.groups) > maxMembers {
			t.Errorf("quota has %d names in %d groups, want %d names", q.names, len(q.groups), maxMembers)
		}
		time.Sleep(2 * reservationTime)
		if err := q.reserve("srv1.dc4", time.Now()); err != nil || q.names != len(members)+1 {
			t.Errorf("reserve() after the last sweep = %v with %d names, want nil and %d", err, q.names, len(members)+1)
		}
	})
}

// NotifyAlive applies the quota to each member. NotifyMerge does not, so a
// state exchange with a server that has more members succeeds.
func TestMemberQuota_StateExchangeSucceeds(t *testing.T) {
	p := &Pool{cfg: Config{Name: "local", GroupOf: func(string) string { return "all" }}}
	a := newAdmission(p)
	node := func(name string) *memberlist.Node {
		return &memberlist.Node{Name: name, Addr: net.IPv4(127, 0, 0, 1).To4(), Port: 1, Meta: encodeTags("dc", "dc1")}
	}
	var all []*memberlist.Node
	rejected := 0
	for i := range 2 * maxPerGroup {
		n := node(fmt.Sprint("m", i))
		if all = append(all, n); a.NotifyAlive(n) != nil {
			rejected++
		}
	}
	if rejected != maxPerGroup {
		t.Errorf("NotifyAlive() rejected %d of %d members, want %d", rejected, len(all), maxPerGroup)
	}
	if err := a.NotifyMerge(all); err != nil {
		t.Errorf("NotifyMerge() = %v, want nil", err)
	}
	if err := a.NotifyAlive(node("local")); err != nil {
		t.Errorf("NotifyAlive() of the local member = %v, want nil", err)
	}
}
