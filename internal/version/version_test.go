// SPDX-License-Identifier: MPL-2.0

package version

import (
	"regexp"
	"runtime"
	"runtime/debug"
	"testing"
)

func TestString_BuildInfo(t *testing.T) {
	settings := func(kv ...string) (out []debug.BuildSetting) {
		for i := 0; i < len(kv); i += 2 {
			out = append(out, debug.BuildSetting{Key: kv[i], Value: kv[i+1]})
		}
		return out
	}
	rest := runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH + ")"
	for _, tt := range []struct {
		name string
		in   *debug.BuildInfo
		want string
	}{
		{"no build info", nil, Version + " (" + rest},
		{"no git", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, Version + " (" + rest},
		{"git", &debug.BuildInfo{Settings: settings("vcs.revision", "6b745d1c2f0a5e1d", "vcs.modified", "false")},
			Version + " (commit 6b745d1c2f0a, " + rest},
		{"git with changes",
			&debug.BuildInfo{Settings: settings("vcs.revision", "6b745d1c2f0a5e1d", "vcs.modified", "true")},
			Version + " (commit 6b745d1c2f0a, modified, " + rest},
		{"download of a commit", &debug.BuildInfo{Main: debug.Module{Version: "v0.1.1-0.20261121035200-6b745d1c2f0a"}},
			Version + " (commit 6b745d1c2f0a, " + rest},
		{"download of a release", &debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}}, Version + " (" + rest},
	} {
		if got := of(tt.in).String(); got != tt.want {
			t.Errorf("%s: String() = %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestVersion_IsSemantic checks the format of Version. Gossip members refuse a
// build tag that does not begin with x.y.z.
func TestVersion_IsSemantic(t *testing.T) {
	if !regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9a-z.]+)?$`).MatchString(Version) {
		t.Errorf("Version = %q, want a semantic version", Version)
	}
}
