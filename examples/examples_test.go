// SPDX-License-Identifier: MPL-2.0

//go:build unix

package examples

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// shell runs the steps of a README one after the other.
type shell struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

// newShell starts a shell in the root directory of the repository. Its background
// processes are in its process group and end with the test.
func newShell(t testing.TB) *shell {
	t.Helper()
	cmd := exec.Command("sh", "-eu")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // fails only if all have ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the shell's errors:\n%s", errs.String())
		}
	})
	return &shell{t, cmd, in, bufio.NewReader(out)}
}

// step runs script and returns the last line it printed. It waits for the
// foreground commands.
func (s *shell) step(script string) (last string) {
	s.t.Helper()
	const done = "that step is done"
	if _, err := fmt.Fprintf(s.in, "%s\necho '%s'\n", script, done); err != nil {
		s.t.Fatal(err)
	}
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			s.t.Fatalf("the shell ended in the step\n%s", script)
		}
		if line = strings.TrimSpace(line); line == done {
			return last
		}
		last = line
	}
}

var (
	shBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")
	address = regexp.MustCompile(`127\.0\.0\.1:\d+`)
	startOf = regexp.MustCompile(`(?s)\./(?:serf|memberlist) .*?& \w\w=\$!`)
	joinArg = regexp.MustCompile(` --join \S+`)
	onlyB   = regexp.MustCompile(`(route "server\.dc2\.wanfed" +\{ to = \[)"[^"]*", ("[^"]*"\] \})`)
)

// steps returns the shell scripts of a README, with free ports in place of those in
// the text.
func steps(t testing.TB, readme string) (scripts []string) {
	t.Helper()
	b, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	free := map[string]string{}
	for _, m := range shBlock.FindAllSubmatch(b, -1) {
		scripts = append(scripts, address.ReplaceAllStringFunc(string(m[1]), func(addr string) string {
			if free[addr] == "" {
				free[addr] = freeAddr(t)
			}
			return free[addr]
		}))
	}
	return scripts
}

