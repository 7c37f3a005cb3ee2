// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gossip"
)

// fakeGroup is a Group of the server srv1.
type fakeGroup struct{}

func (fakeGroup) RaftPeers(context.Context, bool) ([]*pb.RaftPeer, error) {
	return []*pb.RaftPeer{{Node: "srv1", Leader: true, Voter: true, Member: "alive"}}, nil
}

func (fakeGroup) Coordinates(bool) []gossip.Coordinate {
	return []gossip.Coordinate{{Name: "x.dc1"}, {Name: "x"}}
}

func (fakeGroup) Host() api.Host { return api.Host{} }

func TestHealthOfGroup(t *testing.T) {
	leader := &pb.RaftPeer{Node: "srv1", Leader: true, Voter: true, Member: "alive"}
	follower := func(node, member string, contact time.Duration, trailing uint64) *pb.RaftPeer {
		p := &pb.RaftPeer{Node: node, Voter: true, Member: member, Trailing: trailing}
		if contact >= 0 {
			p.LastContact = durationpb.New(contact)
		}
		return p
	}
	good := follower("srv2", "alive", time.Millisecond, 0)
	for name, tt := range map[string]struct {
		third     *pb.RaftPeer
		healthy   bool
		tolerance int
	}{
		"all healthy":              {follower("srv3", "alive", time.Second, 250), true, 1},
		"failed in the LAN pool":   {follower("srv3", "failed", time.Millisecond, 0), false, 0},
		"without contact":          {follower("srv3", "alive", 2*time.Second, 0), false, 0},
		"with an unknown contact":  {follower("srv3", "alive", -1, 0), false, 0},
		"with many missing writes": {follower("srv3", "alive", time.Millisecond, 251), false, 0},
	} {
		got := healthOfGroup([]*pb.RaftPeer{leader, good, tt.third}, map[string]string{"srv1": "1.0"})
		if got.Healthy != tt.healthy || got.FailureTolerance != tt.tolerance || got.Servers[2].Healthy != tt.healthy ||
			!got.Servers[0].Healthy || got.Servers[0].Version != "1.0" || got.Servers[0].LastContact != "0s" {
			t.Errorf("healthOfGroup() %s = %+v, want healthy: %v with tolerance %d", name, got, tt.healthy, tt.tolerance)
		}
	}
	if got := healthOfGroup(nil, nil); got.Healthy || got.Servers == nil || got.FailureTolerance != 0 {
		t.Errorf("healthOfGroup() of no server = %+v, want an unhealthy group with an empty list", got)
	}
}
