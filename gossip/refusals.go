// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"fmt"
	"log/slog"
	"maps"
	"sync"

	"github.com/wanfed/wanfed/internal/ratelog"
)

// Reasons for which a pool refuses input. They are keys of Pool.Refused.
const (
	refusedLarge     = "too_large" // above a limit of bytes, also after decompression
	refusedMalformed = "malformed" // not an encoding that memberlist sends
	refusedKind      = "message"   // a message that servers do not send, such as a user event
	refusedPrune     = "prune"     // a leave message that erases a member
	refusedNames     = "names"     // too many or too long names
	refusedRate      = "rate"      // too many messages per second
	refusedClock     = "clock"     // a logical time far in the future
	refusedForged    = "forged"    // news that no server sends: see hearsay
	refusedBusy      = "busy"      // too many bytes of concurrent state exchanges
)

// inputError reports why input was refused.
type inputError struct{ reason, text string }

func (e *inputError) Error() string { return e.text }

func refuse(reason, format string, args ...any) error {
	return &inputError{reason, fmt.Sprintf(format, args...)}
}

// refusals counts refused input by reason and logs it at a limited rate. It is
// safe for concurrent use.
type refusals struct {
	log *ratelog.Logger[string]

	mu    sync.Mutex
	total map[string]uint64
}

func newRefusals(log *slog.Logger) *refusals {
	return &refusals{log: ratelog.New[string](log), total: map[string]uint64{}}
}

// record counts and logs err. An error that is not an *inputError is malformed
// input.
func (r *refusals) record(err error, attrs ...any) {
	reason := refusedMalformed
	if e, ok := err.(*inputError); ok {
		reason = e.reason
	}
	r.mu.Lock()
	r.total[reason]++
	r.mu.Unlock()
	r.log.Log(reason, slog.LevelWarn, "gossip refused", append(attrs, "reason", reason, "err", err)...)
}

func (r *refusals) counts() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.total)
}
