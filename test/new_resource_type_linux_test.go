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

// TestNewResourceType executes docs/new-resource-type.md in a copy of the
// repository. It writes and changes files as the page shows them, and runs the
// commands with one environment. The output of each command must match the
// page.
func TestNewResourceType(t *testing.T) {
	testutil.Cluster(t)
	for _, tool := range []string{"protoc", "make", "curl", "bash"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs the %s command", tool)
		}
	}
	if _, err := os.Stat("/usr/include/google/protobuf/any.proto"); err != nil {
		t.Skip("needs the Debian package libprotobuf-dev")
	}
	text, err := os.ReadFile("../docs/new-resource-type.md")
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{T: t, dir: t.TempDir(), env: os.Environ()}
	copyRepository(t, r.dir)
	blocks := blocksOf(string(text))
	if len(blocks) < 15 {
		t.Fatalf("page has %d code blocks, want at least 15", len(blocks))
	}
	for _, b := range blocks {
		r.do(b)
	}
	if r.commands < 15 || r.demo == nil {
		t.Errorf("page has %d commands, want at least 15 and one that starts the demo", r.commands)
	}
}

// block is a code block, with the last file name in the text before it.
type block struct{ language, file, text string }

var (
	fenced = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")
	named  = regexp.MustCompile("`([\\w/.-]+\\.(?:proto|go|hcl))`")
)

// blocksOf returns the code blocks of a Markdown page.
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

// copyRepository copies the files of the repository, without build products and
// testdata.
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

// reader executes code blocks in a copy of the repository.
type reader struct {
	*testing.T
	dir      string
	env      []string
	commands int
	demo     *exec.Cmd
}

// do executes one block: it writes a file, changes a file, or runs commands.
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
		r.Fatalf("code block of language %q, want proto, go, hcl, diff or console", b.language)
	}
}

// change applies a diff without line numbers: it adds the lines with a plus
// between the unmarked lines, which must occur in the file exactly once.
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
		r.Fatalf("%s has the following lines %d times, want once:\n%s", path, n, before.String())
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(b), "\n"+before.String(), "\n"+after.String(), 1)),
		0o600); err != nil {
		r.Fatal(err)
	}
}

// readsOnly matches commands that are repeated until their output matches,
// because replication to another datacenter takes time.
var readsOnly = regexp.MustCompile(`resource (read|list)|^curl -s [^-]`)

// run runs a command and compares its output with want, in which "..." stands
// for any text.
func (r *reader) run(command, want string) {
	r.Helper()
	r.commands++
	began := time.Now()
	defer func() { r.Logf("%5.2f s $ %s", time.Since(began).Seconds(), command) }()
	switch {
	case strings.Contains(command, "wanfed demo"):
		r.startDemo(command)
		return
	case strings.HasPrefix(command, "export "): // keep the environment for the following commands
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
		time.Sleep(20 * time.Millisecond) // another process has no event to wait for
	}
}

// squeeze replaces each run of white space by one blank.
func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

var exported = regexp.MustCompile(`(?m)^  export (.*)$`)

// startDemo runs the demo until the end of the test. It adds the variables that
// the demo prints to the environment of the following commands.
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
			r.Errorf("%s = %v, want nil\n%s", command, err, &log)
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
		r.Fatalf("the demo prints %d export lines, want 3:\n%s%s", len(all), &text, &log)
	}
	for _, m := range all {
		r.env = append(r.env, strings.Fields(m[1])...)
	}
}
