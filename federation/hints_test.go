// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/gossip"
)

func TestHintOf(t *testing.T) {
	var many []*pb.MeshGateway
	for i := range 50 {
		many = append(many, meshGateway("dc1", fmt.Sprintf("gw%02d", i), "10.0.0.1", fmt.Sprintf("198.51.100.%d", i+1), catalog.StatusPassing))
	}
	many[0].Checks[0].Status = catalog.StatusCritical
	hint := hintOf(many)
	if len(hint) > maxHint {
		t.Errorf("hint has %d bytes", len(hint))
	}
	got := parseHint(hint)
	if len(got) < 5 || got[0] != "198.51.100.2:8443" {
		t.Errorf("hint %q is read as %v: the critical first gateway must be left out, others must be there", hint, got)
	}
	if hint := hintOf(many[:1]); hint != "" {
		t.Errorf("a critical gateway alone gives the hint %q", hint)
	}
}

func TestHints(t *testing.T) {
	member := func(name, gw string, s gossip.Status) gossip.Member {
		return gossip.Member{Name: name, Status: s, Tags: map[string]string{TagGateways: gw}}
	}
	var h hinted
	got := h.collect([]gossip.Member{
		member("srv1.dc1", "198.51.100.1:8443,[2001:db8::1]:8443", gossip.StatusAlive),
		member("srv2.dc1", "198.51.100.1:8443,gw.dc1.example:8443", gossip.StatusFailed), // it may only be cut off
		member("srv3.dc1", "198.51.100.9:8443", gossip.StatusLeft),
		member("srv1.dc2", "198.51.100.2:8443", gossip.StatusAlive), // the own one
		member("srv1.dc3", "nonsense,:,0.0.0.0:1,198.51.100.3:0,"+strings.Repeat("x", 10), gossip.StatusAlive),
		member("srv1.dc4", strings.Repeat("198.51.100.4:8443,", 100), gossip.StatusAlive),
		member("bad", "198.51.100.5:8443", gossip.StatusAlive),
		member("srv1.dc6", "198.51.100.6:8443", gossip.StatusFailed), // without a state
		member("srv1.dc7", "198.51.100.7:8443", gossip.StatusFailed),
	}, "dc2", "dc1", func(dc string) bool { return dc == "dc7" })
	want := []string{"198.51.100.1:8443", "[2001:db8::1]:8443", "gw.dc1.example:8443"}
	if len(got) != 2 || !slices.Equal(got["dc1"], want) || !slices.Equal(got["dc7"], []string{"198.51.100.7:8443"}) {
		t.Errorf("hints are %v, want only dc7 and dc1: %v", got, want)
	}
	kept := got["dc1"]
	got = h.collect([]gossip.Member{member("srv1.dc1", "198.51.100.11:8443", gossip.StatusAlive)}, "dc2", "dc1", nil)
	if len(got) != 1 || !slices.Equal(got["dc1"], []string{"198.51.100.11:8443"}) || !slices.Equal(kept, want) {
		t.Errorf("then hints are %v, and those before became %v", got, kept)
	}
}

func FuzzParseHint(f *testing.F) {
	for _, s := range []string{"", "198.51.100.1:8443", "a:1,b:2", ",,,", "[::1]:80,[::]:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got := parseHint(s); len(got) > maxHint {
			t.Errorf("%d addresses in %d bytes", len(got), len(s))
		}
	})
}
