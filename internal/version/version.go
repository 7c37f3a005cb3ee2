// SPDX-License-Identifier: MPL-2.0

package version

import (
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
)

// Version is the semantic version of this source, with "-dev" until its
// release.
const Version = "0.1.0-dev"

// Info describes the running program.
type Info struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"` // git commit; shortened for a module download
	Time     string `json:"time,omitempty"`   // time of the commit, RFC 3339
	Modified bool   `json:"modified"`         // whether files differ from the commit
	Go       string `json:"go"`               // version of the Go toolchain
	Platform string `json:"platform"`         // os/architecture
}

// Get describes the running program.
func Get() Info {
	bi, _ := debug.ReadBuildInfo()
	return of(bi)
}

// pseudo matches the end of a pseudo-version, which Go gives to an untagged
// commit: -20261121035200-6b745d1c2f0a.
var pseudo = regexp.MustCompile(`[-.]\d{14}-([0-9a-f]{12})(\+dirty)?$`)

func of(bi *debug.BuildInfo) Info {
	i := Info{Version: Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if bi == nil {
		return i
	}
	if m := pseudo.FindStringSubmatch(bi.Main.Version); m != nil {
		i.Commit, i.Modified = m[1], m[2] != ""
	}
	for _, s := range bi.Settings {
		switch s.Key {
		case "vcs.revision":
			i.Commit = s.Value
		case "vcs.time":
			i.Time = s.Value
		case "vcs.modified":
			i.Modified = s.Value == "true"
		}
	}
	return i
}

// String returns a description in one line.
func (i Info) String() string {
	var facts []string
	if i.Commit != "" {
		commit := "commit " + i.Commit[:min(len(i.Commit), 12)]
		if i.Modified {
			commit += ", modified"
		}
		facts = append(facts, commit)
	}
	return i.Version + " (" + strings.Join(append(facts, i.Go, i.Platform), ", ") + ")"
}
