// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/internal/slogadapter"
)

// TestDemoteFirstElection checks that an election without an earlier leader is
// logged at Debug, and every other election of a follower at Warn.
func TestDemoteFirstElection(t *testing.T) {
	const election = "heartbeat timeout reached, starting election"
	var b strings.Builder
	handler := slogadapter.Filter(slog.NewTextHandler(&b, nil), demoteFirstElection)
	log := slogadapter.New(slog.New(handler), "raft")
	log.Warn(election, "last-leader-addr", raft.ServerAddress(""), "last-leader-id", raft.ServerID(""))
	log.Warn(election, "last-leader-addr", raft.ServerAddress("srv1"), "last-leader-id", raft.ServerID("srv1"))
	if got := b.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "last-leader-addr=srv1") {
		t.Errorf("log = %q, want only the election after the leader srv1", got)
	}
}
