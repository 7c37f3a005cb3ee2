// SPDX-License-Identifier: MPL-2.0

package test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/test/lab"
)

// oneOpenPort are rules of nft: other machines reach only TCP port 8443.
const oneOpenPort = `table inet open {
	chain in {
		type filter hook input priority 0; policy drop;
		iif lo accept
		ct state established,related accept
		tcp dport 8443 accept
		icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
	}
}`

// openOnlyPort closes all ports of a namespace except TCP 8443.
func openOnlyPort(t *testing.T, ns string) {
	t.Helper()
	cmd := exec.Command("ip", "netns", "exec", ns, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(oneOpenPort)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft in %s: %v: %s", ns, err, out)
	}
}

// stopAll ends all processes of a namespace at the end of the test: those that
// wanfed init and wanfed join have started continue after their command.
func stopAll(t *testing.T, ns string) {
	t.Cleanup(func() {
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
				out, err := exec.Command("ip", "netns", "pids", ns).Output()
				if err != nil {
					t.Error(err)
				}
				left := 0
				for field := range strings.FieldsSeq(string(out)) {
					pid, _ := strconv.Atoi(field)
					name, _ := os.ReadFile("/proc/" + field + "/comm")
					if strings.TrimSpace(string(name)) == "wanfed" && !errors.Is(syscall.Kill(pid, s), syscall.ESRCH) {
						left++
					}
				}
				if left == 0 {
					return
				}
			}
		}
		t.Errorf("processes of %s do not end", ns)
	})
}

// prompt begins a command on one of two machines.
var prompt = regexp.MustCompile(`(?m)^(dc[12])\$ `)

// TestGettingStarted executes docs/getting-started.md on two machines with the
// same private address, which share one open TCP port. The three commands that
// federate them take less than 10 s.
func TestGettingStarted(t *testing.T) {
	t.Parallel()
	lab.NeedNFT(t)
	network := lab.NewNetwork(t)
	wan := network.Bridge("wan")
	machines := map[string]*reader{}
	for dc, addr := range map[string]string{"dc1": "198.51.100.1", "dc2": "203.0.113.2"} {
		r, ns := newMachineIn(t, network, dc, "10.0.0.5")
		network.Plug(ns, "wan0", addr+"/4", wan)
		openOnlyPort(t, ns)
		stopAll(t, ns)
		machines[dc] = r
	}
	commands, token, joined := 0, "", time.Duration(0)
	for _, b := range blocksOf(readDoc(t, "getting-started.md")) {
		if b.language != "console" {
			t.Fatalf("code block of language %q, want console", b.language)
		}
		at := prompt.FindAllStringSubmatchIndex(b.text, -1)
		for i, m := range at {
			end := len(b.text)
			if i+1 < len(at) {
				end = at[i+1][0]
			}
			r := machines[b.text[m[2]:m[3]]]
			command, want := cutCommand(b.text[m[1]:end])
			commands++
			began := time.Now()
			switch {
			case strings.HasPrefix(command, "wanfed token issue"):
				out, err := r.command(t.Context(), command).Output()
				if err != nil || !strings.HasPrefix(string(out), strings.TrimSuffix(want, "...\n")) {
					t.Fatalf("%s = %s, %v, want %s", command, out, err, want)
				}
				token = strings.TrimSpace(string(out))
			default:
				r.run(strings.ReplaceAll(command, "TOKEN", token), want)
			}
			if joined += time.Since(began); strings.HasPrefix(command, "wanfed join") {
				t.Logf("federated %v after the first command", joined)
				if joined > 10*time.Second {
					t.Errorf("federated after %v, want at most 10s", joined)
				}
			}
		}
	}
	if commands != 8 {
		t.Errorf("executed %d commands, want 8", commands)
	}
	for dc, r := range machines {
		out, err := r.command(t.Context(), "find /etc/wanfed /var/lib/wanfed -name '*-key.pem' ! -perm 0600; ls /etc/wanfed/*key.pem").Output()
		if err != nil || strings.Count(string(out), "\n") != 3 {
			t.Errorf("keys of %s = %s, %v, want those of server, gateway and operator, mode 0600", dc, out, err)
		}
	}
}

// enrolled is a directory of wanfed in a namespace.
type enrolled struct {
	*testing.T
	ns, dir string
}

// wanfed runs a command with --dir, and returns its output. It fails the test
// unless the error of the command contains want, or, if want is empty, the
// command succeeds.
func (e enrolled) wanfed(want string, args ...string) string {
	e.Helper()
	var stderr strings.Builder
	cmd := exec.Command("ip", append([]string{"netns", "exec", e.ns, lab.Binary(e.T)}, append(args, "--dir", e.dir)...)...)
	cmd.Stderr = &stderr
	began := time.Now()
	out, err := cmd.Output()
	e.Logf("%5.2f s wanfed %s", time.Since(began).Seconds(), strings.Join(args[:min(len(args), 2)], " "))
	if (err != nil) != (want != "") || !strings.Contains(stderr.String(), want) {
		log, _ := os.ReadFile(e.dir + "/data/server.log")
		e.Fatalf("wanfed %.60v in %s = %v, want the error %q:\n%s\n%s\n%s", args, e.ns, err, want, out, &stderr, log)
	}
	return strings.TrimSpace(string(out))
}

