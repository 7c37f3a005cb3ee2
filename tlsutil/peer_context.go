// SPDX-License-Identifier: MPL-2.0

package tlsutil

import "context"

type peerKey struct{}

// WithPeer returns a context that says who asks. Only what has verified a certificate may call it, or what decided that somebody
// without one may ask as p.
func WithPeer(ctx context.Context, p Peer) context.Context {
	return context.WithValue(ctx, peerKey{}, p)
}

// PeerFromContext returns what WithPeer put into ctx; ok is false if nobody did.
func PeerFromContext(ctx context.Context) (p Peer, ok bool) {
	p, ok = ctx.Value(peerKey{}).(Peer)
	return p, ok
}
