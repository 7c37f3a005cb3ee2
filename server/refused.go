// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// refusedCall is what refused calls are counted by. Methods are those of rules and roles are few: it is bounded.
type refusedCall struct {
	method string
	role   tlsutil.Role
}

// refusedEvery is how often one kind of refused call may show at level Warn.
const refusedEvery = 10 * time.Second

// refusedCalls counts calls that were refused for who calls, and logs them: the first of its kind in a while at Warn, the
// rest at Debug, so that a peer that tries again and again does not fill the log.
type refusedCalls struct {
	logger *slog.Logger

	mu     sync.Mutex
	total  map[refusedCall]uint64
	logged map[refusedCall]time.Time
}

func newRefusedCalls(logger *slog.Logger) *refusedCalls {
	return &refusedCalls{logger: logger, total: map[refusedCall]uint64{}, logged: map[refusedCall]time.Time{}}
}

// note looks at what became of a call of p.
func (r *refusedCalls) note(p tlsutil.Peer, method string, err error) {
	if status.Code(err) == codes.PermissionDenied {
		r.count(p, method, err)
	}
}

// otherMethod stands for methods that no rule names: a peer could make up as many as it likes.
const otherMethod = "unknown"

// count counts and logs a refused call.
func (r *refusedCalls) count(p tlsutil.Peer, method string, err error) {
	if _, known := rules[resource.CanonicalMethod(method)]; !known {
		method = otherMethod
	}
	kind, now, level := refusedCall{method, p.Role}, time.Now(), slog.LevelDebug
	r.mu.Lock()
	r.total[kind]++
	if last, ok := r.logged[kind]; !ok || now.Sub(last) >= refusedEvery {
		r.logged[kind], level = now, slog.LevelWarn
	}
	r.mu.Unlock()
	r.logger.Log(context.Background(), level, "call refused", "peer", p.String(), "method", method, "err", status.Convert(err).Message())
}

// counts may be called at any time.
func (r *refusedCalls) counts() map[refusedCall]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.total)
}
