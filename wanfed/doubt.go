// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"time"
)

// Bounds of how long the opening of a stream may go unanswered before its session is tested. Between them it is two round
// trips of the path.
const (
	minPatience = 150 * time.Millisecond
	maxPatience = time.Second
)

// errSilentSession says that a session was found dead long before its keepalive would have found it.
var errSilentSession = errors.New("the session's peer, or a gateway on the way, stopped answering")

func (s *session) patience() time.Duration {
	return min(max(2*pathOf(s.conn).rtt, minPatience), maxPatience)
}

// test asks the peer of a session for a sign of life, and closes the channel when none comes in twice the session's patience.
// A server that is merely slow, or waits for another one, answers; a path that is dead does not. Nothing happens after ctx
// ended.
func (s *session) test(ctx context.Context) <-chan struct{} {
	silent := make(chan struct{})
	alive := make(chan struct{})
	s.t.life.start(func(context.Context) {
		if _, err := s.mux.Ping(); err == nil { // it ends at last with muxWrite, or with the session
			close(alive)
		}
	})
	s.t.life.start(func(life context.Context) {
		limit := time.NewTimer(2 * s.patience())
		defer limit.Stop()
		select {
		case <-limit.C:
			close(silent)
		case <-alive:
		case <-ctx.Done():
		case <-life.Done():
		}
	})
	return silent
}
