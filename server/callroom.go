// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"math"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/wanfed/wanfed/tlsutil"
)

// Calls of one peer that are open at a time, over all its connections. Each costs some 12 KiB, even when its request never comes. The
// servers of the own datacenter, which are one store with this one, have no bound. A call is open until its answer is made: an answer that
// is not read costs some 2 KiB besides what it says, is bounded for each connection by maxConnCalls, and, if it is large, by maxTurns.
const (
	maxManyCalls = 16384 // a server of another datacenter, which asks for all its clients, and an operator's programs: many may watch
	maxPeerCalls = 1024  // a gateway, a client
	// maxConnCalls bounds those of one connection, with those that were given up and have not ended yet, and answers that are not sent.
	maxConnCalls = 2 * maxManyCalls
	// maxHeaders bounds the headers of a call, or of an HTTP request with its URL, in bytes: a connection may hold as much.
	maxHeaders = 64 << 10
)

// callRoom counts the open calls of each peer.
type callRoom struct {
	dc, domain string
	refused    *refusedCalls

	mu   sync.Mutex
	open map[tlsutil.Peer]int
}

func newCallRoom(dc, domain string, refused *refusedCalls) *callRoom {
	return &callRoom{dc: dc, domain: domain, refused: refused, open: map[tlsutil.Peer]int{}}
}

// most is how many calls p may have open.
func (r *callRoom) most(p tlsutil.Peer) int {
	switch {
	case p.Role == tlsutil.RoleServer && p.DC == r.dc:
		return math.MaxInt
	case p.Role == tlsutil.RoleServer, p.Role == tlsutil.RoleOperator:
		return maxManyCalls
	}
	return maxPeerCalls
}

// tap takes a call in, before anything is made for it but its context, or refuses it. gRPC calls it in the goroutine that reads the
// connection, and ends the context with the call.
func (r *callRoom) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	gp, _ := grpcpeer.FromContext(ctx)
	if gp == nil {
		return ctx, nil // calls.identify refuses it, and what follows
	}
	tls, _ := gp.AuthInfo.(credentials.TLSInfo)
	if len(tls.State.PeerCertificates) == 0 {
		return ctx, nil
	}
	p, err := tlsutil.PeerFromCert(tls.State.PeerCertificates[0], r.domain)
	if err != nil {
		return ctx, status.Error(codes.Unauthenticated, err.Error())
	}
	most := r.most(p)
	if most == math.MaxInt {
		return ctx, nil
	}
	if !r.enter(p, most) {
		err := status.Errorf(codes.ResourceExhausted, "%v has %d calls open already, the most that one may have here: end some, or use another certificate", p, most)
		r.refused.count(p, info.FullMethodName, err)
		return ctx, err
	}
	context.AfterFunc(ctx, func() { r.leave(p) })
	return ctx, nil
}

func (r *callRoom) enter(p tlsutil.Peer, most int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open[p] >= most {
		return false
	}
	r.open[p]++
	return true
}

func (r *callRoom) leave(p tlsutil.Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open[p]--; r.open[p] == 0 {
		delete(r.open, p)
	}
}
