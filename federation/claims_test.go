// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
)

// claimant is a server process of dc2 in a test of Claims.
type claimant struct {
	node, group, instance, previous string
	clone                           bool
}

func (p *claimant) request() *pb.ClaimRequest {
	return &pb.ClaimRequest{
		Datacenter: "dc2", Node: p.node, GroupId: p.group, Instance: p.instance, PreviousInstance: p.previous,
		Clone:         p.clone,
		ServerAddress: "10.0.0.5:8300", Gateways: []string{p.instance + ".example:8443"},
	}
}

func TestClaims(t *testing.T) {
	genuine := claimant{node: "srv1", group: "g1", instance: "x", previous: "w"}
	restarted := claimant{node: "srv1", group: "g1", instance: "z", previous: "x"}
	clone := claimant{node: "srv1", group: "g1", instance: "y", previous: "x"}
	cloneAgain := claimant{node: "srv1", group: "g1", instance: "y2", previous: "y"}
	knownClone := claimant{node: "srv1", group: "g1", instance: "y", previous: "x", clone: true}
	second := claimant{node: "srv2", group: "g1", instance: "b"}
	copied := claimant{node: "srv1", group: "g2", instance: "c"}

	// A step is a claim at a time in seconds, and the expected result: "" if
	// the claim is accepted, "pending", or a part of the reason of the refusal.
	type step struct {
		at   int
		by   claimant
		want string
	}
	for _, tt := range []struct {
		name  string
		group string // in the federation state
		steps []step
	}{
		{"two servers", "g1", []step{{0, genuine, ""}, {0, second, ""}, {2, genuine, ""}, {2, second, ""}}},
		{"restart", "g1", []step{{0, genuine, ""}, {1, restarted, "pending"}, {3, restarted, ""}, {5, restarted, ""}}},
		{"late restart", "g1", []step{{0, genuine, ""}, {5, restarted, ""}, {7, restarted, ""}}},
		{"another group", "g1", []step{{0, genuine, ""}, {1, copied, "--id g2"}, {2, genuine, ""},
			{3, copied, "x.example:8443"}}},
		{"another group before the accepted one", "g1", []step{{0, copied, "group id g1"}}},
		{"two new groups", "", []step{{0, copied, ""}, {1, genuine, "--id g1"}, {2, copied, ""}}},
		{"new group after the first ended", "", []step{{0, copied, ""}, {1, genuine, "--id g1"}, {20, genuine, ""}}},
		{"clone", "g1", []step{
			{0, genuine, ""}, {1, clone, "pending"}, {2, genuine, ""}, {3, clone, "clone of it: it is at x.example"},
			{4, genuine, ""},
		}},
		{"clone while the primary was slow", "g1", []step{
			{0, genuine, ""}, {1, clone, "pending"}, {3, clone, ""}, {4, genuine, ""}, {5, clone, "clone"},
		}},
		{"clone and a restart of the genuine server", "g1", []step{
			{0, genuine, ""}, {1, clone, "pending"}, {2, genuine, ""}, {3, clone, "clone"}, {4, restarted, "pending"},
			{5, clone, "clone"}, {6, restarted, ""},
		}},
		{"restart of a clone", "g1", []step{
			{0, genuine, ""}, {1, clone, "pending"}, {2, genuine, ""}, {3, clone, "clone"}, {4, cloneAgain, "clone"},
			{5, genuine, ""},
		}},
		{"clone while the genuine server is down", "g1", []step{
			{0, genuine, ""}, {1, clone, "pending"}, {2, genuine, ""}, {3, clone, "clone"}, {60, clone, "clone"},
			{540, clone, "clone"}, {700, clone, ""},
		}},
		{"clone first at a new leader", "g1", []step{
			{0, knownClone, "was called"}, {1, genuine, ""}, {2, knownClone, "clone"}, {3, genuine, ""},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c Claims
			start := time.Unix(1_000_000, 0)
			for i, step := range tt.steps {
				resp := c.Claim(step.by.request(), tt.group, start.Add(time.Duration(step.at)*time.Second))
				got := resp.Reason
				if resp.Pending {
					got = "pending"
				}
				if resp.Accepted != (step.want == "") || !strings.Contains(got, step.want) {
					t.Errorf("step %d: Claim(%+v) = %v, %q, want %v, %q",
						i, step.by, resp.Accepted, got, step.want == "", step.want)
				}
			}
		})
	}
}

func TestClaims_Release(t *testing.T) {
	var c Claims
	now := time.Unix(1_000_000, 0)
	genuine := claimant{node: "srv1", group: "g1", instance: "x"}
	restarted := claimant{node: "srv1", group: "g1", instance: "z", previous: "x"}
	c.Claim(genuine.request(), "g1", now)
	req := genuine.request()
	req.Release = true
	c.Claim(req, "g1", now.Add(time.Second))
	if resp := c.Claim(restarted.request(), "g1", now.Add(time.Second)); !resp.Accepted {
		t.Errorf("Claim() after a release = %+v, want it accepted", resp)
	}
}

func TestClaims_RivalsAreReported(t *testing.T) {
	var c Claims
	now := time.Unix(1_000_000, 0)
	genuine, copied := claimant{node: "srv1", group: "g1", instance: "x"},
		claimant{node: "srv1", group: "g2", instance: "c"}
	c.Claim(genuine.request(), "g1", now)
	refused := c.Claim(copied.request(), "g1", now.Add(time.Second))
	if len(refused.Rivals) != 1 || PlaceOf(refused.Rivals[0]) != "x.example:8443" {
		t.Errorf("Claim().Rivals of the refused server = %v, want a server at x.example:8443", refused.Rivals)
	}
	accepted := c.Claim(genuine.request(), "g1", now.Add(2*time.Second))
	if len(accepted.Rivals) != 1 || accepted.Rivals[0].GroupId != "g2" || !accepted.Rivals[0].Refused {
		t.Errorf("Claim().Rivals of the accepted server = %v, want a refused server of g2", accepted.Rivals)
	}
	if all := c.Rivals(now.Add(2 * time.Second)); len(all["dc2"]) != 1 || all["dc2"][0].GroupId != "g2" {
		t.Errorf("Rivals() = %v, want a server of g2 in dc2", all)
	}
	c.Remove("dc2")
	if resp := c.Claim(copied.request(), "g2", now.Add(3*time.Second)); !resp.Accepted {
		t.Errorf("Claim() of g2 after Remove = %q, want it accepted", resp.Reason)
	}
}

func TestClaims_Limit(t *testing.T) {
	var c Claims
	now := time.Unix(1_000_000, 0)
	genuine := claimant{node: "srv1", group: "g1", instance: "x"}
	for i := range 5 * maxClaims {
		c.Claim(genuine.request(), "g1", now.Add(time.Duration(2*i)*time.Second))
		p := claimant{node: "srv1", group: "g2", instance: fmt.Sprint(i)}
		c.Claim(p.request(), "g1", now.Add(time.Duration(2*i+1)*time.Second))
	}
	if got := len(c.all["srv1.dc2"]); got != maxClaims {
		t.Errorf("claims for one name = %d, want %d", got, maxClaims)
	}
	if c.find("srv1.dc2", "x") == nil {
		t.Error("find() of the repeated claim = nil, want it kept")
	}
}
