// SPDX-License-Identifier: MPL-2.0

package server

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gossip"
)

// TestWhenToCompareKeys plays what Run does with its targets.
func TestWhenToCompareKeys(t *testing.T) {
	now := time.Unix(1000, 0)
	near, far := syncTarget{"dc1", "srv2", "127.0.0.1:1"}, syncTarget{dc: "dc2"}
	states := map[syncTarget]*syncState{}
	note := func(regained int, targets map[syncTarget]bool) {
		noteTargets(states, targets, map[string]int{"dc2": regained}, now)
	}
	begins := func(what string, want ...syncTarget) {
		t.Helper()
		got, _ := due(states, now)
		for _, target := range want {
			if !slices.Contains(got, target) {
				t.Errorf("%s: %v does not begin", what, target)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %v begin", what, got)
		}
	}
	both := map[syncTarget]bool{near: false, far: false}
	note(0, both)
	begins("at the start", near, far)
	begins("while they run")
	states[near].ended(true, now)
	states[far].ended(false, now)
	begins("once one was in order, and one failed")
	if _, wait := due(states, now); wait < minSyncPause || wait > minSyncPause*5/4 {
		t.Errorf("pause after one failure: %v", wait)
	}
	note(1, both)
	begins("when a datacenter is regained", far)
	for range 20 {
		states[far].ended(false, now)
		states[far].running = true
		states[far].next = time.Time{}
	}
	states[far].ended(false, now)
	if _, wait := due(states, now); wait < maxSyncPause || wait > maxSyncPause*5/4 {
		t.Errorf("pause after many failures: %v", wait)
	}
	note(1, map[syncTarget]bool{near: true, far: false})
	begins("when a server is alive again", near)
	states[near].ended(true, now)
	ringChanged(states, "dc1", now)
	begins("when the ring changes", near, far)
	ringChanged(states, "dc1", now)
	states[near].ended(true, now)
	begins("when the ring changed meanwhile", near)
	states[near].ended(true, now)
	states[far].ended(true, now)
	anyDue(states, "dc1", now)
	begins("every now and then", near, far)
	states[near].ended(true, now)
	note(1, map[syncTarget]bool{})
	if len(states) != 1 {
		t.Errorf("who is gone and does not run is remembered: %v", states)
	}
}

func TestBoundedExchanges(t *testing.T) {
	states := map[syncTarget]*syncState{}
	targets := map[syncTarget]bool{}
	for i := range 1000 {
		targets[syncTarget{dc: fmt.Sprintf("dc%d", i)}] = false
	}
	noteTargets(states, targets, nil, time.Now())
	if begun, _ := due(states, time.Now()); len(begun) != maxSyncs {
		t.Errorf("%d begin at once, want %d", len(begun), maxSyncs)
	}
	anyDue(states, "dc1", time.Now())
}

func TestLeftBehind(t *testing.T) {
	old, now := gossip.NewKey(), gossip.NewKey()
	r := gossip.Keyring{Version: 2, Keys: []gossip.Key{now, old}}
	server := func(node, member, err string, keys ...gossip.Key) *pb.ServerKeyring {
		return &pb.ServerKeyring{Node: node, Member: member, Error: err, Fingerprints: gossip.Keyring{Keys: keys}.Fingerprints()}
	}
	servers := []*pb.ServerKeyring{
		server("uses", "alive", "", now, old),
		server("has", "alive", "", old, now),
		server("lacks", "alive", "", old),
		server("silent", "alive", "no answer"),
		server("down", "failed", "no answer"),
		server("late", "failed", "", old),
		server("plain", "alive", ""),
	}
	for op, want := range map[pb.ChangeKeyringRequest_Op][]string{
		opInstall: nil,
		opUse:     {"lacks", "silent", "late", "plain"},
		opRemove:  {"has", "lacks", "silent", "down", "late", "plain"},
	} {
		var got []string
		for _, s := range leftBehind(op, now, r, servers) {
			got = append(got, s.Node)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v leaves behind %v, want %v", op, got, want)
		}
	}
}

func TestComplete(t *testing.T) {
	members := map[string]string{"a": "alive", "b": "failed", "gone": "left"}
	got := complete("dc2", []*pb.ServerKeyring{
		{Datacenter: "dc2", Node: "a", Version: 3}, {Datacenter: "dc2", Node: "a"}, {Datacenter: "dc1", Node: "forged"}, {Datacenter: "dc2"}, nil,
		{Datacenter: "dc2", Node: "new"},
	}, members, errors.New("silent"))
	text := ""
	for _, node := range []string{"a", "b", "new"} {
		for _, s := range got {
			if s.Node == node {
				text += fmt.Sprint(s.Node, " ", s.Member, " ", s.Version, " ", s.Error, "; ")
			}
		}
	}
	if want := "a alive 3 ; b failed 0 silent; new unknown 0 ; "; text != want || len(got) != 3 {
		t.Errorf("got %q (%d), want %q", text, len(got), want)
	}
	if got := complete("dc3", nil, nil, errors.New("silent")); len(got) != 1 || got[0].Node != everyNode {
		t.Errorf("of a datacenter without a known server: %v", got)
	}
}

// TestCanGossip: every pair that understands each other is one of TestWhoUnderstandsWhom in package gossip.
func TestCanGossip(t *testing.T) {
	a, b := []string{"a"}, []string{"b"}
	server := func(accepts, sends bool, keys []string) *pb.ServerKeyring {
		return &pb.ServerKeyring{Fingerprints: keys, AcceptsPlain: accepts, SendsPlain: sends}
	}
	none, step1, step2, step3, other := server(true, true, nil), server(true, true, a), server(true, false, a), server(false, false, a), server(false, false, b)
	for _, tt := range []struct {
		x, y *pb.ServerKeyring
		ok   bool
	}{
		{none, none, true}, {none, step1, true}, {none, step2, false}, {none, step3, false},
		{step1, step2, true}, {step2, step3, true}, {step1, step3, true}, {step3, step3, true}, {step3, other, false},
	} {
		if (canGossip(tt.x, tt.y) == "") != tt.ok || (canGossip(tt.y, tt.x) == "") != tt.ok {
			t.Errorf("%v and %v: %q, %q", tt.x, tt.y, canGossip(tt.x, tt.y), canGossip(tt.y, tt.x))
		}
	}
}
