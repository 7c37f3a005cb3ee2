// SPDX-License-Identifier: MPL-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// need skips a test without root or without one of the programs.
func need(t testing.TB, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs the program %s", p)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// newRoot returns the root of a system on which only dpkg and the programs that
// add users are installed.
func newRoot(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte, mode fs.FileMode) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, mode)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:\n", "etc/shadow": "root:*:20000::::::\n",
		"var/lib/dpkg/status": "Package: passwd\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:4\n" +
			"Maintainer: test <test@example.com>\nDescription: programs that add users\n\n",
	} {
		write(name, []byte(text), 0o644)
	}
	const dpkg = "var/lib/dpkg/"
	for _, dir := range []string{"proc", "dev", "srv", "tmp", dpkg + "info", dpkg + "updates", dpkg + "triggers"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob("/usr/share/dpkg/*table")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dpkg", "dpkg-deb", "dpkg-split", "dpkg-query", "tar", "rm", "ldconfig",
		"start-stop-daemon", "diff", "sh", "getent", "groupadd", "useradd"} {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("ldd", program).Output() // ldconfig is static
		if err != nil && name != "ldconfig" {
			t.Fatalf("ldd %s: %v", program, err)
		}
		files = append(files, program)
		for field := range strings.FieldsSeq(string(out)) {
			if filepath.IsAbs(field) {
				files = append(files, field)
			}
		}
	}
	for _, name := range append(files, "/bin/sh") {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		write(name, data, 0o755)
	}
	return root
}

// describe returns the mode, the user and the group of a file.
func describe(t testing.TB, path string) (mode fs.FileMode, uid, gid uint32) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	return info.Mode(), st.Uid, st.Gid
}

