// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"
)

// metaOf is how serf encodes tags.
func metaOf(tags ...string) []byte {
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
	var many []string
	for _, r := range "abcdefghijklmnopqrst" {
		many = append(many, string(r), "1")
	}
	for what, c := range map[string]struct {
		meta []byte
		want map[string]string
	}{
		"no tags":           {nil, map[string]string{"role": ""}},
		"a role":            {[]byte("web"), map[string]string{"role": "web"}},
		"an empty map":      {metaOf(), map[string]string{}},
		"long and short":    {metaOf("dc", "dc1", "gw", long), map[string]string{"dc": "dc1", "gw": long}},
		"new format":        {[]byte{tagMagic, 0x81, 0xd9, 1, 'a', 0xc4, 1, 'b'}, map[string]string{"a": "b"}},
		"many":              {metaOf(many...), nil},
		"no map":            {[]byte{tagMagic, 1}, nil},
		"nothing":           {[]byte{tagMagic}, nil},
		"a number":          {[]byte{tagMagic, 0x81, 0xa1, 'a', 7}, nil},
		"cut":               {metaOf("dc", long)[:20], nil},
		"more than is here": {[]byte{tagMagic, 0xde, 0xff, 0xff, 0xa0, 0xa0}, nil},
	} {
		got, err := parseTags(c.meta)
		switch {
		case what == "many":
			if len(got) != 20 || err != nil {
				t.Errorf("%s: %v, %v", what, got, err)
			}
		case (err == nil) != (c.want != nil) || !maps.Equal(got, c.want):
			t.Errorf("%s: %v, %v; want %v", what, got, err, c.want)
		}
	}
}

// FuzzParseTags: what is read says again what was read, and nothing makes it panic.
func FuzzParseTags(f *testing.F) {
	f.Add(metaOf("dc", "dc1", "role", "consul"))
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
		if again, err := parseTags(metaOf(list...)); err != nil || !maps.Equal(again, tags) {
			t.Errorf("%v became %v, %v", tags, again, err)
		}
	})
}

// TestAdmitOnce: a member is asked about once, and again when what it says of itself has changed; a refusal is never remembered.
func TestAdmitOnce(t *testing.T) {
	t.Parallel()
	asked := 0
	p := &Pool{cfg: Config{Name: "me", Admit: func(m Member) error {
		asked++
		if m.Tags["dc"] != "dc1" {
			return errTags
		}
		return nil
	}}}
	a := &admit{p: p, admitted: map[string]uint64{}}
	node := func(dc string) *memberlist.Node {
		return &memberlist.Node{Name: "b", Addr: []byte{10, 0, 0, 1}, Port: 8300, Meta: metaOf("dc", dc)}
	}
	left := node("dc1")
	left.State = memberlist.StateLeft
	short := node("dc1")
	short.Addr = short.Addr[:3]
	for i, c := range []struct {
		n     *memberlist.Node
		fine  bool
		asked int
	}{
		{node("dc1"), true, 1}, {node("dc1"), true, 1}, {node("dc2"), false, 2}, {node("dc2"), false, 3},
		{node("dc1"), true, 3}, {left, true, 4}, {short, false, 4}, {node("dc1"), true, 5},
	} {
		if err := a.NotifyMerge([]*memberlist.Node{c.n}); (err == nil) != c.fine || asked != c.asked {
			t.Errorf("%d: %v, asked %d times", i, err, asked)
		}
	}
}
