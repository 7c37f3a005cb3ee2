// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// command runs a command in a directory and returns its output.
func command(t testing.TB, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_DATE=2026-01-02T03:04:05Z", "GIT_COMMITTER_DATE=2026-01-02T03:04:05Z",
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// clone returns a new repository with the files of this one as its only commit.
// All clones have the same commit. Go records no commit in a worktree of git, so
// a release needs a clone.
func clone(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	files := command(t, "..", "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	for name := range strings.SplitSeq(strings.TrimSuffix(files, "\x00"), "\x00") {
		from, to := filepath.Join("..", name), filepath.Join(dir, name)
		info, err := os.Lstat(from)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, and not committed yet
		}
		if err == nil && !info.Mode().IsRegular() {
			t.Fatalf("%s is not a regular file", name)
		}
		data, err := os.ReadFile(from)
		if err = errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o755)); err == nil {
			err = os.WriteFile(to, data, info.Mode().Perm())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	command(t, dir, "git", "init", "-q")
	command(t, dir, "git", "add", "--all", "--force")
	command(t, dir, "git", "-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "-q", "-m", "test")
	return dir
}

// build builds the release for linux/amd64 of a new clone.
func build(t testing.TB) string {
	t.Helper()
	out := t.TempDir()
	if err := run(clone(t), out, "linux/amd64"); err != nil {
		t.Fatal(err)
	}
	return out
}

// built is the directory of a release that all tests share.
var built struct {
	once sync.Once
	dir  string
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// sharedRelease returns the directory of a release.
func sharedRelease(t testing.TB) string {
	t.Helper()
	built.once.Do(func() {
		dir, err := os.MkdirTemp("", "wanfed-release-test-")
		if err == nil {
			err = os.CopyFS(dir, os.DirFS(build(t)))
		}
		if err != nil {
			t.Fatal(err)
		}
		built.dir = dir
	})
	if built.dir == "" {
		t.Fatal("the release was not built")
	}
	return built.dir
}

// one returns the path of the only file of the release with a suffix.
func one(t testing.TB, suffix string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(sharedRelease(t), "*"+suffix))
	if err != nil || len(found) != 1 {
		t.Fatalf("files *%s = %v (%v), want one", suffix, found, err)
	}
	return found[0]
}

// sums returns the SHA-256 of the files of a directory.
func sums(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		var data []byte
		data, err = os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			break
		}
		all[e.Name()] = fmt.Sprintf("%x", sha256.Sum256(data))
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestRelease_Reproducible builds the same commit in two directories.
func TestRelease_Reproducible(t *testing.T) {
	first, second := sums(t, sharedRelease(t)), sums(t, build(t))
	for name, sum := range first {
		if second[name] != sum {
			t.Errorf("%s: SHA-256 %s, and %s in another directory", name, sum, second[name])
		}
	}
	if len(first) != 7 || len(second) != 7 {
		t.Errorf("releases have the files %v and %v, want program, SBOM, deb, rpm, image, chart and checksums", first, second)
	}
}

func TestRelease_Checksums(t *testing.T) {
	out := command(t, sharedRelease(t), "sha256sum", "-c", "SHA256SUMS")
	if n := strings.Count(out, ": OK"); n != 6 {
		t.Errorf("sha256sum -c accepts %d files, want 6:\n%s", n, out)
	}
}

func TestProgram_StaticWithCommit(t *testing.T) {
	program := one(t, "_linux_amd64")
	if out := command(t, ".", program, "version"); !strings.Contains(out, "commit ") || strings.Contains(out, "modified") {
		t.Errorf("wanfed version = %s, want a commit without changes", out)
	}
	for _, path := range []string{os.TempDir() + "/", "/root/", "/home/"} {
		if data, err := os.ReadFile(program); err != nil || bytes.Contains(data, []byte(path+"go/pkg")) {
			t.Errorf("the program contains a path below %s (%v)", path, err)
		}
	}
	if out, err := exec.Command("ldd", program).CombinedOutput(); err == nil {
		t.Errorf("ldd = %s, want a static program", out)
	}
}

func TestSBOM(t *testing.T) {
	f, err := os.Open(one(t, ".cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	var info struct {
		Deps []struct{ Path, Version string }
	}
	recorded := command(t, ".", "go", "version", "-m", "-json", one(t, "_linux_amd64"))
	if err := json.Unmarshal([]byte(recorded), &info); err != nil {
		t.Fatal(err)
	}
	if len(info.Deps) < 20 || len(*bom.Components) != len(info.Deps)+1 {
		t.Errorf("the bill has %d components, want the %d modules of the program and the standard library",
			len(*bom.Components), len(info.Deps))
	}
	for _, m := range info.Deps {
		if !slices.ContainsFunc(*bom.Components, func(c cdx.Component) bool {
			return c.PackageURL == "pkg:golang/"+m.Path+"@"+m.Version && c.Hashes != nil
		}) {
			t.Errorf("the bill lacks %s %s with its hash", m.Path, m.Version)
		}
	}
}

// TestPrograms_Compile compiles the program for the systems that no other test
// covers.
func TestPrograms_Compile(t *testing.T) {
	for _, os := range []string{"windows", "darwin"} {
		t.Run(os, func(t *testing.T) {
			command(t, "..", "env", "GOOS="+os, "GOARCH=amd64", "GOARM64=v8.0", "make", "build", "OUT="+t.TempDir()+"/wanfed")
		})
	}
}