// TestDeb_InstallAndInit installs the package in a clean root and creates a
// federation there, in namespaces of its own.
func TestDeb_InstallAndInit(t *testing.T) {
	need(t, "dpkg", "chroot", "unshare", "ip", "ldd", "useradd")
	root := newRoot(t)
	data, err := os.ReadFile(one(t, ".deb"))
	if err == nil {
		err = os.WriteFile(root+"/tmp/wanfed.deb", data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	dpkg := func(args ...string) string {
		return command(t, ".", "chroot", append([]string{root, "dpkg"}, args...)...)
	}
	dpkg("-i", "/tmp/wanfed.deb")
	if status := dpkg("-s", "wanfed"); !strings.Contains(status, "Status: install ok installed") {
		t.Fatalf("dpkg -s wanfed = %s, want it installed", status)
	}
	passwd, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if err != nil || !bytes.Contains(passwd, []byte("\nwanfed:x:")) || !bytes.Contains(passwd, []byte("/usr/sbin/nologin")) {
		t.Fatalf("/etc/passwd = %s (%v), want a user wanfed who cannot log in", passwd, err)
	}
	for _, dir := range []string{confDir, dataDir} {
		mode, uid, gid := describe(t, root+dir)
		if mode != fs.ModeDir|0o700 || uid == 0 || gid == 0 {
			t.Errorf("%s has mode %v, user %d and group %d, want drwx------ of wanfed", dir, mode, uid, gid)
		}
	}
	for name, want := range map[string]fs.FileMode{
		path: 0o755, "/usr/lib/systemd/system/wanfed-server.service": 0o644,
		"/usr/lib/systemd/system/wanfed-gateway.service": 0o644, "/usr/share/man/man1/wanfed-init.1.gz": 0o644,
		"/usr/share/bash-completion/completions/wanfed":    0o644,
		"/usr/share/zsh/vendor-completions/_wanfed":        0o644,
		"/usr/share/fish/vendor_completions.d/wanfed.fish": 0o644,
	} {
		if mode, uid, gid := describe(t, root+name); mode != want || uid != 0 || gid != 0 {
			t.Errorf("%s has mode %v, user %d and group %d, want %v of root", name, mode, uid, gid, want)
		}
	}

	const script = `set -e
ip link set lo up
ip address add 10.0.0.5/32 dev lo
mount -t proc proc "$0/proc"
mount --bind /dev "$0/dev"
exec chroot "$0" /bin/sh -ec '
PATH=/usr/bin:/bin
wanfed init --dc dc1 --wan 10.0.0.5:8443 --no-start
wanfed init --dc dc1 --wan 10.0.0.5:8443 --dir /srv/wanfed
wanfed status --dir /srv/wanfed
'`
	out := command(t, ".", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "/bin/sh", "-c", script, root)
	t.Logf("in the clean root:\n%s", out)
	if !strings.Contains(out, "dc1 is ok") {
		t.Errorf("output = %s, want that dc1 is ok", out)
	}
	_, uid, _ := describe(t, root+confDir)
	if mode, owner, _ := describe(t, root+confDir+"/server-key.pem"); mode != 0o600 || owner != uid || uid == 0 {
		t.Errorf("server-key.pem has mode %v and user %d, want 0600 of wanfed (%d)", mode, owner, uid)
	}

	dpkg("-i", "/tmp/wanfed.deb") // an upgrade
	dpkg("-r", "wanfed")
	if _, err := os.Stat(root + path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat(%s) = %v after the removal, want that it does not exist", path, err)
	}
	if _, err := os.Stat(root + confDir + "/server-key.pem"); err != nil {
		t.Errorf("the removal of the package also removed %s: %v", confDir, err)
	}
}

func TestRPM_Contents(t *testing.T) {
	need(t, "rpm")
	rpm := func(args ...string) string {
		return command(t, ".", "rpm", append(append([]string{"-qp"}, args...), one(t, ".rpm"))...)
	}
	listed := rpm("-lv")
	for _, want := range []string{
		"drwx------    2 wanfed", " /etc/wanfed\n", " /var/lib/wanfed\n", " " + path + "\n",
		" /usr/lib/systemd/system/wanfed-server.service\n", " /usr/lib/systemd/system/wanfed-gateway.service\n",
		" /usr/share/man/man1/wanfed.1.gz\n", " /usr/share/zsh/site-functions/_wanfed\n",
	} {
		if !strings.Contains(listed, want) {
			t.Errorf("rpm -qplv lacks %q:\n%s", want, listed)
		}
	}
	if got := rpm("--qf", "%{NAME} %{ARCH} %{LICENSE} %{BUILDHOST}"); got != "wanfed x86_64 MPL-2.0 localhost" {
		t.Errorf("name, architecture, licence and build host = %q", got)
	}
	if scripts := rpm("--scripts"); !strings.Contains(scripts, "useradd --system") {
		t.Errorf("rpm -qp --scripts = %s, want a script that adds a user", scripts)
	}
	command(t, ".", "rpm", "-K", "--nosignature", one(t, ".rpm"))
}

// extract writes the files of a tar file to a directory.
func extract(t testing.TB, r io.Reader, dir string) {
	t.Helper()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(to, h.FileInfo().Mode().Perm())
		} else {
			data, readErr := io.ReadAll(tr)
			err = errors.Join(readErr, os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, data, h.FileInfo().Mode().Perm()))
		}
		if err = errors.Join(err, os.Lchown(to, h.Uid, h.Gid)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestImage_ValidAndRuns(t *testing.T) {
	need(t, "chroot")
	f, err := os.Open(one(t, "_oci.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	extract(t, f, dir)
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(top); err != nil {
		t.Fatal(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("index.json = %+v (%v), want one index", manifest, err)
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if manifest, err = index.IndexManifest(); err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("index = %+v (%v), want one image", manifest, err)
	}
	if p := manifest.Manifests[0].Platform; !p.Equals(v1.Platform{OS: "linux", Architecture: "amd64"}) {
		t.Errorf("platform = %v, want linux/amd64", p)
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Config.User != "65532:65532" || len(cfg.Config.Entrypoint) != 1 || cfg.Config.Entrypoint[0] != path {
		t.Errorf("config = %+v, want a user other than root and the entrypoint %s", cfg.Config, path)
	}
	files := mutate.Extract(image)
	defer files.Close()
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	extract(t, files, root)
	out := command(t, ".", "chroot", "--userspec=65532:65532", root, path, "version")
	if !strings.HasPrefix(out, "wanfed ") {
		t.Errorf("wanfed version in the image = %s", out)
	}
	if mode, uid, _ := describe(t, root+dataDir); mode.Perm() != 0o700 || uid != imageUser {
		t.Errorf("%s has mode %v and user %d, want 0700 of %d", dataDir, mode, uid, imageUser)
	}
}
