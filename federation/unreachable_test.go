// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/wanfed"
)

func TestUnreachableGateways(t *testing.T) {
	gateway := func(dc, addr, class string) *pb.UnreachableGateway {
		return &pb.UnreachableGateway{Datacenter: dc, Address: addr, Class: class}
	}
	tag := formatUnreachable([]*pb.UnreachableGateway{
		gateway("dc3", "10.0.0.5:8443", "timeout"), gateway("a,b", "10.0.0.6:8443", "timeout"),
		gateway("dc4", "nonsense", "timeout"), gateway("dc4", "10.0.0.7:8443", "\x1b[31mred"),
	}, 200)
	member := func(name string, s gossip.Status) gossip.Member {
		return gossip.Member{Name: name, Status: s, Tags: map[string]string{TagUnreachable: tag}}
	}
	got := UnreachableGateways([]gossip.Member{
		member("srv1.dc4", gossip.StatusAlive), member("srv1.dc1", gossip.StatusAlive),
		member("srv1.dc2", gossip.StatusFailed), member("bad", gossip.StatusAlive),
	})
	want := []UnreachableGateway{
		{"dc1", "dc3", "10.0.0.5:8443", wanfed.FailureTimeout}, {"dc1", "dc4", "10.0.0.7:8443", wanfed.FailureOther},
		{"dc4", "dc3", "10.0.0.5:8443", wanfed.FailureTimeout},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("UnreachableGateways() differs (-want +got):\n%s", d)
	}

	var many []*pb.UnreachableGateway
	for i := range 50 {
		many = append(many, gateway("dc3", fmt.Sprintf("198.51.100.%d:8443", i+1), "timeout"))
	}
	if tag := formatUnreachable(many, 100); len(tag) > 100 || strings.Count(tag, ",") < 2 {
		t.Errorf("formatUnreachable() = %q, want at least 3 gateways in 100 bytes", tag)
	}
	if tag := formatUnreachable(many, -5); tag != "" {
		t.Errorf("formatUnreachable() without room = %q, want an empty tag", tag)
	}
}

func FuzzParseUnreachable(f *testing.F) {
	for _, s := range []string{"", "dc3=10.0.0.5:8443=timeout", "dc3=a:1=x,dc4=[::1]:80=", "=,=="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, u := range parseUnreachable("dc1", s) {
			if u.DC == "" || u.DC == "dc1" || u.Addr == "" || u.Class == "" {
				t.Errorf("parseUnreachable(%q) has %+v", s, u)
			}
		}
	})
}
