// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// recoveryLimit is the maximum time from the loss of a majority until the
// datacenter accepts writes, by the documented commands.
const recoveryLimit = 60 * time.Second

// three starts a datacenter of three servers with fixed ports.
func (l *loopback) three(t *testing.T) []*diskServer {
	t.Helper()
	var addrs []string
	for range 3 {
		addrs = append(addrs, net.JoinHostPort("127.0.0.1", strconv.Itoa(unusedPort(t))))
	}
	var all []*diskServer
	for i := range 3 {
		d := l.newDiskServer(t, fmt.Sprintf("srv%d", i+1), func(c *subprocess.ServerConfig) {
			_, port, _ := net.SplitHostPort(addrs[i])
			c.Port, _ = strconv.Atoi(port)
			c.BootstrapExpect, c.RetryJoin = 3, addrs
		})
		d.start()
		all = append(all, d)
	}
	return all
}

// documentedCommands returns the commands in the first console block of a
// section of a page.
func documentedCommands(t *testing.T, page, heading string) (commands []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(b), "\n## "+heading+"\n")
	_, block, ok2 := strings.Cut(section, "```console\n")
	block, _, _ = strings.Cut(block, "```")
	if !ok || !ok2 {
		t.Fatalf("%s has no section %q with commands", page, heading)
	}
	for _, m := range regexp.MustCompile(`(?m)^\$ (.*)$`).FindAllStringSubmatch(block, -1) {
		commands = append(commands, m[1])
	}
	return commands
}

// has returns the acknowledged values that the server can serve without a
// leader.
func (d *diskServer) has(values map[string][]byte) map[string][]byte {
	d.t.Helper()
	out := map[string][]byte{}
	for name, value := range values {
		if status, _, _ := d.request(http.MethodGet, name+"?raw&stale", nil); status == http.StatusOK {
			out[name] = value
		}
	}
	return out
}

// groupID returns the id of the Raft group of the server's datacenter.
func (d *diskServer) groupID() string {
	d.t.Helper()
	out, err := exec.Command(d.bin, "resource", "read", "federation/v1/Group", "local", "--http-addr",
		d.server.HTTP).Output()
	if err != nil {
		d.t.Fatalf("wanfed resource read federation/v1/Group local: %v", err)
	}
	return regexp.MustCompile(`"id": "([0-9a-f]{16})"`).FindString(string(out))
}

// TestRecoverLostMajority kills two of three servers for good. The commands of
// the documentation make the third one writable again, with every value that it
// had. Then two servers with empty disks join, with the old names.
func TestRecoverLostMajority(t *testing.T) {
	t.Parallel()
	testutil.Cluster(t)
	l := newLoopback(t)
	all := l.three(t)
	survivor := all[2]
	survivor.awaitPut("a leader")
	for range 4 {
		survivor.awaitPut("a value")
	}
	id := survivor.groupID()
	first := map[string][]byte{"srv3-0": survivor.values["srv3-0"], "srv3-3": survivor.values["srv3-3"]}
	testutil.Await(t, waitLimit, "values at srv3", func(context.Context) error {
		if got := survivor.has(first); len(got) < len(first) {
			return fmt.Errorf("srv3 has %d of %d values", len(got), len(first))
		}
		return nil
	})
	for _, lost := range all[:2] {
		lost.server.Kill()
	}
	lostAt := time.Now()
	had := survivor.has(survivor.values)

	op := l.ca.Files(t, tlsutil.RoleOperator, "op", "dc1")
	snapshot := filepath.Join(t.TempDir(), "dc1-stale.snap")
	for _, command := range documentedCommands(t, "troubleshooting.md", "A lost majority") {
		switch command {
		case "systemctl stop wanfed":
			if out, err := exec.Command(l.bin, "server", "recover", "--yes", "--data-dir",
				survivor.data()).CombinedOutput(); err == nil ||
				!strings.Contains(string(out), "in use by another process") {
				t.Errorf("recover of a running server = %v, %s, want a refusal", err, out)
			}
			survivor.stopClean()
			continue
		case "systemctl start wanfed":
			survivor.start()
			continue
		}
		command = strings.NewReplacer("dc1-stale.snap", snapshot, "10.0.0.7:8300", survivor.server.Addr,
			"/var/lib/wanfed", survivor.data()).Replace(command)
		args := strings.Fields(command)[1:]
		if args[0] == "server" {
			args = append(args, "--yes")
		}
		cmd := exec.Command(l.bin, args...)
		cmd.Env = append(os.Environ(), "WANFED_CA_FILE="+op.CA, "WANFED_CERT_FILE="+op.Cert, "WANFED_KEY_FILE="+op.Key)
		out, err := cmd.CombinedOutput()
		t.Logf("%s\n%s", command, out)
		if err != nil {
			t.Fatal(err)
		}
	}
	survivor.awaitPut("a write after the recovery")
	took := time.Since(lostAt)
	t.Logf("writable %v after the loss, with %d values", took.Round(time.Millisecond), len(had))
	if took > recoveryLimit {
		t.Errorf("writable %v after the loss, want less than %v", took, recoveryLimit)
	}
	survivor.check(had, "")
	if got := survivor.groupID(); got == "" || got != id {
		t.Errorf("group id = %q, want %q as before", got, id)
	}
	out, err := exec.Command(l.bin, "snapshot", "inspect", snapshot).Output()
	if err != nil || !strings.Contains(string(out), "it is stale") {
		t.Errorf("snapshot inspect = %s, %v, want stale", out, err)
	}

	for _, lost := range all[:2] {
		if err := os.RemoveAll(lost.data()); err != nil {
			t.Fatal(err)
		}
		lost.config.BootstrapExpect, lost.config.RetryJoin = 0, []string{survivor.server.Addr}
		lost.start()
	}
	(&grown{l, all}).awaitWhole(t, 2*waitLimit)
	all[0].check(had, "")
	survivor.server.Kill() // the new voters are a majority
	all[1].awaitPut("a write without the recovered server")
	all[1].check(had, "")
}
