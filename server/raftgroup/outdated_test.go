// SPDX-License-Identifier: MPL-2.0

package raftgroup

import (
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
)

// fakeLog is a log that ends with an entry.
type fakeLog struct{ term, index uint64 }

func (l fakeLog) LastIndex() uint64 { return l.index }

func (l fakeLog) LacksEntry(term, index uint64) bool {
	return l.term < term || l.term == term && l.index < index
}

func TestOutdated(t *testing.T) {
	log := fakeLog{term: 3, index: 100}
	for _, tt := range []struct {
		name   string
		resp   *pb.DescribeCallerResponse
		index  uint64
		reason string // part
	}{
		{"no group", &pb.DescribeCallerResponse{}, 0, ""},
		{"complete log", &pb.DescribeCallerResponse{
			InGroup: true, Voter: true, LastIndex: 120, ConfirmedTerm: 3, ConfirmedIndex: 100,
		}, 0, ""},
		{"longer log of an earlier term", &pb.DescribeCallerResponse{
			InGroup: true, Voter: true, LastIndex: 90, ConfirmedTerm: 2, ConfirmedIndex: 110,
		}, 0, ""},
		{"older copy", &pb.DescribeCallerResponse{
			InGroup: true, Voter: true, LastIndex: 120, ConfirmedTerm: 3, ConfirmedIndex: 101,
		}, 101, "older copy of the data directory"},
		{"older copy of an earlier term", &pb.DescribeCallerResponse{
			InGroup: true, Voter: true, LastIndex: 120, ConfirmedTerm: 4, ConfirmedIndex: 99,
		}, 99, "older copy of the data directory"},
		{"without a vote", &pb.DescribeCallerResponse{InGroup: true, LastIndex: 120}, 120, "removed this server"},
		{"removed", &pb.DescribeCallerResponse{InGroup: true, LastIndex: 1 << 50}, 1 << 50, "removed this server"},
		{"added later than the end of the other log", &pb.DescribeCallerResponse{InGroup: true, LastIndex: 90}, 0, ""},
	} {
		index, reason := outdated(log, true, tt.resp)
		if index != tt.index || !strings.Contains(reason, tt.reason) || (reason == "") != (tt.reason == "") {
			t.Errorf("outdated() of %s = %d, %q, want %d, %q", tt.name, index, reason, tt.index, tt.reason)
		}
	}
	if index, _ := outdated(log, false, &pb.DescribeCallerResponse{InGroup: true, LastIndex: 120}); index != 0 {
		t.Errorf("outdated() of a server that had no vote = %d, want 0", index)
	}
}
