// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// TestNewResourceType does in a copy of the repository what
// docs/new-resource-type.md says, step by step, as a reader would: files are
// written and changed as it has them, commands run in one shell's environment,
// and their output must be what it shows.
func TestNewResourceType(t *testing.T) {
	testutil.Cluster(t)
	for _, tool := range []string{"protoc", "make", "curl", "bash"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s: the steps of docs/new-resource-type.md are not run", tool)
		}
	}
	if _, err := os.Stat("/usr/include/google/protobuf/any.proto"); err != nil {
		t.Skip("no libprotobuf-dev: the steps of docs/new-resource-type.md are not run")
	}
	text, err := os.ReadFile("../docs/new-resource-type.md")
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{T: t, dir: t.TempDir(), env: os.Environ()}
	copyRepository(t, r.dir)
	blocks := blocksOf(string(text))
	if len(blocks) < 15 {
		t.Fatalf("%d blocks of code: the page is read wrongly", len(blocks))
	}
	for _, b := range blocks {
		r.do(b)
	}
	if r.commands < 15 || r.demo == nil {
		t.Errorf("only %d commands were run", r.commands)
	}
}

// block is a block of code, with the file that the text before it names last.
type block struct{ language, file, text string }

var (
	fenced = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")
	named  = regexp.MustCompile("`([\\w/.-]+\\.(?:proto|go|hcl))`")
)

func blocksOf(page string) (all []block) {
	file, at := "", 0
	for _, m := range fenced.FindAllStringSubmatchIndex(page, -1) {
		if names := named.FindAllStringSubmatch(page[at:m[0]], -1); names != nil {
			file = names[len(names)-1][1]
		}
		all = append(all, block{page[m[2]:m[3]], file, page[m[4]:m[5]]})
		at = m[1]
	}
	return all
}

// copyRepository copies what is under version control, or could be.
func copyRepository(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch rel, _ := filepath.Rel("..", path); {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "bin" || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(dir, rel), 0o700)
		case !d.Type().IsRegular():
			return nil
		default:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, rel), b, 0o600)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// reader is who does what the page says.
type reader struct {
	*testing.T
	dir      string
	env      []string
	commands int
	demo     *exec.Cmd
}

func (r *reader) do(b block) {
	r.Helper()
	path := filepath.Join(r.dir, b.file)
	switch b.language {
	case "proto", "go", "hcl":
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			r.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(b.text), 0o600); err != nil {
			r.Fatal(err)
		}
	case "diff":
		r.change(path, b.text)
	case "console":
		for part := range strings.SplitSeq("\n"+b.text, "\n$ ") {
			if command, want, _ := strings.Cut(part, "\n"); strings.TrimSpace(command) != "" {
				r.run(command, want)
			}
		}
	default:
		r.Fatalf("a block of %q: the test does not know what to do with it", b.language)
	}
}

// change adds the lines with a plus where the others are found, one after the
// other.
func (r *reader) change(path, diff string) {
	r.Helper()
	var before, after strings.Builder
	for line := range strings.Lines(diff) {
		if line[0] != '+' {
			before.WriteString(line[1:])
		}
		after.WriteString(line[1:])
	}
	b, err := os.ReadFile(path)
	if err != nil {
		r.Fatal(err)
	}
	if n := strings.Count(string(b), "\n"+before.String()); n != 1 {
		r.Fatalf("%s has %d places with\n%s", path, n, before.String())
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(b), "\n"+before.String(), "\n"+after.String(), 1)), 0o600); err != nil {
		r.Fatal(err)
	}
}

// readsOnly are commands that may be run again until their output is right:
// what another datacenter has comes a moment later.
var readsOnly = regexp.MustCompile(`resource (read|list)|^curl -s [^-]`)

func (r *reader) run(command, want string) {
	r.Helper()
	r.commands++
	began := time.Now()
	defer func() { r.Logf("%5.2f s $ %s", time.Since(began).Seconds(), command) }()
	switch {
	case strings.Contains(command, "wanfed demo"):
		r.startDemo(command)
		return
	case strings.HasPrefix(command, "export "): // it holds for what comes after it
		command += " && env -0"
		cmd := exec.CommandContext(r.Context(), "bash", "-c", command)
		cmd.Dir, cmd.Env = r.dir, r.env
		out, err := cmd.Output()
		if err != nil {
			r.Fatalf("$ %s: %v", command, err)
		}
		r.env = strings.FieldsFunc(string(out), func(c rune) bool { return c == 0 })
		return
	}
	pattern := regexp.MustCompile(`^` + strings.ReplaceAll(regexp.QuoteMeta(squeeze(want)), `\.\.\.`, `.*`) + `$`)
	deadline := time.Now().Add(20 * time.Second)
	for {
		cmd := exec.CommandContext(r.Context(), "bash", "-c", command)
		cmd.Dir, cmd.Env = r.dir, r.env
		out, err := cmd.CombinedOutput()
		switch {
		case pattern.MatchString(squeeze(string(out))) && (err == nil || strings.HasPrefix(want, "wanfed: ")):
			return
		case !readsOnly.MatchString(command) || time.Now().After(deadline):
			r.Fatalf("$ %s\n%s(%v)\nwant\n%s", command, out, err, want)
		}
		time.Sleep(20 * time.Millisecond) // another process's clock
	}
}

// squeeze makes of any white space one blank.
func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

var exported = regexp.MustCompile(`(?m)^  export (.*)$`)

// startDemo runs the command until the end of the test, and takes over what it
// exports when it is ready.
func (r *reader) startDemo(command string) {
	r.Helper()
	var log bytes.Buffer
	cmd := exec.Command("bash", "-c", "exec "+command)
	cmd.Dir, cmd.Env, cmd.Stderr = r.dir, r.env, &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	r.demo = cmd
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGINT) })()
	r.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		if err := cmd.Wait(); err != nil {
			r.Errorf("%s: %v\n%s", command, err, &log)
		}
	})
	var text strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Fprintln(&text, lines.Text())
		if strings.HasPrefix(lines.Text(), "Ctrl-C") {
			break
		}
	}
	all := exported.FindAllStringSubmatch(text.String(), -1)
	if len(all) != 3 {
		r.Fatalf("the demo exports %d lines, not 3:\n%s%s", len(all), &text, &log)
	}
	for _, m := range all {
		r.env = append(r.env, strings.Fields(m[1])...)
	}
}
