// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
)

// primaryProcess is a process of a server of the primary, dc1, in a test of
// Clones.
type primaryProcess struct {
	node, group, instance string
	nonce                 string // of the last response that arrived
}

func (p *primaryProcess) request() *pb.ClaimRequest {
	return &pb.ClaimRequest{
		Datacenter: "dc1", Node: p.node, GroupId: p.group, Instance: p.instance, Nonce: p.nonce,
		ServerAddress: p.instance + ".example:8300",
	}
}

// claim sends a claim and receives the response. It returns the instances of the
// reported clones.
func (p *primaryProcess) claim(c *Clones, now time.Time) (clones []string, pending bool) {
	resp := c.Claim(p.request(), now)
	p.nonce = resp.Nonce
	for _, r := range resp.Rivals {
		clones = append(clones, r.Instance)
	}
	return clones, resp.Pending
}

func TestClones(t *testing.T) {
	// A step is the claim of a process at a time in seconds. late means that the
	// claim was sent before the end of the process, and its response is lost. want
	// lists the reported clones.
	type step struct {
		at   int
		by   string // "x" and "y" are processes of one server
		late bool
		want string
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"one process", []step{{0, "x", false, ""}, {5, "x", false, ""}, {10, "x", false, ""}}},
		{"two servers", []step{{0, "x", false, ""}, {1, "srv2", false, ""}, {5, "x", false, ""}, {6, "srv2", false, ""}}},
		{"another group", []step{{0, "x", false, ""}, {1, "g2", false, ""}, {5, "x", false, ""}, {6, "g2", false, ""},
			{10, "x", false, ""}}},
		{"restart", []step{{0, "x", false, ""}, {1, "x", false, ""}, {2, "y", false, ""}, {3, "y", false, ""}}},
		{"late claim of a former process", []step{{0, "x", false, ""}, {1, "y", false, ""}, {2, "x", true, ""},
			{3, "y", false, ""}, {4, "y", false, ""}, {5, "x", true, ""}, {6, "y", false, ""}}},
		{"late claim of a process that is seen first", []step{{0, "y", false, ""}, {1, "y", false, ""}, {2, "x", true, ""},
			{3, "y", false, ""}, {4, "y", false, ""}, {5, "x", true, ""}, {6, "y", false, ""}}},
		{"clone", []step{{0, "x", false, ""}, {5, "x", false, ""}, {6, "y", false, ""}, {7, "x", false, ""},
			{8, "y", false, ""}, {9, "x", false, "y"}, {10, "y", false, "x"}}},
		{"clone that is seen first", []step{{0, "y", false, ""}, {1, "x", false, ""}, {2, "y", false, ""},
			{3, "x", false, ""}, {4, "y", false, "x"}, {5, "x", false, "y"}}},
		{"end of a clone", []step{{0, "x", false, ""}, {1, "y", false, ""}, {2, "x", false, ""}, {3, "y", false, ""},
			{4, "x", false, "y"}, {9, "x", false, "y"}, {14, "x", false, "y"}, {19, "x", false, ""}}},
		{"two clones", []step{{0, "x", false, ""}, {0, "y", false, ""}, {0, "z", false, ""}, {1, "x", false, ""},
			{1, "y", false, ""}, {1, "z", false, ""}, {2, "x", false, "y z"}, {2, "y", false, "x z"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c Clones
			processes := map[string]*primaryProcess{
				"x": {node: "srv1", group: "g1", instance: "x"}, "y": {node: "srv1", group: "g1", instance: "y"},
				"z": {node: "srv1", group: "g1", instance: "z"}, "srv2": {node: "srv2", group: "g1", instance: "a"},
				"g2": {node: "srv1", group: "g2", instance: "b"},
			}
			start := time.Unix(1_000_000, 0)
			for i, s := range tt.steps {
				p := processes[s.by]
				nonce := p.nonce
				got, _ := p.claim(&c, start.Add(time.Duration(s.at)*time.Second))
				if s.late {
					p.nonce = nonce
				}
				if strings.Join(got, " ") != s.want {
					t.Errorf("step %d: clones of %s = %v, want %q", i, s.by, got, s.want)
				}
				if all := c.List(start.Add(time.Duration(s.at) * time.Second)); (len(all) > 0) != (s.want != "") {
					t.Errorf("step %d: List() = %v, want processes: %v", i, all, s.want != "")
				}
			}
		})
	}
}

func TestClones_List(t *testing.T) {
	var c Clones
	now := time.Unix(1_000_000, 0)
	x, y := &primaryProcess{node: "srv1", group: "g1", instance: "x"},
		&primaryProcess{node: "srv1", group: "g1", instance: "y"}
	x.claim(&c, now)
	if _, pending := y.claim(&c, now); !pending {
		t.Error("Claim().Pending of a second process = false, want true")
	}
	for range 2 {
		x.claim(&c, now)
		y.claim(&c, now)
	}
	all := c.List(now)
	if len(all) != 1 || len(all["srv1.dc1"]) != 2 {
		t.Fatalf("List() = %v, want two processes of srv1.dc1", all)
	}
	text := DescribeClones("srv1.dc1", all["srv1.dc1"])
	for _, want := range []string{"x.example:8300", "y.example:8300", "srv1.dc1 runs in 2 processes", "stop the wrong one"} {
		if !strings.Contains(text, want) {
			t.Errorf("DescribeClones() = %q, want %q in it", text, want)
		}
	}
	if all := c.List(now.Add(claimTimeout)); len(all) != 0 {
		t.Errorf("List() after %v without claims = %v, want none", claimTimeout, all)
	}
}

