// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// Caller is who makes a request.
type Caller struct {
	// Peer is the holder of the verified certificate, or a peer that a server
	// has named. A caller without a certificate has the role
	// tlsutil.RoleAnonymous, and the datacenter and the node of the server that
	// received the request.
	tlsutil.Peer
	// Via is the server of another datacenter that has named Peer. Zero: the
	// certificate of Peer was verified in this datacenter.
	Via tlsutil.Peer
}

// String returns role/dc/node, with the server that has named the caller.
func (c Caller) String() string {
	if c.Via == (tlsutil.Peer{}) {
		return c.Peer.String()
	}
	return c.Peer.String() + " via " + c.Via.String()
}

// Parse returns the peer of a text of tlsutil.Peer.String.
func Parse(s string) (p tlsutil.Peer, ok bool) {
	role, rest, _ := strings.Cut(s, "/")
	dc, node, ok := strings.Cut(rest, "/")
	p = tlsutil.Peer{Role: tlsutil.Role(role), DC: dc, Node: node}
	known := slices.Contains(tlsutil.Roles, p.Role) || p.Role == tlsutil.RoleAnonymous
	return p, ok && known && tlsutil.CheckLabel(dc) == nil && tlsutil.CheckLabel(node) == nil
}

// Named returns the caller that a server of another datacenter names: the text
// of tlsutil.Peer.String, or "" for the server itself. The error is an
// ErrDenied unless the caller is of the datacenter of the server and is not
// another server. An anonymous caller must be at the server itself.
func Named(server tlsutil.Peer, text string) (Caller, error) {
	if text == "" {
		return Caller{Peer: server}, nil
	}
	p, ok := Parse(text)
	switch {
	case !ok:
		return Caller{}, fmt.Errorf("%w: %v names the caller %.200q: must be role/dc/node", resource.ErrDenied, server, text)
	case p == server:
		return Caller{Peer: server}, nil
	case p.DC != server.DC, p.Role == tlsutil.RoleServer, p.Role == tlsutil.RoleAnonymous && p.Node != server.Node:
		return Caller{}, fmt.Errorf("%w: %v may not make requests for %v: a server makes requests only for callers of "+
			"its own datacenter", resource.ErrDenied, server, p)
	}
	return Caller{Peer: p, Via: server}, nil
}

type viaKey struct{}

// WithCaller returns a context in which c is the caller. tlsutil.PeerFromContext
// returns its Peer.
func WithCaller(ctx context.Context, c Caller) context.Context {
	ctx = tlsutil.WithPeer(ctx, c.Peer)
	if _, named := ctx.Value(viaKey{}).(tlsutil.Peer); named || c.Via != (tlsutil.Peer{}) {
		ctx = context.WithValue(ctx, viaKey{}, c.Via)
	}
	return ctx
}

// FromContext returns the caller of ctx. ok is false if ctx has none.
func FromContext(ctx context.Context) (c Caller, ok bool) {
	c.Peer, ok = tlsutil.PeerFromContext(ctx)
	c.Via, _ = ctx.Value(viaKey{}).(tlsutil.Peer)
	return c, ok
}
