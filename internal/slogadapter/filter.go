// SPDX-License-Identifier: MPL-2.0

package slogadapter

import (
	"context"
	"log/slog"
)

// Filter returns a handler that calls edit with each record, and passes the
// record to h if edit returns true. edit may change the record. It may be
// called by several goroutines at the same time.
func Filter(h slog.Handler, edit func(*slog.Record) bool) slog.Handler { return filterHandler{h, edit} }

type filterHandler struct {
	slog.Handler
	edit func(*slog.Record) bool
}

func (h filterHandler) Handle(ctx context.Context, r slog.Record) error {
	if !h.edit(&r) || !h.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h filterHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return filterHandler{h.Handler.WithAttrs(attrs), h.edit}
}

func (h filterHandler) WithGroup(name string) slog.Handler {
	return filterHandler{h.Handler.WithGroup(name), h.edit}
}
