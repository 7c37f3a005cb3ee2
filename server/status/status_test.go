// SPDX-License-Identifier: MPL-2.0

package status

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/server/operator"
	"github.com/wanfed/wanfed/wanfed"
)

// TestRaftState proves that the status names the reason if servers form no Raft
// group, or two groups.
func TestRaftState(t *testing.T) {
	members := func(expect string, names ...string) []gossip.Member {
		var all []gossip.Member
		for _, n := range names {
			all = append(all, gossip.Member{Name: n, Status: gossip.StatusAlive,
				Tags: map[string]string{operator.TagExpect: expect}})
		}
		return all
	}
	failed := members("3", "b")
	failed[0].Status = gossip.StatusFailed
	for _, tt := range []struct {
		name          string
		leader        string
		voters        []string
		expect        int
		lan           []gossip.Member
		state, detail string
	}{
		{"one voter", "a", []string{"a"}, 1, members("1", "a"), "ok", "leader a, 1 voter"},
		{"three voters", "a", []string{"a", "b", "c"}, 3, members("3", "a", "b", "c"), "ok", "leader a, 3 voters"},
		{"server about to be added", "a", []string{"a"}, 1, append(members("1", "a"), members("3", "b")...), "ok",
			"leader a, 1 voter"},
		{"election", "", []string{"a", "b", "c"}, 3, members("3", "a", "b"), "no leader", "leader none, 3 voters"},
		{"quorum lost", "", []string{"a", "b", "c"}, 3, append(members("3", "a", "d"), failed...), "no leader",
			"1 of 3 voters alive, and 2 are needed"},
		{"group being formed", "", nil, 3, members("3", "a", "b", "c"), "no leader", "leader none, 0 voters"},
		{"servers missing", "", nil, 3, append(members("3", "a"), failed...), "no leader",
			"3 servers are needed (bootstrap_expect), and 1 run"},
		{"two groups", "a", []string{"a"}, 1, members("1", "a", "b"), "split", "b was started to form a group alone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			state, detail := raftState(tt.leader, tt.voters, tt.expect, tt.lan)
			if state != tt.state || !strings.Contains(detail, tt.detail) {
				t.Errorf("raftState() = %q, %q, want %q, %q", state, detail, tt.state, tt.detail)
			}
		})
	}
}

func TestPathStatuses(t *testing.T) {
	now := time.Unix(1000, 0)
	got := pathStatuses([]wanfed.PathStatus{
		{Addr: "a:1", Via: federation.ViaLocalGateway, Health: wanfed.PathOK, SmoothedRTT: 40 * time.Millisecond,
			LastSuccess: now},
		{Addr: "b:1", Via: federation.ViaRemoteGateway, Health: wanfed.PathFailing, LastError: "refused",
			LastErrorAt: now},
		{Addr: "c:1", Via: federation.ViaCached, Health: wanfed.PathUntested},
	}, map[string]federation.Origin{
		"a:1": {Sources: []string{federation.SourceHeartbeat}},
		"b:1": {Sources: []string{federation.SourceState}, At: now.Add(-time.Minute)},
	}, wanfed.LinkStatus{Path: wanfed.Path{Addr: "a:1"}, ConnectedSince: now}, now)
	want := []api.PathStatus{
		{Address: "a:1", Via: "own gateway", Used: true, Health: "ok", RTT: new(0.04), LastSuccess: now,
			Sources: []string{"heartbeat"}},
		{Address: "b:1", Via: "remote gateway", Health: "failing", LastError: "refused", LastFailure: now,
			Sources: []string{"federation state"}, KnowledgeAge: new(60.0)},
		{Address: "c:1", Via: "cached address", Health: "untested"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("pathStatuses() differs (-want +got):\n%s", d)
	}
}

// TestErrorOrAge_GRPC proves that the text of an error has no prefix of gRPC.
func TestErrorOrAge_GRPC(t *testing.T) {
	const want = `dial dc2: cert has no SAN "a.b": refused`
	cc, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return nil, errors.New(want) }))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	err = cc.Invoke(t.Context(), "/a/b", nil, nil)
	if got := errorOrAge(err, time.Time{}, ""); got != want {
		t.Errorf("errorOrAge(%v) = %q, want %q", err, got, want)
	}
}
