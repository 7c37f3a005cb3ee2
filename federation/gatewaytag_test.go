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

func TestFormatGatewayTag(t *testing.T) {
	var gateways []*pb.MeshGateway
	for i := range 50 {
		wan := fmt.Sprintf("198.51.100.%d", i+1)
		gateways = append(gateways, meshGateway("dc1", fmt.Sprintf("gw%02d", i), "10.0.0.1", wan,
			catalog.StatusPassing))
	}
	gateways[0].Checks[0].Status = catalog.StatusCritical
	tag := formatGatewayTag(gateways)
	if len(tag) > maxGatewayTag {
		t.Errorf("formatGatewayTag() has %d bytes, want at most %d", len(tag), maxGatewayTag)
	}
	if got := parseGatewayTag(tag); len(got) < 5 || got[0] != "198.51.100.2:8443" {
		t.Errorf("parseGatewayTag(%q) = %v, want at least 5 healthy gateways, 198.51.100.2 first", tag, got)
	}
	if tag := formatGatewayTag(gateways[:1]); tag != "" {
		t.Errorf("formatGatewayTag() of a critical gateway = %q, want an empty tag", tag)
	}
}

func TestTagReader_Collect(t *testing.T) {
	member := func(name, tag string, s gossip.Status) gossip.Member {
		return gossip.Member{Name: name, Status: s, Tags: map[string]string{TagGateways: tag}}
	}
	inGroup := func(group string, m gossip.Member) gossip.Member {
		m.Tags[TagGroup] = group
		return m
	}
	state := func(dc string) *stateGateways {
		if dc == "dc7" {
			return &stateGateways{dc: dc, group: "g1"}
		}
		return nil
	}
	var r tagReader
	got := r.collect([]gossip.Member{
		member("srv1.dc1", "198.51.100.1:8443,[2001:db8::1]:8443", gossip.StatusAlive),
		member("srv2.dc1", "198.51.100.1:8443,gw.dc1.example:8443", gossip.StatusFailed), // in the primary
		member("srv3.dc1", "198.51.100.9:8443", gossip.StatusLeft),
		member("srv1.dc2", "198.51.100.2:8443", gossip.StatusAlive), // in the local datacenter
		member("srv1.dc3", "nonsense,:,0.0.0.0:1,198.51.100.3:0,"+strings.Repeat("x", 10), gossip.StatusAlive),
		member("srv1.dc4", strings.Repeat("198.51.100.4:8443,", 100), gossip.StatusAlive),
		member("bad", "198.51.100.5:8443", gossip.StatusAlive),
		member("srv1.dc6", "198.51.100.6:8443", gossip.StatusFailed), // without a state
		member("srv1.dc7", "198.51.100.7:8443", gossip.StatusFailed), // with a state
		inGroup("g1", member("srv2.dc7", "198.51.100.8:8443", gossip.StatusAlive)),
		inGroup("g2", member("srv3.dc7", "198.51.100.9:8443", gossip.StatusAlive)), // of another group than the state
	}, "dc2", "dc1", state)
	want := []string{"198.51.100.1:8443", "[2001:db8::1]:8443", "gw.dc1.example:8443"}
	if len(got) != 2 || !slices.Equal(got["dc1"], want) ||
		!slices.Equal(got["dc7"], []string{"198.51.100.7:8443", "198.51.100.8:8443"}) {
		t.Errorf("collect() = %v, want %v for dc1 and two addresses for dc7", got, want)
	}
	first := got["dc1"]
	got = r.collect([]gossip.Member{member("srv1.dc1", "198.51.100.11:8443", gossip.StatusAlive)}, "dc2", "dc1", state)
	if len(got) != 1 || !slices.Equal(got["dc1"], []string{"198.51.100.11:8443"}) {
		t.Errorf("second collect() = %v, want 198.51.100.11 for dc1", got)
	}
	if !slices.Equal(first, want) {
		t.Errorf("slice of the first collect() after the second = %v, want %v", first, want)
	}
}

func FuzzParseGatewayTag(f *testing.F) {
	for _, s := range []string{"", "198.51.100.1:8443", "a:1,b:2", ",,,", "[::1]:80,[::]:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got := parseGatewayTag(s); len(got) > maxGatewayTag {
			t.Errorf("parseGatewayTag() of %d bytes = %d addresses, want at most %d", len(s), len(got), maxGatewayTag)
		}
	})
}
