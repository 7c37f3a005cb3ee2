// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"net/http"
	"sync"

	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// largeAnswer is one that does not fit into the buffers of its connection, in bytes: while its client does not read, it stays here.
	largeAnswer = 64 << 10
	// maxLarge bounds the large answers that are being sent to one peer: to one certificate, or to all programs of this machine without.
	maxLarge = 256
)

// errLarge refuses one more.
var errLarge = statusError{http.StatusServiceUnavailable,
	"too many large answers are on their way to you and are not read: read them first, or ask for less"}

// large counts the large answers that are being sent, by peer.
type large struct {
	mu   sync.Mutex
	sent map[tlsutil.Peer]int
}

// begin counts an answer of size bytes until end is called, or refuses it.
func (l *large) begin(ctx context.Context, size int) (end func(), err error) {
	if size <= largeAnswer || isForwarded(ctx) { // what is handed back over there is bounded by Turns
		return func() {}, nil
	}
	p, _ := tlsutil.PeerFromContext(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent[p] >= maxLarge {
		return nil, errLarge
	}
	if l.sent == nil {
		l.sent = map[tlsutil.Peer]int{}
	}
	l.sent[p]++
	return func() { l.end(p) }, nil
}

func (l *large) end(p tlsutil.Peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent[p]--; l.sent[p] == 0 {
		delete(l.sent, p)
	}
}
