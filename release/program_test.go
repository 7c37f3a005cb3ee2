// SPDX-License-Identifier: MPL-2.0

package main

import (
	"debug/buildinfo"
	"runtime/debug"
	"strings"
	"testing"

	source "github.com/wanfed/wanfed/internal/version"
)

func TestNewVersion(t *testing.T) {
	dev := source.Version
	if !strings.Contains(dev, "-") {
		dev += "-dev"
	}
	for _, tt := range []struct{ name, main, commit, modified, want string }{
		{"commit", "v0.0.0-20260102030405-0123456789ab", "0123456789abcdef", "false", dev + ".20260102030405.01234567"},
		{"changed files", "v0.0.0-20260102030405-0123456789ab+dirty", "0123456789abcdef", "true",
			dev + ".20260102030405.01234567.modified"},
		{"tag of the version", "v" + source.Version, "0123456789abcdef", "false", source.Version},
		{"another tag", "v0.0.9", "0123456789abcdef", "false", dev + ".20260102030405.01234567"},
		{"no git", "(devel)", "", "", ""},
	} {
		info := &buildinfo.BuildInfo{Main: debug.Module{Version: tt.main}, Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: tt.commit}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"},
			{Key: "vcs.modified", Value: tt.modified},
		}}
		v, err := newVersion(program{info: info})
		if got := v.String(); (err == nil) != (tt.want != "") || err == nil && got != tt.want {
			t.Errorf("%s: newVersion() = %s, %v, want %s", tt.name, got, err, tt.want)
		}
	}
}