// enrollNetwork has machines on one network, by their number.
func enrollNetwork(t *testing.T, address func(i int) string, n int) []enrolled {
	t.Helper()
	lab.Binary(t) // before the time of the commands
	network := lab.NewNetwork(t)
	wan := network.Bridge("wan")
	var all []enrolled
	for i := 1; i <= n; i++ {
		ns := network.Namespace(fmt.Sprint("m", i))
		network.Plug(ns, "wan0", address(i), wan)
		stopAll(t, ns)
		all = append(all, enrolled{t, ns, fmt.Sprintf("%s/m%d", t.TempDir(), i)})
	}
	return all
}

// TestEnroll_Grow adds a third datacenter, a second server of the secondary and
// a second gateway of the primary.
func TestEnroll_Grow(t *testing.T) {
	t.Parallel()
	m := enrollNetwork(t, func(i int) string { return fmt.Sprintf("198.51.100.%d/24", i) }, 5)
	m[0].wanfed("", "init", "--dc", "dc1", "--wan", "198.51.100.1:8443")
	for i, dc := range []string{"dc2", "dc3"} {
		token := m[0].wanfed("", "token", "issue", "--dc", dc)
		m[i+1].wanfed("", "join", token, "--wan", fmt.Sprintf("198.51.100.%d:8443", i+2))
	}
	m[3].wanfed("", "join", m[1].wanfed("", "token", "issue", "--role", "server"))
	m[4].wanfed("", "join", m[0].wanfed("", "token", "issue", "--role", "gateway"), "--wan", "198.51.100.5:8443")
	for _, one := range m[:4] {
		out := one.wanfed("", "status", "--wait", "20s")
		for _, want := range []string{"all 3 datacenters are ok", "2/2 alive", "2/2 healthy"} {
			if !strings.Contains(out, want) {
				t.Errorf("status in %s =\n%s\nwant %q", one.ns, out, want)
			}
		}
	}
	if out := m[1].wanfed("", "operator", "raft", "list-peers"); !strings.Contains(out, "srv2") {
		t.Errorf("Raft group of dc2 =\n%s\nwant srv2", out)
	}
	m[1].wanfed("this server cannot sign CAs of datacenters", "token", "issue", "--dc", "dc4")
}

