// SPDX-License-Identifier: MPL-2.0

package rpc

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/wanfed/wanfed/tlsutil"
)

// Limits of what peers may use: see the package documentation.
const (
	// manyCalls is how many calls may be open for a peer that calls for many
	// clients or runs many watches. It is the limit of operators and of servers
	// of other datacenters.
	manyCalls = 16384
	// fewCalls is how many calls may be open for any other peer.
	fewCalls = 1024
	// maxConnCalls bounds the calls of one connection. Calls that were
	// cancelled and have not ended yet count, and responses that were not sent.
	maxConnCalls = 2 * manyCalls
	// maxResponses bounds the responses to one peer that may be large, and are
	// computed or not sent yet.
	maxResponses = 32
	// smallResponse is the size, in bytes, up to which a response needs no slot
	// while it waits to be sent.
	smallResponse = 8 << 10
	// MaxHeaders bounds the headers of a call, or of an HTTP request with its
	// URL, in bytes. Each connection may hold as much.
	MaxHeaders = 64 << 10
)

// maxOpenCalls returns how many calls a peer with this role may have open,
// unless it is a server of this datacenter.
func maxOpenCalls(r tlsutil.Role) int64 {
	if r == tlsutil.RoleServer || r == tlsutil.RoleOperator {
		return manyCalls
	}
	return fewCalls
}

// exempt reports whether no limit applies to p: a server of this datacenter
// forms one store with this server.
func (e *Edge) exempt(p tlsutil.Peer) bool { return p.Role == tlsutil.RoleServer && p.DC == e.cfg.DC }

// countCall counts a call from its headers to its end, or rejects it. gRPC
// calls it from the goroutine that reads the connection, before it allocates
// anything for the call but its context. The context ends with the call.
func (e *Edge) countCall(ctx context.Context, info *tap.Info) (context.Context, error) {
	p, err := e.holder(ctx)
	if err != nil || e.exempt(p) {
		return ctx, err
	}
	slot := e.open.TryAcquire(p)
	if slot == nil {
		err := status.Errorf(codes.ResourceExhausted,
			"%v has %d calls open already, the most that one may have here: end some, or use another certificate",
			p, maxOpenCalls(p.Role))
		e.denied.count(p, info.FullMethodName, err)
		return ctx, err
	}
	context.AfterFunc(ctx, slot.Release)
	return ctx, nil
}
