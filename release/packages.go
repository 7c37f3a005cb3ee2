// SPDX-License-Identifier: MPL-2.0

package main

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	"github.com/goreleaser/nfpm/v2/rpm"

	"github.com/wanfed/wanfed/internal/unit"
	"github.com/wanfed/wanfed/release/man"
)

// Places of an installed package. "wanfed init" uses the same directories.
const (
	user    = "wanfed"
	confDir = "/etc/wanfed"
	dataDir = "/var/lib/wanfed"
	path    = "/usr/bin/wanfed"
)

//go:embed scripts
var scripts embed.FS

// writePackages writes the packages of all programs for Linux.
func (r *release) writePackages() error {
	if err := r.writeStaged(); err != nil {
		return err
	}
	for _, p := range r.programs {
		if p.os != "linux" {
			continue
		}
		for suffix, packager := range map[string]nfpm.Packager{".deb": deb.Default, ".rpm": rpm.DefaultRPM} {
			if err := r.writePackage(p, suffix, packager); err != nil {
				return fmt.Errorf("%s of %s: %w", suffix, p, err)
			}
		}
	}
	return nil
}

// staged returns the path of a file that writeStaged has written.
func (r *release) staged(name string) string { return filepath.Join(r.work, "staged", name) }

// writeStaged writes the units and the scripts of packages.
func (r *release) writeStaged() error {
	if err := os.CopyFS(r.staged(""), scripts); err != nil {
		return err
	}
	for _, u := range units() {
		if err := os.WriteFile(r.staged(u.Name()), []byte(u.String()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// units returns the units of a package.
func units() (all []unit.Unit) {
	for _, command := range []string{"server", "gateway"} {
		all = append(all, unit.Unit{
			Command: command, Program: path, Settings: filepath.Join(confDir, command+".hcl"), Data: dataDir, User: user,
		})
	}
	return all
}

// contents returns the files of a package. zsh is the directory of completion for
// zsh, in which distributions differ.
func (r *release) contents(p program, zsh string) (files.Contents, error) {
	var all files.Contents
	add := func(source, to string, mode fs.FileMode) {
		all = append(all, &files.Content{Source: source, Destination: to, FileInfo: &files.ContentFileInfo{
			Owner: "root", Group: "root", Mode: mode, MTime: r.version().time,
		}})
	}
	add(p.path, path, 0o755)
	for _, u := range units() {
		add(r.staged(u.Name()), "/usr/lib/systemd/system/"+u.Name(), 0o644)
	}
	add(filepath.Join(r.root, "LICENSE"), "/usr/share/doc/wanfed/copyright", 0o644)
	add(r.docs(man.Bash), "/usr/share/bash-completion/completions/wanfed", 0o644)
	add(r.docs(man.Zsh), zsh+"/_wanfed", 0o644)
	add(r.docs(man.Fish), "/usr/share/fish/vendor_completions.d/wanfed.fish", 0o644)
	pages, err := os.ReadDir(r.docs(man.Pages))
	for _, page := range pages {
		add(filepath.Join(r.docs(man.Pages), page.Name()), "/usr/share/man/man1/"+page.Name(), 0o644)
	}
	for _, dir := range []string{confDir, dataDir} {
		all = append(all, &files.Content{Destination: dir, Type: files.TypeDir, FileInfo: &files.ContentFileInfo{
			Owner: user, Group: user, Mode: 0o700, MTime: r.version().time,
		}})
	}
	return all, err
}

// writePackage writes the package of a program.
func (r *release) writePackage(p program, suffix string, packager nfpm.Packager) error {
	zsh, depends := "/usr/share/zsh/vendor-completions", []string(nil)
	if suffix == ".rpm" {
		zsh, depends = "/usr/share/zsh/site-functions", []string{"/usr/sbin/useradd"}
	}
	contents, err := r.contents(p, zsh)
	if err != nil {
		return err
	}
	version := r.version()
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "wanfed", Arch: p.arch + p.arm, Platform: "linux", Version: version.text, Release: "1", MTime: version.time,
		Section: "net", Priority: "optional", Maintainer: "wanfed <packages@wanfed.invalid>", License: "MPL-2.0",
		Homepage: "https://github.com/wanfed/wanfed", DisableGlobbing: true,
		Description: "join datacenters that reach each other only through gateways\n" +
			"One program: servers, gateways and the command line. The servers of all\n" +
			"datacenters are members of one gossip pool and call each other through\n" +
			"gateways, which forward TLS connections by server name and decrypt nothing.",
		Overridables: nfpm.Overridables{
			Contents: contents,
			Scripts: nfpm.Scripts{
				PreInstall: r.staged("scripts/preinstall"), PostInstall: r.staged("scripts/postinstall"),
				PreRemove: r.staged("scripts/preremove"), PostRemove: r.staged("scripts/postinstall"),
			},
			Depends: depends,
			Deb:     nfpm.Deb{Predepends: []string{"passwd"}}, // preinstall needs useradd
			RPM:     nfpm.RPM{BuildHost: "localhost"},
		},
	})
	if err := nfpm.PrepareForPackager(info, suffix[1:]); err != nil {
		return err
	}
	f, err := os.Create(r.file("_" + p.os + "_" + p.arch + suffix))
	if err != nil {
		return err
	}
	if err := packager.Package(info, f); err != nil {
		return err
	}
	return f.Close()
}
