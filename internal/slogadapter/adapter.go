// SPDX-License-Identifier: MPL-2.0

package slogadapter

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// LevelTrace is the trace level of hclog, below slog.LevelDebug.
const LevelTrace = slog.LevelDebug - 4

// New returns an hclog.Logger that writes to logger, with the attribute
// component=name.
func New(logger *slog.Logger, name string) hclog.Logger {
	return &adapter{root: logger, out: logger.With("component", name), name: name}
}

// Std returns a standard logger that writes each line to logger, with the
// attribute component=name. The text of a line begins with its level.
func Std(logger *slog.Logger, name string) *log.Logger {
	return log.New(&lineWriter{out: logger.With("component", name)}, "", 0)
}

// adapter implements hclog.Logger. It is immutable.
type adapter struct {
	root    *slog.Logger // logger without the name and the implied arguments
	out     *slog.Logger
	name    string
	implied []any // arguments of With
}

var _ hclog.Logger = (*adapter)(nil)

func (a *adapter) Log(level hclog.Level, msg string, args ...any) {
	l, ok := slogLevel(level)
	if ctx := context.Background(); ok && a.out.Enabled(ctx, l) {
		a.out.Log(ctx, l, msg, attrs(args)...)
	}
}

func (a *adapter) Trace(msg string, args ...any) { a.Log(hclog.Trace, msg, args...) }
func (a *adapter) Debug(msg string, args ...any) { a.Log(hclog.Debug, msg, args...) }
func (a *adapter) Info(msg string, args ...any)  { a.Log(hclog.Info, msg, args...) }
func (a *adapter) Warn(msg string, args ...any)  { a.Log(hclog.Warn, msg, args...) }
func (a *adapter) Error(msg string, args ...any) { a.Log(hclog.Error, msg, args...) }

func (a *adapter) IsTrace() bool { return a.enabled(LevelTrace) }
func (a *adapter) IsDebug() bool { return a.enabled(slog.LevelDebug) }
func (a *adapter) IsInfo() bool  { return a.enabled(slog.LevelInfo) }
func (a *adapter) IsWarn() bool  { return a.enabled(slog.LevelWarn) }
func (a *adapter) IsError() bool { return a.enabled(slog.LevelError) }

func (a *adapter) enabled(l slog.Level) bool { return a.out.Enabled(context.Background(), l) }

func (a *adapter) ImpliedArgs() []any { return a.implied }

func (a *adapter) With(args ...any) hclog.Logger {
	implied := append(append([]any(nil), a.implied...), args...)
	return &adapter{root: a.root, out: a.out.With(attrs(args)...), name: a.name, implied: implied}
}

func (a *adapter) Name() string { return a.name }

func (a *adapter) Named(name string) hclog.Logger {
	if a.name != "" {
		name = a.name + "." + name
	}
	return a.ResetNamed(name)
}

func (a *adapter) ResetNamed(name string) hclog.Logger {
	out := a.root.With("component", name).With(attrs(a.implied)...)
	return &adapter{root: a.root, out: out, name: name, implied: a.implied}
}

// SetLevel does nothing: the slog handler selects the levels.
func (a *adapter) SetLevel(hclog.Level) {}

func (a *adapter) GetLevel() hclog.Level {
	for l := hclog.Trace; l <= hclog.Error; l++ {
		if level, _ := slogLevel(l); a.enabled(level) {
			return l
		}
	}
	return hclog.Off
}

func (a *adapter) StandardLogger(opts *hclog.StandardLoggerOptions) *log.Logger {
	return log.New(a.StandardWriter(opts), "", 0)
}

// StandardWriter ignores the options. The text of a line begins with its level.
func (a *adapter) StandardWriter(*hclog.StandardLoggerOptions) io.Writer {
	return &lineWriter{out: a.out}
}

func slogLevel(l hclog.Level) (level slog.Level, ok bool) {
	switch l {
	case hclog.Trace:
		return LevelTrace, true
	case hclog.Debug:
		return slog.LevelDebug, true
	case hclog.Info, hclog.NoLevel:
		return slog.LevelInfo, true
	case hclog.Warn:
		return slog.LevelWarn, true
	case hclog.Error:
		return slog.LevelError, true
	default: // Off
		return 0, false
	}
}

// attrs converts the key-value pairs of hclog to key-value pairs of slog.
func attrs(args []any) []any {
	out := slices.Clone(args)
	for i, arg := range args {
		if f, ok := arg.(hclog.Format); ok && len(f) > 0 {
			out[i] = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		} else if i%2 == 0 && arg == "error" {
			out[i] = "err"
		}
	}
	return out
}

// lineWriter logs the bytes of each Write as one record. log.Logger calls Write
// once per line.
type lineWriter struct{ out *slog.Logger }

func (w *lineWriter) Write(p []byte) (int, error) {
	level, rest := parseLevel(p)
	if ctx := context.Background(); w.out.Enabled(ctx, level) {
		w.out.Log(ctx, level, strings.TrimSpace(string(rest)))
	}
	return len(p), nil
}

// parseLevel splits "[WARN] text" into level and text. The level of a line
// without a level is Info.
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
