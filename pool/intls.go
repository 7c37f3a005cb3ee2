// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
	"log/slog"
	"strings"
)

// inTLS leaves out what memberlist says of a public address without gossip keys: it does not know that its transport is TLS.
type inTLS struct{ slog.Handler }

func (h inTLS) Handle(ctx context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "Binding to public address without encryption") {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h inTLS) WithAttrs(attrs []slog.Attr) slog.Handler { return inTLS{h.Handler.WithAttrs(attrs)} }

func (h inTLS) WithGroup(name string) slog.Handler { return inTLS{h.Handler.WithGroup(name)} }
