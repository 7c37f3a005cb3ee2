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

// shell is a shell process that runs the steps of a README.
type shell struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

// newShell starts a shell in the root directory of the repository. The shell
// and its background processes end with the test.
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
			t.Logf("stderr of the shell:\n%s", errs.String())
		}
	})
	return &shell{t, cmd, in, bufio.NewReader(out)}
}

// step runs script, waits for its foreground commands, and returns the last
// line of their output.
func (s *shell) step(script string) (last string) {
	s.t.Helper()
	const done = "that step is done"
	if _, err := fmt.Fprintf(s.in, "%s\necho '%s'\n", script, done); err != nil {
		s.t.Fatal(err)
	}
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			s.t.Fatalf("the shell ended with %v, want the end of the step\n%s", err, script)
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

// steps returns the shell scripts of a README. Free ports replace the ports of
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

// freeAddr returns a loopback address whose port is free.
func freeAddr(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// allNodes are the nodes of both READMEs.
var allNodes = []string{"a.dc1", "a.dc2", "b.dc1", "b.dc2"}

// waitForLogs waits until done returns true for the log of each of nodes. what
// describes the condition.
func waitForLogs(t testing.TB, what, dir string, nodes []string, done func(log []string) bool) {
	t.Helper()
	start, timeout := time.Now(), time.After(45*time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for pending := slices.Clone(nodes); len(pending) > 0; {
		pending = slices.DeleteFunc(pending, func(node string) bool { return done(logOf(t, dir, node)) })
		select {
		case <-tick.C:
		case <-timeout:
			for _, node := range pending {
				t.Errorf("log of %s = %s\nwant a log that %s", node, strings.Join(logOf(t, dir, node), "\n"), what)
			}
			t.FailNow()
		}
	}
	t.Logf("%s: after %v", what, time.Since(start).Round(time.Millisecond))
}

// logOf returns the lines of a node's log: at least one line, which may be
// empty.
func logOf(t testing.TB, dir, node string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, node+".log"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // before the start of the node
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// example is a README after the steps up to the start of the nodes.
type example struct {
	*shell
	scripts        []string // all steps
	dir            string   // directory of the logs
	leave, cleanUp string   // the remaining steps
}

// start runs the steps of a README up to the start of the nodes.
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

// checkRelay restarts all nodes except a of dc1. b of dc2 starts before a of
// dc2, so the gateway sends traffic for a to b. b must relay the traffic
// although it has not joined a. Before the call, b of dc2 has left.
func (ex *example) checkRelay() {
	ex.t.Helper()
	hasLine := func(pattern string) func([]string) bool {
		line := regexp.MustCompile(pattern)
		return func(log []string) bool { return slices.ContainsFunc(log, line.MatchString) }
	}
	commands := startOf.FindAllString(ex.scripts[3], -1)
	if len(commands) != 4 {
		ex.t.Fatalf("the README starts %d nodes, want 4", len(commands))
	}
	b1, a2, b2 := commands[1], commands[2], commands[3]
	ex.step("kill $a1 $b1 $a2 $gateway1 $gateway2; wait; rm *.log")
	ex.step(onlyB.ReplaceAllString(ex.scripts[2], "$1$2"))
	ex.step(b2)
	// b retries after a second
	waitForLogs(ex.t, "shows that a does not run yet", ex.dir, []string{"b.dc2"}, hasLine("connection refused"))
	ex.step(joinArg.ReplaceAllString(a2, "") + "\na1=")
	waitForLogs(ex.t, "shows that it runs", ex.dir, []string{"a.dc2"}, hasLine("^member"))
	ex.step(joinArg.ReplaceAllString(b1, " --join a.dc2/192.0.2.1:8300"))
	waitForLogs(ex.t, "lists a", ex.dir, []string{"b.dc1"}, hasLine(`^member.* a\.dc2`))
	if log := logOf(ex.t, ex.dir, "b.dc1"); hasLine("no such server")(log) {
		ex.t.Errorf("log of b.dc1 = %s\nwant no unknown server, because b of dc2 relays traffic for a",
			strings.Join(log, "\n"))
	}
	ex.step(ex.leave)
}

func TestMemberlist(t *testing.T) {
	testutil.Cluster(t)
	t.Parallel()
	ex := start(t, "memberlist/README.md")
	lastIs := func(want string) func([]string) bool {
		return func(log []string) bool { return log[len(log)-1] == want }
	}
	waitForLogs(t, "lists all members", ex.dir, allNodes, lastIs("members: a.dc1 a.dc2 b.dc1 b.dc2"))
	ex.step(ex.leave)
	waitForLogs(t, "shows that b.dc2 has left", ex.dir, allNodes[:3], lastIs("members: a.dc1 a.dc2 b.dc1"))
	ex.checkRelay()
	ex.step(ex.cleanUp)
}

func TestSerf(t *testing.T) {
	testutil.Cluster(t)
	t.Parallel()
	ex := start(t, "serf/README.md")
	has := func(want ...string) func([]string) bool {
		return func(log []string) bool {
			return !slices.ContainsFunc(want, func(line string) bool { return !slices.Contains(log, line) })
		}
	}
	waitForLogs(t, "lists all members and events", ex.dir, allNodes,
		has("member-join a.dc1", "member-join a.dc2", "member-join b.dc1",
			"member-join b.dc2", "user-event: b.dc2: good morning"))
	ex.step(ex.leave)
	waitForLogs(t, "shows that b.dc2 has left", ex.dir, allNodes[:3], has("member-leave b.dc2"))
	ex.checkRelay()
	ex.step(ex.cleanUp)
}

func TestExamplesUseTheTunnelAlone(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "./memberlist", "./serf").Output()
	if err != nil {
		t.Fatal(err)
	}
	const module = "github.com/wanfed/wanfed/"
	allowed := []string{"wanfed", "tlsutil", "internal/atomicfile", "internal/backoff", "internal/broadcast", "internal/dirlock",
		"internal/netaddr", "internal/proxyproto", "internal/ratelog", "examples/memberlist", "examples/serf"}
	for dep := range strings.Lines(string(out)) {
		dep = strings.TrimSpace(dep)
		if pkg, ok := strings.CutPrefix(dep, module); ok && !slices.Contains(allowed, pkg) ||
			strings.Contains(dep, "hashicorp/raft") {
			t.Errorf("dependency %s of the examples, want only %v of this module, and no Raft", dep, allowed)
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
