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
	// maxTurns bounds the answers to one peer that are being made, or are large and not sent: each may have maxBody of httpapi, 4 MiB,
	// and a few times that while it is made.
	maxTurns = 32
	// smallAnswer is one that may wait to be sent without a turn, in bytes: maxAsked of them are a few MiB.
	smallAnswer = 8 << 10
)

// turns has those of each peer.
type turns struct {
	mu    sync.Mutex
	peers map[tlsutil.Peer]httpapi.Turns // bounded by the certificates there are
}

// of returns the turns of who calls.
func (t *turns) of(ctx context.Context) httpapi.Turns {
	if t == nil {
		return nil
	}
	p, _ := peerFrom(ctx)
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

// ask answers a query in its turn, which the caller ends.
func (s *serverService) ask(ctx context.Context, turn *httpapi.Turn, req *pb.QueryRequest) (*pb.QueryResponse, error) {
	return s.query(httpapi.WithTurn(ctx, turn), req)
}

// Query implements pb.ServerServiceServer.
func (s *serverService) Query(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
	turn, err := s.turns.of(ctx).Begin(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := s.ask(ctx, turn, req)
	if err != nil || len(resp.GetBody()) <= smallAnswer {
		turn.End()
	} else {
		context.AfterFunc(ctx, turn.End) // when it was sent, or nobody wants it
	}
	return resp, err
}