// TestEnroll_GossipKey adds a datacenter and a server to a federation with
// encrypted gossip. A gateway receives no key.
func TestEnroll_GossipKey(t *testing.T) {
	t.Parallel()
	m := enrollNetwork(t, func(i int) string { return fmt.Sprintf("198.51.100.%d/24", i) }, 4)
	m[0].wanfed("", "init", "--dc", "dc1", "--wan", "198.51.100.1:8443", "--no-start")
	keyFile, settings := m[0].dir+"/gossip-key", m[0].dir+"/server.hcl"
	b, err := os.ReadFile(settings)
	err = errors.Join(err, os.WriteFile(keyFile, []byte(gossip.NewKey().Base64()), 0o600),
		os.WriteFile(settings, fmt.Appendf(b, "\nencrypt_file = %q\n", keyFile), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	up := exec.Command("ip", "netns", "exec", m[0].ns, lab.Binary(t), "up", "--dir", m[0].dir)
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	m[0].wanfed("", "status", "--wait", "20s")
	m[1].wanfed("", "join", m[0].wanfed("", "token", "issue", "--dc", "dc2"), "--wan", "198.51.100.2:8443")
	m[2].wanfed("", "join", m[1].wanfed("", "token", "issue", "--role", "server"))
	m[3].wanfed("", "join", m[1].wanfed("", "token", "issue", "--role", "gateway"), "--wan", "198.51.100.4:8443")
	for _, one := range m[:3] {
		out := one.wanfed("", "status", "--wait", "20s")
		if !strings.Contains(out, "all 2 datacenters are ok") || !strings.Contains(out, "encrypted with ") {
			t.Errorf("status in %s =\n%s\nwant two datacenters with encrypted gossip", one.ns, out)
		}
		if st, err := os.Stat(one.dir + "/gossip-key"); err != nil || st.Mode() != 0o600 {
			t.Errorf("file with the gossip key in %s = %v, %v, want mode 0600", one.ns, st, err)
		}
	}
	if _, err := os.Stat(m[3].dir + "/gossip-key"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("file with the gossip key of a gateway = %v, want none", err)
	}
	if err := errors.Join(up.Process.Signal(syscall.SIGTERM), up.Wait()); err != nil {
		t.Errorf("wanfed up = %v", err)
	}
}

// TestEnroll_IPv6AndNames federates two datacenters by DNS names of IPv6
// addresses, and two others by IPv6 addresses.
func TestEnroll_IPv6AndNames(t *testing.T) {
	t.Parallel()
	m := enrollNetwork(t, func(i int) string { return fmt.Sprintf("fd00::%d/64", i) }, 2)
	network := lab.NewNetwork(t)
	names := map[string]string{"gw.dc1.example": "fd00::1", "gw.dc2.example": "fd00::2"}
	for _, one := range m {
		network.Hosts(one.ns, names)
		awaitIPv6(t, one.ns)
	}
	m[0].wanfed("", "init", "--dc", "dc1", "--wan", "gw.dc1.example:8443")
	m[1].wanfed("", "join", m[0].wanfed("", "token", "issue", "--dc", "dc2"), "--wan", "gw.dc2.example:8443")
	for _, one := range m {
		if out := one.wanfed("", "status", "--wait", "20s"); !strings.Contains(out, "all 2 datacenters are ok") {
			t.Errorf("status in %s =\n%s", one.ns, out)
		}
	}
	m2 := enrollNetwork(t, func(i int) string { return fmt.Sprintf("fd00::%d/64", i) }, 2)
	for _, one := range m2 {
		awaitIPv6(t, one.ns)
	}
	m2[0].wanfed("", "init", "--dc", "dc1", "--wan", "[fd00::1]:8443")
	m2[1].wanfed("", "join", m2[0].wanfed("", "token", "issue", "--dc", "dc2"), "--wan", "[fd00::2]:8443")
}

// awaitIPv6 waits until no address of a namespace is tentative (RFC 4862 section
// 5.4).
func awaitIPv6(t *testing.T, ns string) {
	t.Helper()
	for range 500 {
		out, err := exec.Command("ip", "-n", ns, "-6", "addr", "show", "tentative").Output()
		if err == nil && len(out) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond) // the kernel has no event for it
	}
	t.Fatalf("addresses of %s are tentative after 10 s", ns)
}

// TestEnroll_Refused uses tokens that are not valid, with real processes: no
// file is written, and the server logs each reason.
func TestEnroll_Refused(t *testing.T) {
	t.Parallel()
	m := enrollNetwork(t, func(i int) string { return fmt.Sprintf("198.51.100.%d/24", i) }, 3)
	m[0].wanfed("", "init", "--dc", "dc1", "--wan", "198.51.100.1:8443")
	m[0].wanfed("exists and is not empty", "init", "--dc", "dc1", "--wan", "198.51.100.1:8443")
	other := m[0]
	other.dir += "-other"
	other.wanfed("port of 0.0.0.0:8300 is in use", "init", "--dc", "dc9", "--wan", "198.51.100.1:9443")

	expired := m[0].wanfed("", "token", "issue", "--dc", "dc2", "--ttl", "1ms")
	m[1].wanfed("the token is not valid", "join", expired, "--wan", "198.51.100.2:8443")
	once := m[0].wanfed("", "token", "issue", "--dc", "dc2")
	m[1].wanfed("damaged", "join", once[:len(once)-2]+"AA", "--wan", "198.51.100.2:8443")
	m[1].wanfed("--wan is required", "join", once)
	m[1].wanfed("", "join", once, "--wan", "198.51.100.2:8443")
	m[2].wanfed("the token is not valid", "join", once, "--wan", "198.51.100.3:8443")
	again := m[0].wanfed("", "token", "issue", "--dc", "dc2")
	m[2].wanfed("datacenter dc2 exists", "join", again, "--wan", "198.51.100.3:8443")
	if files, err := os.ReadDir(m[2].dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("files after a refusal = %v, %v, want none", files, err)
	}
	if left, _ := os.ReadDir(m[2].dir + "/.."); len(left) > 0 {
		t.Errorf("temporary files after a refusal = %v, want none", left)
	}
	log, err := os.ReadFile(m[0].dir + "/data/server.log")
	if err != nil || strings.Count(string(log), "certificate issued") != 1 || !strings.Contains(string(log), "it expired at") {
		t.Errorf("log = %s, %v, want one issued certificate and the reason of a refusal", log, err)
	}
}

// TestUp runs the server and the gateway in one process in the foreground.
func TestUp(t *testing.T) {
	t.Parallel()
	m := enrollNetwork(t, func(i int) string { return fmt.Sprintf("198.51.100.%d/24", i) }, 1)[0]
	m.wanfed("", "init", "--dc", "dc1", "--wan", "198.51.100.1:8443", "--no-start")
	up := exec.Command("ip", "netns", "exec", m.ns, lab.Binary(t), "up", "--dir", m.dir)
	var log strings.Builder
	up.Stdout, up.Stderr = &log, &log
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	for range 500 {
		out, err := exec.Command("ip", "netns", "exec", m.ns, lab.Binary(t), "status", "--exit-code", "--dir", m.dir).CombinedOutput()
		if err == nil {
			break
		}
		if up.ProcessState != nil {
			t.Fatalf("wanfed up has ended: %s\n%s", out, &log)
		}
		time.Sleep(20 * time.Millisecond) // another process has no event to wait for
	}
	m.wanfed("", "status", "--exit-code")
	_ = up.Process.Signal(syscall.SIGTERM)
	if err := up.Wait(); err != nil {
		t.Errorf("wanfed up = %v, want nil\n%s", err, &log)
	}
	m.dir += "-none"
	m.wanfed("has neither server.hcl nor gateway.hcl", "up")
}
