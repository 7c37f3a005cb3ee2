// SPDX-License-Identifier: MPL-2.0

package keyring

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gossip"
)

func TestCutOff(t *testing.T) {
	oldKey, newKey := gossip.NewKey(), gossip.NewKey()
	ring := gossip.Keyring{Version: 2, Keys: []gossip.Key{newKey, oldKey}}
	server := func(node, member, err string, keys ...gossip.Key) *pb.ServerKeyring {
		return &pb.ServerKeyring{
			Node: node, Member: member, Error: err, Fingerprints: gossip.Keyring{Keys: keys}.Fingerprints(),
		}
	}
	servers := []*pb.ServerKeyring{
		server("uses-new", "alive", "", newKey, oldKey),
		server("has-new", "alive", "", oldKey, newKey),
		server("only-old", "alive", "", oldKey),
		server("no-response", "alive", "timeout"),
		server("failed", "failed", "timeout"),
		server("failed-only-old", "failed", "", oldKey),
		server("no-key", "alive", ""),
	}
	for op, want := range map[pb.ChangeKeyringRequest_Op][]string{
		pb.ChangeKeyringRequest_OP_INSTALL: nil,
		pb.ChangeKeyringRequest_OP_USE:     {"only-old", "no-response", "failed-only-old", "no-key"},
		pb.ChangeKeyringRequest_OP_REMOVE: {"has-new", "only-old", "no-response", "failed",
			"failed-only-old", "no-key"},
	} {
		var got []string
		for _, s := range cutOff(op, newKey, ring, servers) {
			got = append(got, s.Node)
		}
		if !slices.Equal(got, want) {
			t.Errorf("cutOff(%v) = %v, want %v", op, got, want)
		}
	}
}

func TestComplete(t *testing.T) {
	missing := errors.New("missing")
	members := map[string]string{"a": "alive", "b": "failed", "gone": "left"}
	got := complete("dc2", []*pb.ServerKeyring{
		{Datacenter: "dc2", Node: "a", Version: 3},
		{Datacenter: "dc2", Node: "a"},
		{Datacenter: "dc1", Node: "forged"},
		{Datacenter: "dc2"},
		nil,
		{Datacenter: "dc2", Node: "new"},
	}, members, missing)
	text := ""
	for _, node := range []string{"a", "b", "new"} {
		for _, s := range got {
			if s.Node == node {
				text += fmt.Sprint(s.Node, " ", s.Member, " ", s.Version, " ", s.Error, "; ")
			}
		}
	}
	if want := "a alive 3 ; b failed 0 missing; new unknown 0 ; "; text != want || len(got) != 3 {
		t.Errorf("complete() = %q (%d servers), want %q (3 servers)", text, len(got), want)
	}
	if got := complete("dc3", nil, nil, missing); len(got) != 1 || got[0].Node != unknownNode {
		t.Errorf("complete() without known servers = %v, want one server %q", got, unknownNode)
	}
}

// TestMismatch uses the same pairs as the encryption tests in package gossip.
func TestMismatch(t *testing.T) {
	a, b := []string{"a"}, []string{"b"}
	server := func(accepts, sends bool, keys []string) *pb.ServerKeyring {
		return &pb.ServerKeyring{Fingerprints: keys, AcceptsPlain: accepts, SendsPlain: sends}
	}
	// step1 to step3 are a server with key a while encryption is enabled. First
	// it sends and accepts plaintext, then it only accepts plaintext, and at
	// the end it does neither.
	none, step1, step2 := server(true, true, nil), server(true, true, a), server(true, false, a)
	step3, otherKey := server(false, false, a), server(false, false, b)
	for _, tt := range []struct {
		x, y *pb.ServerKeyring
		ok   bool // x and y can gossip
	}{
		{none, none, true}, {none, step1, true}, {none, step2, false}, {none, step3, false},
		{step1, step2, true}, {step2, step3, true}, {step1, step3, true}, {step3, step3, true},
		{step3, otherKey, false},
	} {
		if xy, yx := mismatch(tt.x, tt.y), mismatch(tt.y, tt.x); (xy == "") != tt.ok || (yx == "") != tt.ok {
			t.Errorf("mismatch(%v, %v) = %q, reversed %q, want both empty = %v", tt.x, tt.y, xy, yx, tt.ok)
		}
	}
}
