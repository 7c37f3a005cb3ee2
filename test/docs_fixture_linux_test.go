// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// block is a code block, with the last file name in the text before it.
type block struct{ language, file, text string }

var (
	fenced = regexp.MustCompile("(?ms)^( *)```(\\w+)\n(.*?)^ *```$")
	named  = regexp.MustCompile("`([\\w/.-]+\\.(?:proto|go|hcl|tf))`")
)

// blocksOf returns the code blocks of a Markdown page. A block in a list is
// indented.
func blocksOf(page string) (all []block) {
	file, at := "", 0
	for _, m := range fenced.FindAllStringSubmatchIndex(page, -1) {
		if names := named.FindAllStringSubmatch(page[at:m[0]], -1); names != nil {
			file = names[len(names)-1][1]
		}
		indent, text := page[m[2]:m[3]], page[m[6]:m[7]]
		text = strings.ReplaceAll("\n"+text, "\n"+indent, "\n")[1:]
		all = append(all, block{page[m[4]:m[5]], file, text})
		at = m[1]
	}
	return all
}

// reader executes the code blocks of a page, as a user does who reads it from
// the beginning to the end.
type reader struct {
	*testing.T
	dir string
	env []string
	// machine is the start of each command line: a program that runs the rest of
	// the line on the machine of the page. Empty: this machine.
	machine  []string
	commands int // executed
	untested int // marked as not executed
	demo     *exec.Cmd
}

// read executes all blocks of a page.
func (r *reader) read(path string) {
	r.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		r.Fatal(err)
	}
	for _, b := range blocksOf(string(text)) {
		r.do(b)
	}
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
			command, want := cutCommand(part)
			switch m := marked.FindStringSubmatch(command); {
			case strings.TrimSpace(command) == "":
			case m == nil:
				r.run(command, want)
			case !strings.HasPrefix(command, m[1]+" ") || want != "":
				r.Errorf("$ %s\nis marked as not tested, want only %s, without output", command, m[1])
			default:
				r.untested++
			}
		}
	default:
		r.Fatalf("code block of language %q, want proto, go, hcl, diff or console", b.language)
	}
}

// marked matches the mark of a command that no test executes: a comment at its
// end. Consul's program cannot be part of the tests because of its licence.
var marked = regexp.MustCompile(` # not tested: needs (consul)$`)

var continued = regexp.MustCompile(`[\\|]\n$`)

// cutCommand splits a command from its output. A backslash or a pipe at the end
// of a line continues the command.
func cutCommand(text string) (command, output string) {
	lines := strings.SplitAfter(text, "\n")
	n := 1 + slices.IndexFunc(lines, func(line string) bool { return !continued.MatchString(line) })
	return strings.TrimSuffix(strings.Join(lines[:n], ""), "\n"), strings.Join(lines[n:], "")
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
// because replication to another datacenter, the registration of a gateway and
// the run of a task take time.
var readsOnly = regexp.MustCompile(`(resource|task) (read|list|history|log)|gateway (snapshot|routes)|^cat |^curl -s (-H|[^-])`)

// serving matches programs that run until a signal, and that report on one line
// when they are ready.
var serving = regexp.MustCompile(`^wanfed ((server|gateway|envoy run) -|sync --config-file \S+$)`)

// run runs a command and compares its output with want, in which "..." stands
// for any text.
func (r *reader) run(command, want string) {
	r.Helper()
	r.commands++
	began := time.Now()
	defer func() { r.Logf("%5.2f s $ %s", time.Since(began).Seconds(), command) }()
	pattern := regexp.MustCompile(`^` + strings.ReplaceAll(regexp.QuoteMeta(squeeze(want)), `\.\.\.`, `.*`) + `$`)
	switch {
	case strings.Contains(command, "wanfed demo"):
		r.startDemo(command)
		return
	case serving.MatchString(command):
		if _, out := r.start(command, func(string) bool { return true }); !pattern.MatchString(squeeze(out)) {
			r.Fatalf("$ %s\n%s\nwant\n%s", command, out, want)
		}
		return
	case strings.HasPrefix(command, "export "): // keep the environment for the following commands
		out, err := r.command(r.Context(), command+" && env -0").Output()
		if err != nil {
			r.Fatalf("$ %s: %v", command, err)
		}
		r.env = strings.FieldsFunc(string(out), func(c rune) bool { return c == 0 })
		return
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		out, err := r.command(r.Context(), command).CombinedOutput()
		switch {
		case pattern.MatchString(squeeze(string(out))) && (err == nil || strings.HasPrefix(want, "wanfed: ")):
			return
		case !readsOnly.MatchString(command) || time.Now().After(deadline):
			r.Fatalf("$ %s\n%s(%v)\nwant\n%s", command, out, err, want)
		}
		time.Sleep(20 * time.Millisecond) // another process has no event to wait for
	}
}

// command returns a command line of a page as a process.
func (r *reader) command(ctx context.Context, line string) *exec.Cmd {
	args := append(slices.Clone(r.machine), "bash", "-c", line)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = r.dir, r.env
	return cmd
}

// squeeze replaces each run of white space by one blank.
func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

// start runs a program until the end of the test. It returns the program, and its
// output up to the first line for which last returns true.
func (r *reader) start(command string, last func(line string) bool) (*exec.Cmd, string) {
	r.Helper()
	var log bytes.Buffer
	cmd := r.command(context.Background(), "exec "+command)
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
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
		if last(lines.Text()) {
			return cmd, text.String()
		}
	}
	r.Fatalf("$ %s\n%s\nwant a line that reports that it is ready", command, &text)
	return nil, ""
}

var exported = regexp.MustCompile(`(?m)^  export (.*)$`)

// startDemo runs the demo until the end of the test. It adds the variables that
// the demo prints to the environment of the following commands.
func (r *reader) startDemo(command string) {
	r.Helper()
	demo, text := r.start(command, func(line string) bool { return strings.HasPrefix(line, "Ctrl-C") })
	r.demo = demo
	all := exported.FindAllStringSubmatch(text, -1)
	if len(all) != 3 {
		r.Fatalf("the demo prints %d export lines, want 3:\n%s", len(all), text)
	}
	for _, m := range all {
		r.env = append(r.env, strings.Fields(m[1])...)
	}
}
