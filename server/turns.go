// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"sync"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/server/httpapi"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// maxTurns bounds the answers to one peer that are being made, or are large and not sent: each may have api.MaxMessageSize, 16 MiB,
	// and a few times that while it is made.
	maxTurns = 32
	// smallAnswer is one that may wait to be sent without a turn, in bytes: maxAsked of them are a few MiB.
	smallAnswer = 8 << 10
)

// turns has those of each peer.
type turns struct {
	dc string // the own one

	mu    sync.Mutex
	peers map[tlsutil.Peer]httpapi.Turns // bounded by the certificates there are
}

// of returns the turns of who calls.
func (t *turns) of(ctx context.Context) httpapi.Turns {
	if t == nil {
		return nil
	}
	p, _ := peerFrom(ctx)
	if p.Role == tlsutil.RoleOperator && p.DC != t.dc {
		p.Node = "" // a server of there may have said so, and could say any
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.peers == nil {
		t.peers = map[tlsutil.Peer]httpapi.Turns{}
	}
	if t.peers[p] == nil {
		t.peers[p] = make(httpapi.Turns, maxTurns)
	}
	return t.peers[p]
}

// Query implements pb.ServerServiceServer. Its turn is that of the call: see calls.turn.
func (s *serverService) Query(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
	return s.query(ctx, req)
}
