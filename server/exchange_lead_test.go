// SPDX-License-Identifier: MPL-2.0

package server

import (
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
)

func TestManyDetours(t *testing.T) {
	start := time.Now()
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	for _, tt := range []struct {
		name  string
		query string
		n     int
		then  float64 // seconds after a second began
		want  bool
	}{
		{"many", "raw", manyFresh, 1, true},
		{"many, and the second is not over", "raw", manyFresh, 0.9, false},
		{"many, but a long time ago", "raw", manyFresh, 2, false},
		{"few", "raw", manyFresh - 1, 1, false},
		{"many that any server answers as well", "stale", 10 * manyFresh, 1, false},
	} {
		d := detours{since: start}
		for range tt.n {
			d.count(&pb.QueryRequest{RawQuery: tt.query})
		}
		got := d.many(at(tt.then))
		if got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
		if got && d.many(at(tt.then+1)) {
			t.Errorf("%s: counted twice", tt.name)
		}
	}
}

// Who asks a follower much for what must be fresh is moved to the leader that it names, once in a while; who asks the leader stays.
func TestExchangeFollowsTheLeader(t *testing.T) {
	r := newExchangeRig(t)
	r.until(t)
	asked := func(query string, limit time.Duration) {
		t.Helper()
		for end := time.Now().Add(limit); time.Now().Before(end) && len(r.moved) == 0; {
			if _, err := r.ask(t.Context(), "dc2", &pb.QueryRequest{Path: "/", RawQuery: query}); err != nil {
				t.Fatal(err)
			}
		}
	}
	stays := func(why string) {
		t.Helper()
		select {
		case to := <-r.moved:
			t.Errorf("%s, and it moved to %s", why, to)
		default:
		}
	}
	asked("", 1200*time.Millisecond)
	stays("the leader answers")
	r.leader.Store("srv2")
	asked("stale", 2200*time.Millisecond)
	stays("stale is good enough")
	asked("", starting)
	select {
	case to := <-r.moved:
		if to != "srv2.dc2" {
			t.Errorf("it moved to %s", to)
		}
	default:
		t.Fatal("it did not move")
	}
	asked("", 1200*time.Millisecond)
	stays("it has just moved")
}
