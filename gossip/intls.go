// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"context"
	"log/slog"
	"net"
	"strings"
)

// inTLS leaves out what is no fault here: memberlist does not know that its transport is TLS, and serf not that who leaves does
// not wait for all copies of its farewell. When the pool stops, the transport does so first, and memberlist may still send.
type inTLS struct{ slog.Handler }

func (h inTLS) Handle(ctx context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "Binding to public address without encryption") || strings.Contains(r.Message, "timeout waiting for leave broadcast") {
		return nil
	}
	if strings.HasSuffix(r.Message, net.ErrClosed.Error()) {
		if r.Level = slog.LevelDebug; !h.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, r)
}

func (h inTLS) WithAttrs(attrs []slog.Attr) slog.Handler { return inTLS{h.Handler.WithAttrs(attrs)} }

func (h inTLS) WithGroup(name string) slog.Handler { return inTLS{h.Handler.WithGroup(name)} }