// freeAddr returns a free address. Only the caller's programs use it.
func freeAddr(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

var nodes = []string{"a.dc1", "a.dc2", "b.dc1", "b.dc2"}

// wait waits until done returns true for the output of each node in of. what
// describes the condition.
func wait(t testing.TB, what, dir string, of []string, done func(log []string) bool) {
	t.Helper()
	start, end := time.Now(), time.After(45*time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for left := slices.Clone(of); len(left) > 0; {
		left = slices.DeleteFunc(left, func(node string) bool { return done(logOf(t, dir, node)) })
		select {
		case <-tick.C:
		case <-end:
			for _, node := range left {
				t.Errorf("%s: no output that %s, got\n%s", node, what, strings.Join(logOf(t, dir, node), "\n"))
			}
			t.FailNow()
		}
	}
	t.Logf("%s: after %v", what, time.Since(start).Round(time.Millisecond))
}

// logOf returns the lines that a node printed: at least one, which may be empty.
func logOf(t testing.TB, dir, node string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, node+".log"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the shell may not have started the node yet
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// example is a README whose steps were run up to the start of the nodes. Two steps
// remain.
type example struct {
	*shell
	scripts        []string
	dir            string
	leave, cleanUp string
}

func start(t testing.TB, readme string) *example {
	t.Helper()
	scripts := steps(t, readme)
	if len(scripts) != 6 {
		t.Fatalf("%s has %d steps, want 6", readme, len(scripts))
	}
	s := newShell(t)
	for _, script := range scripts[:4] {
		s.step(script)
	}
	return &example{s, scripts, s.step("pwd"), scripts[4], scripts[5]}
}

// checkRelay restarts all nodes but a of dc1. Traffic from dc1 to a of dc2 then
// reaches b of dc2, which has not joined a yet. b must relay it. Before the call, b
// of dc2 has left.
func (x *example) checkRelay() {
	x.t.Helper()
	prints := func(pattern string) func([]string) bool {
		line := regexp.MustCompile(pattern)
		return func(log []string) bool { return slices.ContainsFunc(log, line.MatchString) }
	}
	nodes := startOf.FindAllString(x.scripts[3], -1)
	if len(nodes) != 4 {
		x.t.Fatalf("the README starts %d nodes, want 4", len(nodes))
	}
	b1, a2, b2 := nodes[1], nodes[2], nodes[3]
	x.step("kill $a1 $b1 $a2 $gateway1 $gateway2; wait; rm *.log")
	x.step(onlyB.ReplaceAllString(x.scripts[2], "$1$2"))
	x.step(b2)
	wait(x.t, "shows that a does not run yet", x.dir, []string{"b.dc2"}, prints("connection refused")) // it retries after a second
	x.step(joinArg.ReplaceAllString(a2, "") + "\na1=")
	wait(x.t, "shows that it runs", x.dir, []string{"a.dc2"}, prints("^member"))
	x.step(joinArg.ReplaceAllString(b1, " --join a.dc2/192.0.2.1:8300"))
	wait(x.t, "lists a", x.dir, []string{"b.dc1"}, prints(`^member.* a\.dc2`))
	if log := logOf(x.t, x.dir, "b.dc1"); prints("no such server")(log) {
		x.t.Errorf("b of dc2 did not relay traffic for a:\n%s", strings.Join(log, "\n"))
	}
	x.step(x.leave)
}

func TestMemberlist(t *testing.T) {
	testutil.Cluster(t)
	t.Parallel()
	x := start(t, "memberlist/README.md")
	lastIs := func(want string) func([]string) bool {
		return func(log []string) bool { return log[len(log)-1] == want }
	}
	wait(t, "lists all members", x.dir, nodes, lastIs("members: a.dc1 a.dc2 b.dc1 b.dc2"))
	x.step(x.leave)
	wait(t, "shows that b.dc2 has left", x.dir, nodes[:3], lastIs("members: a.dc1 a.dc2 b.dc1"))
	x.checkRelay()
	x.step(x.cleanUp)
}

func TestSerf(t *testing.T) {
	testutil.Cluster(t)
	t.Parallel()
	x := start(t, "serf/README.md")
	has := func(want ...string) func([]string) bool {
		return func(log []string) bool {
			return !slices.ContainsFunc(want, func(line string) bool { return !slices.Contains(log, line) })
		}
	}
	wait(t, "lists all members and events", x.dir, nodes, has("member-join a.dc1", "member-join a.dc2", "member-join b.dc1",
		"member-join b.dc2", "user-event: b.dc2: good morning"))
	x.step(x.leave)
	wait(t, "shows that b.dc2 has left", x.dir, nodes[:3], has("member-leave b.dc2"))
	x.checkRelay()
	x.step(x.cleanUp)
}

func TestExamplesUseTheTunnelAlone(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "./memberlist", "./serf").Output()
	if err != nil {
		t.Fatal(err)
	}
	const module = "github.com/wanfed/wanfed/"
	allowed := []string{"wanfed", "tlsutil", "internal/atomicfile", "internal/backoff", "internal/broadcast", "internal/proxyproto", "internal/ratelog",
		"examples/memberlist", "examples/serf"}
	for dep := range strings.Lines(string(out)) {
		dep = strings.TrimSpace(dep)
		if ours, ok := strings.CutPrefix(dep, module); ok && !slices.Contains(allowed, ours) || strings.Contains(dep, "hashicorp/raft") {
			t.Errorf("the examples depend on %s", dep)
		}
	}
}

func TestExamplesAreShort(t *testing.T) {
	for _, path := range []string{"memberlist/main.go", "serf/main.go"} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(b, []byte("\n")); n >= 100 {
			t.Errorf("%s has %d lines, want less than 100", path, n)
		}
	}
}
