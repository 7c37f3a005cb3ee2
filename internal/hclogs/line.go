// SPDX-License-Identifier: MPL-2.0

package hclogs

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
)

// lineWriter logs what one Write brings as one record. log.Logger calls Write once per line.
type lineWriter struct{ out *slog.Logger }

func (w *lineWriter) Write(p []byte) (int, error) {
	level, rest := parseLevel(p)
	if ctx := context.Background(); w.out.Enabled(ctx, level) {
		w.out.Log(ctx, level, strings.TrimSpace(string(rest)))
	}
	return len(p), nil
}

// parseLevel splits "[WARN] text" into level and text. A line that begins otherwise is Info, and whole.
func parseLevel(line []byte) (slog.Level, []byte) {
	word, rest, ok := bytes.Cut(line, []byte("]"))
	if !ok || len(word) == 0 || word[0] != '[' {
		return slog.LevelInfo, line
	}
	switch string(word[1:]) {
	case "TRACE":
		return LevelTrace, rest
	case "DEBUG":
		return slog.LevelDebug, rest
	case "INFO":
		return slog.LevelInfo, rest
	case "WARN", "WARNING":
		return slog.LevelWarn, rest
	case "ERR", "ERROR":
		return slog.LevelError, rest
	default:
		return slog.LevelInfo, line
	}
}
