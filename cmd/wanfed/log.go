// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"log/slog"
)

// newLogger writes records of at least level (debug, info, warn or error) to w, as text or json lines.
func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	l, err := parseLevel(level)
	if err != nil {
		return nil, err
	}
	return newLoggerAt(w, l, format)
}

func parseLevel(level string) (slog.Level, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return l, fmt.Errorf("log_level %q is not one of debug, info, warn, error", level)
	}
	return l, nil
}

// newLoggerAt is newLogger for a level that may change.
func newLoggerAt(w io.Writer, level slog.Leveler, format string) (*slog.Logger, error) {
	opts := &slog.HandlerOptions{Level: level}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("log_format %q is not one of text, json", format)
}
