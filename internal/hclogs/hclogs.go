// SPDX-License-Identifier: MPL-2.0

package hclogs

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// LevelTrace is below slog.LevelDebug: what hclog calls trace.
const LevelTrace = slog.LevelDebug - 4

// New returns an hclog.Logger that writes to logger, with the attribute component=name. Safe for concurrent use.
func New(logger *slog.Logger, name string) hclog.Logger {
	return &bridge{root: logger, out: logger.With("component", name), name: name}
}

// Std returns a standard logger that writes each line to logger, with the attribute component=name and at the level that
// the line begins with. Safe for concurrent use.
func Std(logger *slog.Logger, name string) *log.Logger {
	return log.New(&lineWriter{out: logger.With("component", name)}, "", 0)
}

// bridge is immutable.
type bridge struct {
	root    *slog.Logger // without component and implied args
	out     *slog.Logger
	name    string
	implied []any
}

var _ hclog.Logger = (*bridge)(nil)

func (b *bridge) Log(level hclog.Level, msg string, args ...any) {
	l, ok := slogLevel(level)
	if ctx := context.Background(); ok && b.out.Enabled(ctx, l) {
		b.out.Log(ctx, l, msg, attrs(args)...)
	}
}

func (b *bridge) Trace(msg string, args ...any) { b.Log(hclog.Trace, msg, args...) }
func (b *bridge) Debug(msg string, args ...any) { b.Log(hclog.Debug, msg, args...) }
func (b *bridge) Info(msg string, args ...any)  { b.Log(hclog.Info, msg, args...) }
func (b *bridge) Warn(msg string, args ...any)  { b.Log(hclog.Warn, msg, args...) }
func (b *bridge) Error(msg string, args ...any) { b.Log(hclog.Error, msg, args...) }

func (b *bridge) IsTrace() bool { return b.enabled(LevelTrace) }
func (b *bridge) IsDebug() bool { return b.enabled(slog.LevelDebug) }
func (b *bridge) IsInfo() bool  { return b.enabled(slog.LevelInfo) }
func (b *bridge) IsWarn() bool  { return b.enabled(slog.LevelWarn) }
func (b *bridge) IsError() bool { return b.enabled(slog.LevelError) }

func (b *bridge) enabled(l slog.Level) bool { return b.out.Enabled(context.Background(), l) }

func (b *bridge) ImpliedArgs() []any { return b.implied }

func (b *bridge) With(args ...any) hclog.Logger {
	implied := append(append([]any(nil), b.implied...), args...)
	return &bridge{root: b.root, out: b.out.With(attrs(args)...), name: b.name, implied: implied}
}

func (b *bridge) Name() string { return b.name }

func (b *bridge) Named(name string) hclog.Logger {
	if b.name != "" {
		name = b.name + "." + name
	}
	return b.ResetNamed(name)
}

func (b *bridge) ResetNamed(name string) hclog.Logger {
	out := b.root.With("component", name).With(attrs(b.implied)...)
	return &bridge{root: b.root, out: out, name: name, implied: b.implied}
}

// SetLevel does nothing: the slog handler decides.
func (b *bridge) SetLevel(hclog.Level) {}

func (b *bridge) GetLevel() hclog.Level {
	for _, l := range []hclog.Level{hclog.Trace, hclog.Debug, hclog.Info, hclog.Warn, hclog.Error} {
		if sl, _ := slogLevel(l); b.enabled(sl) {
			return l
		}
	}
	return hclog.Off
}

func (b *bridge) StandardLogger(opts *hclog.StandardLoggerOptions) *log.Logger {
	return log.New(b.StandardWriter(opts), "", 0)
}

// StandardWriter infers levels whatever the options say: a line without one is Info all the same.
func (b *bridge) StandardWriter(*hclog.StandardLoggerOptions) io.Writer {
	return &lineWriter{out: b.out}
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

// attrs gives hclog's key-value pairs in slog's words.
func attrs(args []any) []any {
	out := make([]any, len(args))
	for i, a := range args {
		switch v := a.(type) {
		case hclog.Format:
			out[i] = format(v)
		case string:
			out[i] = v
			if i%2 == 0 && v == "error" {
				out[i] = "err"
			}
		default:
			out[i] = v
		}
	}
	return out
}

func format(f hclog.Format) string {
	if len(f) == 0 {
		return ""
	}
	if s, ok := f[0].(string); ok {
		return fmt.Sprintf(s, f[1:]...)
	}
	return fmt.Sprint(f...)
}
