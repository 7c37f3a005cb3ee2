// SPDX-License-Identifier: MPL-2.0

package slogadapter

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// capture returns a logger for records of at least level, and a function that
// returns and clears the output.
func capture(level slog.Level) (*slog.Logger, func() string) {
	var b bytes.Buffer
	h := slog.NewTextHandler(&b, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})
	return slog.New(h), func() string {
		defer b.Reset()
		return strings.TrimSpace(b.String())
	}
}

func TestNew(t *testing.T) {
	logger, got := capture(LevelTrace)
	l := New(logger, "raft")
	for _, tc := range []struct {
		log  func()
		want string
	}{
		{func() { l.Trace("m") }, `level=DEBUG-4 msg=m component=raft`},
		{func() { l.Debug("m", "n", 1) }, `level=DEBUG msg=m component=raft n=1`},
		{func() { l.Info("m", "f", hclog.Fmt("%s-%d", "x", 2)) }, `level=INFO msg=m component=raft f=x-2`},
		{func() { l.Warn("m", "error", errors.New("boom")) }, `level=WARN msg=m component=raft err=boom`},
		{func() { l.Error("m", "key", "error") }, `level=ERROR msg=m component=raft key=error`},
		{func() { l.Log(hclog.NoLevel, "m") }, `level=INFO msg=m component=raft`},
		{func() { l.Log(hclog.Off, "m") }, ``},
		{func() { l.With("peer", "b").Named("snap").Info("m") }, `level=INFO msg=m component=raft.snap peer=b`},
		{func() { l.Named("x").With("peer", "b").ResetNamed("y").Info("m") }, `level=INFO msg=m component=y peer=b`},
		{func() { l.StandardLogger(nil).Print("[ERROR] m") }, `level=ERROR msg=m component=raft`},
	} {
		tc.log()
		if g := got(); g != tc.want {
			t.Errorf("log = %s\nwant  %s", g, tc.want)
		}
	}
	if n := l.Named("snap").Name(); n != "raft.snap" {
		t.Errorf("Name() = %q, want raft.snap", n)
	}
}

func TestNew_LevelsOfHandler(t *testing.T) {
	logger, got := capture(slog.LevelWarn)
	l := New(logger, "raft")
	if l.IsTrace() || l.IsDebug() || l.IsInfo() || !l.IsWarn() || !l.IsError() {
		t.Errorf("IsTrace() to IsError() = %t, %t, %t, %t, %t, want true for warn and error",
			l.IsTrace(), l.IsDebug(), l.IsInfo(), l.IsWarn(), l.IsError())
	}
	if g := l.GetLevel(); g != hclog.Warn {
		t.Errorf("GetLevel() = %v, want warn", g)
	}
	l.SetLevel(hclog.Trace)
	l.Info("m")
	Std(logger, "serf").Print("[INFO] serf: m")
	if g := got(); g != "" {
		t.Errorf("log = %s, want nothing below the level of the handler", g)
	}
}

func TestStd(t *testing.T) {
	logger, got := capture(LevelTrace)
	l := Std(logger, "serf")
	for line, want := range map[string]string{
		"[ERR] memberlist: boom\n": `level=ERROR msg="memberlist: boom" component=serf`,
		"[ERROR] x":                `level=ERROR msg=x component=serf`,
		"[WARN] x":                 `level=WARN msg=x component=serf`,
		"[INFO] x":                 `level=INFO msg=x component=serf`,
		"[DEBUG] x":                `level=DEBUG msg=x component=serf`,
		"[TRACE] x":                `level=DEBUG-4 msg=x component=serf`,
		"no level":                 `level=INFO msg="no level" component=serf`,
		"[::1]:80 left":            `level=INFO msg="[::1]:80 left" component=serf`,
		"[WARN":                    `level=INFO msg=[WARN component=serf`,
		"":                         `level=INFO msg="" component=serf`,
	} {
		l.Print(line)
		if g := got(); g != want {
			t.Errorf("Print(%q) logs %s\nwant %s", line, g, want)
		}
	}
}
