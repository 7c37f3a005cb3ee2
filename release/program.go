// SPDX-License-Identifier: MPL-2.0

package main

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	source "github.com/wanfed/wanfed/internal/version"
)

// platform is a system for which a program is built.
type platform struct {
	os, arch string
	arm      string // GOARM
}

var platforms = []platform{
	{os: "linux", arch: "amd64"}, {os: "linux", arch: "arm64"}, {os: "linux", arch: "arm", arm: "7"},
	{os: "darwin", arch: "amd64"}, {os: "darwin", arch: "arm64"}, {os: "windows", arch: "amd64"},
}

func (p platform) String() string { return p.os + "/" + p.arch }

// selectPlatforms returns the platforms in a list, or all for an empty list.
func selectPlatforms(list string) ([]platform, error) {
	if list == "" {
		return platforms, nil
	}
	var all []platform
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(platforms, func(p platform) bool { return p.String() == name })
		if i < 0 {
			return nil, fmt.Errorf("platform %q: must be one of %v", name, platforms)
		}
		all = append(all, platforms[i])
	}
	return all, nil
}

// program is the program of one platform.
type program struct {
	platform
	path string
	info *buildinfo.BuildInfo
}

// setting returns what the Go toolchain has recorded, such as vcs.revision.
func (p program) setting(key string) string {
	for _, s := range p.info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// addProgram builds the program of a platform with "make build", and writes it
// and its bill of materials.
func (r *release) addProgram(p platform) error {
	built := filepath.Join(r.work, p.os+"-"+p.arch)
	cmd := exec.Command("make", "--no-print-directory", "build", "OUT="+built)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.root, os.Stderr, os.Stderr
	// The lowest level of each architecture, and no setting of the user.
	cmd.Env = append(os.Environ(), "GOOS="+p.os, "GOARCH="+p.arch, "GOARM="+p.arm, "GOAMD64=v1", "GOARM64=v8.0",
		"GOFLAGS=", "GOEXPERIMENT=", "GOFIPS140=off")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("make build: %w", err)
	}
	info, err := buildinfo.ReadFile(built)
	if err != nil {
		return err
	}
	r.programs = append(r.programs, program{p, built, info})
	if _, err := newVersion(r.programs[len(r.programs)-1]); err != nil {
		return err
	}
	name := "_" + p.os + "_" + p.arch
	data, err := os.ReadFile(built)
	if err != nil {
		return err
	}
	if err := r.writeSBOM(r.programs[len(r.programs)-1], data, r.file(name+".cdx.json")); err != nil {
		return fmt.Errorf("bill of materials: %w", err)
	}
	if p.os == "windows" {
		name += ".exe"
	}
	return os.WriteFile(r.file(name), data, 0o755)
}

// version is the version of a release.
type version struct {
	text   string // semantic version
	commit string
	time   time.Time // time of the commit
}

func (v version) String() string { return v.text }

// version returns the version of the programs, which are all of one commit.
func (r *release) version() version {
	v, err := newVersion(r.programs[0])
	if err != nil {
		panic(err) // addProgram has checked it
	}
	return v
}

// newVersion returns the version that a program was built from. A commit with the
// tag of the version in the source is a release. Any other commit precedes it:
// 0.1.0-dev.20261127074300.53d80e6b sorts by time, and before 0.1.0.
func newVersion(p program) (version, error) {
	v := version{text: source.Version, commit: p.setting("vcs.revision")}
	if v.commit == "" {
		return v, errors.New("the program has no commit: build in a clone of the repository, with git installed")
	}
	var err error
	if v.time, err = time.Parse(time.RFC3339, p.setting("vcs.time")); err != nil {
		return v, err
	}
	changed := p.setting("vcs.modified") == "true"
	if p.info.Main.Version == "v"+v.text && !changed {
		return v, nil
	}
	if !strings.Contains(v.text, "-") {
		v.text += "-dev" // the commit is not the tagged one
	}
	v.text += "." + v.time.UTC().Format("20060102150405") + "." + v.commit[:8]
	if changed {
		v.text += ".modified"
	}
	return v, nil
}
