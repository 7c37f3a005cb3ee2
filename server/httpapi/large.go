// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"net/http"

	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// largeResponse is the size in bytes above which a response does not fit into
	// the buffers of its connection: it stays in memory until its client reads.
	largeResponse = 64 << 10
	// maxLarge bounds the large responses that are being sent to one peer. All
	// clients without a certificate are one peer.
	maxLarge = 256
)

var errTooManyLarge = statusError{http.StatusServiceUnavailable,
	"too many large answers are on their way to you and are not read: read them first, or ask for less"}

// sendLarge counts a response of size bytes until done is called, or refuses it.
func (h *handler) sendLarge(ctx context.Context, size int) (done func(), err error) {
	if size <= largeResponse || isForwarded(ctx) { // the gRPC edge bounds forwarded ones
		return func() {}, nil
	}
	p, _ := tlsutil.PeerFromContext(ctx)
	slot := h.large.TryAcquire(p)
	if slot == nil {
		return nil, errTooManyLarge
	}
	return slot.Release, nil
}