func TestClones_Limit(t *testing.T) {
	var c Clones
	now := time.Unix(1_000_000, 0)
	x := &primaryProcess{node: "srv1", group: "g1", instance: "x"}
	for i := range 5 * maxClaims {
		x.claim(&c, now.Add(time.Duration(2*i)*time.Millisecond))
		p := &primaryProcess{node: "srv1", group: fmt.Sprint(i), instance: "x"}
		p.claim(&c, now.Add(time.Duration(2*i+1)*time.Millisecond))
	}
	if got := len(c.all["srv1.dc1"]); got != maxClaims {
		t.Errorf("processes of one name = %d, want %d", got, maxClaims)
	}
}

// delivery is a message on its way.
type delivery struct {
	at int
	do func(now int)
}

// modelProcess is a process with a lifetime in a simulation.
type modelProcess struct {
	primaryProcess
	begin, end int
}

// TestClones_RandomOrders runs processes of one server with random lifetimes.
// Claims and responses are delayed, lost, repeated and reordered, and the state
// of the secondary is lost at times. Two processes are reported only if both
// lived at one time. Processes that live together long enough, with messages that
// arrive, are reported.
func TestClones_RandomOrders(t *testing.T) {
	reported := 0
	for seed := range uint64(3000) {
		reported += simulateClones(t, seed)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if reported < 100 {
		t.Errorf("simulations with a report = %d, want at least 100", reported)
	}
}

// simulateClones runs one simulation. Its time unit is a second.
func simulateClones(t *testing.T, seed uint64) (reports int) {
	t.Helper()
	const length, interval = 120, 3
	r := rand.New(rand.NewPCG(seed, 1))
	calm := seed%2 == 0 // no loss, and delays of one second at most
	maxDelay := 1 + r.IntN(40)
	if calm {
		maxDelay = 1
	}
	var all []*modelProcess
	for i := range 2 + r.IntN(3) {
		begin := r.IntN(length)
		all = append(all, &modelProcess{
			primaryProcess{node: "srv1", group: "g1", instance: fmt.Sprint(i)}, begin, begin + 1 + r.IntN(length-begin),
		})
	}
	overlap := func(a, b *modelProcess) int { return min(a.end, b.end) - max(a.begin, b.begin) }
	byInstance := func(instance string) *modelProcess {
		return all[slices.IndexFunc(all, func(p *modelProcess) bool { return p.instance == instance })]
	}
	c := &Clones{}
	found := map[[2]string]bool{}
	var queue []delivery
	send := func(now int, do func(now int)) {
		for copies := 1 + r.IntN(10)/9; copies > 0; copies-- { // a call is repeated at times
			if calm && copies > 1 || !calm && r.IntN(5) == 0 {
				continue
			}
			queue = append(queue, delivery{at: now + r.IntN(maxDelay+1), do: do})
		}
	}
	for now := range length + 50 {
		for _, p := range all {
			if now < p.begin || now >= p.end || (now-p.begin)%interval != 0 {
				continue
			}
			req := p.request()
			send(now, func(now int) {
				resp := c.Claim(req, time.Unix(int64(now), 0))
				for _, rival := range resp.Rivals {
					other := byInstance(rival.Instance)
					found[[2]string{p.instance, other.instance}] = true
					if overlap(p, other) <= 0 {
						t.Errorf("clones %s (%d to %d) and %s (%d to %d) at %d, which never lived together", p.instance,
							p.begin, p.end, other.instance, other.begin, other.end, now)
					}
				}
				send(now, func(now int) {
					if now < p.end {
						p.nonce = resp.Nonce
					}
				})
			})
		}
		r.Shuffle(len(queue), func(i, j int) { queue[i], queue[j] = queue[j], queue[i] })
		for i := 0; i < len(queue); i++ {
			if d := queue[i]; d.at <= now {
				queue = slices.Delete(queue, i, i+1)
				i--
				d.do(now)
			}
		}
		if !calm && r.IntN(60) == 0 {
			c = &Clones{} // another server leads the secondary
		}
	}
	for i, a := range all {
		for _, b := range all[:i] {
			if calm && overlap(a, b) >= 6*interval && !found[[2]string{a.instance, b.instance}] &&
				!found[[2]string{b.instance, a.instance}] {
				t.Errorf("processes %s and %s lived together for %d s and were not reported", a.instance, b.instance,
					overlap(a, b))
			}
		}
	}
	if len(found) > 0 {
		return 1
	}
	return 0
}
