// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gossip"
)

func TestClonesTag(t *testing.T) {
	a := &pb.Claimant{ServerAddress: "10.0.0.5:8300", Gateways: []string{"198.51.100.1:8443", "198.51.100.2:8443"}}
	b := &pb.Claimant{ServerAddress: "10.0.0.6:8300", Gateways: []string{"[2001:db8::1]:8443"}}
	full := "10.0.0.5:8300@198.51.100.1:8443@198.51.100.2:8443,10.0.0.6:8300@[2001:db8::1]:8443"
	for _, tt := range []struct {
		room int
		want string
	}{
		{maxTags, full},
		{len(full), full},
		{len(full) - 1, "10.0.0.5:8300@198.51.100.1:8443,10.0.0.6:8300@[2001:db8::1]:8443"},
		{40, "10.0.0.5:8300,10.0.0.6:8300"},
		{20, ""},
		{-1, ""},
	} {
		if got := formatClones([]*pb.Claimant{b, a}, tt.room); got != tt.want {
			t.Errorf("formatClones() with %d bytes = %q, want %q", tt.room, got, tt.want)
		}
	}
	for _, tag := range []string{"", "x", "10.0.0.5:8300,", "10.0.0.5:8300@", "@10.0.0.5:8300", "a b:1", "10.0.0.5",
		strings.Repeat("10.0.0.5:8300,", 100) + "10.0.0.5:8300"} {
		if got := parseClones(tag); got != nil {
			t.Errorf("parseClones(%.20q) = %v, want none", tag, got)
		}
	}
}

func TestTaggedClones(t *testing.T) {
	member := func(name string, status gossip.Status, tag string) gossip.Member {
		return gossip.Member{Name: name, Status: status, Tags: map[string]string{TagClones: tag}}
	}
	const tag = "10.0.0.5:8300@198.51.100.1:8443,10.0.0.6:8300"
	got := TaggedClones([]gossip.Member{
		member("srv1.dc1", gossip.StatusAlive, tag),
		member("srv2.dc1", gossip.StatusAlive, ""),
		member("srv3.dc1", gossip.StatusFailed, tag),
		member("srv1.dc2", gossip.StatusAlive, tag), // not the primary
	}, "dc1")
	if len(got) != 1 || len(got["srv1.dc1"]) != 2 {
		t.Fatalf("TaggedClones() = %v, want two processes of srv1.dc1", got)
	}
	text := DescribeClones("srv1.dc1", got["srv1.dc1"])
	if !strings.Contains(text, "10.0.0.5:8300 behind the gateways 198.51.100.1:8443") || !strings.Contains(text, "10.0.0.6:8300;") {
		t.Errorf("DescribeClones() = %q, want both places", text)
	}
}

func FuzzParseClones(f *testing.F) {
	f.Add("10.0.0.5:8300@198.51.100.1:8443,10.0.0.6:8300")
	f.Add("@,@")
	f.Fuzz(func(t *testing.T, tag string) {
		processes := parseClones(tag)
		if again := parseClones(clonesText(processes, maxTags)); len(again) != len(processes) {
			t.Errorf("parseClones() of %q = %v, and %v from its own text", tag, processes, again)
		}
	})
}
